"""SentencePiece tokenizer (BPE or unigram), in Python and in the TensorFlow graph.

Section 5.1 of the paper uses one vocabulary of about 37,000 tokens for both languages. The model file alone
determines the ids of a text, so training, translation and serving always agree.
"""

import copy
import functools
import io
import logging
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError

from keras_transformer.config.settings import SpecialIds
from keras_transformer.config.types import Tensor
from keras_transformer.tokenizers.base import (
    ROLES,
    SPACE,
    Tokenizer,
    bpe_dropout,
    cache_short_words,
    check_choice,
    check_special,
    clean_text,
    import_tensorflow_text,
    unigram_lattice,
    unigram_sample,
    valid_utf8,
)
from keras_transformer.tokenizers.learning import NORMALIZATIONS, TrainingTexts, check_training
from keras_transformer.tokenizers.messages import sentencepiece_model_pb2
from keras_transformer.tokenizers.normalization_rules import normalization_rules

logger = logging.getLogger(__name__)

MODEL_TYPES = ("bpe", "unigram")
_MAX_LATTICES = 50_000
_FEW_TEXTS = 64  # so many are encoded or decoded faster one by one than by the library's threads


class SubwordTokenizer(Tokenizer):
    """A SentencePiece tokenizer with fixed special ids.

    `decode(encode(texts))` equals `normalise` of each text. With the default normalization
    `"nfc"`, this is Unicode NFC (composed and decomposed input have the same ids), with
    each run of spaces replaced by one and spaces at the ends removed. Everything else is
    preserved: case, `²`, `…`, emoji. U+2581, SentencePiece's space symbol, becomes a space.

    Normalisation is idempotent with `"nfc"` and `"identity"`, and with `"nfkc"` of
    `WordPieceTokenizer`. With `"nfkc"` of this class it is not: the rules are SentencePiece's and are applied
    in one pass, so a mark is not composed with a letter that the same pass produced (`㎶` and a dot
    below become `μV` and the dot; a second pass gives `μṾ`). A third pass changes nothing. Python and
    graph agree.

    Literal `<s>`, `</s>`, `<pad>` and `⁇` in a text are ordinary characters and never
    become special ids. With byte fallback, every character has ids, also those not seen in
    training; without it, unseen characters become the unknown id.

    `encode` adds no bos or eos; they are added when batches are made.

    Args:
        model_bytes: a serialised SentencePiece model.
        special: the `SpecialIds` that the model must have; `None` for the default ones.
        name: name of the model in error messages, usually its path.
    """

    def __init__(
        self, model_bytes: bytes, *, special: SpecialIds | None = None, name: str = "the tokenizer model"
    ) -> None:
        normalization = _normalization(_parse(model_bytes, name).normalizer_spec.name)
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(bytes(model_bytes))
        except RuntimeError as error:
            raise ValueError(f"{name} is not a usable SentencePiece model: {error}") from error
        special_ids = {role: getattr(processor, f"{role}_id")() for role in ROLES}
        ids = check_special(SpecialIds(**special_ids), special, name)
        form = _unicode_form(normalization)
        super().__init__(model_bytes, special=ids, normalization=normalization, unicode_form=form)
        self._processor = processor
        self._lattice = cache_short_words(self._make_lattice, _MAX_LATTICES)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int,
        model_type: str = "bpe",
        character_coverage: float = 1.0,
        byte_fallback: bool = True,
        normalization: str = "nfc",
        split_digits: bool = False,
        tags: tuple[str, ...] = (),
        max_texts: int | None = None,
        seed: int = 0,
        special: SpecialIds | None = None,
    ) -> "SubwordTokenizer":
        """Learns a vocabulary; the same texts and settings give the same bytes.

        Args:
            texts: an iterable of str, the lines of both languages.
            vocab_size: number of tokens, special and byte tokens included.
            model_type: `"bpe"` (the paper, section 5.1) or `"unigram"`.
            character_coverage: share of the characters of the corpus that get a token of their own.
            byte_fallback: adds 256 byte tokens, which encode the UTF-8 bytes of other characters.
            normalization: `"nfc"`; `"identity"`, which only normalises spaces; or `"nfkc"`, SentencePiece's
                default (its `nmt_nfkc`), which also turns `²` into `2` and `…` into `...`.
            split_digits: if true, each digit is a token of its own, for text whose numbers matter.
            tags: names such as `"<BT>"` that become tokens after the special ones, for `encode_tagged`.
            max_texts: learns from a uniform random sample of this number of texts; `None` learns from all.
            seed: seed of the sample.
            special: ids of the four special tokens.

        Returns:
            A `SubwordTokenizer`.
        """
        special = special or SpecialIds()
        check_choice("model_type", model_type, MODEL_TYPES)
        check_training(
            vocab_size=vocab_size, character_coverage=character_coverage, normalization=normalization
        )
        model = io.BytesIO()
        stream = TrainingTexts(texts, _unicode_form(normalization), max_texts, seed)
        with normalization_rules(normalization) as rules:
            try:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=iter(stream),
                    model_writer=model,
                    vocab_size=vocab_size,
                    model_type=model_type,
                    character_coverage=character_coverage,
                    byte_fallback=byte_fallback,
                    split_digits=split_digits,
                    max_sentence_length=2**30,  # the default ignores lines over 4 kB
                    minloglevel=2,
                    **{f"{role}_id": getattr(special, role) for role in ROLES},
                    **rules | ({"control_symbols": list(tags)} if tags else {}),
                )
            except (RuntimeError, ValueError) as error:
                if stream.error is not None:
                    raise stream.error from None
                raise _training_error(error, vocab_size, stream.count) from error
        proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())  # type: ignore[attr-defined]
        # The bytes depend only on texts and settings, not on the machine. (So the number of threads is
        # SentencePiece's default and not the number of cores: it changes the rounding of unigram's sums.)
        proto.normalizer_spec.ClearField("normalization_rule_tsv")
        proto.normalizer_spec.name = normalization
        tokenizer = cls(proto.SerializeToString(deterministic=True), special=special)
        logger.debug("learned %d tokens from %d texts", tokenizer.vocab_size, stream.count)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special and byte tokens included."""
        return self._processor.get_piece_size()

    def normalise(self, text: str) -> str:
        """Returns the text as `encode` followed by `decode` returns it.

        This holds with byte fallback; without it, characters outside the vocabulary are lost too.
        """
        normalised = self._processor.normalize(clean_text(text, self.unicode_form))
        return normalised.replace(SPACE, " ").removeprefix(" ")

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, as a list of lists, without special ids."""
        return _for_each(self._processor.encode, self._clean_texts(texts), out_type=int)

    def pieces(self, texts: list[str]) -> list[list[str]]:
        """Returns the sub-words of each text, with U+2581 for a space."""
        return _for_each(self._processor.encode, self._clean_texts(texts), out_type=str)

    def decode(self, ids: list[list[int]] | np.ndarray) -> list[str]:
        """Returns the text of each row of ids.

        Padding, bos and eos are dropped at any position. The unknown id becomes `⁇`;
        bytes that are not a character become U+FFFD.

        Args:
            ids: list of lists of int, or an int array of shape `(batch, length)`.

        Returns:
            A list of str.
        """
        return _for_each(self._processor.decode, self._text_ids(ids))

    @functools.cached_property
    def graph_tokenizer(self) -> Any:
        """The `tensorflow_text.SentencepieceTokenizer` that the tensor methods use.

        A `tf.Module` whose exported signatures call `encode_tensor` or `decode_tensor` must
        have this object as an attribute, so that it is saved with the module.
        """
        tf, _ = import_tensorflow_text()
        with tf.init_scope():  # the model is loaded once, outside any graph being traced
            return self._make_graph_tokenizer()

    def for_dataset(self) -> "SubwordTokenizer":
        """Returns a copy, for a function of `tf.data`, whose tensor methods put the model into its graph.

        `keras.utils.set_random_seed` makes TensorFlow forget `graph_tokenizer`, which it cannot serialise.
        """
        tokenizer = copy.copy(self)
        tokenizer.graph_tokenizer = self._make_graph_tokenizer()
        return tokenizer

    def _make_graph_tokenizer(self):
        tf, tensorflow_text = import_tensorflow_text()
        return tensorflow_text.SentencepieceTokenizer(model=self.model_bytes, out_type=tf.int32)

    def encode_tensor(self, texts: Tensor) -> Tensor:
        """`encode` as a TensorFlow graph, for `Dataset.map` and exported models.

        The ids are those of `encode`, except that with a unigram vocabulary the two may choose
        different segmentations of equal probability ("g gg" and "gg g").

        Args:
            texts: tf.string, shape `(batch,)`. Invalid UTF-8 is replaced by U+FFFD.

        Returns:
            tf.RaggedTensor, int32, shape `(batch, None)`.
        """
        return self.graph_tokenizer.tokenize(self._clean_tensor(texts))

    def decode_tensor(self, ids: Tensor) -> Tensor:
        """`decode` as a TensorFlow graph.

        Args:
            ids: int32, shape `(batch, length)`, padded; or a tf.RaggedTensor.

        Returns:
            tf.string, shape `(batch,)`, valid UTF-8.
        """
        tf, _ = import_tensorflow_text()
        return valid_utf8(tf, self.graph_tokenizer.detokenize(self._text_ids_tensor(ids)))

    def has_own_token(self, character: str) -> bool:
        """Returns whether a character of normalised text has a token other than bytes and the unknown id."""
        piece = SPACE if character == " " else character
        return piece in self._scores or piece in self._user_defined

    def is_fallback(self, ids: list[int]) -> list[bool]:
        """Returns which tokens are part of a character that has no token of its own.

        Args:
            ids: list of int, one text.

        Returns:
            list of bool, one for each id: true for byte tokens.
        """
        return [self._processor.is_byte(number) for number in ids]

    @functools.cached_property
    def _proto(self):
        return sentencepiece_model_pb2.ModelProto.FromString(self.model_bytes)

    @functools.cached_property
    def _scores(self):
        """{piece: score} of the learned text pieces, without special and byte tokens."""
        normal = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
        return {entry.piece: entry.score for entry in self._proto.pieces if entry.type == normal}

    @functools.cached_property
    def _user_defined(self):
        """Set of the user-defined symbols, which `encode` never splits or merges."""
        kind = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
        return {entry.piece for entry in self._proto.pieces if entry.type == kind}

    @functools.cached_property
    def _user_defined_pattern(self):
        """Pattern that captures a user-defined symbol, the longest of those that match."""
        longest_first = sorted(self._user_defined, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @functools.cached_property
    def _ids(self):
        """{piece: id} of all pieces."""
        return {entry.piece: number for number, entry in enumerate(self._proto.pieces)}

    def _kinds_and_pieces(self):
        # User-defined symbols are text pieces like learned ones.
        kinds = {"NORMAL": "text", "USER_DEFINED": "text"}
        for entry in self._proto.pieces:
            kind = sentencepiece_model_pb2.ModelProto.SentencePiece.Type.Name(entry.type)
            yield kinds.get(kind, kind.lower()), entry.piece

    def _sample_word(self, word, dropout, random_float):
        ids = []
        # Text and user-defined symbols alternate.
        for number, part in enumerate(self._user_defined_pattern.split(SPACE + word)):
            is_symbol = number % 2 == 1
            for piece in [part] if is_symbol else self._sample_pieces(part, dropout, random_float):
                if is_symbol or piece in self._scores:
                    ids.append(self._ids[piece])
                elif self._proto.trainer_spec.byte_fallback:
                    ids += [self._ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
                elif not ids or ids[-1] != self.special.unk:  # SentencePiece merges adjacent unknowns
                    ids.append(self.special.unk)
        return ids

    def _sample_pieces(self, text, dropout, random_float):
        if self._proto.trainer_spec.model_type == sentencepiece_model_pb2.TrainerSpec.BPE:
            return bpe_dropout(text, self._scores, dropout, random_float)
        return unigram_sample(text, self._lattice(text, 1 / dropout - 1), random_float)

    @functools.cached_property
    def _longest_and_unknown(self):
        """(length of the longest piece, score of a character that is not a piece), as in SentencePiece."""
        return max(map(len, self._scores)), min(self._scores.values()) - 10.0

    def _make_lattice(self, word, alpha):
        return unigram_lattice(word, self._scores, *self._longest_and_unknown, alpha)


def _for_each(function, items, **options):
    """Returns `function(items)` of a list, without starting threads for a few; a list."""
    if len(items) > _FEW_TEXTS:
        return function(items, **options)
    return [function(item, **options) for item in items]


def _normalization(name):
    """Returns the setting `data.normalization` for the rules in a model, which may be of another program.

    `"identity"` if the rules have another name: none are applied in addition to those of the model.
    """
    names = {name: name for name in NORMALIZATIONS} | {"nmt_nfkc": "nfkc"}
    return names.get(name, "identity")


def _unicode_form(normalization):
    """Returns the Unicode normalisation form to apply before the model's own rules, or `None`.

    The model contains the composition rules of NFC, but one pass of rules cannot reorder
    marks ("e", macron below, acute is "é", macron below in NFC). So Python and the graph apply
    NFC first; the rules are for other programs that use the model file.
    """
    return "NFC" if normalization == "nfc" else None


def _training_error(error, vocab_size, num_texts):
    """Translates an error of SentencePiece's trainer into a `ValueError` that names the setting."""
    message = str(error)
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return ValueError(f"`texts` must contain text. Received: {num_texts} texts, all blank")
    if largest := re.search(r"value <= (\d+)", message):
        return ValueError(
            f"`vocab_size` is too large for these {num_texts} texts: the largest possible "
            f"is {largest[1]}. Received: vocab_size={vocab_size}"
        )
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return ValueError(
            "`vocab_size` is too small: the characters of the texts and the special and byte tokens alone "
            f"need {smallest[1]}. Received: vocab_size={vocab_size}. Increase it"
        )
    return ValueError(f"SentencePiece cannot learn a vocabulary from `texts`: {message}")


def _parse(model_bytes, name):
    """Parses a serialised model; raises `ValueError` if it is invalid or truncated."""
    if not model_bytes:
        raise ValueError(f"{name} is empty: not a SentencePiece model")
    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(bytes(model_bytes))
    except DecodeError as error:
        raise ValueError(f"{name} is not a SentencePiece model, or is truncated") from error
    # A file that is truncated between two fields still parses, so check the fields, in file order.
    if not proto.pieces or not proto.HasField("trainer_spec"):
        raise ValueError(f"{name} is not a SentencePiece model, or is truncated")
    if len(proto.pieces) != proto.trainer_spec.vocab_size:
        raise ValueError(
            f"{name} is damaged: it has {len(proto.pieces)} tokens "
            f"but declares {proto.trainer_spec.vocab_size}"
        )
    if not proto.HasField("normalizer_spec"):
        raise ValueError(f"{name} is truncated: its normalization rules are missing")
    return proto
