"""Statistics of a vocabulary on a text: fertility, coverage, unknown tokens, tokens used."""

import collections
import itertools
from typing import NamedTuple

_CHUNK = 1000  # lines per call of `encode`


class Fragmented(NamedTuple):
    """A word that is split into many pieces.

    Attributes:
        word: str.
        pieces: list of str.
        count: number of occurrences in the text.
    """

    word: str
    pieces: list
    count: int  # type: ignore[assignment]


class Inspection(NamedTuple):
    """Statistics of one vocabulary on one text; characters and words are counted after normalisation.

    Attributes:
        vocab_size: number of tokens, special and byte tokens included.
        lines: number of lines.
        words: number of words, separated by spaces.
        characters: number of characters, spaces included.
        pieces: number of tokens, without end-of-sentence tokens.
        fertility: pieces per word.
        characters_per_piece: characters per piece.
        coverage: share of the characters that have a token of their own.
        unknown_rate: share of the pieces that are the unknown token.
        fallback_rate: share of the pieces that are byte tokens or part of an escaped code point.
        pieces_used: number of distinct tokens in the text.
        vocab_used: share of the vocabulary that occurs in the text.
        longest_pieces: list of str, the longest pieces used.
        most_fragmented: list of `Fragmented`, the words with the most pieces.
    """

    vocab_size: int
    lines: int
    words: int
    characters: int
    pieces: int
    fertility: float
    characters_per_piece: float
    coverage: float
    unknown_rate: float
    fallback_rate: float
    pieces_used: int
    vocab_used: float
    longest_pieces: list
    most_fragmented: list

    def to_dict(self):
        """Returns a dict for JSON, with the names of the attributes as keys."""
        return {**self._asdict(), "most_fragmented": [word._asdict() for word in self.most_fragmented]}

    def __str__(self):
        """Returns the statistics as a text table."""
        rows = [
            ("vocabulary", f"{self.vocab_size:,} tokens"),
            ("text", f"{self.lines:,} lines, {self.words:,} words, {self.characters:,} characters"),
            ("pieces", f"{self.pieces:,}"),
            ("fertility", f"{self.fertility:.3f} pieces per word"),
            ("characters per piece", f"{self.characters_per_piece:.2f}"),
            ("coverage", f"{self.coverage:.4%} of the characters have a token of their own"),
            ("unknown", f"{self.unknown_rate:.4%} of the pieces"),
            ("bytes or code points", f"{self.fallback_rate:.4%} of the pieces"),
            ("vocabulary used", f"{self.pieces_used:,} tokens, {self.vocab_used:.1%}"),
            ("longest pieces", "  ".join(self.longest_pieces)),
        ]
        labels = itertools.chain(["most fragmented"], itertools.repeat(""))
        rows += [
            (label, f"{' '.join(word.pieces)}  ({word.count:,} times)")
            for label, word in zip(labels, self.most_fragmented, strict=False)
        ]
        return "\n".join(f"{name:<22}{value}".rstrip() for name, value in rows)


def inspect_vocabulary(tokenizer, texts, *, top=10):
    """Encodes texts and computes statistics of the vocabulary.

    Args:
        tokenizer: a `Tokenizer`.
        texts: iterable of str; it is read once, in chunks.
        top: number of longest pieces and of most fragmented words to list.

    Returns:
        `Inspection`.

    Raises:
        ValueError: the texts are blank.
    """
    lines = num_fallback = 0
    words, characters, ids = collections.Counter(), collections.Counter(), collections.Counter()
    texts = iter(texts)
    while chunk := list(itertools.islice(texts, _CHUNK)):
        lines += len(chunk)
        for text in map(tokenizer.normalise, chunk):
            characters.update(text)
            words.update(word for word in text.split(" ") if word)
        for row in tokenizer.encode(chunk):
            ids.update(row)
            num_fallback += sum(tokenizer.is_fallback(row))
    if not words:
        raise ValueError(f"The text must contain words. Received: {lines} lines, all blank")

    num_words, num_characters, num_pieces = words.total(), characters.total(), ids.total()
    covered = sum(count for char, count in characters.items() if tokenizer.has_own_token(char))
    spelled = {word: row for word, row in zip(words, tokenizer.pieces(list(words)), strict=True)}
    used = {piece for row in spelled.values() for piece in row}
    fragmented = sorted(words, key=lambda word: (-len(spelled[word]), -words[word], word))[:top]
    return Inspection(
        vocab_size=tokenizer.vocab_size,
        lines=lines,
        words=num_words,
        characters=num_characters,
        pieces=num_pieces,
        fertility=num_pieces / num_words,
        characters_per_piece=num_characters / num_pieces,
        coverage=covered / num_characters,
        unknown_rate=ids[tokenizer.special.unk] / num_pieces,
        fallback_rate=num_fallback / num_pieces,
        pieces_used=len(ids),
        vocab_used=len(ids) / tokenizer.vocab_size,
        longest_pieces=sorted(used, key=lambda piece: (-len(piece), piece))[:top],
        most_fragmented=[Fragmented(word, spelled[word], words[word]) for word in fragmented],
    )
