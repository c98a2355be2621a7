"""Loads the data of a training run from a prepared corpus; raw text is prepared first."""

import itertools
import math
import pathlib
from typing import NamedTuple

import numpy as np

from keras_transformer.batches.ids import IdPairs, drop_long
from keras_transformer.batches.prepared import MANIFEST, PreparedCorpus, check_not_prepared, is_prepared
from keras_transformer.batches.preparing import legacy_sha256, prepare_for_run
from keras_transformer.batches.sharding import open_text
from keras_transformer.config.sections import VOCABULARY
from keras_transformer.config.settings import CleaningConfig, DataConfig, replace
from keras_transformer.config.tags import parse_tags
from keras_transformer.text.datasets import check_dataset, dataset_names
from keras_transformer.text.folders import VALIDATION_NAMES
from keras_transformer.text.lines import DataError, Pairs
from keras_transformer.text.synthetic import check_tags
from keras_transformer.tokenizers.tags import tags_of
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers

COUNTED_PAIRS = 100_000  # number of pairs whose characters are counted


class TrainingData(NamedTuple):
    """The encoded training pairs, the validation and test text, and the tokenizers of a run.

    Attributes:
        tokenizers: `Tokenizers`.
        train: `IdPairs`.
        sizes: list of int, the number of training pairs of each dataset.
        weights: list of float, how many times an epoch sees each dataset.
        validation: `Pairs`.
        test: `Pairs`, or `None` if the corpus has no test split.
        test_name: name of the test split, or "".
        notes: list of str for the user: pairs that were dropped, likely mistakes in the text.
        data: `DataConfig`; for a prepared corpus, with the settings of its preparation.
        sha256: str, hexadecimal SHA-256 that identifies the encoded training text.
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
    """Counts the training pairs and the distinct characters of a configuration's corpus.

    Args:
        config: `Config`.

    Returns:
        `(num_pairs, num_characters)`, two int: pairs of all training splits, and distinct characters of about
        the first 100,000 pairs; 0 characters for a prepared corpus, whose vocabulary already exists.

    Raises:
        DataError: the corpus cannot be read.
    """
    data = config.data
    if is_prepared(data.dataset):
        return sum(PreparedCorpus(data.dataset, data.source, data.target).sizes), 0
    num_pairs, characters = 0, set()
    for _, block in open_text(config).blocks():
        if num_pairs < COUNTED_PAIRS:
            for line in (*block.source, *block.target):
                characters.update(line.decode("utf-8", "replace"))
        num_pairs += len(block.source)
    return num_pairs, len(characters)


def check_training_data(config):
    """Checks the datasets of a configuration before any text is read.

    Checks that folders have training and validation files. Of archives and of TensorFlow Datasets, only the
    names are checked.

    Args:
        config: `Config`.

    Raises:
        DataError: there is no such dataset, or it lacks training or validation text.
    """
    data = config.data
    if is_prepared(data.dataset):
        PreparedCorpus(data.dataset, data.source, data.target)
        return
    check_not_prepared(data.dataset)
    names = dataset_names(data.dataset)
    for name in names:
        check_dataset(name, data.data_dir)
    epoch_weights([1] * len(names), data.dataset_weights, data.temperature)
    if all(name.startswith("cldr/") or pathlib.Path(name).is_dir() for name in names):
        datasets = open_text(config).datasets
        if not config.training.init_from or not config.training.init_vocabulary:
            check_tags(datasets, parse_tags(data.tags), "Add --set 'data.tags={tags}'")


def load_training_data(config, folder=None, tokenizers=None, *, recorded=None, writes=True):
    """Loads the corpus of a configuration; prepares it first if it is raw text.

    Args:
        config: `Config`.
        folder: folder to prepare raw text in; `None` for a prepared corpus.
        tokenizers: `Tokenizers` of an earlier run; `None` learns them, or uses those of a prepared corpus.
        recorded: the `sha256` in the run folder, perhaps from an earlier version; `None` for a new run.
        writes: `False` on a worker whose corpus was prepared by another worker.

    Returns:
        `TrainingData`.

    Raises:
        DataError: the text or the prepared folder is invalid, or no pairs are left.
        UnfinishedError: the prepared files cannot be written.
    """
    data, notes = config.data, []
    is_raw = not is_prepared(data.dataset)
    if not is_raw:
        corpus = PreparedCorpus(data.dataset, data.source, data.target)
        if config.cleaning not in (CleaningConfig(), CleaningConfig(**corpus.settings["cleaning"])):
            raise DataError(
                f"{data.dataset}: a prepared corpus, cleaned already (see {MANIFEST}). Remove cleaning.*, or "
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
    if tokenizers and any(given.sha256 != ours.sha256 for given, ours in zip(tokenizers, own, strict=True)):
        raise DataError(
            f"{data.dataset}: was prepared with another vocabulary than this run's. "
            "Prepare it with --tokenizer, or start a new run"
        )
    tags = tags_of(own.target)
    if not is_raw and tags and [data.target, data.source] == corpus.manifest["languages"]:
        for ids in train.target.arrays:
            if np.isin(ids, list(tags.values())).any():
                raise DataError(
                    f"{data.dataset}: its {data.target} side has tags ({', '.join(tags)}), which belong to "
                    f"sources. Use --source {data.target} --target {data.source}, or prepare untagged text"
                )
    if is_raw:
        notes = corpus.warnings(train, own)
        if corpus.report.num_kept < corpus.report.num_pairs:
            notes.insert(0, f"cleaning of the training pairs:\n{corpus.report.table()}")
        if recorded not in (None, sha256) and recorded == legacy_sha256(open_text(config), train, own):
            sha256 = recorded
    train, keep = drop_long(train, data.max_length)
    if not keep.all():
        notes.append(
            f"left out {np.sum(~keep):,} pairs longer than {data.max_length} tokens (data.max_length)"
        )
        sizes = _count_kept(keep, sizes)
    if not train.num_pairs:
        raise DataError(
            f"{data.dataset}: all pairs are longer than {data.max_length} tokens. Raise data.max_length"
        )
    validation = next(name for name in VALIDATION_NAMES if name in corpus.splits)
    # `splits` is in the order of the datasets; the first test split is used.
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


def _count_kept(keep, sizes):
    """Counts the pairs that `keep` keeps of each dataset."""
    ends = list(itertools.accumulate(sizes))
    return [int(keep[end - size : end].sum()) for size, end in zip(sizes, ends, strict=True)]


def epoch_weights(sizes, dataset_weights="", temperature=1.0):
    """Returns the number of times an epoch sees each dataset: its weight, or temperature sampling.

    Args:
        sizes: list of int, number of training pairs of each dataset.
        dataset_weights: the weights as text, such as `"1,2.5"`; `""` for no weights.
        temperature: float, T >= 1, used without weights. The share of dataset i in an epoch
            is proportional to `n_i ** (1 / T)`. At T = 1 every pair is seen once; a higher T repeats
            small datasets. The number of pairs per epoch stays the sum of `sizes`.

    Returns:
        list of float, one per dataset; 1.0 for a dataset without training pairs.

    Raises:
        ValueError: a weight is missing or not above 0, or weights and a temperature are both given.
    """
    if not 1 <= temperature < math.inf:
        raise ValueError(f"`temperature` must be at least 1. Received: temperature={temperature}")
    if dataset_weights and temperature != 1:
        raise ValueError(
            "`dataset_weights` and `temperature` cannot both be set. "
            f"Received: dataset_weights={dataset_weights!r}, temperature={temperature}"
        )
    if dataset_weights:
        try:
            numbers = [float(part) for part in dataset_weights.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != len(sizes) or not all(0 < number < math.inf for number in numbers):
            raise ValueError(
                "`dataset_weights` must be a number above 0 for each dataset, separated by commas; here "
                f"{len(sizes)}. Received: {dataset_weights!r}. For each pair once: "
                "--set data.dataset_weights="
            )
        return numbers
    if temperature == 1:
        return [1.0] * len(sizes)
    roots = [size ** (1 / temperature) for size in sizes]
    total, total_roots = sum(sizes), sum(roots)
    return [
        root / total_roots * total / size if size else 1.0 for root, size in zip(roots, sizes, strict=True)
    ]
