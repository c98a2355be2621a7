"""Learns word pieces with tensorflow-text's learner, to exactly the size asked for."""

import collections
import itertools
import re
import unicodedata

from keras_transformer.tokenizers.base import SPACE

MAX_PIECE_LENGTH = 50  # in characters; longer words have no part in learning
MAX_WORDS = 500_000  # so many most frequent ones are learned from; time and memory grow with them
NUM_ITERATIONS = 4  # the learner's default
_CODE_POINT = re.compile(r"(\\[0-9]+;)")
_JOINER = "\n"  # no piece holds it
_SLACK = 0.05  # a vocabulary up to so much too large is good enough to cut
# They end a line, or part one for some programs: no piece of a text file.
_NEVER = frozenset(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF))


def learn_pieces(texts, num_pieces, *, always, escape, character_coverage, split_digits, num_reserved):
    """Learns `num_pieces` pieces: all characters, then the most frequent longer ones.

    The learner finds all pieces that occur in at least so many words which no longer
    piece serves already. The threshold is searched that gives at least `num_pieces`,
    and few more; those that occur least are cut off.

    Args:
        texts: iterable of lists of str, the words of each text.
        num_pieces: int.
        always: str, characters that have a piece whatever the texts hold.
        escape: function of a word and the alphabet, a set of characters; returns the
            word in characters of the alphabet.
        character_coverage: share of all characters that have a piece.
        split_digits: leaves out longer pieces that hold a digit.
        num_reserved: number of tokens beside the pieces, for messages.

    Returns:
        list of str: the sign for a space, the characters in order, then the longer
        pieces, the most frequent first.

    Raises:
        ValueError: there is no text, or `num_pieces` is too small or too large for it.
    """
    counts = collections.Counter()
    num_texts = 0
    for words in texts:
        counts.update(words)
        num_texts += 1
    if not counts:
        raise ValueError(f"`texts` must hold text. Received: {num_texts} texts, all blank")
    alphabet = _alphabet(counts, character_coverage) | set(always)
    singles = [SPACE, *sorted(alphabet)]
    if num_pieces < len(singles):
        raise ValueError(
            "`vocab_size` is too small: the characters of the texts and the special tokens alone need "
            f"{len(singles) + num_reserved}. Received: vocab_size={num_pieces + num_reserved}. "
            "Increase it, or lower `character_coverage`"
        )
    parts = collections.Counter()
    for word, count in counts.items():
        for part in _parts(SPACE + escape(word, alphabet)):
            parts[part] += count
    # By count, then by part: the order of the texts must not matter.
    frequent = sorted(parts.items(), key=lambda item: (-item[1], item[0]))[:MAX_WORDS]
    frequent = [(word, count) for word, count in frequent if len(word) <= MAX_PIECE_LENGTH]
    wanted = num_pieces - len(singles)
    longer = _search(frequent, wanted, split_digits) if wanted and frequent else []
    if len(longer) < wanted:
        raise ValueError(
            f"`vocab_size` is too large for these {num_texts} texts: the largest possible is "
            f"{len(longer) + len(singles) + num_reserved}. "
            f"Received: vocab_size={num_pieces + num_reserved}"
        )
    return singles + longer[:wanted]


def _alphabet(counts, coverage):
    characters = collections.Counter()
    for word, count in counts.items():
        for one in word:
            characters[one] += count
    total = sum(characters.values())
    alphabet = set()
    covered = 0
    for one, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total:
            break
        covered += count
        alphabet.add(one)
    return alphabet - _NEVER


def _parts(word):
    r"""Parts a word where letters and punctuation meet, so that no piece holds both.

    Marks and digits go with letters, the sign for a space with what follows it. A code
    point such as `\8364;` is a part of its own.
    """
    parts = []
    for section in _CODE_POINT.split(word.removeprefix(SPACE)):
        if _CODE_POINT.fullmatch(section):
            parts.append(section)
        else:
            parts += ("".join(group) for _, group in itertools.groupby(section, _is_of_words))
    return [SPACE + parts[0], *parts[1:]]


def _is_of_words(character):
    return unicodedata.category(character)[0] in "LMN"


def _search(words, wanted, split_digits):
    """Returns at least `wanted` pieces if there are so many, by falling frequency."""
    low, high = 1, words[0][1]
    best = None
    while low <= high:
        # Counts fall like 1 / rank: halve ratios, not differences.
        threshold = min(high, max(low, round((low * high) ** 0.5)))
        found = _learn(words, threshold, split_digits)
        if len(found) >= wanted:
            best = found
            if len(found) <= (1 + _SLACK) * wanted:
                break
            low = threshold + 1
        else:
            if threshold == 1:
                return found
            high = threshold - 1
    return best


def _learn(words, threshold, split_digits):
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    parameters = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=NUM_ITERATIONS,
        max_input_tokens=None,
        max_token_length=MAX_PIECE_LENGTH,
        max_unique_chars=None,
        vocab_size=None,
        slack_ratio=None,
        include_joiner_token=True,
        joiner=_JOINER,
        reserved_tokens=[],
    )
    found = learner.learn_with_thresh(words, threshold, parameters)
    pieces = [one.removeprefix(_JOINER) for one in found]
    if split_digits:
        pieces = [one for one in pieces if not any(map(str.isdecimal, one))]
    # Sorting by count, the learner may list a piece within words and at their start.
    return [one for one in dict.fromkeys(pieces) if len(one) > 1]
