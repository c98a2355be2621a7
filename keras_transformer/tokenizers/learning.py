"""Training of vocabularies: texts and settings for all kinds, and the algorithm of `WordPieceTokenizer`."""

import collections
import itertools
import random
import re
import unicodedata

from keras_transformer.tokenizers.base import SPACE, check_choice, check_not_one_text, clean_text

NORMALIZATIONS = ("nfc", "identity", "nfkc")
NUM_SPECIAL = 4
ESCAPE_CHARACTERS = "\\;0123456789"
MAX_PIECE_LENGTH = 50  # in characters; longer words are ignored
MAX_WORDS = 500_000  # only this number of most frequent words is used, to limit time and memory
_CODE_POINT = re.compile(r"(\\[0-9]+;)")
_TOLERANCE = 0.05  # the search ends at a vocabulary that is at most this share too large; it is truncated
# Control characters, line separators and byte-order mark: programs split lines at some, so no piece has them.
_EXCLUDED = frozenset(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF))


class TrainingTexts:
    """Iterates over normalised texts; counts them and keeps an exception that a library would hide.

    Args:
        texts: iterable of str.
        unicode_form: Unicode normalisation form, or `None`.
        max_texts: size of a uniform random sample to iterate over; `None` for all texts.
        seed: seed of the sample.

    Attributes:
        count: int, number of texts read so far.
        error: the exception that reading `texts` raised, or `None`.
    """

    def __init__(self, texts, unicode_form, max_texts=None, seed=0):
        check_not_one_text(texts, "an iterable")
        if max_texts is not None and max_texts < 1:
            raise ValueError(f"`max_texts` must be at least 1. Received: {max_texts!r}")
        self._texts = texts
        self._unicode_form = unicode_form
        self._max_texts = max_texts
        self._seed = seed
        self.count = 0
        self.error = None

    def __iter__(self):
        return self._clean() if self._max_texts is None else iter(self._sample())

    def _clean(self):
        try:
            for text in self._texts:
                self.count += 1
                yield clean_text(text, self._unicode_form)
        except Exception as error:
            self.error = error
            raise

    def _sample(self):
        """Returns a uniform sample without replacement, in one pass (Vitter's algorithm R)."""
        rng, sample = random.Random(self._seed), []
        for position, text in enumerate(self._clean()):
            if position < self._max_texts:
                sample.append(text)
            elif (slot := rng.randrange(position + 1)) < self._max_texts:
                sample[slot] = text
        return sample


def check_training(*, vocab_size, character_coverage, normalization):
    """Raises `ValueError` for invalid training settings."""
    check_choice("normalization", normalization, NORMALIZATIONS)
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
        raise ValueError(f"`vocab_size` must be a positive whole number. Received: {vocab_size!r}")
    if not 0 < character_coverage <= 1:
        raise ValueError(
            f"`character_coverage` must be above 0 and at most 1. Received: {character_coverage!r}"
        )


def escape(word, alphabet):
    """Escapes a backslash and the characters outside `alphabet`; see the docstring of `wordpiece`."""
    if "\\" not in word and alphabet.issuperset(word):
        return word
    return "".join("\\\\" if c == "\\" else c if c in alphabet else f"\\{ord(c)};" for c in word)


def learn_pieces(texts, vocab_size, *, character_coverage, split_digits, num_tags=0):
    """Learns the pieces of a vocabulary: all characters, then the most frequent longer pieces.

    The learner of tensorflow-text returns the pieces whose count, without occurrences inside a longer
    piece, reaches a threshold. A binary search finds the threshold with enough pieces and few more; the
    least frequent ones are then dropped.

    Args:
        texts: iterable of lists of str, the words of each text.
        vocab_size: int, number of pieces, special tokens and tags.
        character_coverage: share of all characters that get a piece.
        split_digits: if true, no piece of more than one character has a digit.
        num_tags: int.

    Returns:
        list of str: `SPACE`, the characters in order, then the longer pieces, the most
        frequent first.

    Raises:
        ValueError: the texts are blank, or `vocab_size` is too small or too large for them.
    """
    counts, num_texts = collections.Counter(), 0
    for words in texts:
        counts.update(words)
        num_texts += 1
    if not counts:
        raise ValueError(f"`texts` must contain text. Received: {num_texts} texts, all blank")
    alphabet = _covering_characters(counts, character_coverage) | set(ESCAPE_CHARACTERS)
    singles = [SPACE, *sorted(alphabet)]
    num_others = NUM_SPECIAL + num_tags + len(singles)
    num_longer = vocab_size - num_others
    if num_longer < 0:
        raise ValueError(
            "`vocab_size` is too small: the characters of the texts and the special tokens alone need "
            f"{num_others}. Received: vocab_size={vocab_size}. "
            "Increase it, or lower `character_coverage`"
        )
    parts = collections.Counter()
    for word, count in counts.items():
        for part in _split_word(escape(word, alphabet)):
            parts[part] += count
    frequent = [
        (word, count) for word, count in _by_count(parts)[:MAX_WORDS] if len(word) <= MAX_PIECE_LENGTH
    ]
    longer = _search_threshold(frequent, num_longer, split_digits) if num_longer and frequent else []
    if len(longer) < num_longer:
        raise ValueError(
            f"`vocab_size` is too large for these {num_texts} texts: the largest possible is "
            f"{len(longer) + num_others}. Received: vocab_size={vocab_size}"
        )
    return singles + longer[:num_longer]


def _by_count(counts):
    """Sorts by falling count, then by text, so that the order of the texts does not matter."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _covering_characters(counts, coverage):
    """Returns the set of most frequent characters that make up this share of the text."""
    characters = collections.Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    total, covered, alphabet = characters.total(), 0, set()
    for character, count in _by_count(characters):
        if covered >= coverage * total:
            break
        covered += count
        alphabet.add(character)
    return alphabet - _EXCLUDED


def _split_word(word):
    r"""Splits a word between letters and punctuation, so that no piece has both.

    Marks and digits count as letters; `SPACE` is prepended to the first part. An escaped code
    point such as `\8364;` is a part of its own.
    """
    parts = []
    for section in _CODE_POINT.split(word):
        if _CODE_POINT.fullmatch(section):
            parts.append(section)
        else:
            groups = itertools.groupby(section, lambda character: unicodedata.category(character)[0] in "LMN")
            parts += ("".join(group) for _, group in groups)
    return [SPACE + parts[0], *parts[1:]]


def _search_threshold(words, num_pieces, split_digits):
    """Returns at least `num_pieces` pieces, if there are enough, by falling frequency."""
    low, high = 1, words[0][1]
    best = None
    while low <= high:
        # Bisect geometrically, because counts fall like 1 / rank (Zipf).
        threshold = min(high, max(low, round((low * high) ** 0.5)))
        pieces = _learn(words, threshold, split_digits)
        if len(pieces) < num_pieces:
            if threshold == 1:
                return pieces
            high = threshold - 1
        else:
            best = pieces
            if len(pieces) <= (1 + _TOLERANCE) * num_pieces:
                break
            low = threshold + 1
    return best


def _learn(words, threshold, split_digits):
    """Returns the pieces of more than one character that tensorflow-text learns with a threshold."""
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    joiner = "\n"  # prefix of pieces within a word; no piece contains it
    settings = {"lower_thresh": threshold, "num_iterations": 4, "max_token_length": MAX_PIECE_LENGTH}
    settings |= {"include_joiner_token": True, "joiner": joiner, "reserved_tokens": []}
    unused = dict.fromkeys(learner.Params._fields)
    learned = learner.learn_with_thresh(words, threshold, learner.Params(**unused | settings))
    # The learner may list a piece twice, for the start of words and within them.
    pieces = dict.fromkeys(piece.removeprefix(joiner) for piece in learned)
    has_digit = (lambda piece: any(map(str.isdecimal, piece))) if split_digits else (lambda piece: False)
    return [piece for piece in pieces if len(piece) > 1 and not has_digit(piece)]
