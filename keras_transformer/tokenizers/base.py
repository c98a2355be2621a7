"""The base class of the tokenizers: files, special ids, Unicode normalisation, sub-word sampling.

`SubwordTokenizer` and `WordPieceTokenizer` implement encoding and decoding.
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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from keras_transformer.config.settings import SpecialIds
from keras_transformer.config.tags import is_tag
from keras_transformer.config.types import PathLike, Tensor
from keras_transformer.files import write_atomically

ROLES = ("pad", "bos", "eos", "unk")  # names of the special ids
SPACE = "\u2581"  # marks, inside pieces, the space before a word
MAX_CACHED_LENGTH = 24
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Base class of the tokenizers, which have a vocabulary with fixed special ids.

    Attributes:
        model_bytes: the serialised vocabulary, as `save` writes it.
        special: its `SpecialIds`.
        normalization: name of the normalization that it was trained with.
        unicode_form: the Unicode normalisation form that Python and the graph apply first, or `None`.

    Subclasses implement `vocab_size`, `normalise`, `encode`, `pieces`, `decode`,
    `encode_tensor`, `decode_tensor`, `is_fallback`, `has_own_token`, `_sample_word` and
    `_kinds_and_pieces`.
    """

    if TYPE_CHECKING:

        @property
        def vocab_size(self) -> int: ...
        @property
        def graph_tokenizer(self) -> Any: ...
        def normalise(self, text: str) -> str: ...
        def encode(self, texts: list[str]) -> list[list[int]]: ...
        def pieces(self, texts: list[str]) -> list[list[str]]: ...
        def decode(self, ids: list[list[int]] | np.ndarray) -> list[str]: ...
        def encode_tensor(self, texts: Tensor) -> Tensor: ...
        def decode_tensor(self, ids: Tensor) -> Tensor: ...
        def is_fallback(self, ids: list[int]) -> list[bool]: ...
        def has_own_token(self, character: str) -> bool: ...
        def _sample_word(self, word: str, dropout: float, random_float: Callable[[], float]) -> Any: ...
        def _kinds_and_pieces(self) -> Iterable[tuple[str, str]]: ...

    def __init__(
        self, model_bytes: bytes, *, special: SpecialIds, normalization: str, unicode_form: str | None
    ) -> None:
        self.model_bytes = bytes(model_bytes)
        self.special = special
        self.normalization = normalization
        self.unicode_form = unicode_form
        # The unknown id is not among them: it replaces text, and is decoded as "⁇".
        self._non_text_ids: tuple[int, ...] = (special.pad, special.bos, special.eos)

    @classmethod
    def load(cls, path: PathLike, *, special: SpecialIds | None = None) -> Self:
        """Loads a vocabulary from a file that `save` wrote.

        Args:
            path: the file.
            special: the `SpecialIds` that the vocabulary must have; `None` for the default ones.

        Raises:
            ValueError: the file cannot be read, is damaged or of another kind, or has
                other special ids.
        """
        kind: Any = cls  # the argument `name` is that of each subclass
        return kind(read_model(path), special=special, name=str(path))

    def save(self, path: PathLike) -> None:
        """Writes the vocabulary to a file, atomically."""
        write_atomically(path, self.model_bytes)

    @functools.cached_property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of `model_bytes`; it identifies the vocabulary."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @functools.cached_property
    def entries(self) -> list[tuple[str, str]]:
        """The meaning of each id, to match the ids of two vocabularies.

        Returns:
            list of distinct (kind, text), one for each id: `("special", "pad")` and the
            other special tokens, `("text", PIECE)`, `("byte", "<0x41>")`, or another
            SentencePiece type.
        """
        entries = list(self._kinds_and_pieces())
        for role in ROLES:
            entries[getattr(self.special, role)] = ("special", role)
        return entries

    @functools.cached_property
    def tags(self) -> dict[str, int]:
        """Ids of the reserved tags, such as `{"<BT>": 4}`: `encode` never returns them, see `tags.py`."""
        entries = enumerate(self.entries)
        return {text: number for number, (kind, text) in entries if kind == "control" and is_tag(text)}

    def __reduce__(self):
        return functools.partial(type(self), special=self.special), (self.model_bytes,)

    def sample(self, texts: list[str], *, dropout: float, seed: int) -> list[list[int]]:
        """Encodes with random segmentations (sub-word regularisation), for training.

        The result depends only on vocabulary, texts, `dropout` and `seed`, not on process or
        thread. `decode` returns the same texts as after `encode`.

        Args:
            texts: list of str.
            dropout: float in [0, 1); 0 is the same as `encode`. BPE: the probability of
                leaving out each merge at each step (BPE-dropout, Provilkov et al., 2020).
                Word pieces: the probability of skipping each matching piece of more than
                one character (MaxMatch-dropout, Hiraoka, 2022). Unigram: a segmentation
                is drawn with probability proportional to P(segmentation) ** alpha (Kudo,
                2018) with alpha = 1 / dropout - 1; 0.5 samples from the model (alpha 1),
                higher values are closer to uniform (0.83 is alpha 0.2).
            seed: int.

        Returns:
            list of lists of int, see `encode`.
        """
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be at least 0 and below 1. Received: {dropout!r}")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"`seed` must be a whole number. Received: {seed!r}")
        if dropout == 0:
            return self.encode(texts)
        # SentencePiece's own sampling is not reproducible: from 0.2.3 on, the same seed gives
        # different samples in every process, so a resumed run would not be the same.
        random_float = random.Random(seed).random
        return [
            [number for word in words for number in self._sample_word(word, dropout, random_float)]
            for words in self._words(texts)
        ]

    def for_dataset(self) -> Self:
        """Returns the tokenizer to use within a function of `tf.data`; see `SubwordTokenizer`."""
        return self

    def _words(self, texts):
        """Yields the list of normalised words of each text, without `SPACE`."""
        for text in self._clean_texts(texts):
            yield [word for word in self.normalise(text).split(" ") if word]

    def _clean_texts(self, texts):
        check_not_one_text(texts, "a list")
        return [clean_text(text, self.unicode_form) for text in texts]

    def _clean_tensor(self, texts):
        """`_clean_texts` in the graph: tf.string of valid UTF-8, same shape."""
        tf, tensorflow_text = import_tensorflow_text()
        texts = valid_utf8(tf, texts)
        if self.unicode_form is not None:
            texts = tensorflow_text.normalize_utf8(texts, self.unicode_form)
        return texts

    def _text_ids(self, ids):
        """Returns rows of int without padding, bos and eos; raises `ValueError` for ids out of range."""
        rows = [[number for number in map(int, row) if number not in self._non_text_ids] for row in ids]
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
        for special_id in self._non_text_ids[1:]:
            is_text = tf.logical_and(is_text, tf.not_equal(ids, special_id))
        return tf.ragged.boolean_mask(ids, is_text)


def read_model(path):
    """Returns the bytes of a vocabulary file.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the tokenizer model: {error.strerror}") from error


def check_special(actual, special, name):
    """Returns `actual`, the `SpecialIds` of a vocabulary; raises `ValueError` if they are not `special`."""
    special = special or SpecialIds()
    if actual != special:
        raise ValueError(f"{name} has different special ids. Expected: {special}. Received: {actual}")
    return actual


def check_choice(name, value, choices):
    """Raises `ValueError` if `value` is not in `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Received: {value!r}")


def clean_text(text, unicode_form):
    """Replaces surrogates by U+FFFD, so that UTF-8 can encode the text, and applies a normalisation form.

    Python and tensorflow-text have different versions of Unicode. They may order
    combining marks differently that only the newer version knows (22 marks for Python 3.11).

    Args:
        text: str.
        unicode_form: `"NFC"`, `"NFKC"`, or `None` for no normalisation.
    """
    if not isinstance(text, str):
        raise TypeError(f"`texts` must hold str only. Received: {type(text).__name__}")
    if _SURROGATE.search(text):
        text = _SURROGATE.sub("\ufffd", text)
    return text if unicode_form is None else unicodedata.normalize(unicode_form, text)


def valid_utf8(tf, texts):
    """Replaces invalid UTF-8 by U+FFFD, in the graph."""
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


def check_not_one_text(texts, expected):
    """Raises `TypeError` if `texts` is a single text."""
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"`texts` must be {expected} of str. Received: {type(texts).__name__}")


def cache_short_words(function: Callable[..., Any], max_words: int) -> Callable[..., Any]:
    """Returns a function of a word with a cache for words of up to `MAX_CACHED_LENGTH` characters.

    In languages without spaces, a word is a whole sentence: it needs much memory and hardly occurs twice.

    Args:
        function: its first argument is the word; all are hashable.
        max_words: number of results in the cache.
    """
    cached = functools.lru_cache(max_words)(function)
    return lambda word, *more: (cached if len(word) <= MAX_CACHED_LENGTH else function)(word, *more)


# Random segmentations of one word. Their only source of randomness is `random_float`, which returns
# floats in [0, 1), like `random.Random(seed).random`.


def bpe_dropout(word, scores, dropout, random_float):
    """Segments a word by BPE merges, leaving out merges at random (BPE-dropout).

    Algorithm 1 of Provilkov et al. (2020). At each step, each possible merge is left out
    with probability `dropout`, and the remaining merge with the highest score is applied,
    the leftmost if several are equal. The algorithm ends at a step without a remaining merge.

    Args:
        word: str, beginning with `SPACE`.
        scores: dict from a piece to its score; the highest score is merged first.
        dropout: float in [0, 1].
        random_float: function that returns random floats in [0, 1).

    Returns:
        list of str.
    """
    pieces = list(word)
    # merged[i] is the score of merging pieces i and i + 1; None if the result is not a piece.
    merged = [scores.get(left + right) for left, right in itertools.pairwise(pieces)]
    while True:
        best = None
        for i, score in enumerate(merged):
            if score is not None and random_float() >= dropout and (best is None or score > merged[best]):
                best = i
        if best is None:
            return pieces
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        del merged[best]
        if best > 0:
            merged[best - 1] = scores.get(pieces[best - 1] + pieces[best])
        if best < len(merged):
            merged[best] = scores.get(pieces[best] + pieces[best + 1])


def maxmatch_dropout(word, pieces, longest, dropout, random_float):
    """Segments a word by longest match, skipping pieces at random (MaxMatch-dropout).

    Hiraoka (2022): from left to right, the longest matching piece is taken, but each
    matching piece of more than one character is skipped with probability `dropout`.

    Args:
        word: str; each of its characters is a piece.
        pieces: dict or set of the pieces.
        longest: length of the longest piece, in characters.
        dropout: float in [0, 1].
        random_float: function that returns random floats in [0, 1).

    Returns:
        list of str.
    """
    segments = []
    start = 0
    while start < len(word):
        end = min(start + longest, len(word))
        while end > start + 1 and not (word[start:end] in pieces and random_float() >= dropout):
            end -= 1
        segments.append(word[start:end])
        start = end
    return segments


def unigram_lattice(word, scores, longest, unknown_score, alpha):
    """Computes the probabilities of the last piece of each prefix of a word (forward filtering).

    Args:
        word: str, beginning with `SPACE`.
        scores: dict from a piece to its log-probability.
        longest: length of the longest piece, in characters.
        unknown_score: log-probability of a character that is not a piece.
        alpha: exponent of the probabilities (Kudo, 2018, section 3.2).

    Returns:
        list for `unigram_sample`; item `end - 1` is (starts of the pieces that may end
        `word[:end]`, cumulative sums of their probabilities without the last sum).
    """
    lattice = []
    log_sums = [0.0]  # log-sum-exp of alpha * score over all segmentations of word[:end]
    for end in range(1, len(word) + 1):
        arcs = []
        for start in range(max(0, end - longest), end):
            score = scores.get(word[start:end], unknown_score if start == end - 1 else None)
            if score is not None:
                arcs.append((start, log_sums[start] + alpha * score))
        largest = max(log_sum for _, log_sum in arcs)
        total = sum(math.exp(log_sum - largest) for _, log_sum in arcs)
        log_sums.append(largest + math.log(total))
        bounds = list(itertools.accumulate(math.exp(log_sum - largest) / total for _, log_sum in arcs))
        # Without the last bound, 1 up to rounding: a draw above it would index past the end.
        lattice.append(([start for start, _ in arcs], bounds[:-1]))
    return lattice


def unigram_sample(word, lattice, random_float):
    """Samples one segmentation of a word, from the last piece to the first (backward sampling).

    Args:
        word: str.
        lattice: result of `unigram_lattice` for this word.
        random_float: function that returns random floats in [0, 1).

    Returns:
        list of str.
    """
    pieces = []
    end = len(word)
    while end > 0:
        starts, bounds = lattice[end - 1]
        start = starts[bisect.bisect_right(bounds, random_float())]
        pieces.append(word[start:end])
        end = start
    return pieces[::-1]
