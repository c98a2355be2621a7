"""Translation datasets of the library `datasets`: from the Hugging Face Hub, or from a local folder.

`hf:NAME` or `hf:NAME/CONFIG` names a dataset of the Hub, such as `hf:Helsinki-NLP/opus-100/de-en`. A path,
such as `hf:./corpus`, names a folder that `save_to_disk` wrote, or one with data files as on the Hub. Each
example has a text per language: in one column, `{"translation": {"en": ..., "de": ...}}`, or in two columns
named by the languages.
"""

import contextlib
import hashlib
import json
import pathlib
import re
import sys

from keras_transformer.config.extras import install, needs
from keras_transformer.text.folders import file_identity
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import BLOCK_LINES, NamedPairs, check_split, make_blocks
from keras_transformer.text.tfds import find_config

PREFIX = "hf:"
OLDEST = 4  # version of the library; earlier ones run the Python code of a dataset
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(/[^/]+)?")
_READ_AT_ONCE = 1000
_TEXT = ("string", "large_string", "string_view")


def check_name(dataset):
    """Checks that `hf:NAME` can be opened here; does not contact the Hub.

    Raises:
        DataError: the form is wrong, or there is no such local folder.
        MissingExtraError: the library `datasets` is not installed.
    """
    _import_datasets(dataset)
    folder = _folder_of(dataset)
    if folder is None and not _NAME.fullmatch(dataset.removeprefix(PREFIX)):
        raise DataError(
            f"{dataset}: must be hf:NAME, hf:OWNER/NAME, one of them with /CONFIG, or hf:./FOLDER"
        )
    if folder and not folder.is_dir() and not _has_card(folder.parent):
        raise DataError(f"{dataset}: no such folder. Received: {folder}")


class HuggingFaceDataset:
    """A translation dataset of the library `datasets`; see `open_dataset` for the interface.

    Args:
        dataset: `hf:NAME` or `hf:NAME/CONFIG`. The config may have the two languages in either order; it may
            be omitted if the languages determine it.
        source: source language, the name of a text.
        target: target language, the name of another text.
        data_dir: folder whose subfolder `hugging_face` caches what is read; `None` uses the library's
            default.

    Raises:
        DataError: there is no such dataset or config; it lacks one of the languages; or it cannot be
            downloaded or read.
        MissingExtraError: the library `datasets` is not installed.
    """

    def __init__(self, dataset, source, target, *, data_dir=None):
        check_name(dataset)
        self.name = dataset
        self._splits = _load(dataset, source, target, data_dir)
        features = next(iter(self._splits.values())).features
        self._columns = _find_columns(dataset, features, source, target)

    @property
    def splits(self):
        """Names of the splits, a tuple."""
        return tuple(self._splits)

    def blocks(self, split, num_pairs=BLOCK_LINES):
        """Yields the pairs of a split in stored order, in blocks.

        A newline within a text becomes a space, and a missing text is blank. In messages, line i is example
        i, from 1.

        Yields:
            `Block`, see `make_blocks`.

        Raises:
            DataError: there is no such split, or its files are damaged.
        """
        check_split(self, split)
        pairs = NamedPairs(f"{self.name} {split}", self._pairs(split))
        return make_blocks([pairs], num_pairs, keep_blank_end=True)

    def fingerprint(self, split):
        """Returns a dict that identifies a split: name, split, number of examples and its files."""
        check_split(self, split)
        examples = self._splits[split]
        files = [file_identity(file["filename"]) for file in examples.cache_files]
        return {"name": self.name, "split": split, "num_examples": len(examples), "files": files}

    def _pairs(self, split):
        """Yields (source line, target line), bytes, of all examples of a split."""
        examples = self._splits[split].select_columns(sorted({name for name, *_ in self._columns}))
        try:
            for table in examples.with_format("arrow").iter(_READ_AT_ONCE):
                texts = table.flatten()  # the texts of a column `translation` become `translation.en`, ...
                sides = [texts[".".join(column)].to_pylist() for column in self._columns]
                yield from zip(*([_line(text) for text in side] for side in sides), strict=True)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.name} {split}: cannot be read ({_one_line(error)})") from error


def _line(text):
    return (text or "").replace("\n", " ").encode() + b"\n"


def _folder_of(dataset):
    """Returns the absolute path of a dataset that is a local folder, or `None`."""
    path = pathlib.Path(dataset.removeprefix(PREFIX)).expanduser().absolute()
    # The library, too, prefers a folder to a dataset of the Hub.
    is_local = dataset.startswith(tuple(PREFIX + first for first in "./~"))
    return path if is_local or (path.is_dir() and path != pathlib.Path.cwd()) else None


def _is_saved(folder):
    """Whether `DatasetDict.save_to_disk` wrote a folder."""
    return (folder / "dataset_dict.json").is_file()


def _has_card(folder):
    """Whether a folder has the card of a dataset that names its configs."""
    card = folder / "README.md"
    text = card.read_bytes() if card.is_file() else b""
    return text.startswith(b"---") and b"config_name:" in text


def _identity(folder):
    """Returns 16 hexadecimal digits that change with the path of a folder and with its files."""
    files = [file_identity(path) for path in sorted(folder.rglob("*")) if path.is_file()]
    return hashlib.sha256(json.dumps([str(folder), files]).encode()).hexdigest()[:16]


def _import_datasets(dataset):
    """Returns the module `datasets`; raises `DataError` if it is too old."""
    with needs("hf", "A dataset of Hugging Face"):
        import datasets
    if int(datasets.__version__.partition(".")[0]) < OLDEST:
        raise DataError(f"{dataset}: datasets {datasets.__version__} is too old: {install('hf')}")
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


def _load(dataset, source, target, data_dir):
    """Returns {split: `datasets.Dataset`}."""
    datasets = _import_datasets(dataset)
    cache = pathlib.Path(data_dir).absolute() / "hugging_face" if data_dir else None

    def load(name, config, cache_dir=cache):
        cache_dir = str(cache_dir) if cache_dir else None
        try:
            return datasets.load_dataset(name, config, cache_dir=cache_dir, keep_in_memory=False)
        except ValueError:
            # There is no such config, or it must be named, or the reason is another one.
            known = datasets.get_dataset_config_names(name)
            if config in known or (config is None and len(known) == 1):
                raise
            config = find_config(dataset, config, known, source, target)
            return datasets.load_dataset(name, config, cache_dir=cache_dir, keep_in_memory=False)

    folder, name = _folder_of(dataset), dataset.removeprefix(PREFIX)
    try:
        if folder and _is_saved(folder):
            return datasets.load_from_disk(str(folder), keep_in_memory=False)
        if folder and (folder / "state.json").is_file():  # a single split, whose name is not stored
            return {"train": datasets.load_from_disk(str(folder), keep_in_memory=False)}
        if folder:
            root, config = (folder, None) if folder.is_dir() else (folder.parent, folder.name)
            # The library's own names do not depend on the folder's path, nor on what its files hold.
            cache = (
                cache or pathlib.Path(datasets.config.HF_DATASETS_CACHE)
            ) / f"{root.name}-{_identity(root)}"
            return load(str(root), config, cache)
        first, _, config = name.rpartition("/")
        if "/" in first:  # OWNER/NAME/CONFIG
            return load(first, config)
        missing = datasets.exceptions.DatasetNotFoundError
        try:
            return load(name, None)  # NAME or OWNER/NAME
        except missing as error:
            if first:
                with contextlib.suppress(missing):
                    return load(first, config)  # NAME/CONFIG
            raise error
    except DataError:
        raise
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        cause = error.__cause__ or error  # the cause names the file that cannot be read
        raise DataError(f"{dataset}: cannot be loaded: {_one_line(error)}{_why(error, cause)}") from error


def _why(error, cause):
    if isinstance(error, ConnectionError):
        return ". Run the same command again later, or give a local folder: hf:./FOLDER"
    return f" ({_one_line(cause)})" if cause is not error else ""


def _find_columns(dataset, features, source, target):
    """Returns the columns of source and target: two `(name,)`, or two `(name, language)`."""
    texts = [name for name, feature in features.items() if _is_text(feature)]
    if {source, target} <= set(texts):
        return (source,), (target,)
    nested = {name: _texts_in(feature) for name, feature in features.items()}
    for name, languages in nested.items():
        if {source, target} <= set(languages):
            return (name, source), (name, target)
    languages = next((languages for languages in nested.values() if len(languages) > 1), texts)
    what = f"the languages are {', '.join(languages)}" if languages else "its examples have no texts"
    raise DataError(f"{dataset}: {what}. Received: {source!r} and {target!r}")


def _texts_in(feature):
    """Returns the names of the texts within a column, a list."""
    if hasattr(feature, "languages"):  # `datasets.Translation`
        feature = feature.flatten()
    return [name for name, inner in feature.items() if _is_text(inner)] if isinstance(feature, dict) else []


def _is_text(feature):
    return getattr(feature, "dtype", None) in _TEXT


def _one_line(error):
    return " ".join(str(error).split())
