"""Word pieces (Wu et al., 2016), which the paper uses for English-French (section 5.1).

A word carries the sign for the space before it, so that the pieces of a sentence spell
the sentence; each place takes the longest piece that matches. A character without a
piece of its own is written as its code point, `\\8364;` for a euro sign, and a backslash
as two, as in Tensor2Tensor's `SubwordTextEncoder`: nothing is ever unknown.
"""

import functools
import json
import logging
import re

from keras_transformer.config.settings import SpecialIds
from keras_transformer.tokenizers.base import (
    NORMALIZATIONS,
    SPACE,
    Tokenizer,
    TrainingTexts,
    check_special,
    check_training,
    clean_text,
    default_special,
    import_tensorflow_text,
)
from keras_transformer.tokenizers.subword_sampling import maxmatch_dropout
from keras_transformer.tokenizers.wordpiece_learning import learn_pieces

logger = logging.getLogger(__name__)

FORMAT = "word pieces 1"
ESCAPE_CHARACTERS = "\\;0123456789"
# Seven digits hold every code point; more are no escape but text of a model gone astray.
_ESCAPE = re.compile(r"\\(?:\\|([0-9]{1,7});)")
_UNKNOWN = "⁇"
_MAX_CACHED_WORDS = 500_000
_NUM_SPECIAL = 4


class WordPieceTokenizer(Tokenizer):
    """A word-piece vocabulary with fixed special ids.

    What a text keeps: `decode(encode(texts))` equals `normalise` of each text, which is
    what `SubwordTokenizer` keeps, but for `"nfkc"`, which here is Unicode's NFKC.
    Literal `<s>`, `[UNK]`, `##` or `\\8364;` in a text are ordinary characters.

    The file is text: one line of JSON, then one piece a line, in the order of the ids
    that follow the four special ones.

    Args:
        model_bytes: the content of such a file.
        special: the ids which the vocabulary must give to its four special tokens.
        name: what error messages call the vocabulary, usually its path.
    """

    def __init__(self, model_bytes, *, special=None, name="the word pieces"):
        special = default_special(special)
        header, pieces = _parse(bytes(model_bytes), name)
        check_special(SpecialIds(**header["special"]), special, name)
        super().__init__(
            model_bytes,
            special=special,
            normalization=header["normalization"],
            unicode_form=_unicode_form(header["normalization"]),
        )
        self._pieces = [""] * _NUM_SPECIAL + pieces
        self._pieces[special.unk] = _UNKNOWN
        self._ids = {piece: number for number, piece in enumerate(pieces, start=_NUM_SPECIAL)}
        self._alphabet = {piece for piece in pieces if len(piece) == 1 and piece != SPACE}
        self._longest = max(map(len, pieces))
        self._cache = {}

    @classmethod
    def train(
        cls,
        texts,
        *,
        vocab_size,
        character_coverage=1.0,
        normalization="nfc",
        split_digits=False,
        max_texts=None,
        seed=0,
        special=None,
    ):
        """Learns a vocabulary; the same texts and settings give the same bytes.

        Args:
            texts: an iterable of str, the lines of both languages.
            vocab_size: number of tokens, the special ones included.
            character_coverage: share of the characters of the corpus that get a piece
                of their own; the others are written as code points.
            normalization: `"nfc"`; `"identity"`, no change but to spaces; or `"nfkc"`,
                Unicode's NFKC.
            split_digits: gives each digit a token of its own.
            max_texts: learns from a uniform random sample of this many texts; `None`
                learns from all of them.
            seed: of the sample.
            special: ids of the four special tokens: 0 to 3 in any order.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ValueError: refused settings, texts without text, or a `vocab_size` that
                the texts do not allow.
        """
        special = default_special(special)
        if sorted(_as_dict(special).values()) != list(range(_NUM_SPECIAL)):
            raise ValueError(f"`special` must hold the ids 0 to 3. Received: {special}")
        check_training(
            vocab_size=vocab_size, character_coverage=character_coverage, normalization=normalization
        )
        texts = TrainingTexts(texts, _unicode_form(normalization), max_texts, seed)
        pieces = learn_pieces(
            (_words(text) for text in texts),
            vocab_size - _NUM_SPECIAL,
            always=ESCAPE_CHARACTERS,
            escape=escape,
            character_coverage=character_coverage,
            split_digits=split_digits,
            num_reserved=_NUM_SPECIAL,
        )
        header = {
            "format": FORMAT,
            "vocab_size": len(pieces) + _NUM_SPECIAL,
            "normalization": normalization,
            "special": _as_dict(special),
        }
        lines = [json.dumps(header), *pieces]
        tokenizer = cls("".join(f"{line}\n" for line in lines).encode(), special=special)
        logger.info("learned %d tokens from %d texts", tokenizer.vocab_size, texts.count)
        return tokenizer

    @property
    def vocab_size(self):
        """Number of tokens, the special ones included."""
        return len(self._pieces)

    def normalise(self, text):
        """Returns what is left of a text after `encode` and `decode`."""
        return " ".join(_words(clean_text(text, self.unicode_form)))

    def encode(self, texts):
        """Returns the ids of each text, as a list of lists, without special ids."""
        rows = []
        for text in self._cleaned(texts):
            row = []
            for word in _words(text):
                row += self._encode_word(word)
            rows.append(row)
        return rows

    def pieces(self, texts):
        """Returns the word pieces of each text, with U+2581 where a space stood."""
        return [[self._pieces[one] for one in row] for row in self.encode(texts)]

    def decode(self, ids):
        """Returns the text of each row of ids.

        Padding, beginning and end of sentence are dropped wherever they stand; the
        unknown id, which `encode` never gives, shows as `⁇`, and so does the number of
        no character as U+FFFD.

        Args:
            ids: rows of whole numbers, of any lengths.

        Returns:
            A list of str.
        """
        rows = self._text_ids(ids)
        texts = ("".join(self._pieces[one] for one in row) for row in rows)
        return [_ESCAPE.sub(_unescape, text).replace(SPACE, " ").removeprefix(" ") for text in texts]

    @functools.cached_property
    def graph_tokenizer(self):
        """The `tensorflow_text.FastWordpieceTokenizer` behind `encode_tensor`."""
        tf, tensorflow_text = import_tensorflow_text()
        # It tells pieces within a word by a prefix. No word begins like a special
        # token's name, as every word begins with the sign for a space.
        names = [f"<{number}>" for number in range(_NUM_SPECIAL)]
        pieces = [piece if piece[0] == SPACE else f"##{piece}" for piece in self._pieces[_NUM_SPECIAL:]]
        with tf.init_scope():
            return tensorflow_text.FastWordpieceTokenizer(
                vocab=names + pieces,
                suffix_indicator="##",
                max_bytes_per_word=2**30,
                token_out_type=tf.int32,
                unknown_token=names[self._special.unk],
                no_pretokenization=True,
            )

    def encode_tensor(self, texts):
        """`encode` as a TensorFlow graph, for `Dataset.map` and exported models.

        Args:
            texts: tf.string, shape `(batch,)`. Invalid UTF-8 is replaced by U+FFFD.

        Returns:
            tf.RaggedTensor, int32, shape `(batch, None)`.
        """
        tf, _ = import_tensorflow_text()
        texts = tf.strings.regex_replace(self._cleaned_tensor(texts), SPACE, " ")
        words = tf.strings.split(texts, sep=" ")
        words = tf.ragged.boolean_mask(words, words != "")
        escaped = tf.strings.join([SPACE, self._escape_tensor(words.flat_values)])
        ids = self.graph_tokenizer.tokenize(words.with_flat_values(escaped))
        return tf.cast(ids.merge_dims(1, 2), tf.int32)

    def decode_tensor(self, ids):
        """`decode` as a TensorFlow graph.

        Args:
            ids: int32, shape `(batch, length)`, padded; or a tf.RaggedTensor.

        Returns:
            tf.string, shape `(batch,)`, valid UTF-8.
        """
        tf, tensorflow_text = import_tensorflow_text()
        ids = self._text_ids_tensor(ids)
        texts = tf.strings.reduce_join(tf.gather(tf.constant(self._pieces), ids), axis=-1)
        # The pattern of `_ESCAPE`: parts are escapes and what stands between them.
        pattern = r"\\(?:\\|[0-9]{1,7};)"
        parts = tensorflow_text.regex_split(texts, pattern, keep_delim_regex_pattern=pattern)
        flat = parts.flat_values
        is_code = tf.strings.regex_full_match(flat, r"\\[0-9]{1,7};")
        digits = tf.where(is_code, tf.strings.regex_replace(flat, r"[\\;]", ""), "0")
        codes = tf.strings.to_number(digits, tf.int32)
        # UTF-8 has no surrogates: they, and what is above the last code point, become U+FFFD.
        characters = tf.strings.unicode_encode(codes[:, None], "UTF-8", errors="replace")
        flat = tf.where(is_code, characters, tf.where(flat == r"\\", "\\", flat))
        texts = tf.strings.reduce_join(parts.with_flat_values(flat), axis=-1)
        return tf.strings.regex_replace(tf.strings.regex_replace(texts, SPACE, " "), r"\A ", "")

    def has_own_token(self, character):
        """Whether a character of normalised text has a token and needs no code point."""
        return character == " " or character in self._alphabet

    def is_fallback(self, ids):
        """Tells which tokens spell part of a character that has no token of its own.

        Args:
            ids: list of int, one text.

        Returns:
            list of bool, as long: true for tokens that overlap a code point.
        """
        pieces = [self._pieces[one] for one in ids]
        owner = [number for number, piece in enumerate(pieces) for _ in piece]
        found = [False] * len(pieces)
        for match in _ESCAPE.finditer("".join(pieces)):
            if match[1] is not None:
                for number in owner[match.start() : match.end()]:
                    found[number] = True
        return found

    def _escape_tensor(self, words):
        """`escape` in the graph: tf.string, shape `(num_words,)`."""
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
        return [("text", piece) for piece in self._pieces]

    def _encode_word(self, word):
        ids = self._cache.get(word)
        if ids is None:
            # Passes over nothing: plain longest match first.
            pieces = maxmatch_dropout(self._spell(word), self._ids, self._longest, 0, lambda: 0)
            ids = [self._ids[piece] for piece in pieces]
            if len(self._cache) >= _MAX_CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _sample_word(self, word, dropout, chooser):
        pieces = maxmatch_dropout(self._spell(word), self._ids, self._longest, dropout, chooser)
        return [self._ids[piece] for piece in pieces]

    def _spell(self, word):
        return SPACE + escape(word, self._alphabet)


def escape(word, alphabet):
    """Writes a word with characters of `alphabet` only; see the top of the module."""
    if "\\" not in word and alphabet.issuperset(word):
        return word
    return "".join("\\\\" if one == "\\" else one if one in alphabet else f"\\{ord(one)};" for one in word)


def _unescape(match):
    if match[1] is None:
        return "\\"
    code = int(match[1])
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def _words(text):
    return [word for word in text.replace(SPACE, " ").split(" ") if word]


def _unicode_form(normalization):
    return {"nfc": "NFC", "nfkc": "NFKC", "identity": None}[normalization]


def _as_dict(special):
    return {name: getattr(special, name) for name in ("pad", "bos", "eos", "unk")}


def _parse(content, name):
    """Returns (header, pieces) of a file; refuses what `WordPieceTokenizer` cannot use."""
    if not content:
        raise ValueError(f"{name} is empty: not a file of word pieces")
    try:
        first, *lines = content.decode("utf-8").split("\n")
        header = json.loads(first)
        usable = (
            header["format"] == FORMAT
            and isinstance(header["vocab_size"], int)
            and header["normalization"] in NORMALIZATIONS
            and sorted(header["special"]) == sorted(_as_dict(SpecialIds()))
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        usable = False
    if not usable:
        raise ValueError(f"{name}: line 1: not a file of word pieces, or cut short. Train it again")
    # After the last newline stands nothing.
    if lines[-1:] != [""] or len(lines) - 1 != header["vocab_size"] - _NUM_SPECIAL:
        raise ValueError(
            f"{name} is damaged or cut short: it holds {max(0, len(lines) - 1) + _NUM_SPECIAL} tokens "
            f"and states {header['vocab_size']}. Train it again"
        )
    pieces = lines[:-1]
    number_of = {}
    for number, piece in enumerate(pieces, start=2):
        if not piece:
            raise ValueError(f"{name}: line {number}: the piece is empty. Train the vocabulary again")
        if piece in number_of:
            raise ValueError(
                f"{name}: line {number}: the piece {piece!r} stands on line {number_of[piece]}, too. "
                "Train the vocabulary again"
            )
        number_of[piece] = number
    missing = [one for one in SPACE + ESCAPE_CHARACTERS if one not in number_of]
    if missing:
        raise ValueError(f"{name} lacks the piece {missing[0]!r}. Train the vocabulary again")
    if sorted(header["special"].values(), key=str) != list(range(_NUM_SPECIAL)):
        raise ValueError(f"{name}: line 1: the special ids must be 0 to 3. Received: {header['special']}")
    return header, pieces
