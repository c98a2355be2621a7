"""Where pairs of sentences come from: the built-in corpus, or a folder of files."""

import pathlib
import re
from typing import NamedTuple

from keras_transformer.data import cldr
from keras_transformer.data.text import DataError, Pairs, drop_empty, read_parallel

VALIDATION_NAMES = ("valid", "validation", "val", "dev")


class Corpus(NamedTuple):
    """The splits of one parallel corpus.

    Attributes:
        train: `Pairs` without blank sides.
        validation: `Pairs`.
        test: `Pairs`, or `None` where the corpus has none.
        test_name: name of the test split, such as `"test_2016_flickr"`.
        num_blank: pairs left out of training because a side was blank.
    """

    train: Pairs
    validation: Pairs
    test: Pairs | None
    test_name: str
    num_blank: int


def load_corpus(dataset, source, target, *, on_bad_utf8="refuse"):
    """Reads the training, validation and test pairs of a corpus.

    Args:
        dataset: `"cldr/SOURCE-TARGET"` for the built-in corpus, else a folder with
            `train.SOURCE`, `train.TARGET`, `valid.*` (or `val.*`, `dev.*`) and, where
            there is one, `test.*` or the first split whose name starts with `test`.
        source: source language: the ending of the source files.
        target: target language: the ending of the target files.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Returns:
        `Corpus`.

    Raises:
        DataError: a file is missing, empty, not UTF-8, or the two sides differ in
            their number of lines.
        ValueError: an unknown locale, or a name that is neither.
    """
    if dataset.startswith("cldr/"):
        splits = cldr.make_pairs(*_cldr_locales(dataset, source, target))
        train, validation, test = (_unzip(split) for split in splits)
        return Corpus(train, validation, test, "test", 0)

    folder = _folder(dataset)
    train, num_blank = drop_empty(_read_split(folder, "train", source, target, on_bad_utf8))
    names = split_names(folder, source)
    validation = next((name for name in VALIDATION_NAMES if name in names), None)
    if validation is None:
        raise DataError(
            f"{folder}: no validation split. Add {folder / f'valid.{source}'} and "
            f"{folder / f'valid.{target}'} (valid, validation, val or dev)"
        )
    test_name = next((name for name in names if name.startswith("test")), None)
    return Corpus(
        train,
        _read_split(folder, validation, source, target, on_bad_utf8),
        _read_split(folder, test_name, source, target, on_bad_utf8) if test_name else None,
        test_name or "",
        num_blank,
    )


def load_split(dataset, split, source, target, *, on_bad_utf8="refuse"):
    """Reads one split of a corpus, blank lines included.

    Args:
        dataset: as in `load_corpus`.
        split: `"train"`, `"validation"`, `"test"`, or the name of a file before its
            ending; `"validation"` and `"test"` also find what `load_corpus` finds.
        source: source language.
        target: target language.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Returns:
        `Pairs`.

    Raises:
        DataError: as `load_corpus`, or there is no such split.
    """
    if dataset.startswith("cldr/"):
        split = "validation" if split in VALIDATION_NAMES else split
        if split not in cldr.Splits._fields:
            known = ", ".join(cldr.Splits._fields)
            raise DataError(f"{dataset} has no split {split!r}. Known: {known}")
        splits = cldr.make_pairs(*_cldr_locales(dataset, source, target))
        return _unzip(getattr(splits, split))
    folder = _folder(dataset)
    names = split_names(folder, source)
    if split not in names and split == "validation":
        split = next((name for name in VALIDATION_NAMES if name in names), split)
    if split not in names and split == "test":
        split = next((name for name in names if name.startswith("test")), split)
    if split not in names and names:
        raise DataError(f"{folder}: no split {split!r} with ending .{source}. Known: {', '.join(names)}")
    return _read_split(folder, split, source, target, on_bad_utf8)


def split_names(folder, language):
    """Returns the names of the files in `folder` that end in `.language`, sorted."""
    ending = f".{language}"
    return sorted(
        path.name.removesuffix(ending)
        for path in pathlib.Path(folder).iterdir()
        if path.name.endswith(ending) and path.is_file()
    )


def languages_of(dataset):
    """Returns (source, target) that a dataset's name tells, or `None`."""
    # pt-BR and zh-Hans hold a hyphen, too: what follows it starts with a capital.
    locale = r"([a-z]{2,}(?:[-_][A-Z]\w+)*)"
    match = re.fullmatch(f"cldr/{locale}-{locale}", dataset)
    return match.groups() if match else None


def _cldr_locales(dataset, source, target):
    named = languages_of(dataset)
    if named is None:
        raise DataError(f"{dataset}: the built-in corpus is named cldr/SOURCE-TARGET")
    if {source, target} != set(named):
        raise DataError(
            f"{dataset} holds {named[0]} and {named[1]}. Received: source {source!r}, target {target!r}"
        )
    return source, target


def _folder(dataset):
    folder = pathlib.Path(dataset)
    if not folder.is_dir():
        raise DataError(
            f"{dataset}: no such folder. A dataset is cldr/SOURCE-TARGET (built in) or a "
            "folder of parallel files"
        )
    return folder


def _read_split(folder, name, source, target, on_bad_utf8):
    return read_parallel(folder / f"{name}.{source}", folder / f"{name}.{target}", on_bad_utf8=on_bad_utf8)


def _unzip(examples):
    source, target = zip(*examples, strict=True)
    return Pairs(list(source), list(target))
