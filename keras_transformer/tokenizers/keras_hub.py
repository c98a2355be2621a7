"""Tokenizers of keras-hub: `tokenizer_from_keras_hub` makes them usable in runs, programs and exports.

A SentencePiece model becomes a `SubwordTokenizer`. Byte pairs and word pieces split texts as no other
tokenizer here does, so keras-hub still computes them: `KerasHubTokenizer` has their vocabulary in the order
of our ids, and a file. Ids 0 to 3 are special; all other tokens follow in keras-hub's order.
"""

import functools
import importlib.util
import itertools
import json
from typing import Any

import sentencepiece

from keras_transformer.config.extras import needs
from keras_transformer.config.settings import SpecialIds
from keras_transformer.tokenizers.base import (
    ROLES,
    SPACE,
    Tokenizer,
    check_special,
    import_tensorflow_text,
    valid_utf8,
)
from keras_transformer.tokenizers.messages import sentencepiece_model_pb2
from keras_transformer.tokenizers.sentencepiece import MODEL_TYPES, SubwordTokenizer

FORMAT = "keras-hub vocabulary 1"
# The options of each class that determine its ids; they are stored.
_OPTIONS = {
    "BytePairTokenizer": ("add_prefix_space", "unsplittable_tokens"),
    "WordPieceTokenizer": ("lowercase", "strip_accents", "split_on_cjk", "suffix_indicator", "oov_token"),
}
# Options that must have these values, and what to do without them.
_REQUIRED = {
    "sequence_length": (None, "padding and cutting are part of batches (data.max_length)"),
    "add_bos": (False, "batches add this token"),
    "add_eos": (False, "batches add this token"),
    "split": (True, "a text must be split into words here"),
    "special_tokens_in_strings": (False, "a text must not contain special ids"),
}
_CHUNK = 4096  # texts per call of the graph, to limit memory


class KerasHubTokenizer(Tokenizer):
    """A vocabulary of keras-hub's `BytePairTokenizer` or `WordPieceTokenizer`, with our special ids.

    keras-hub must be installed. It computes the ids as a TensorFlow graph, as in `Dataset.map`, also for the
    methods without tensors, so a served model gets the ids that it was trained on. A text never yields pad,
    bos or eos: their names in a text are ordinary characters.

    `decode` returns the texts of keras-hub's `detokenize`. Word pieces are not reversible: case and accents
    are lost if the options say so, and there is a space between any two words and punctuation marks.
    `sample` is not supported.

    Args:
        model_bytes: the content of a vocabulary file, one line of JSON.
        special: the `SpecialIds` that the vocabulary must have; `None` for the default ones.
        name: name of the vocabulary in error messages, usually its path.

    Raises:
        ValueError: the file is damaged or has other special ids.
        MissingExtraError: keras-hub is not installed.
    """

    def __init__(self, model_bytes, *, special=None, name="the vocabulary of keras-hub"):
        self._content = _parse(bytes(model_bytes), name)
        with needs("keras-hub", name):  # imported only when it is used
            if importlib.util.find_spec("keras_hub") is None:
                raise ModuleNotFoundError("No module named 'keras_hub'")
        super().__init__(
            model_bytes,
            special=check_special(SpecialIds(), special, name),
            normalization="identity",
            unicode_form=None,
        )

    @property
    def vocab_size(self):
        """Number of tokens, the special ones included."""
        return len(self._content["vocabulary"])

    def normalise(self, text):
        """Returns the text as `encode` followed by `decode` returns it."""
        return self.decode(self.encode([text]))[0]

    def encode(self, texts):
        """Returns the ids of each text, as a list of lists, without pad, bos and eos."""
        tf, _ = import_tensorflow_text()
        texts, rows = self._clean_texts(texts), []
        for start in range(0, len(texts), _CHUNK):
            rows += self._encode_graph(tf.constant(texts[start : start + _CHUNK], tf.string)).to_list()
        return rows

    def sample(self, texts, *, dropout, seed):
        """Returns `encode(texts)` if `dropout` is 0.

        Raises:
            ValueError: `dropout` is not 0.
        """
        if dropout:
            raise ValueError("A vocabulary of keras-hub has one segmentation only: `dropout` must be 0")
        return self.encode(texts)

    def pieces(self, texts):
        """Returns the tokens of each text as `entries` has them, with U+2581 for the space before a word."""
        return [[self.entries[number][1] for number in row] for row in self.encode(texts)]

    def decode(self, ids):
        """Returns the text of each row of ids; pad, bos and eos are dropped at any position.

        Args:
            ids: list of lists of int, or an int array of shape `(batch, length)`.

        Returns:
            A list of str. Bytes that are not a character become U+FFFD.
        """
        tf, _ = import_tensorflow_text()
        rows = self._text_ids(ids)
        flat = tf.constant(list(itertools.chain.from_iterable(rows)), tf.int32)
        ragged = tf.RaggedTensor.from_row_lengths(flat, tf.constant([len(row) for row in rows], tf.int64))
        return [text.decode() for text in self._decode_graph(ragged).numpy().tolist()]

    @functools.cached_property
    def graph_tokenizer(self):
        """The tokenizer of keras-hub that computes the ids, a Keras layer."""
        with needs("keras-hub", "A vocabulary of keras-hub"):
            import keras_hub

        tf, _ = import_tensorflow_text()
        kind = getattr(keras_hub.tokenizers, self._content["kind"])
        vocabulary, merges = self._content["vocabulary"], self._content["merges"]
        with tf.init_scope():
            if merges is None:
                return kind(vocabulary, **self._content["options"])
            numbers = {token: number for number, token in enumerate(vocabulary)}
            return kind(numbers, merges, **self._content["options"])

    def encode_tensor(self, texts):
        """`encode` as a TensorFlow graph, for `Dataset.map` and exported models.

        Args:
            texts: tf.string, shape `(batch,)`. Invalid UTF-8 is replaced by U+FFFD.

        Returns:
            tf.RaggedTensor, int32, shape `(batch, None)`.
        """
        tf, _ = import_tensorflow_text()
        if tf.executing_eagerly():  # keras-hub would not compute a graph, and may give other ids
            return self._encode_graph(texts)
        ids = self.graph_tokenizer.tokenize(self._clean_tensor(texts))
        # Byte pairs have -1 for a byte that the vocabulary lacks.
        return ids.with_flat_values(tf.where(ids.flat_values < 0, self.special.unk, ids.flat_values))

    def decode_tensor(self, ids):
        """`decode` as a TensorFlow graph.

        Args:
            ids: int32, shape `(batch, length)`, padded; or a tf.RaggedTensor.

        Returns:
            tf.string, shape `(batch,)`, valid UTF-8.
        """
        tf, _ = import_tensorflow_text()
        ids = self._text_ids_tensor(ids)
        if tf.executing_eagerly():
            return self._decode_graph(ids)
        texts = valid_utf8(tf, self.graph_tokenizer.detokenize(ids))
        has_prefix = self._content["options"].get("add_prefix_space")
        return tf.strings.regex_replace(texts, r"\A ", "") if has_prefix else texts

    @functools.cached_property
    def _encode_graph(self):
        tf, _ = import_tensorflow_text()
        return tf.function(self.encode_tensor, input_signature=[tf.TensorSpec([None], tf.string)])

    @functools.cached_property
    def _decode_graph(self):
        tf, _ = import_tensorflow_text()
        return tf.function(self.decode_tensor, input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])

    def has_own_token(self, character):
        """Returns whether a text of this character is one token, and not the unknown one."""
        (row,) = self.encode([character])
        return len(row) == 1 and row[0] != self.special.unk

    def is_fallback(self, ids):
        """Returns a list of False, one for each id: there are no fallback tokens."""
        return [False] * len(ids)

    def _kinds_and_pieces(self):
        suffix = self._content["options"].get("suffix_indicator")
        for token in self._content["vocabulary"]:
            piece = _spell_bytes(token) if suffix is None else _spell_word(token, suffix)
            yield ("token", token) if piece is None else ("text", piece)


def tokenizer_from_keras_hub(
    tokenizer: Any,
    *,
    pad: str | None = None,
    bos: str | None = None,
    eos: str | None = None,
    unk: str | None = None,
) -> Tokenizer:
    """Converts a tokenizer of keras-hub. Its `save` writes a file for programs and run folders.

    The ids of the four special tokens become 0 to 3, in the order pad, bos, eos, unk. All other tokens follow
    in keras-hub's order. A vocabulary that begins with these four tokens keeps all its ids.

    Args:
        tokenizer: `keras_hub.tokenizers.SentencePieceTokenizer`, `BytePairTokenizer`, `WordPieceTokenizer`,
            or a subclass that tokenizes in the same way.
        pad: str, token of the vocabulary for padding, such as `"[PAD]"`; `None` adds a token.
        bos: the same for the begin of a sentence.
        eos: the same for the end of a sentence.
        unk: the same for unknown text. For word pieces it is `oov_token`.

    A SentencePiece model names its special tokens itself.

    Returns:
        `SubwordTokenizer` of a SentencePiece model, else `KerasHubTokenizer`.

    Raises:
        TypeError: not such a tokenizer.
        ValueError: an option has no counterpart, or a special token does not fit.
    """
    kind = _kind(tokenizer)
    tokenizer.get_vocabulary()  # raises ValueError if there is none
    for name, (wanted, reason) in _REQUIRED.items():
        if (value := getattr(tokenizer, name, wanted)) != wanted:
            raise ValueError(f"`{name}` of the tokenizer must be {wanted!r}: {reason}. Received: {value!r}")
    roles = {"pad": pad, "bos": bos, "eos": eos, "unk": unk}
    if kind == "SentencePieceTokenizer":
        if given := [role for role, token in roles.items() if token is not None]:
            raise ValueError(f"A SentencePiece model names its special tokens itself. Received: {given}")
        return SubwordTokenizer(_with_our_special_ids(tokenizer.proto))
    options = {name: getattr(tokenizer, name) for name in _OPTIONS[kind]}
    if kind == "WordPieceTokenizer":
        tokens, merges = list(tokenizer.get_vocabulary()), None
        roles["unk"] = unk or tokenizer.oov_token
        if roles["unk"] != tokenizer.oov_token:
            raise ValueError(f"`unk` must be the `oov_token` {tokenizer.oov_token!r}. Received: {unk!r}")
    else:
        vocabulary, merges = tokenizer.vocabulary, list(tokenizer.merges)
        tokens = sorted(vocabulary, key=vocabulary.get)
    names = _special_names(roles, tokens)
    if merges is not None:
        options["unsplittable_tokens"] = [x for x in options["unsplittable_tokens"] if x not in names]
    content = {
        "format": FORMAT,
        "kind": kind,
        "options": options,
        "merges": merges,
        "vocabulary": [*names, *(token for token in tokens if token not in names)],
    }
    converted = KerasHubTokenizer(json.dumps(content).encode())
    for name, row in zip(names, converted.encode(names), strict=True):
        if not {converted.special.pad, converted.special.bos, converted.special.eos}.isdisjoint(row):
            raise ValueError(f"The special token {name!r} must be one that no text contains, like '[{name}]'")
    return converted


def refuse_keras_hub(*tokenizers):
    """Raises `TypeError` for a tokenizer of keras-hub itself; does not import keras-hub."""
    for tokenizer in tokenizers:
        if any(kind.__module__.startswith("keras_hub.") for kind in type(tokenizer).__mro__):
            raise TypeError(
                f"Convert keras-hub's {type(tokenizer).__name__} first: "
                "keras_transformer.tokenizer_from_keras_hub(tokenizer)"
            )


def _kind(tokenizer):
    """Returns the name of the class of keras-hub that tokenizes."""
    with needs("keras-hub", "A tokenizer of keras-hub"):
        import keras_hub

    for kind in ("SentencePieceTokenizer", *_OPTIONS):
        base = getattr(keras_hub.tokenizers, kind)
        if isinstance(tokenizer, base):
            classes = type(tokenizer).__mro__
            own = {name for one in classes[: classes.index(base)] for name in vars(one)}
            if own := sorted(x for x in own if "tokenize" in x or x in ("call", "vocabulary_size")):
                raise TypeError(f"{type(tokenizer).__name__} tokenizes in its own way: it overrides {own[0]}")
            return kind
    raise TypeError(
        f"Only tokenizers of keras-hub of the kinds SentencePieceTokenizer, {', '.join(_OPTIONS)} can be "
        f"converted. Received: {type(tokenizer).__name__}"
    )


def _special_names(roles, tokens):
    """Returns the tokens of the four roles, in the order of their ids; new ones where none are given."""
    known = set(tokens)
    for role, token in roles.items():
        if token is not None and token not in known:
            raise ValueError(f"`{role}` must be a token of the vocabulary. Received: {token!r}")
        if token is None and f"<{role}>" in known:
            raise ValueError(f"The vocabulary has the token '<{role}>': pass {role}='<{role}>'")
    names = [f"<{role}>" if roles[role] is None else roles[role] for role in ROLES]
    if len(set(names)) < len(names):
        raise ValueError(f"pad, bos, eos and unk must be four different tokens. Received: {names}")
    return names


def _with_our_special_ids(model_bytes):
    """Moves the special tokens of a SentencePiece model to the ids 0 to 3 and adds those that it lacks."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model_bytes)
    spec, rules = proto.trainer_spec, proto.normalizer_spec
    kind = sentencepiece_model_pb2.TrainerSpec.ModelType.Name(spec.model_type).lower()
    if kind not in MODEL_TYPES:
        raise ValueError(f"The SentencePiece model must be one of {list(MODEL_TYPES)}. Received: {kind!r}")
    # `normalise` and `sample` of a `SubwordTokenizer` assume these.
    for name, found, wanted in (
        ("add_dummy_prefix", rules.add_dummy_prefix, True),
        ("remove_extra_whitespaces", rules.remove_extra_whitespaces, True),
        ("escape_whitespaces", rules.escape_whitespaces, True),
        ("treat_whitespace_as_suffix", spec.treat_whitespace_as_suffix, False),
    ):
        if found != wanted:
            raise ValueError(f"`{name}` of the SentencePiece model must be {wanted}. Received: {found}")
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model_bytes)
    ids = {role: getattr(processor, f"{role}_id")() for role in ROLES}  # -1: the model lacks it
    if list(ids.values()) == [getattr(SpecialIds(), role) for role in ROLES]:
        return model_bytes
    pieces, special = list(proto.pieces), []
    for role, number in ids.items():
        setattr(spec, f"{role}_id", getattr(SpecialIds(), role))
        if number >= 0:
            special.append(pieces[number])
            continue
        name = getattr(spec, f"{role}_piece")
        if any(entry.piece == name for entry in pieces):
            raise ValueError(f"The SentencePiece model has a piece {name!r} that is not its {role} token")
        control = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
        special.append(sentencepiece_model_pb2.ModelProto.SentencePiece(piece=name, score=0.0, type=control))
    others = [entry for number, entry in enumerate(pieces) if number not in ids.values()]
    del proto.pieces[:]
    proto.pieces.extend([*special, *others])
    spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString(deterministic=True)


@functools.cache
def _bytes_of_characters():
    """Returns {character: byte} of the alphabet in which byte pairs are written (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _spell_bytes(token):
    """Returns the text of a byte-pair token with `SPACE` for a space; `None` if it has no such form."""
    try:
        text = bytes(_bytes_of_characters()[character] for character in token).decode()
    except (KeyError, UnicodeDecodeError):
        return None
    return None if SPACE in text else text.replace(" ", SPACE)


def _spell_word(token, suffix):
    """Returns a word piece with `SPACE` at the beginning of a word; `None` if it has no such form."""
    if SPACE in token:
        return None
    is_suffix = token.startswith(suffix) and token != suffix
    return token.removeprefix(suffix) if is_suffix else SPACE + token


def _parse(content, name):
    """Parses a vocabulary file; raises `ValueError` if it is damaged or not one of keras-hub."""
    try:
        found = json.loads(content)
        vocabulary, merges, options = found["vocabulary"], found["merges"], found["options"]
        usable = found["format"] == FORMAT and sorted(options) == sorted(_OPTIONS[found["kind"]])
        usable = usable and len(set(vocabulary)) == len(vocabulary) > len(ROLES)
        usable = usable and all(isinstance(token, str) for token in [*vocabulary, *(merges or [])])
        usable = usable and (merges is not None) == (found["kind"] == "BytePairTokenizer")
    except (ValueError, KeyError, TypeError, RecursionError):
        usable = False
    if not usable:
        raise ValueError(f"{name}: not a vocabulary of keras-hub, or damaged. Save the tokenizer again")
    return found
