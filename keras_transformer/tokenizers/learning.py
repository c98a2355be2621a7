"""How vocabularies are learned: texts and settings of all kinds, and the pieces of `WordPieceTokenizer`."""

import collections
import itertools
import random
import re
import unicodedata

from keras_transformer.tokenizers.base import SPACE, check_choice, clean_text, refuse_one_text

NORMALIZATIONS = ("nfc", "identity", "nfkc")
NUM_SPECIAL = 4
ESCAPE_CHARACTERS = "\\;0123456789"
MAX_PIECE_LENGTH = 50  # in characters; longer words have no part in learning
MAX_WORDS = 500_000  # number of most frequent words to learn from; time and memory grow with them
_CODE_POINT = re.compile(r"(\\[0-9]+;)")
_SLACK = 0.05  # a vocabulary that is larger by up to this share is good enough to cut
# They end a line, or part one for some programs: no piece of a text file.
_NEVER = frozenset(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF))


class TrainingTexts:
    """Cleans texts one by one, counts them, and keeps an exception that a library hides.

    Args:
        texts: iterable of str.
        unicode_form: as in `Tokenizer`.
        max_texts: iterates over a uniform random sample of this many texts; `None`
            over all of them.
        seed: of the sample.
    """

    def __init__(self, texts, unicode_form, max_texts=None, seed=0):
        refuse_one_text(texts, "an iterable")
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
        """A uniform sample without replacement in one pass (Vitter's algorithm R)."""
        chooser, sample = random.Random(self._seed), []
        for position, text in enumerate(self._clean()):
            if position < self._max_texts:
                sample.append(text)
            elif (slot := chooser.randrange(position + 1)) < self._max_texts:
                sample[slot] = text
        return sample


def check_training(*, vocab_size, character_coverage, normalization):
    """Raises `ValueError` for settings of training that no vocabulary can have."""
    check_choice("normalization", normalization, NORMALIZATIONS)
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
        raise ValueError(f"`vocab_size` must be a positive whole number. Received: {vocab_size!r}")
    if not 0 < character_coverage <= 1:
        raise ValueError(
            f"`character_coverage` must be above 0 and at most 1. Received: {character_coverage!r}"
        )


def escape(word, alphabet):
    """Writes a word with characters of `alphabet` only; see the top of `wordpiece`."""
    if "\\" not in word and alphabet.issuperset(word):
        return word
    return "".join("\\\\" if one == "\\" else one if one in alphabet else f"\\{ord(one)};" for one in word)


def learn_pieces(texts, vocab_size, *, character_coverage, split_digits):
    """Learns the pieces of a vocabulary: all characters, then the most frequent longer ones.

    tensorflow-text's learner finds all pieces that occur in at least a number of words which no longer
    piece serves already. That threshold is searched which gives enough pieces, and few more; those
    that occur least are cut off.

    Args:
        texts: iterable of lists of str, the words of each text.
        vocab_size: int, the pieces and the special tokens.
        character_coverage: share of all characters that have a piece.
        split_digits: leaves out longer pieces that hold a digit.

    Returns:
        list of str: the sign for a space, the characters in order, then the longer
        pieces, the most frequent first.

    Raises:
        ValueError: there is no text, or `vocab_size` is too small or too large for it.
    """
    counts, num_texts = collections.Counter(), 0
    for words in texts:
        counts.update(words)
        num_texts += 1
    if not counts:
        raise ValueError(f"`texts` must hold text. Received: {num_texts} texts, all blank")
    alphabet = _covering_characters(counts, character_coverage) | set(ESCAPE_CHARACTERS)
    singles = [SPACE, *sorted(alphabet)]
    num_longer = vocab_size - NUM_SPECIAL - len(singles)
    if num_longer < 0:
        raise ValueError(
            "`vocab_size` is too small: the characters of the texts and the special tokens alone need "
            f"{len(singles) + NUM_SPECIAL}. Received: vocab_size={vocab_size}. "
            "Increase it, or lower `character_coverage`"
        )
    parts = collections.Counter()
    for word, count in counts.items():
        for part in _parts(escape(word, alphabet)):
            parts[part] += count
    frequent = [
        (word, count) for word, count in _by_count(parts)[:MAX_WORDS] if len(word) <= MAX_PIECE_LENGTH
    ]
    longer = _search(frequent, num_longer, split_digits) if num_longer and frequent else []
    if len(longer) < num_longer:
        raise ValueError(
            f"`vocab_size` is too large for these {num_texts} texts: the largest possible is "
            f"{len(longer) + len(singles) + NUM_SPECIAL}. Received: vocab_size={vocab_size}"
        )
    return singles + longer[:num_longer]


def _by_count(counts):
    """Most frequent first, then by text: the order of the texts must not matter."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _covering_characters(counts, coverage):
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
    return alphabet - _NEVER


def _parts(word):
    r"""Parts a word where letters and punctuation meet, so that no piece holds both.

    Marks and digits go with letters, the sign for a space with what follows it. A code
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


def _search(words, num_pieces, split_digits):
    """Returns at least `num_pieces` pieces if there are enough, by falling frequency."""
    low, high = 1, words[0][1]
    best = None
    while low <= high:
        # Counts fall like 1 / rank: halve ratios, not differences.
        threshold = min(high, max(low, round((low * high) ** 0.5)))
        found = _learn(words, threshold, split_digits)
        if len(found) < num_pieces:
            if threshold == 1:
                return found
            high = threshold - 1
        else:
            best = found
            if len(found) <= (1 + _SLACK) * num_pieces:
                break
            low = threshold + 1
    return best


def _learn(words, threshold, split_digits):
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    joiner = "\n"  # before pieces within a word; no piece holds it
    settings = {"lower_thresh": threshold, "num_iterations": 4, "max_token_length": MAX_PIECE_LENGTH}
    settings |= {"include_joiner_token": True, "joiner": joiner, "reserved_tokens": []}
    unused = dict.fromkeys(learner.Params._fields)
    found = learner.learn_with_thresh(words, threshold, learner.Params(**unused | settings))
    # Sorting by count, the learner may list a piece within words and at their start.
    pieces = dict.fromkeys(piece.removeprefix(joiner) for piece in found)
    has_digit = (lambda piece: any(map(str.isdecimal, piece))) if split_digits else (lambda piece: False)
    return [piece for piece in pieces if len(piece) > 1 and not has_digit(piece)]
