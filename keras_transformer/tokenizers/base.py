"""What the vocabularies have in common: files, special ids, cleaning of text, sampling.

`SubwordTokenizer` and `WordPieceTokenizer` add how text becomes pieces and pieces text.
"""

import bisect
import functools
import hashlib
import itertools
import math
import pathlib
import random
import re
import unicodedata

from keras_transformer.config.settings import SpecialIds
from keras_transformer.files import write_atomically

ROLES = ("pad", "bos", "eos", "unk")  # of the special ids
SPACE = "\u2581"  # stands for the space before a word, inside pieces
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A vocabulary with fixed special ids; the base of all kinds.

    Attributes:
        model_bytes: the vocabulary as `save` writes it.
        special: its `SpecialIds`.
        normalization: name of the normalization which it was trained with.
        unicode_form: the Unicode normalisation form which Python and the graph apply
            before all else, or `None`.

    A subclass gives `vocab_size`, `normalise`, `encode`, `pieces`, `decode`,
    `encode_tensor`, `decode_tensor`, `is_fallback`, `has_own_token`, `_sample_word` and
    `_kinds_and_pieces`.
    """

    def __init__(self, model_bytes, *, special, normalization, unicode_form):
        self.model_bytes = bytes(model_bytes)
        self.special = special
        self.normalization = normalization
        self.unicode_form = unicode_form
        # The unknown id stays: it stands for text, and shows as "⁇".
        self._textless = (special.pad, special.bos, special.eos)

    @classmethod
    def load(cls, path, *, special=None):
        """Reads a vocabulary that `save` wrote.

        Args:
            path: the file.
            special: the special ids which the vocabulary must have.

        Raises:
            ValueError: the file cannot be read, is damaged or of another kind, or has
                other special ids.
        """
        return cls(read_model(path), special=special, name=str(path))

    def save(self, path):
        """Writes the vocabulary: the file is complete, or it does not appear."""
        write_atomically(path, self.model_bytes)

    @functools.cached_property
    def sha256(self):
        """SHA-256 of `model_bytes`, in hexadecimal: the identity of the vocabulary."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @functools.cached_property
    def entries(self):
        """What each id stands for, which another vocabulary may have at another id.

        Returns:
            list of (kind, text), no two equal, one for each id: `("special", "pad")` and the
            other roles, `("text", PIECE)`, `("byte", "<0x41>")`, or another kind of
            SentencePiece's.
        """
        entries = list(self._kinds_and_pieces())
        for role in ROLES:
            entries[getattr(self.special, role)] = ("special", role)
        return entries

    def __reduce__(self):
        return functools.partial(type(self), special=self.special), (self.model_bytes,)

    def sample(self, texts, *, dropout, seed):
        """Encodes with random segmentations: sub-word regularisation, for training.

        The result is a pure function of vocabulary, texts, `dropout` and `seed`, in
        any process and thread; and `decode` gives the same texts as after `encode`.

        Args:
            texts: list of str.
            dropout: at least 0 and below 1; 0 is `encode`. In a BPE vocabulary, the
                probability with which each merge is left out at each step (BPE-dropout,
                Provilkov et al., 2020). In word pieces, that with which each matching
                piece of over one character is passed over (MaxMatch-dropout, Hiraoka,
                2022). In a unigram vocabulary, a segmentation is drawn with probability
                proportional to P(segmentation) ** alpha, where alpha = 1 / dropout - 1
                is that of Kudo (2018): 0.5 draws as the model says (alpha 1), more
                comes nearer to uniform (0.83 is Kudo's alpha of 0.2).
            seed: int.

        Returns:
            list of lists of int, as `encode`.
        """
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be at least 0 and below 1. Received: {dropout!r}")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"`seed` must be a whole number. Received: {seed!r}")
        if dropout == 0:
            return self.encode(texts)
        # Not SentencePiece's own sampling: from 0.2.3 on, one seed gives another
        # stream in every process, so that a run could not continue as it began.
        chooser = random.Random(seed).random
        return [
            [number for word in words for number in self._sample_word(word, dropout, chooser)]
            for words in self._words(texts)
        ]

    def _words(self, texts):
        """Yields the normalised words of each text, without the sign for a space."""
        for text in self._cleaned(texts):
            yield [word for word in self.normalise(text).split(" ") if word]

    def _cleaned(self, texts):
        refuse_one_text(texts, "a list")
        return [clean_text(text, self.unicode_form) for text in texts]

    def _cleaned_tensor(self, texts):
        """`_cleaned` in the graph: tf.string of valid UTF-8, same shape."""
        tf, tensorflow_text = import_tensorflow_text()
        texts = valid_utf8(tf, texts)
        if self.unicode_form is not None:
            texts = tensorflow_text.normalize_utf8(texts, self.unicode_form)
        return texts

    def _text_ids(self, ids):
        """Returns rows of int without padding, beginning and end; refuses unknown ids."""
        rows = [[number for number in map(int, row) if number not in self._textless] for row in ids]
        for number in set().union(*rows):
            if not 0 <= number < self.vocab_size:
                raise ValueError(
                    f"`ids` must be at least 0 and below vocab_size={self.vocab_size}. Received: {number}"
                )
        return rows

    def _text_ids_tensor(self, ids):
        """`_text_ids` in the graph: tf.RaggedTensor, int32, shape `(batch, None)`."""
        tf, _ = import_tensorflow_text()
        ids = tf.cast(ids, tf.int32)
        is_text = tf.not_equal(ids, self.special.pad)
        for special_id in (self.special.bos, self.special.eos):
            is_text = tf.logical_and(is_text, tf.not_equal(ids, special_id))
        return tf.ragged.boolean_mask(ids, is_text)


def read_model(path):
    """Returns the bytes of a vocabulary's file.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the tokenizer model: {error.strerror}") from error


def check_special(found, special, name):
    """Returns the `SpecialIds` of a vocabulary; raises `ValueError` if it has others than asked for."""
    special = special or SpecialIds()
    if found != special:
        raise ValueError(
            f"{name} has other special ids than asked for. Expected: {special}. Received: {found}"
        )
    return found


def check_choice(name, value, choices):
    """Raises `ValueError` if `value` is none of `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Received: {value!r}")


def clean_text(text, unicode_form):
    """Makes a str that has UTF-8, in a Unicode normalisation form or, for `None`, as it is.

    Python and tensorflow-text each bring a version of Unicode: they may order marks
    differently that are newer than the older of the two (22 marks for Python 3.11).
    """
    if not isinstance(text, str):
        raise TypeError(f"`texts` must hold str only. Received: {type(text).__name__}")
    if _SURROGATE.search(text):
        text = _SURROGATE.sub("\ufffd", text)
    return text if unicode_form is None else unicodedata.normalize(unicode_form, text)


def valid_utf8(tf, texts):
    """Replaces what is not UTF-8 by U+FFFD, in the graph."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def import_tensorflow_text():
    """Returns the modules (tensorflow, tensorflow_text), which only tensor methods need."""
    try:
        import tensorflow as tf
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            "The tokenizer's tensor methods need TensorFlow and tensorflow-text of the "
            "same version: pip install tensorflow-text"
        ) from error
    return tf, tensorflow_text


def refuse_one_text(texts, expected):
    """Raises `TypeError` for one text in the place of several."""
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"`texts` must be {expected} of str. Received: {type(texts).__name__}")


# Random segmentations of one word. `chooser` returns floats from 0 to below 1 as
# `random.Random(seed).random` does; nothing else is random.


def bpe_dropout(word, scores, dropout, chooser):
    """Merges the characters of a word, leaving out merges at random.

    Algorithm 1 of Provilkov et al. (2020): at each step, each possible merge is left out
    with probability `dropout`; the best of those that are left is applied, the leftmost
    among equals; the word is done when none is left.

    Args:
        word: str, with the sign for a space.
        scores: dict, piece to its score; the higher is merged first.
        dropout: from 0 to 1.
        chooser: see above.

    Returns:
        list of str.
    """
    pieces = list(word)
    # merged[i] is the score of joining pieces i and i + 1, None where they make no piece.
    merged = [scores.get(left + right) for left, right in itertools.pairwise(pieces)]
    while True:
        best = None
        for i, score in enumerate(merged):
            if score is not None and chooser() >= dropout and (best is None or score > merged[best]):
                best = i
        if best is None:
            return pieces
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        del merged[best]
        if best > 0:
            merged[best - 1] = scores.get(pieces[best - 1] + pieces[best])
        if best < len(merged):
            merged[best] = scores.get(pieces[best] + pieces[best + 1])


def maxmatch_dropout(word, pieces, longest, dropout, chooser):
    """Takes the longest piece at each place, passing over pieces at random.

    MaxMatch-dropout of Hiraoka (2022): a piece that matches is passed over with
    probability `dropout`, unless it is one character.

    Args:
        word: str; every character of it is a piece.
        pieces: dict or set of the pieces.
        longest: length of the longest piece, in characters.
        dropout: from 0 to 1.
        chooser: see above.

    Returns:
        list of str.
    """
    found = []
    start = 0
    while start < len(word):
        end = min(start + longest, len(word))
        while end > start + 1 and not (word[start:end] in pieces and chooser() >= dropout):
            end -= 1
        found.append(word[start:end])
        start = end
    return found


def unigram_lattice(word, scores, longest, unknown_score, alpha):
    """Lists the pieces that may end at each place of a word, for `unigram_sample`.

    Args:
        word: str, with the sign for a space.
        scores: dict, piece to its log-probability.
        longest: length of the longest piece, in characters.
        unknown_score: log-probability of a character that is no piece.
        alpha: exponent of the probabilities (Kudo, 2018, section 3.2).

    Returns:
        list; item `end - 1` is (starts of the pieces that end there, the sums of their
        probabilities up to each but the last).
    """
    lattice = []
    log_sums = [0.0]  # of alpha times the scores of all segmentations of word[:end]
    for end in range(1, len(word) + 1):
        arcs = []
        for start in range(max(0, end - longest), end):
            score = scores.get(word[start:end], unknown_score if start == end - 1 else None)
            if score is not None:
                arcs.append((start, log_sums[start] + alpha * score))
        largest = max(one for _, one in arcs)
        total = sum(math.exp(one - largest) for _, one in arcs)
        log_sums.append(largest + math.log(total))
        bounds = list(itertools.accumulate(math.exp(one - largest) / total for _, one in arcs))
        # The last bound is 1 but for rounding, which must not lead past the end.
        lattice.append(([start for start, _ in arcs], bounds[:-1]))
    return lattice


def unigram_sample(word, lattice, chooser):
    """Draws one segmentation from the last piece to the first.

    Args:
        word: str.
        lattice: what `unigram_lattice` made of it.
        chooser: see above.

    Returns:
        list of str.
    """
    found = []
    end = len(word)
    while end > 0:
        starts, bounds = lattice[end - 1]
        start = starts[bisect.bisect_right(bounds, chooser())]
        found.append(word[start:end])
        end = start
    return found[::-1]
