"""What the vocabularies have in common: files, special ids, cleaning of text, sampling.

`SubwordTokenizer` and `WordPieceTokenizer` add how text becomes pieces and pieces text.
"""

import functools
import hashlib
import pathlib
import random
import re
import unicodedata

from keras_transformer.config.settings import SpecialIds
from keras_transformer.files import write_atomically

SPACE = "\u2581"  # stands for the space before a word, inside pieces
NORMALIZATIONS = ("nfc", "identity", "nfkc")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A vocabulary with fixed special ids; the base of all kinds.

    Attributes:
        unicode_form: the Unicode normalisation form which Python and the graph apply
            before all else, or `None`.

    A subclass gives `vocab_size`, `normalise`, `encode`, `pieces`, `decode`,
    `encode_tensor`, `decode_tensor`, `is_fallback`, `has_own_token`, `_sample_word` and
    `_kinds_and_pieces`.
    """

    def __init__(self, model_bytes, *, special, normalization, unicode_form):
        self._model_bytes = bytes(model_bytes)
        self._special = special
        self._normalization = normalization
        self.unicode_form = unicode_form
        # The unknown id stays: it stands for text, and shows as "⁇".
        self._textless = {special.pad, special.bos, special.eos}

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
        write_atomically(path, self._model_bytes)

    @property
    def special(self):
        """The `SpecialIds` of this vocabulary."""
        return self._special

    @property
    def normalization(self):
        """Name of the normalization which the vocabulary was trained with."""
        return self._normalization

    @property
    def model_bytes(self):
        """The vocabulary as `save` writes it."""
        return self._model_bytes

    @functools.cached_property
    def sha256(self):
        """SHA-256 of `model_bytes`, in hexadecimal: the identity of the vocabulary."""
        return hashlib.sha256(self._model_bytes).hexdigest()

    @functools.cached_property
    def entries(self):
        """What each id stands for, which another vocabulary may have at another id.

        Returns:
            list of (kind, text), no two equal, one for each id: `("special", "pad")` and the
            other roles, `("text", PIECE)`, `("byte", "<0x41>")`, or another kind of
            SentencePiece's.
        """
        roles = {getattr(self._special, role): role for role in ("pad", "bos", "eos", "unk")}
        return [
            ("special", roles[number]) if number in roles else entry
            for number, entry in enumerate(self._kinds_and_pieces())
        ]

    def __reduce__(self):
        return _rebuild, (type(self), self._model_bytes, self._special)

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
        rows = []
        for words in self._words(texts):
            row = []
            for word in words:
                row += self._sample_word(word, dropout, chooser)
            rows.append(row)
        return rows

    def _words(self, texts):
        """Yields the normalised words of each text, without the sign for a space."""
        for text in self._cleaned(texts):
            yield [word for word in self.normalise(text).split(" ") if word]

    def _cleaned(self, texts):
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"`texts` must be a list of str. Received: {type(texts).__name__}")
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
        rows = [[int(one) for one in row if int(one) not in self._textless] for row in ids]
        for row in rows:
            for one in row:
                if not 0 <= one < self.vocab_size:
                    raise ValueError(
                        f"`ids` must be at least 0 and below vocab_size={self.vocab_size}. Received: {one}"
                    )
        return rows

    def _text_ids_tensor(self, ids):
        """`_text_ids` in the graph: tf.RaggedTensor, int32, shape `(batch, None)`."""
        tf, _ = import_tensorflow_text()
        ids = tf.cast(ids, tf.int32)
        is_text = tf.not_equal(ids, self._special.pad)
        for special_id in (self._special.bos, self._special.eos):
            is_text = tf.logical_and(is_text, tf.not_equal(ids, special_id))
        return tf.ragged.boolean_mask(ids, is_text)


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
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"`texts` must be an iterable of str. Received: {type(texts).__name__}")
        if max_texts is not None and max_texts < 1:
            raise ValueError(f"`max_texts` must be at least 1. Received: {max_texts!r}")
        self._texts = texts
        self._unicode_form = unicode_form
        self._max_texts = max_texts
        self._seed = seed
        self.count = 0
        self.error = None

    def __iter__(self):
        cleaned = self._clean()
        return cleaned if self._max_texts is None else iter(_sample(cleaned, self._max_texts, self._seed))

    def _clean(self):
        try:
            for text in self._texts:
                self.count += 1
                yield clean_text(text, self._unicode_form)
        except Exception as error:
            self.error = error
            raise


def read_model(path):
    """Returns the bytes of a vocabulary's file.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the tokenizer model: {error.strerror}") from error


def check_special(found, wanted, name):
    """Raises `ValueError` if a vocabulary has other special ids than asked for."""
    if found != wanted:
        raise ValueError(
            f"{name} has other special ids than asked for. Expected: {wanted}. Received: {found}"
        )


def check_choice(name, value, choices):
    """Raises `ValueError` if `value` is none of `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Received: {value!r}")


def check_training(*, vocab_size, character_coverage, normalization):
    """Raises `ValueError` for settings of training that no vocabulary can have."""
    check_choice("normalization", normalization, NORMALIZATIONS)
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
        raise ValueError(f"`vocab_size` must be a positive whole number. Received: {vocab_size!r}")
    if not 0 < character_coverage <= 1:
        raise ValueError(
            f"`character_coverage` must be above 0 and at most 1. Received: {character_coverage!r}"
        )


def default_special(special):
    """Returns `special`, or where it is `None` the ids of `SpecialIds()`."""
    return SpecialIds() if special is None else special


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


def _rebuild(kind, model_bytes, special):
    return kind(model_bytes, special=special)


def _sample(texts, size, seed):
    """A uniform sample without replacement in one pass (Vitter's algorithm R)."""
    chooser = random.Random(seed)
    sample = []
    for position, text in enumerate(texts):
        if position < size:
            sample.append(text)
        else:
            slot = chooser.randrange(position + 1)
            if slot < size:
                sample[slot] = text
    return sample
