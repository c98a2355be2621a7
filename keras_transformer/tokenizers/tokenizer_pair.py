"""Trains, loads and saves tokenizers of all kinds, and the one or two tokenizers of a model."""

import itertools
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from keras_transformer.config.settings import SpecialIds
from keras_transformer.config.tags import parse_tags
from keras_transformer.config.types import PathLike
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.base import Tokenizer, check_choice, read_model
from keras_transformer.tokenizers.keras_hub import FORMAT as KERAS_HUB
from keras_transformer.tokenizers.keras_hub import KerasHubTokenizer, refuse_keras_hub
from keras_transformer.tokenizers.sentencepiece import MODEL_TYPES as SENTENCEPIECE_TYPES
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.symbols import FORMAT as SYMBOLS
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

MODEL_TYPES = (*SENTENCEPIECE_TYPES, "wordpiece")
SHARED_FILE = "tokenizer.model"
SEPARATE_FILES = ("tokenizer.source.model", "tokenizer.target.model")


class Tokenizers(NamedTuple):
    """The tokenizers of one model: one for each side, or the same object for both.

    Attributes:
        source: `Tokenizer` of the source.
        target: `Tokenizer` of the target.
    """

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether both sides have the same vocabulary."""
        return self.source is self.target

    @property
    def sizes(self) -> tuple[int, int]:
        """(source vocabulary size, target vocabulary size)."""
        return self.source.vocab_size, self.target.vocab_size


def train_tokenizer(texts: Iterable[str], *, model_type: str, vocab_size: int, **settings: Any) -> Tokenizer:
    """Learns a vocabulary.

    Args:
        texts: an iterable of str.
        model_type: `"bpe"`, `"unigram"` or `"wordpiece"`.
        vocab_size: number of tokens, special tokens included.
        **settings: further arguments of `SubwordTokenizer.train` or `WordPieceTokenizer.train`,
            such as `normalization` and `split_digits`.

    Returns:
        A `SubwordTokenizer` or a `WordPieceTokenizer`.

    Raises:
        ValueError: `model_type` is unknown, or `train` raises it.
    """
    check_choice("model_type", model_type, MODEL_TYPES)
    if model_type == "wordpiece":
        return WordPieceTokenizer.train(texts, vocab_size=vocab_size, **settings)
    return SubwordTokenizer.train(texts, vocab_size=vocab_size, model_type=model_type, **settings)


def learn_tokenizers(read_pairs, data):
    """Learns the one or two vocabularies of a configuration.

    Args:
        read_pairs: function without arguments that returns an iterable of (source, target)
            texts; called once for each vocabulary.
        data: `DataConfig`.

    Returns:
        `Tokenizers`.

    Raises:
        DataError: `read_pairs` raises it.
        ValueError: `train_tokenizer` raises it; the message names the setting to change.
    """
    names = ("model_type", "vocab_size", "normalization", "split_digits")
    settings = {name: getattr(data, name) for name in names} | {"max_texts": data.vocab_texts or None}
    settings["tags"] = parse_tags(data.tags)
    try:
        if data.parses:
            words = train_tokenizer((words for words, _ in read_pairs()), **settings)
            trees = (tree for _, tree in read_pairs())
            return Tokenizers(words, TreeTokenizer.train(trees, keep_tags=data.keep_tags))
        if not data.separate_vocabularies:
            return as_tokenizers(train_tokenizer(itertools.chain.from_iterable(read_pairs()), **settings))
        return Tokenizers(
            *(train_tokenizer((pair[side] for pair in read_pairs()), **settings) for side in (0, 1))
        )
    except DataError:
        raise  # an error in the text, which is read while learning, and not in the settings
    except ValueError as error:
        raise ValueError(f"{error}. Use --set data.vocab_size=NUMBER") from error


def load_tokenizer(path: PathLike, *, special: SpecialIds | None = None) -> Tokenizer:
    """Loads a tokenizer of any kind.

    Args:
        path: a file that `save` wrote.
        special: the `SpecialIds` that the vocabulary must have; `None` for the default ones.

    Raises:
        ValueError: the file cannot be read, is damaged, or has other special ids.
    """
    model_bytes = read_model(path)
    # The first line of a text format is JSON; a SentencePiece model never begins with a brace.
    kind: Any = WordPieceTokenizer if model_bytes.startswith(b"{") else SubwordTokenizer
    for text_format, text_kind in ((SYMBOLS, TreeTokenizer), (KERAS_HUB, KerasHubTokenizer)):
        if text_format.encode() in model_bytes[:100].split(b"\n", 1)[0]:
            kind = text_kind
    return kind(model_bytes, special=special, name=str(path))


def as_tokenizers(tokenizers):
    """Returns `Tokenizers`; a single tokenizer is used for both sides.

    Raises:
        TypeError: a tokenizer of keras-hub, which must be converted first.
    """
    pair = tokenizers if isinstance(tokenizers, Tokenizers) else Tokenizers(tokenizers, tokenizers)
    refuse_keras_hub(*pair)
    return pair


def vocabulary_files(shared):
    """Returns the file names of one shared vocabulary or of two."""
    return (SHARED_FILE,) if shared else SEPARATE_FILES


def save_tokenizers(folder, tokenizers):
    """Writes one file for a shared vocabulary, or two files for separate ones.

    Args:
        folder: an existing folder without vocabularies.
        tokenizers: `Tokenizers`.
    """
    folder = pathlib.Path(folder)
    # A shared vocabulary has one file name; `zip` then stops after the first tokenizer.
    for name, tokenizer in zip(vocabulary_files(tokenizers.shared), tokenizers, strict=False):
        tokenizer.save(folder / name)


def load_tokenizers(folder):
    """Loads the tokenizers that `save_tokenizers` wrote.

    Returns:
        `Tokenizers`.

    Raises:
        ValueError: the folder has neither a shared vocabulary nor two separate ones, or it has both.
    """
    folder = pathlib.Path(folder)
    files = {name for name in (SHARED_FILE, *SEPARATE_FILES) if (folder / name).exists()}
    if files == {SHARED_FILE}:
        return as_tokenizers(load_tokenizer(folder / SHARED_FILE))
    if files == set(SEPARATE_FILES):
        return Tokenizers(*(load_tokenizer(folder / name) for name in SEPARATE_FILES))
    raise ValueError(
        f"{folder} must hold {SHARED_FILE}, or {' and '.join(SEPARATE_FILES)}. "
        f"Received: {', '.join(sorted(files)) or 'none of them'}"
    )


def read_tokenizers(path):
    """Loads the tokenizers of a vocabulary file, a run folder or a prepared corpus.

    Returns:
        `Tokenizers`.
    """
    return load_tokenizers(path) if pathlib.Path(path).is_dir() else as_tokenizers(load_tokenizer(path))


def check_vocabularies(tokenizers, model, *, special=None):
    """Checks that tokenizers fit a model.

    Args:
        tokenizers: `Tokenizers`.
        model: `ModelConfig`.
        special: `SpecialIds` of the model; `None` if they are unknown.

    Raises:
        ValueError: vocabulary sizes or special ids differ, or the model ties all embeddings but there are
            two vocabularies.
    """
    sizes = model.source_vocab_size, model.target_vocab_size
    if sizes != tokenizers.sizes:
        raise ValueError(
            "The model and its vocabularies must have the same sizes. Received: "
            f"{tokenizers.sizes[0]} and {tokenizers.sizes[1]} tokens, "
            f"the model has {sizes[0]} (source) and {sizes[1]} (target)"
        )
    if model.tie_embeddings == "all" and tokenizers.source.sha256 != tokenizers.target.sha256:
        raise ValueError(
            "`tie_embeddings='all'` needs one vocabulary for source and target. Received: two of "
            f"{sizes[0]} tokens each. Choose tie_embeddings='decoder' or 'none'"
        )
    for tokenizer in tokenizers:
        if special is not None and tokenizer.special != special:
            raise ValueError(
                "The tokenizer and the model must have the same special ids. "
                f"Received: {tokenizer.special} and {special}"
            )
