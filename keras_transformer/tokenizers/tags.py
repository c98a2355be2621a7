"""Tags in training text: reserved tokens that mark a source sentence, such as `<BT>` (Caswell et al., 2019).

A tag is a control symbol of its vocabulary. `Tokenizer.encode` never returns it, also where a text has its
characters, and `decode` drops it. So text that is translated, scored or served never has tags; the
functions here are for training text.
"""

import itertools
import re


def tags_of(tokenizer):
    """Returns the ids of the tags of any tokenizer, a dict; empty for one that knows no tags."""
    return getattr(tokenizer, "tags", {})


def encode_tagged(tokenizer, texts):
    """Encodes training texts: words that are a tag become its id; all else is as in `encode`.

    Args:
        tokenizer: `Tokenizer`.
        texts: list of str. A tag has spaces, or an end of the text, on both sides.

    Returns:
        list of lists of int, see `Tokenizer.encode`.
    """
    tags = tags_of(tokenizer)
    if not any(tag in text for tag in tags for text in texts):
        return tokenizer.encode(texts)
    pattern = re.compile(rf"(?<![^ ])({'|'.join(map(re.escape, tags))})(?![^ ])")
    splits = [pattern.split(text) for text in texts]  # text, tag, text, tag, ..., text
    # No piece crosses a space, so the parts have the ids that they have in the whole text.
    rows = iter(tokenizer.encode([part for split in splits for part in split[::2]]))
    return [
        [*next(rows), *(number for tag in split[1::2] for number in (tags[tag], *next(rows)))]
        for split in splits
    ]


def sample_tagged(tokenizer, rows, *, dropout, seed):
    """Returns other random segmentations of rows of ids; their tags stay where they are.

    Args:
        tokenizer: `Tokenizer`.
        rows: list of lists of int, from `encode_tagged`.
        dropout, seed: as in `Tokenizer.sample`.

    Returns:
        list of lists of int.
    """
    tags = frozenset(tags_of(tokenizer).values())
    if tags.isdisjoint(itertools.chain.from_iterable(rows)):
        return tokenizer.sample(tokenizer.decode(rows), dropout=dropout, seed=seed)
    splits = [[(kind, list(ids)) for kind, ids in itertools.groupby(row, tags.__contains__)] for row in rows]
    texts = tokenizer.decode([ids for split in splits for is_tag, ids in split if not is_tag])
    sampled = iter(tokenizer.sample(texts, dropout=dropout, seed=seed))
    return [
        [number for is_tag, ids in split for number in (ids if is_tag else next(sampled))] for split in splits
    ]
