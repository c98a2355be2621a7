"""What a training run reads: a prepared corpus, or raw text cleaned and encoded on the spot."""

import hashlib
import itertools
import pathlib
from typing import NamedTuple

import numpy as np

from keras_transformer.batches.ids import IdPairs, drop_long, encode_pairs
from keras_transformer.batches.prepared import MANIFEST, PreparedCorpus, is_prepared, refuse_prepared
from keras_transformer.config.settings import CleaningConfig, DataConfig, replace
from keras_transformer.text.cleaning import CODES, Cleaner, CleaningReport, Seen, pair_hashes
from keras_transformer.text.datasets import (
    check_dataset,
    dataset_names,
    epoch_weights,
    first_split,
    open_datasets,
)
from keras_transformer.text.folders import TRAIN
from keras_transformer.text.languages import SAMPLE_SIZE, check_languages
from keras_transformer.text.lines import DataError, Pairs
from keras_transformer.text.parallel import decode_block
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, learn_tokenizers

CHARACTERS_OF = 100_000  # pairs
_OF_THE_VOCABULARY = (
    "model_type",
    "vocab_size",
    "separate_vocabularies",
    "vocab_texts",
    "normalization",
    "split_digits",
)


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


class CorpusSize(NamedTuple):
    """How large the training text of a corpus is.

    Attributes:
        num_pairs: int, lines of its training splits.
        num_characters: int, different characters in its first 100,000 or so pairs; 0 for a
            prepared corpus, which has its vocabulary.
    """

    num_pairs: int
    num_characters: int


def corpus_size(data):
    """Counts the training text of a corpus, or looks it up where it is prepared.

    Args:
        data: `DataConfig`.

    Returns:
        `CorpusSize`.

    Raises:
        DataError: it cannot be read.
    """
    if is_prepared(data.dataset):
        return CorpusSize(sum(PreparedCorpus(data.dataset, data.source, data.target).sizes), 0)
    num_pairs, characters = 0, set()
    for dataset in open_datasets(
        data.dataset, data.source, data.target, data_dir=data.data_dir, manual_dir=data.manual_dir
    ):
        for block in dataset.blocks(TRAIN) if TRAIN in dataset.splits else ():
            if num_pairs < CHARACTERS_OF:
                for line in (*block.source, *block.target):
                    characters.update(line.decode("utf-8", "replace"))
            num_pairs += len(block.source)
    return CorpusSize(num_pairs, len(characters))


def load_training_data(config, tokenizers=None):
    """Reads the corpus of a configuration.

    Args:
        config: `Config`.
        tokenizers: `Tokenizers` of an earlier run; `None` learns them, or takes those of
            a prepared corpus.

    Returns:
        `TrainingData`.

    Raises:
        DataError: the text or the prepared folder is refused, or nothing is left.
    """
    if is_prepared(config.data.dataset):
        return _load_prepared(config, tokenizers)
    _refuse_raw(config.data)
    return _load_raw(config, tokenizers)


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
    _refuse_raw(data)
    names = dataset_names(data.dataset)
    for name in names:
        check_dataset(name, data.data_dir)
    epoch_weights([1] * len(names), data.weights, data.temperature)
    if all(name.startswith("cldr/") or pathlib.Path(name).is_dir() for name in names):
        datasets = open_datasets(data.dataset, data.source, data.target)
        _validation(datasets, data)
        if not any(TRAIN in dataset.splits for dataset in datasets):
            raise _no_training(data)


def _refuse_raw(data):
    refuse_prepared(data.dataset)


def _validation(datasets, data):
    """Returns the `OpenSplit` of the first dataset with a validation split."""
    found = first_split(datasets, "validation")
    if found is None:
        raise DataError(
            f"{data.dataset}: no validation split. Add valid.{data.source} and valid.{data.target} (valid, "
            "validation, val or dev), or a further --dataset that has them"
        )
    return found


def _no_training(data):
    return DataError(f"{data.dataset}: no training split ({TRAIN})")


def _load_prepared(config, tokenizers):
    data = config.data
    prepared = PreparedCorpus(data.dataset, data.source, data.target)
    if config.cleaning not in (CleaningConfig(), CleaningConfig(**prepared.settings["cleaning"])):
        raise DataError(
            f"{data.dataset}: is prepared, and was cleaned as {MANIFEST} says. Leave cleaning.* out, or "
            "prepare it with other settings"
        )
    own = prepared.load_tokenizers()
    if tokenizers and [one.sha256 for one in tokenizers] != [one.sha256 for one in own]:
        raise DataError(
            f"{data.dataset}: was prepared with another vocabulary than this run's. "
            "Prepare it with --tokenizer, or start another run"
        )
    train, sizes, notes = prepared.load_pairs(), prepared.sizes, []
    train, keep = drop_long(train, data.max_length)
    if not keep.all():
        notes.append(f"left out {np.sum(~keep):,} pairs of over {data.max_length} tokens (data.max_length)")
        sizes = _sizes_of(keep, sizes)
    if not train.num_pairs:
        raise DataError(
            f"{data.dataset}: all pairs have over {data.max_length} tokens. Raise data.max_length"
        )
    splits = prepared.splits
    validation = _first(splits, ("valid", "validation", "val", "dev"))
    # The splits stand in the order of the datasets, of which the first counts.
    test = next((name for name in splits if name.startswith("test")), None)
    return TrainingData(
        own,
        train,
        sizes,
        epoch_weights(sizes, data.weights, data.temperature),
        prepared.load_text(validation),
        prepared.load_text(test) if test else None,
        test or "",
        notes,
        replace(data, **{name: prepared.settings["data"][name] for name in _OF_THE_VOCABULARY}),
        prepared.sha256,
    )


def _load_raw(config, tokenizers):
    data = config.data
    datasets = open_datasets(
        data.dataset, data.source, data.target, data_dir=data.data_dir, manual_dir=data.manual_dir
    )
    epoch_weights([1] * len(datasets), data.weights, data.temperature)  # refused before all the work
    validation, test = _validation(datasets, data), first_split(datasets, "test")
    cleaner = Cleaner(config.cleaning, data.source, data.target, max_length=data.max_length)
    pairs, sizes, codes, occurred, num_replaced = _read(datasets, data, cleaner)
    kept = np.flatnonzero(codes == 0)
    clean = Pairs(*([side[i] for i in kept.tolist()] for side in pairs))
    report = CleaningReport.of(codes, *pairs, num_replaced_utf8=num_replaced)
    report.check(data.dataset)
    if tokenizers is None:
        print(f"learning a vocabulary of {data.vocab_size:,} tokens ({data.model_type})", flush=True)
    tokenizers = tokenizers or learn_tokenizers(lambda: zip(*clean, strict=True), data)
    train = encode_pairs(*clean, *tokenizers)

    by_length = cleaner.length_reasons(train.source.lengths, train.target.lengths)
    by_length[(by_length == 0) & occurred[kept]] = CODES["duplicate"]
    codes[kept] = by_length
    report = CleaningReport.of(codes, *pairs, num_replaced_utf8=num_replaced)
    report.check(data.dataset)
    if by_length.any():
        train = IdPairs(train.source.select(by_length == 0), train.target.select(by_length == 0))
    sizes = _sizes_of(codes == 0, sizes)
    notes = report.warnings() + _language_warnings(clean, data)
    if report.num_kept < report.num_pairs:
        notes.insert(0, f"cleaning of the training pairs:\n{report.table()}")
    return TrainingData(
        tokenizers,
        train,
        sizes,
        epoch_weights(sizes, data.weights, data.temperature),
        validation.load(on_bad_utf8=data.on_bad_utf8),
        test.load(on_bad_utf8=data.on_bad_utf8) if test else None,
        test.name if test else "",
        notes,
        data,
        _sha256(train),
    )


def _read(datasets, data, cleaner):
    """Reads all training pairs, and what cleaning says of each by its text alone."""
    if not any(TRAIN in dataset.splits for dataset in datasets):
        raise _no_training(data)
    seen = Seen() if cleaner.config.drop_duplicates else None
    everything, sizes, codes, occurred, num_replaced = Pairs([], []), [], [], [], 0
    for dataset in datasets:
        before = len(everything.source)
        for block in dataset.blocks(TRAIN) if TRAIN in dataset.splits else ():
            pairs, replaced = decode_block(block, on_bad_utf8=data.on_bad_utf8)
            num_replaced += replaced
            for side, texts in zip(everything, pairs, strict=True):
                side.extend(texts)
            codes.append(cleaner.text_reasons(*pairs))
            occurred.append(
                seen.add(pair_hashes(*pairs)) if seen is not None else np.zeros(len(codes[-1]), bool)
            )
        sizes.append(len(everything.source) - before)
    return everything, sizes, np.concatenate(codes), np.concatenate(occurred), num_replaced


def _sha256(pairs):
    digest = hashlib.sha256()
    for sequences in pairs:
        for array in (sequences.lengths, *sequences.arrays):
            digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def _language_warnings(pairs, data):
    if data.dataset.startswith("cldr/"):
        return []  # which are what they say
    numbers = np.unique(np.linspace(0, len(pairs.source) - 1, SAMPLE_SIZE).astype(int)).tolist()
    sample = ([side[i] for i in numbers] for side in pairs)
    return check_languages(*sample, data.source, data.target).warnings()


def _sizes_of(keep, sizes):
    ends = list(itertools.accumulate(sizes))
    return [int(keep[end - size : end].sum()) for size, end in zip(sizes, ends, strict=True)]


def _first(names, wanted):
    return next(name for name in wanted if name in names)
