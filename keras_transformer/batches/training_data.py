"""What a training run reads: a prepared corpus, its own or another."""

import itertools
import pathlib
from typing import NamedTuple

import numpy as np

from keras_transformer.batches.ids import IdPairs, drop_long
from keras_transformer.batches.prepared import MANIFEST, PreparedCorpus, is_prepared, refuse_prepared
from keras_transformer.batches.preparing import earlier_sha256, prepare_for_run
from keras_transformer.batches.sharding import open_text
from keras_transformer.config.sections import VOCABULARY
from keras_transformer.config.settings import CleaningConfig, DataConfig, replace
from keras_transformer.text.datasets import check_dataset, dataset_names, epoch_weights
from keras_transformer.text.folders import VALIDATION_NAMES
from keras_transformer.text.lines import DataError, Pairs
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers

CHARACTERS_OF = 100_000  # pairs


class TrainingData(NamedTuple):
    """A corpus, ready to make batches of.

    Attributes:
        tokenizers: `Tokenizers`.
        train: `IdPairs`.
        sizes: list of int, the number of training pairs of each dataset.
        weights: list of float, how many times an epoch sees each dataset.
        validation: `Pairs`.
        test: `Pairs`, or `None` where the corpus has none.
        test_name: name of the test split.
        notes: list of str, what was left out and what looks wrong.
        data: `DataConfig`, with the settings that a prepared corpus was made with.
        sha256: str, hexadecimal, the identity of the training text and its encoding.
    """

    tokenizers: Tokenizers
    train: IdPairs
    sizes: list
    weights: list
    validation: Pairs
    test: Pairs | None
    test_name: str
    notes: list
    data: DataConfig
    sha256: str


def corpus_size(config):
    """Counts the training text of a configuration, or looks it up where it is prepared.

    Args:
        config: `Config`.

    Returns:
        int, the pairs of its training splits; int, different characters in its first 100,000 or so pairs,
        0 for a prepared corpus, which has its vocabulary.

    Raises:
        DataError: it cannot be read.
    """
    data = config.data
    if is_prepared(data.dataset):
        return sum(PreparedCorpus(data.dataset, data.source, data.target).sizes), 0
    num_pairs, characters = 0, set()
    for _, block in open_text(config).blocks():
        if num_pairs < CHARACTERS_OF:
            for line in (*block.source, *block.target):
                characters.update(line.decode("utf-8", "replace"))
        num_pairs += len(block.source)
    return num_pairs, len(characters)


def check_training_data(config):
    """Refuses the corpus of a configuration for its names and files, before any text is read.

    Archives and sets of TensorFlow Datasets are known by their names alone.

    Args:
        config: `Config`.

    Raises:
        DataError: there is no such dataset, or no training or validation text in it.
    """
    data = config.data
    if is_prepared(data.dataset):
        PreparedCorpus(data.dataset, data.source, data.target)
        return
    refuse_prepared(data.dataset)
    names = dataset_names(data.dataset)
    for name in names:
        check_dataset(name, data.data_dir)
    epoch_weights([1] * len(names), data.dataset_weights, data.temperature)
    if all(name.startswith("cldr/") or pathlib.Path(name).is_dir() for name in names):
        open_text(config)


def load_training_data(config, folder=None, tokenizers=None, *, recorded=None, writes=True):
    """Opens the corpus of a configuration; raw text is prepared before.

    Args:
        config: `Config`.
        folder: where raw text is prepared; a prepared corpus needs none.
        tokenizers: `Tokenizers` of an earlier run; `None` learns them, or takes those of
            a prepared corpus.
        recorded: the `sha256` that the run began with, perhaps under an earlier version.
        writes: `False` on a worker that waits for another to prepare.

    Returns:
        `TrainingData`.

    Raises:
        DataError: the text or the prepared folder is refused, or nothing is left.
        UnfinishedError: what is prepared cannot be written.
    """
    data, notes = config.data, []
    is_raw = not is_prepared(data.dataset)
    if not is_raw:
        corpus = PreparedCorpus(data.dataset, data.source, data.target)
        if config.cleaning not in (CleaningConfig(), CleaningConfig(**corpus.settings["cleaning"])):
            raise DataError(
                f"{data.dataset}: is prepared, and was cleaned as {MANIFEST} says. Leave cleaning.* out, or "
                "prepare it with other settings"
            )
        decided = {name: corpus.settings["data"][name] for name in (*VOCABULARY, "vocab_texts")}
        data = replace(data, **decided)
    elif writes:
        epoch_weights([1] * len(dataset_names(data.dataset)), data.dataset_weights, data.temperature)
        corpus = prepare_for_run(config, folder, tokenizers)
    else:
        corpus = PreparedCorpus(folder)
    own, train, sizes, sha256 = corpus.load_tokenizers(), corpus.load_pairs(), corpus.sizes, corpus.sha256
    if tokenizers and [one.sha256 for one in tokenizers] != [one.sha256 for one in own]:
        raise DataError(
            f"{data.dataset}: was prepared with another vocabulary than this run's. "
            "Prepare it with --tokenizer, or start another run"
        )
    if is_raw:
        notes = corpus.warnings(train, own)
        if corpus.report.num_kept < corpus.report.num_pairs:
            notes.insert(0, f"cleaning of the training pairs:\n{corpus.report.table()}")
        if recorded not in (None, sha256) and recorded == earlier_sha256(open_text(config), train, own):
            sha256 = recorded
    train, keep = drop_long(train, data.max_length)
    if not keep.all():
        notes.append(f"left out {np.sum(~keep):,} pairs of over {data.max_length} tokens (data.max_length)")
        sizes = _sizes_of(keep, sizes)
    if not train.num_pairs:
        raise DataError(
            f"{data.dataset}: all pairs have over {data.max_length} tokens. Raise data.max_length"
        )
    validation = next(name for name in VALIDATION_NAMES if name in corpus.splits)
    # The splits stand in the order of the datasets, of which the first counts.
    test = next((name for name in corpus.splits if name.startswith("test")), None)
    return TrainingData(
        own,
        train,
        sizes,
        epoch_weights(sizes, data.dataset_weights, data.temperature),
        corpus.load_text(validation),
        corpus.load_text(test) if test else None,
        test or "",
        notes,
        data,
        sha256,
    )


def _sizes_of(keep, sizes):
    ends = list(itertools.accumulate(sizes))
    return [int(keep[end - size : end].sum()) for size, end in zip(sizes, ends, strict=True)]
