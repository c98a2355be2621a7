"""One or several datasets as a corpus in memory: training, validation and test pairs."""

import math
from typing import NamedTuple

from keras_transformer.text.datasets import find_split, open_dataset
from keras_transformer.text.folders import TRAIN
from keras_transformer.text.lines import DataError, Pairs, drop_empty
from keras_transformer.text.parallel import decode_blocks


class Corpus(NamedTuple):
    """The splits of a corpus of one or several datasets.

    Attributes:
        train: `Pairs` without blank sides, one dataset after the other.
        validation: `Pairs`.
        test: `Pairs`, or `None` where the corpus has none.
        test_name: name of the test split, such as `"test_2016_flickr"`.
        num_blank: pairs left out of training because a side was blank.
        sizes: tuple of int, the number of training pairs of each dataset, in order;
            0 for one that has no training split.
    """

    train: Pairs
    validation: Pairs
    test: Pairs | None
    test_name: str
    num_blank: int
    sizes: tuple


class OpenSplit(NamedTuple):
    """One split of one dataset: an object of `open_dataset`, and a name of its splits."""

    dataset: object
    name: str

    def load(self, *, on_bad_utf8="refuse"):
        """Reads the split, blank lines included.

        Returns:
            `Pairs`.

        Raises:
            DataError: it cannot be read, is empty, or its sides differ in their number
                of lines.
        """
        label = f"{self.dataset.name} {self.name}"
        pairs = decode_blocks(self.dataset.blocks(self.name), label, on_bad_utf8=on_bad_utf8)
        if not pairs.source:
            raise DataError(f"{label}: the split is empty")
        return pairs


def dataset_names(dataset):
    """Returns the names in a list of datasets, `"A,B"`; so no name holds a comma.

    Returns:
        list of str.

    Raises:
        ValueError: a name is empty.
    """
    names = [name.strip() for name in dataset.split(",")]
    if not all(names):
        raise ValueError(f"`dataset` must be a name, or names with a comma between. Received: {dataset!r}")
    return names


def open_datasets(dataset, source, target, *, data_dir=None, manual_dir=None):
    """Opens each dataset of `"A,B"`; see `open_dataset`.

    Returns:
        list of datasets.
    """
    return [
        open_dataset(name, source, target, data_dir=data_dir, manual_dir=manual_dir)
        for name in dataset_names(dataset)
    ]


def first_split(datasets, split):
    """Returns the `OpenSplit` of the first dataset that has a split, or `None`."""
    for dataset in datasets:
        name = find_split(dataset, split)
        if name is not None:
            return OpenSplit(dataset, name)
    return None


def load_corpus(dataset, source, target, *, data_dir=None, manual_dir=None, on_bad_utf8="refuse"):
    """Reads the training, validation and test pairs of a corpus.

    Training pairs come from every dataset; validation and test each from the first that
    has them. A folder has them as `valid.*` (or `validation`, `val`, `dev`) and `test.*`
    (or the first split whose name starts with `test`).

    Args:
        dataset: name of a dataset as in `open_dataset`, or several, `"A,B"`.
        source: source language, as in the names of files or features.
        target: target language.
        data_dir: see `open_dataset`.
        manual_dir: see `open_dataset`.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Returns:
        `Corpus`.

    Raises:
        DataError: a dataset or file is missing, empty, not UTF-8, or the two sides
            differ in their number of lines; or there is no training or validation
            split.
        ValueError: an unknown locale.
    """
    datasets = open_datasets(dataset, source, target, data_dir=data_dir, manual_dir=manual_dir)
    validation, test = first_split(datasets, "validation"), first_split(datasets, "test")
    if validation is None:
        raise DataError(
            f"{dataset}: no validation split. Add valid.{source} and valid.{target} (valid, validation, "
            "val or dev), or a further --dataset that has them"
        )
    train, sizes, num_blank = Pairs([], []), [], 0
    for opened in datasets:
        if len(datasets) > 1 and TRAIN not in opened.splits:
            sizes.append(0)
            continue
        filtered = drop_empty(OpenSplit(opened, TRAIN).load(on_bad_utf8=on_bad_utf8))
        train.source.extend(filtered.pairs.source)
        train.target.extend(filtered.pairs.target)
        sizes.append(len(filtered.pairs.source))
        num_blank += filtered.num_dropped
    if not train.source:
        raise DataError(f"{dataset}: no training split in any of them")
    return Corpus(
        train,
        validation.load(on_bad_utf8=on_bad_utf8),
        test.load(on_bad_utf8=on_bad_utf8) if test else None,
        test.name if test else "",
        num_blank,
        tuple(sizes),
    )


def open_split(dataset, split, source, target, *, data_dir=None, manual_dir=None):
    """Finds one split of a corpus, in the first of its datasets that has it.

    Args:
        dataset: as in `load_corpus`.
        split: `"train"`, `"validation"`, `"test"`, or a dataset's own name for a split;
            `"validation"` and `"test"` also find what `load_corpus` finds.
        source: source language.
        target: target language.
        data_dir: see `open_dataset`.
        manual_dir: see `open_dataset`.

    Returns:
        `OpenSplit`.

    Raises:
        DataError: there is no such dataset or split.
    """
    datasets = open_datasets(dataset, source, target, data_dir=data_dir, manual_dir=manual_dir)
    found = first_split(datasets, split)
    if found is None:
        known = dict.fromkeys(name for opened in datasets for name in opened.splits)
        raise DataError(f"{dataset}: no split {split!r}. Known: {', '.join(known)}")
    return found


def load_split(dataset, split, source, target, *, data_dir=None, manual_dir=None, on_bad_utf8="refuse"):
    """Reads one split of a corpus, blank lines included; see `open_split`.

    Returns:
        `Pairs`.

    Raises:
        DataError: as `open_split` and `OpenSplit.load`.
    """
    found = open_split(dataset, split, source, target, data_dir=data_dir, manual_dir=manual_dir)
    return found.load(on_bad_utf8=on_bad_utf8)


def epoch_weights(sizes, weights="", temperature=1.0):
    """Returns how many times each dataset is seen in an epoch.

    Args:
        sizes: the number of training pairs of each dataset, as in `Corpus`.
        weights: these numbers as text, such as `"1,2.5"`; or `""`.
        temperature: T, at least 1. Without weights, the share of dataset i in an epoch
            is proportional to `n_i ** (1 / T)`: at 1 every pair is seen once, above it
            small datasets more often. The epoch has as many pairs as all together.

    Returns:
        list of float, one for each size; 1.0 for a dataset without training pairs.

    Raises:
        ValueError: a weight is missing, not above 0, or given beside a temperature.
    """
    if not math.isfinite(temperature) or temperature < 1:
        raise ValueError(f"`temperature` must be at least 1. Received: temperature={temperature}")
    if weights:
        if temperature != 1:
            raise ValueError(
                "`weights` and `temperature` exclude each other. "
                f"Received: weights={weights!r}, temperature={temperature}"
            )
        return _parse_weights(weights, len(sizes))
    if temperature == 1:
        return [1.0] * len(sizes)
    roots = [size ** (1 / temperature) for size in sizes]
    total, total_roots = sum(sizes), sum(roots)
    return [
        root / total_roots * total / size if size else 1.0 for root, size in zip(roots, sizes, strict=True)
    ]


def _parse_weights(text, number):
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != number or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(
            f"`weights` must be {number} numbers above 0, one for each dataset, with a comma between. "
            f"Received: {text!r}"
        )
    return weights
