"""Vocabularies of all kinds: learned, recognised from their files, one or two to a model."""

import itertools
import pathlib
from typing import NamedTuple

from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.base import Tokenizer, check_choice, read_model
from keras_transformer.tokenizers.sentencepiece import MODEL_TYPES as SENTENCEPIECE_TYPES
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

MODEL_TYPES = (*SENTENCEPIECE_TYPES, "wordpiece")
SHARED_FILE = "tokenizer.model"
SEPARATE_FILES = ("tokenizer.source.model", "tokenizer.target.model")


class Tokenizers(NamedTuple):
    """The vocabularies of one model: one for each side, or the same for both.

    Attributes:
        source: encodes what is translated.
        target: decodes translations.
    """

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self):
        """Whether one vocabulary serves both sides."""
        return self.source is self.target

    @property
    def sizes(self):
        """(number of source tokens, number of target tokens)."""
        return self.source.vocab_size, self.target.vocab_size


def train_tokenizer(texts, *, model_type, vocab_size, **settings):
    """Learns a vocabulary.

    Args:
        texts: an iterable of str.
        model_type: `"bpe"`, `"unigram"` or `"wordpiece"`.
        vocab_size: number of tokens, special tokens included.
        **settings: of `SubwordTokenizer.train` or `WordPieceTokenizer.train`, such as
            `normalization` and `split_digits`, which both have.

    Returns:
        A `SubwordTokenizer` or a `WordPieceTokenizer`.

    Raises:
        ValueError: an unknown `model_type`, or what `train` refuses.
    """
    check_choice("model_type", model_type, MODEL_TYPES)
    if model_type == "wordpiece":
        return WordPieceTokenizer.train(texts, vocab_size=vocab_size, **settings)
    return SubwordTokenizer.train(texts, vocab_size=vocab_size, model_type=model_type, **settings)


def learn_tokenizers(read_pairs, data):
    """Learns the vocabulary or the two vocabularies of a configuration.

    Args:
        read_pairs: function that returns an iterable of (source, target) texts; it is
            called once for each vocabulary.
        data: `DataConfig`.

    Returns:
        `Tokenizers`.

    Raises:
        DataError: as `read_pairs`.
        ValueError: as `train_tokenizer`; it names the setting to change.
    """
    names = ("model_type", "vocab_size", "normalization", "split_digits")
    settings = {name: getattr(data, name) for name in names} | {"max_texts": data.vocab_texts or None}
    try:
        if not data.separate_vocabularies:
            return as_tokenizers(train_tokenizer(itertools.chain.from_iterable(read_pairs()), **settings))
        return Tokenizers(
            *(train_tokenizer((pair[side] for pair in read_pairs()), **settings) for side in (0, 1))
        )
    except DataError:
        raise  # the text is at fault, which is read as it is learned from
    except ValueError as error:
        raise ValueError(f"{error}. Change it with --set data.vocab_size=NUMBER") from error


def load_tokenizer(path, *, special=None):
    """Reads a vocabulary of any kind.

    Args:
        path: a file that `save` wrote.
        special: the special ids which the vocabulary must have.

    Raises:
        ValueError: the file cannot be read, is damaged, or has other special ids.
    """
    model_bytes = read_model(path)
    # Word pieces begin with JSON; no SentencePiece model begins with a brace.
    kind = WordPieceTokenizer if model_bytes.startswith(b"{") else SubwordTokenizer
    return kind(model_bytes, special=special, name=str(path))


def as_tokenizers(tokenizers):
    """Returns `Tokenizers`; one tokenizer alone serves both sides."""
    return tokenizers if isinstance(tokenizers, Tokenizers) else Tokenizers(tokenizers, tokenizers)


def vocabulary_files(shared):
    """Returns the names of the files of one shared vocabulary or of two."""
    return (SHARED_FILE,) if shared else SEPARATE_FILES


def save_tokenizers(folder, tokenizers):
    """Writes one file for a shared vocabulary, two for separate ones.

    Args:
        folder: an existing folder without vocabularies.
        tokenizers: `Tokenizers`.
    """
    folder = pathlib.Path(folder)
    # One name for a shared vocabulary, which the first of the two is.
    for name, tokenizer in zip(vocabulary_files(tokenizers.shared), tokenizers, strict=False):
        tokenizer.save(folder / name)


def load_tokenizers(folder):
    """Reads what `save_tokenizers` wrote.

    Returns:
        `Tokenizers`.

    Raises:
        ValueError: the folder holds no vocabulary, half of two, or one and two.
    """
    folder = pathlib.Path(folder)
    found = {name for name in (SHARED_FILE, *SEPARATE_FILES) if (folder / name).exists()}
    if found == {SHARED_FILE}:
        return as_tokenizers(load_tokenizer(folder / SHARED_FILE))
    if found == set(SEPARATE_FILES):
        return Tokenizers(*(load_tokenizer(folder / name) for name in SEPARATE_FILES))
    raise ValueError(
        f"{folder} must hold {SHARED_FILE}, or {' and '.join(SEPARATE_FILES)}. "
        f"Received: {', '.join(sorted(found)) or 'none of them'}"
    )


def read_tokenizers(path):
    """Reads one vocabulary's file, or what a run folder or a prepared corpus holds.

    Returns:
        `Tokenizers`.
    """
    return load_tokenizers(path) if pathlib.Path(path).is_dir() else as_tokenizers(load_tokenizer(path))


def check_vocabularies(tokenizers, model, *, special=None):
    """Refuses vocabularies that are not those of a model.

    Args:
        tokenizers: `Tokenizers`.
        model: `ModelConfig`.
        special: `SpecialIds` of the model; `None` where they are not known.

    Raises:
        ValueError: other sizes or special ids, or two vocabularies for one matrix.
    """
    sizes = model.source_vocab_size, model.target_vocab_size
    if sizes != tokenizers.sizes:
        raise ValueError(
            "The model must have as many tokens as its vocabularies. Received: "
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
