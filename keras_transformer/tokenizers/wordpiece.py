"""Word pieces (Wu et al., 2016), which the paper uses for English-French (section 5.1).

Each word begins with `SPACE`, so the pieces of a sentence spell the sentence. A word is split from left to
right by longest match. As in Tensor2Tensor's `SubwordTextEncoder`, a character without a piece of its own is
escaped as its code point (`\\8364;` for a euro sign), and a backslash is doubled, so no text is unknown.
"""

import functools
import itertools
import json
import logging
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer.config.settings import SpecialIds
from keras_transformer.config.tags import is_tag
from keras_transformer.config.types import Tensor
from keras_transformer.tokenizers.base import (
    ROLES,
    SPACE,
    Tokenizer,
    cache_short_words,
    check_special,
    clean_text,
    import_tensorflow_text,
    maxmatch_dropout,
)
from keras_transformer.tokenizers.learning import (
    ESCAPE_CHARACTERS,
    NORMALIZATIONS,
    NUM_SPECIAL,
    TrainingTexts,
    check_training,
    escape,
    learn_pieces,
)

logger = logging.getLogger(__name__)

FORMAT = "word pieces 1"
# Every code point has at most seven digits; a longer number, which only a model can output, is text.
_ESCAPE = re.compile(r"\\(?:\\|([0-9]{1,7});)")
_UNKNOWN = "⁇"
_MAX_CACHED_WORDS = 200_000
_UNICODE_FORMS = {"nfc": "NFC", "nfkc": "NFKC", "identity": None}


class WordPieceTokenizer(Tokenizer):
    """A word-piece tokenizer with fixed special ids.

    `decode(encode(texts))` equals `normalise` of each text. Normalisation is that of
    `SubwordTokenizer`, except that `"nfkc"` is Unicode's NFKC here.
    Literal `<s>`, `[UNK]`, `##` or `\\8364;` in a text are ordinary characters.

    The vocabulary file is text: one line of JSON, then one piece per line, in the order of
    their ids, which follow the four special ids.

    Args:
        model_bytes: the content of a vocabulary file.
        special: the `SpecialIds` that the vocabulary must have; `None` for the default ones.
        name: name of the vocabulary in error messages, usually its path.
    """

    def __init__(
        self, model_bytes: bytes, *, special: SpecialIds | None = None, name: str = "the word pieces"
    ) -> None:
        header, pieces = _parse(bytes(model_bytes), name)
        super().__init__(
            model_bytes,
            special=check_special(SpecialIds(**header["special"]), special, name),
            normalization=header["normalization"],
            unicode_form=_UNICODE_FORMS[header["normalization"]],
        )
        self._pieces = [""] * NUM_SPECIAL + pieces
        self._pieces[self.special.unk] = _UNKNOWN
        # Special tokens and tags come before all pieces of text.
        self._num_reserved = NUM_SPECIAL + len(header.get("tags", ()))
        self._non_text_ids += tuple(range(NUM_SPECIAL, self._num_reserved))
        self._ids = {
            piece: self._num_reserved + i for i, piece in enumerate(self._pieces[self._num_reserved :])
        }
        self._alphabet = {piece for piece in self._ids if len(piece) == 1 and piece != SPACE}
        self._longest = max(map(len, self._ids))
        # Without dropout, which is plain longest match.
        self._encode_word = cache_short_words(
            lambda word: self._sample_word(word, 0, lambda: 0), _MAX_CACHED_WORDS
        )

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int,
        character_coverage: float = 1.0,
        normalization: str = "nfc",
        split_digits: bool = False,
        tags: tuple[str, ...] = (),
        max_texts: int | None = None,
        seed: int = 0,
        special: SpecialIds | None = None,
    ) -> "WordPieceTokenizer":
        """Learns a vocabulary; the same texts and settings give the same bytes.

        Args:
            texts: an iterable of str, the lines of both languages.
            vocab_size: number of tokens, the special ones included.
            character_coverage: share of the characters of the corpus that get a piece
                of their own; the others are escaped as code points.
            normalization: `"nfc"`; `"identity"`, which only normalises spaces; or `"nfkc"`,
                Unicode's NFKC.
            split_digits: if true, each digit is a token of its own.
            tags: names such as `"<BT>"` that become tokens after the special ones, for `encode_tagged`.
            max_texts: learns from a uniform random sample of this number of texts; `None`
                learns from all texts.
            seed: seed of the sample.
            special: ids of the four special tokens: 0 to 3 in any order.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ValueError: a setting is invalid, all texts are blank, or `vocab_size` is too small
                or too large for the texts.
        """
        ids = _as_dict(special or SpecialIds())
        if sorted(ids.values()) != list(range(NUM_SPECIAL)):
            raise ValueError(f"`special` must hold the ids 0 to 3. Received: {ids}")
        check_training(
            vocab_size=vocab_size, character_coverage=character_coverage, normalization=normalization
        )
        texts = TrainingTexts(texts, _UNICODE_FORMS[normalization], max_texts, seed)
        words = ([word for word in _words(text) if word not in tags] for text in texts)
        learning = {"character_coverage": character_coverage, "split_digits": split_digits}
        pieces = learn_pieces(words, vocab_size, num_tags=len(tags), **learning)
        header = {
            "format": FORMAT,
            "vocab_size": vocab_size,
            "normalization": normalization,
            "special": ids,
        }
        header |= {"tags": list(tags)} if tags else {}
        lines = [json.dumps(header), *tags, *pieces]
        tokenizer = cls("".join(f"{line}\n" for line in lines).encode(), special=SpecialIds(**ids))
        logger.debug("learned %d tokens from %d texts", tokenizer.vocab_size, texts.count)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the special ones included."""
        return len(self._pieces)

    def normalise(self, text: str) -> str:
        """Returns the text as `encode` followed by `decode` returns it."""
        return " ".join(_words(clean_text(text, self.unicode_form)))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, as a list of lists, without special ids."""
        rows = [map(self._encode_word, words) for words in self._words(texts)]
        return [list(itertools.chain.from_iterable(row)) for row in rows]

    def pieces(self, texts: list[str]) -> list[list[str]]:
        """Returns the word pieces of each text, with U+2581 for a space."""
        return [[self._pieces[number] for number in row] for row in self.encode(texts)]

    def decode(self, ids: list[list[int]] | np.ndarray) -> list[str]:
        """Returns the text of each row of ids.

        Padding, bos and eos are dropped at any position. The unknown id, which `encode` never
        returns, becomes `⁇`; an escaped number that is not a character becomes U+FFFD.

        Args:
            ids: list of lists of int, or an int array of shape `(batch, length)`.

        Returns:
            A list of str.
        """
        rows = self._text_ids(ids)
        texts = ("".join(self._pieces[number] for number in row) for row in rows)
        return [_ESCAPE.sub(_unescape, text).replace(SPACE, " ").removeprefix(" ") for text in texts]

    @functools.cached_property
    def graph_tokenizer(self) -> Any:
        """The `tensorflow_text.FastWordpieceTokenizer` that `encode_tensor` uses."""
        tf, tensorflow_text = import_tensorflow_text()
        # It marks pieces within a word by the prefix `##`. The names of special tokens and tags
        # never match, because every word begins with `SPACE`.
        names = [f"<{number}>" for number in range(self._num_reserved)]
        pieces = [piece if piece[0] == SPACE else f"##{piece}" for piece in self._ids]
        with tf.init_scope():
            return tensorflow_text.FastWordpieceTokenizer(
                vocab=names + pieces,
                suffix_indicator="##",
                max_bytes_per_word=2**30,
                token_out_type=tf.int32,
                unknown_token=names[self.special.unk],
                no_pretokenization=True,
            )

    def encode_tensor(self, texts: Tensor) -> Tensor:
        """`encode` as a TensorFlow graph, for `Dataset.map` and exported models.

        Args:
            texts: tf.string, shape `(batch,)`. Invalid UTF-8 is replaced by U+FFFD.

        Returns:
            tf.RaggedTensor, int32, shape `(batch, None)`.
        """
        tf, _ = import_tensorflow_text()
        texts = tf.strings.regex_replace(self._clean_tensor(texts), SPACE, " ")
        words = tf.strings.split(texts, sep=" ")
        words = tf.ragged.boolean_mask(words, words != "")
        escaped = tf.strings.join([SPACE, self._escape_tensor(words.flat_values)])
        ids = self.graph_tokenizer.tokenize(words.with_flat_values(escaped))
        return tf.cast(ids.merge_dims(1, 2), tf.int32)

    def decode_tensor(self, ids: Tensor) -> Tensor:
        """`decode` as a TensorFlow graph.

        Args:
            ids: int32, shape `(batch, length)`, padded; or a tf.RaggedTensor.

        Returns:
            tf.string, shape `(batch,)`, valid UTF-8.
        """
        tf, tensorflow_text = import_tensorflow_text()
        ids = self._text_ids_tensor(ids)
        texts = tf.strings.reduce_join(tf.gather(tf.constant(self._pieces), ids), axis=-1)
        # Split at escapes (the pattern of `_ESCAPE`); the escapes are parts too.
        pattern = r"\\(?:\\|[0-9]{1,7};)"
        parts = tensorflow_text.regex_split(texts, pattern, keep_delim_regex_pattern=pattern)
        flat = parts.flat_values
        is_code = tf.strings.regex_full_match(flat, r"\\[0-9]{1,7};")
        digits = tf.where(is_code, tf.strings.regex_replace(flat, r"[\\;]", ""), "0")
        codes = tf.strings.to_number(digits, tf.int32)
        # Surrogates and numbers above the last code point become U+FFFD.
        characters = tf.strings.unicode_encode(codes[:, None], "UTF-8", errors="replace")
        flat = tf.where(is_code, characters, tf.where(flat == r"\\", "\\", flat))
        texts = tf.strings.reduce_join(parts.with_flat_values(flat), axis=-1)
        return tf.strings.regex_replace(tf.strings.regex_replace(texts, SPACE, " "), r"\A ", "")

    def has_own_token(self, character: str) -> bool:
        """Returns whether a character of normalised text has a token of its own and needs no escape."""
        return character == " " or character in self._alphabet

    def is_fallback(self, ids: list[int]) -> list[bool]:
        """Returns which tokens are part of a character that has no token of its own.

        Args:
            ids: list of int, one text.

        Returns:
            list of bool, one for each id: true for tokens that overlap an escaped code point.
        """
        pieces = [self._pieces[number] for number in ids]
        owner = [number for number, piece in enumerate(pieces) for _ in piece]
        flags = [False] * len(pieces)
        for match in _ESCAPE.finditer("".join(pieces)):
            if match[1] is not None:
                for number in owner[match.start() : match.end()]:
                    flags[number] = True
        return flags

    def _escape_tensor(self, words):
        """`escape` in the graph: tf.string, shape `(num_words,)`, to the same shape."""
        tf, _ = import_tensorflow_text()
        codes = tf.strings.unicode_decode(words, "UTF-8")
        flat = codes.flat_values
        alphabet = tf.constant(sorted(map(ord, self._alphabet)), tf.int32)
        nearest = tf.minimum(tf.searchsorted(alphabet, flat), len(self._alphabet) - 1)
        is_known = tf.gather(alphabet, nearest) == flat
        characters = tf.strings.unicode_encode(flat[:, None], "UTF-8")
        numbers = tf.strings.join(["\\", tf.strings.as_string(flat), ";"])
        escaped = tf.where(is_known, tf.where(characters == "\\", r"\\", characters), numbers)
        return tf.strings.reduce_join(codes.with_flat_values(escaped), axis=-1)

    def _kinds_and_pieces(self):
        reserved = [("control", name) for name in self._pieces[: self._num_reserved]]
        return reserved + [("text", piece) for piece in self._ids]

    def _sample_word(self, word, dropout, random_float):
        spelled = SPACE + escape(word, self._alphabet)
        pieces = maxmatch_dropout(spelled, self._ids, self._longest, dropout, random_float)
        return [self._ids[piece] for piece in pieces]


def _unescape(match):
    if match[1] is None:
        return "\\"
    code = int(match[1])
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def _words(text):
    return [word for word in text.replace(SPACE, " ").split(" ") if word]


def _as_dict(special):
    return {role: getattr(special, role) for role in ROLES}


def _parse(content, name):
    """Parses a vocabulary file; returns (header, pieces).

    Raises:
        ValueError: the file is damaged or not a file of word pieces.
    """
    if not content:
        raise ValueError(f"{name} is empty: not a word-piece vocabulary")
    try:
        first, *lines = content.decode("utf-8").split("\n")
        header = json.loads(first)
        size, special, tags = header["vocab_size"], header["special"], header.get("tags", [])
        usable = header["format"] == FORMAT and isinstance(size, int) and sorted(special) == sorted(ROLES)
        usable = usable and header["normalization"] in NORMALIZATIONS and isinstance(tags, list)
    except (ValueError, KeyError, TypeError, RecursionError):
        usable = False
    if not usable:
        raise ValueError(f"{name}: line 1: not a word-piece vocabulary, or truncated. Train it again")
    *pieces, rest = lines or [""]
    if rest or len(pieces) != size - NUM_SPECIAL:  # `rest` is the text after the last newline
        raise ValueError(
            f"{name} is damaged or truncated: it has {len(pieces) + NUM_SPECIAL} tokens "
            f"and states {size}. Train it again"
        )
    line_of = {}
    for number, piece in enumerate(pieces, start=2):
        problem = None if piece else "the piece is empty"
        if piece in line_of:
            problem = f"the piece {piece!r} stands on line {line_of[piece]}, too"
        if problem:
            raise ValueError(f"{name}: line {number}: {problem}. Train the vocabulary again")
        line_of[piece] = number
    for piece in SPACE + ESCAPE_CHARACTERS:
        if piece not in line_of:
            raise ValueError(f"{name} lacks the piece {piece!r}. Train the vocabulary again")
    if pieces[: len(tags)] != tags or not all(map(is_tag, tags)):
        raise ValueError(
            f"{name}: line 1: the tags {tags} must be the first pieces. Train the vocabulary again"
        )
    if sorted(special.values(), key=str) != list(range(NUM_SPECIAL)):
        raise ValueError(f"{name}: line 1: the special ids must be 0 to 3. Received: {special}")
    return header, pieces
