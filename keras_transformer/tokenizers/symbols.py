"""The closed target vocabulary of constituency parsing (section 6.3): brackets with labels, and words.

`text.linearised` defines the symbols of a tree. The vocabulary file is text: one line of JSON, then one
symbol per line, in the order of their ids, which follow the four special ids.
"""

import collections
import json

from keras_transformer.config.settings import SpecialIds
from keras_transformer.text.linearised import WORD, is_closing, is_opening, linearise
from keras_transformer.text.trees import read_tree
from keras_transformer.tokenizers.base import ROLES, Tokenizer, check_special, import_tensorflow_text
from keras_transformer.tokenizers.learning import NUM_SPECIAL

FORMAT = "tree symbols 1"
_UNKNOWN = "⁇"


class TreeTokenizer(Tokenizer):
    """Maps bracketed trees to the ids of their linearisation, and ids to its symbols.

    `encode` takes one tree per text, `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`. `decode` gives the
    symbols, separated by spaces: `(S (NP XX XX )NP (VP XX )VP )S`. The words are not in the symbols. A label
    that the vocabulary lacks becomes the unknown id.

    Args:
        model_bytes: the content of a vocabulary file.
        special: the `SpecialIds` that the vocabulary must have; `None` for the default ones.
        name: name of the vocabulary in error messages, usually its path.

    Attributes:
        keep_tags: bool, whether the symbol of a word is its part-of-speech tag; if false, it is `XX`.
        symbols: list of str, the symbol of each id; "" for special ids but the unknown one.

    Raises:
        ValueError: the file is damaged, not a vocabulary of tree symbols, or has other special ids.
    """

    def __init__(self, model_bytes, *, special=None, name="the tree symbols"):
        header, symbols = _parse(bytes(model_bytes), name)
        super().__init__(
            model_bytes,
            special=check_special(SpecialIds(**header["special"]), special, name),
            normalization="identity",
            unicode_form=None,
        )
        self.keep_tags = header["keep_tags"]
        self.symbols = [""] * NUM_SPECIAL + symbols
        self.symbols[self.special.unk] = _UNKNOWN
        self._ids = {symbol: number for number, symbol in enumerate(symbols, start=NUM_SPECIAL)}

    @classmethod
    def train(cls, trees, *, keep_tags=False, special=None):
        """Collects the symbols of trees; the same trees in any order give the same bytes.

        Args:
            trees: iterable of str, one bracketed tree each.
            keep_tags: bool, see the attribute.
            special: `SpecialIds`; `None` for the default ones.

        Returns:
            A `TreeTokenizer`.
        """
        special = special or SpecialIds()
        labels, words = set(), set() if keep_tags else {WORD}
        for text in trees:
            for symbol in linearise(read_tree(text), keep_tags=keep_tags):
                if is_opening(symbol):
                    labels.add(symbol[1:])
                elif not is_closing(symbol):
                    words.add(symbol)
        symbols = [*sorted(words), *(f"({x}" for x in sorted(labels)), *(f"){x}" for x in sorted(labels))]
        header = {
            "format": FORMAT,
            "vocab_size": NUM_SPECIAL + len(symbols),
            "keep_tags": keep_tags,
            "special": {role: getattr(special, role) for role in ROLES},
        }
        lines = [json.dumps(header), *symbols]
        return cls("".join(f"{line}\n" for line in lines).encode(), special=special)

    @property
    def vocab_size(self):
        """Number of tokens, the special ones included."""
        return len(self.symbols)

    @property
    def word_ids(self):
        """Ids of the symbols of words, list of int: of `XX`, or of all tags."""
        return [number for symbol, number in self._ids.items() if symbol[0] not in "()"]

    @property
    def brackets(self):
        """Ids of the opening and of the closing symbol of each label, list of (int, int)."""
        openings = [symbol for symbol in self._ids if is_opening(symbol)]
        return [(self._ids[symbol], self._ids[f"){symbol[1:]}"]) for symbol in openings]

    def normalise(self, text):
        """Returns the symbols of a tree, separated by spaces; text that `decode` returned stays the same."""
        symbols = text.split()
        # A tree ends with a closing bracket without a label.
        if not text.strip().endswith(")") and all(
            x[0] in "()" or x in self._ids or x == _UNKNOWN for x in symbols
        ):
            return " ".join(symbols)
        return " ".join(linearise(read_tree(text), keep_tags=self.keep_tags))

    def encode(self, texts):
        """Returns the ids of the linearisation of each tree, a list of lists, without special ids.

        Args:
            texts: list of str: bracketed trees, or symbols as `decode` returns them. A blank text has no ids.

        Raises:
            ValueError: a text is no tree.
        """
        unknown = self.special.unk
        return [
            [self._ids.get(symbol, unknown) for symbol in self.normalise(text).split()]
            for text in self._clean_texts(texts)
        ]

    def sample(self, texts, *, dropout, seed):
        """Returns `encode(texts)`: symbols have no sub-words."""
        return self.encode(texts)

    def pieces(self, texts):
        """Returns the symbols of each tree."""
        return [[self.symbols[number] for number in row] for row in self.encode(texts)]

    def decode(self, ids):
        """Returns the symbols of each row of ids, separated by spaces; padding, bos and eos are dropped."""
        return [" ".join(self.symbols[number] for number in row) for row in self._text_ids(ids)]

    def decode_tensor(self, ids):
        """`decode` as a TensorFlow graph: int32, shape `(batch, length)`, to tf.string, shape `(batch,)`."""
        tf, _ = import_tensorflow_text()
        symbols = tf.gather(tf.constant(self.symbols), self._text_ids_tensor(ids))
        return tf.strings.reduce_join(symbols, axis=-1, separator=" ")

    def has_own_token(self, character):
        """Returns True: no character of a symbol is encoded on its own."""
        return True

    def is_fallback(self, ids):
        """Returns a list of False, one for each id: there are no fallback tokens."""
        return [False] * len(ids)

    def _kinds_and_pieces(self):
        return [("text", symbol) for symbol in self.symbols]


def _parse(content, name):
    """Parses a vocabulary file; returns (header, symbols).

    Raises:
        ValueError: the file is damaged or not a file of tree symbols.
    """
    try:
        first, *symbols, rest = content.decode("utf-8").split("\n")
        header = json.loads(first)
        special, size, keep_tags = header["special"], header["vocab_size"], header["keep_tags"]
        usable = header["format"] == FORMAT and sorted(special) == sorted(ROLES) and type(keep_tags) is bool
        usable = usable and sorted(special.values(), key=str) == list(range(NUM_SPECIAL))
    except (ValueError, KeyError, TypeError, RecursionError):
        usable = False
    if not usable:
        raise ValueError(f"{name}: line 1: not a vocabulary of tree symbols, or truncated. Prepare it again")
    if rest or len(symbols) != size - NUM_SPECIAL:
        raise ValueError(
            f"{name} is damaged or truncated: it has {len(symbols) + NUM_SPECIAL} symbols and states {size}. "
            "Prepare the trees again"
        )
    counts = collections.Counter(symbols)
    openings = {symbol[1:] for symbol in symbols if is_opening(symbol)}
    closings = {symbol[1:] for symbol in symbols if is_closing(symbol)}
    if max(counts.values(), default=0) > 1 or "" in counts or openings != closings or not openings:
        raise ValueError(f"{name} is damaged: each label needs one opening and one closing symbol")
    return header, symbols
