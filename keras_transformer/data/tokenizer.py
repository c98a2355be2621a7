"""Sub-word vocabulary: text to ids and back, in Python and in the TensorFlow graph.

One SentencePiece model serves both languages (section 5.1: a shared vocabulary of
about 37,000 tokens). The model file alone decides what a text becomes, so training,
translation and serving cannot drift apart.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import pathlib
import random
import re
import tempfile
import unicodedata

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.config import SpecialIds

logger = logging.getLogger(__name__)

SPACE = "\u2581"  # SentencePiece writes a space inside a piece as this character
MODEL_TYPES = ("bpe", "unigram")
NORMALIZATIONS = ("nfc", "identity", "nfkc")
_SURROGATE = re.compile("[\ud800-\udfff]")


class SubwordTokenizer:
    """A SentencePiece vocabulary with fixed special ids.

    What a text keeps: `decode(encode(texts))` equals `normalise` of each text. Under
    the default normalization `"nfc"` that is Unicode NFC (so composed and decomposed
    input give the same ids) with runs of spaces made one space and none at the ends;
    nothing else is lost, neither case nor `²`, `…` or emoji. The character U+2581,
    SentencePiece's own sign for a space, comes back as a space.

    Literal `<s>`, `</s>`, `<pad>` and `⁇` in a text are ordinary characters and never
    become special ids. With byte fallback every character has ids, seen in training
    or not; without it, unseen characters become the unknown id.

    Ids hold no beginning or end of sentence: whoever makes batches adds them.

    Args:
        model_bytes: a serialised SentencePiece model.
        special: the ids which the model must give to its four special tokens.
        name: what error messages call the model, usually its path.
    """

    def __init__(self, model_bytes, *, special=None, name="the tokenizer model"):
        special = SpecialIds() if special is None else special
        proto = _parse(model_bytes, name)
        self._model_bytes = bytes(model_bytes)
        self._special = special
        self._normalization = proto.normalizer_spec.name
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(self._model_bytes)
        except RuntimeError as error:
            raise ValueError(f"{name} is not a usable SentencePiece model: {error}") from error
        found = SpecialIds(
            pad=self._processor.pad_id(),
            bos=self._processor.bos_id(),
            eos=self._processor.eos_id(),
            unk=self._processor.unk_id(),
        )
        if found != special:
            raise ValueError(
                f"{name} has other special ids than asked for. Expected: {special}. Received: {found}"
            )
        # The unknown id stays: it stands for text, and shows as "⁇".
        self._textless = {special.pad, special.bos, special.eos}

    @classmethod
    def train(
        cls,
        texts,
        *,
        vocab_size,
        model_type="bpe",
        character_coverage=1.0,
        byte_fallback=True,
        normalization="nfc",
        split_digits=False,
        max_texts=None,
        seed=0,
        special=None,
    ):
        """Learns a vocabulary; the same texts and settings give the same bytes.

        Args:
            texts: an iterable of str, the lines of both languages.
            vocab_size: number of tokens, special and byte tokens included.
            model_type: `"bpe"` (the paper, section 5.1) or `"unigram"`.
            character_coverage: share of the characters of the corpus that get a token
                of their own.
            byte_fallback: adds 256 byte tokens, from which any other character is built.
            normalization: `"nfc"`; `"identity"`, no change but to spaces; or `"nfkc"`,
                SentencePiece's own default (its `nmt_nfkc`), which also turns `²`
                into `2` and `…` into `...`.
            split_digits: gives each digit a token of its own, for text of which the
                numbers matter.
            max_texts: learns from a uniform random sample of this many texts; `None`
                learns from all of them.
            seed: of the sample.
            special: ids of the four special tokens.

        Returns:
            A `SubwordTokenizer`.
        """
        special = SpecialIds() if special is None else special
        _check_choice("model_type", model_type, MODEL_TYPES)
        _check_choice("normalization", normalization, NORMALIZATIONS)
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
            raise ValueError(f"`vocab_size` must be a positive whole number. Received: {vocab_size!r}")
        if not 0 < character_coverage <= 1:
            raise ValueError(
                f"`character_coverage` must be above 0 and at most 1. Received: {character_coverage!r}"
            )
        if max_texts is not None and max_texts < 1:
            raise ValueError(f"`max_texts` must be at least 1. Received: {max_texts!r}")
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"`texts` must be an iterable of str. Received: {type(texts).__name__}")

        model = io.BytesIO()
        stream = _Texts(texts, normalization)
        sentences = iter(stream) if max_texts is None else iter(_sample(stream, max_texts, seed))
        with _rules(normalization) as rules:
            try:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=sentences,
                    model_writer=model,
                    vocab_size=vocab_size,
                    model_type=model_type,
                    character_coverage=character_coverage,
                    byte_fallback=byte_fallback,
                    split_digits=split_digits,
                    max_sentence_length=2**30,  # the default leaves lines over 4 kB out
                    num_threads=os.cpu_count() or 1,
                    pad_id=special.pad,
                    bos_id=special.bos,
                    eos_id=special.eos,
                    unk_id=special.unk,
                    minloglevel=2,
                    **rules,
                )
            except (RuntimeError, ValueError) as error:
                if stream.error is not None:
                    raise stream.error from None
                raise _training_error(error, vocab_size, stream.count) from error

        proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
        # The bytes depend on texts and settings only, not on this machine.
        proto.trainer_spec.ClearField("num_threads")
        proto.normalizer_spec.ClearField("normalization_rule_tsv")
        proto.normalizer_spec.name = normalization
        tokenizer = cls(proto.SerializeToString(deterministic=True), special=special)
        logger.info("learned %d tokens from %d texts", tokenizer.vocab_size, stream.count)
        return tokenizer

    @classmethod
    def load(cls, path, *, special=None):
        """Reads a model that `save` wrote.

        Args:
            path: the `.model` file.
            special: the special ids which the model must have.

        Returns:
            A `SubwordTokenizer`.
        """
        try:
            model_bytes = pathlib.Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: cannot read the tokenizer model: {error.strerror}") from error
        return cls(model_bytes, special=special, name=str(path))

    def save(self, path):
        """Writes the model: the file is complete, or it does not appear."""
        path = pathlib.Path(path)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self._model_bytes)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp makes it private
            os.replace(temporary, path)
        except BaseException:
            pathlib.Path(temporary).unlink(missing_ok=True)
            raise

    @property
    def vocab_size(self):
        """Number of tokens, special and byte tokens included."""
        return self._processor.get_piece_size()

    @property
    def special(self):
        """The `SpecialIds` of this vocabulary."""
        return self._special

    @property
    def normalization(self):
        """Name of the normalization which the model was trained with."""
        return self._normalization

    @property
    def model_bytes(self):
        """The serialised SentencePiece model, as `save` writes it."""
        return self._model_bytes

    @functools.cached_property
    def sha256(self):
        """SHA-256 of `model_bytes`, in hexadecimal: the identity of the vocabulary."""
        return hashlib.sha256(self._model_bytes).hexdigest()

    def __reduce__(self):
        return _rebuild, (self._model_bytes, self._special)

    def normalise(self, text):
        """Returns what is left of a text after `encode` and `decode`.

        This holds for a vocabulary with byte fallback; without it, characters that
        the vocabulary lacks are lost on top of this.
        """
        normalised = self._processor.normalize(_clean(text, self._normalization))
        return normalised.replace(SPACE, " ").removeprefix(" ")

    def encode(self, texts):
        """Returns the ids of each text, as a list of lists, without special ids."""
        return self._processor.encode(self._cleaned(texts), out_type=int)

    def pieces(self, texts):
        """Returns the sub-words of each text, with U+2581 where a space stood."""
        return self._processor.encode(self._cleaned(texts), out_type=str)

    def decode(self, ids):
        """Returns the text of each row of ids.

        Padding, beginning and end of sentence are dropped wherever they stand; the
        unknown id shows as `⁇`. Bytes that form no character become U+FFFD.

        Args:
            ids: rows of whole numbers, of any lengths.

        Returns:
            A list of str.
        """
        rows = [[int(one) for one in row if int(one) not in self._textless] for row in ids]
        for row in rows:
            for one in row:
                if not 0 <= one < self.vocab_size:
                    raise ValueError(
                        f"`ids` must be at least 0 and below vocab_size={self.vocab_size}. Received: {one}"
                    )
        return self._processor.decode(rows) if rows else []

    @functools.cached_property
    def graph_tokenizer(self):
        """The `tensorflow_text.SentencepieceTokenizer` behind the tensor methods.

        A `tf.Module` that is exported with `encode_tensor` or `decode_tensor` in its
        signatures must hold this object as an attribute, so that it is saved along.
        """
        tf, tensorflow_text = _import_tensorflow_text()
        with tf.init_scope():  # the model is loaded once, outside any graph being traced
            return tensorflow_text.SentencepieceTokenizer(model=self._model_bytes, out_type=tf.int32)

    def encode_tensor(self, texts):
        """`encode` as a TensorFlow graph, for `Dataset.map` and exported models.

        Args:
            texts: tf.string, shape `(batch,)`. Invalid UTF-8 is replaced by U+FFFD.

        Returns:
            tf.RaggedTensor, int32, shape `(batch, None)`.
        """
        tf, tensorflow_text = _import_tensorflow_text()
        texts = _valid_utf8(tf, texts)
        if self._normalization == "nfc":
            texts = tensorflow_text.normalize_utf8(texts, "NFC")
        return self.graph_tokenizer.tokenize(texts)

    def decode_tensor(self, ids):
        """`decode` as a TensorFlow graph.

        Args:
            ids: int32, shape `(batch, length)`, padded; or a tf.RaggedTensor.

        Returns:
            tf.string, shape `(batch,)`, valid UTF-8.
        """
        tf, _ = _import_tensorflow_text()
        ids = tf.cast(ids, tf.int32)
        is_text = tf.not_equal(ids, self._special.pad)
        for special_id in (self._special.bos, self._special.eos):
            is_text = tf.logical_and(is_text, tf.not_equal(ids, special_id))
        texts = self.graph_tokenizer.detokenize(tf.ragged.boolean_mask(ids, is_text))
        return _valid_utf8(tf, texts)

    def _cleaned(self, texts):
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"`texts` must be a list of str. Received: {type(texts).__name__}")
        return [_clean(text, self._normalization) for text in texts]


class _Texts:
    """Cleans texts one by one, and keeps the exception that SentencePiece would hide."""

    def __init__(self, texts, normalization):
        self._texts = texts
        self._normalization = normalization
        self.count = 0
        self.error = None

    def __iter__(self):
        try:
            for text in self._texts:
                self.count += 1
                yield _clean(text, self._normalization)
        except Exception as error:
            self.error = error
            raise


def _rebuild(model_bytes, special):
    return SubwordTokenizer(model_bytes, special=special)


def _clean(text, normalization):
    """Makes a str that has UTF-8, in NFC where the vocabulary is.

    The model holds the composition rules of NFC, but one pass of rules cannot reorder
    marks ("e", macron below, acute is "é", macron below). So NFC proper comes first,
    here and in `encode_tensor`; the rules serve programs that read the model alone.
    Python and tensorflow-text each bring a version of Unicode: they may order marks
    differently that are newer than the older of the two (22 marks for Python 3.11).
    """
    if not isinstance(text, str):
        raise TypeError(f"`texts` must hold str only. Received: {type(text).__name__}")
    if _SURROGATE.search(text):
        text = _SURROGATE.sub("\ufffd", text)
    return unicodedata.normalize("NFC", text) if normalization == "nfc" else text


def _valid_utf8(tf, texts):
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def _import_tensorflow_text():
    try:
        import tensorflow as tf
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            "The tokenizer's tensor methods need TensorFlow and tensorflow-text of the "
            "same version: pip install tensorflow-text"
        ) from error
    return tf, tensorflow_text


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


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Received: {value!r}")


def _training_error(error, vocab_size, num_texts):
    message = str(error)
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return ValueError(f"`texts` must hold text. Received: {num_texts} texts, all blank")
    largest = re.search(r"value <= (\d+)", message)
    if largest:
        return ValueError(
            f"`vocab_size` is too large for these {num_texts} texts: the largest possible "
            f"is {largest[1]}. Received: vocab_size={vocab_size}"
        )
    smallest = re.search(r"required_chars\. \d+ vs (\d+)", message)
    if smallest:
        return ValueError(
            "`vocab_size` is too small: the characters of the texts and the special and "
            f"byte tokens alone need {smallest[1]}. Received: vocab_size={vocab_size}. "
            "Increase it"
        )
    return ValueError(f"SentencePiece cannot learn a vocabulary from `texts`: {message}")


def _parse(model_bytes, name):
    """Parses a model and refuses one that is cut short."""
    if not model_bytes:
        raise ValueError(f"{name} is empty: not a SentencePiece model")
    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(bytes(model_bytes))
    except DecodeError as error:
        raise ValueError(f"{name} is not a SentencePiece model, or is cut short") from error
    # A file cut between two fields still parses. The fields come in this order.
    if not proto.pieces or not proto.HasField("trainer_spec"):
        raise ValueError(f"{name} is not a SentencePiece model, or is cut short")
    if len(proto.pieces) != proto.trainer_spec.vocab_size:
        raise ValueError(
            f"{name} is damaged: it holds {len(proto.pieces)} tokens "
            f"and states {proto.trainer_spec.vocab_size}"
        )
    if not proto.HasField("normalizer_spec"):
        raise ValueError(f"{name} is cut short: its normalization rules are missing")
    return proto


@contextlib.contextmanager
def _rules(normalization):
    """Trainer arguments for a normalization; the rule file lives as long as the block."""
    if normalization == "nfkc":
        yield {"normalization_rule_name": "nmt_nfkc"}
        return
    rules = {SPACE: " "}  # so that runs of it, too, become one space
    if normalization == "nfc":
        rules.update(_nfc_rules())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rules.tsv")
        path.write_text(
            "".join(f"{_hexadecimal(old)}\t{_hexadecimal(new)}\n" for old, new in rules.items()),
            encoding="ascii",
        )
        yield {"normalization_rule_tsv": str(path)}


def _nfc_rules():
    """What NFC makes of each character that has a canonical decomposition.

    Three spellings each, Hangul syllables included: the full decomposition, the one
    that leaves only the last mark apart, and the character itself where NFC replaces it
    (the Kelvin sign becomes K). About 24,000 rules; they add 170 kB to a model.

    Returns:
        dict, sequence of characters to its composition.
    """
    rules = {}
    for code in range(0x110000):
        character = chr(code)
        decomposed = unicodedata.normalize("NFD", character)
        if decomposed == character:
            continue
        composed = unicodedata.normalize("NFC", character)
        one_step = unicodedata.normalize("NFC", decomposed[:-1]) + decomposed[-1]
        for sequence in (character, decomposed, one_step):
            if sequence != composed and unicodedata.normalize("NFC", sequence) == composed:
                rules[sequence] = composed
    return rules


def _hexadecimal(text):
    return " ".join(f"{ord(character):X}" for character in text)
