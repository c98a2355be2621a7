"""Translation datasets of TensorFlow Datasets, opened by name, such as `wmt14_translate/de-en`.

Any dataset works whose features are one text per language. TensorFlow Datasets downloads and prepares a
missing dataset; it verifies checksums, and a prepared dataset appears only when it is complete. This module
adds three download attempts, and error messages that say how to download a file by hand.
"""

import contextlib
import difflib
import importlib
import pathlib
import re
import sys
import time

from keras_transformer.config.extras import needs
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import BLOCK_LINES, NamedPairs, check_split, make_blocks

WAIT_SECONDS = (2, 10)  # before the second and third attempt

_NAME = re.compile(
    r"(?P<name>[a-z]\w*)(/(?P<config>[\w.-]*[A-Za-z][\w.-]*))?([:/](?P<version>\d+\.\d+\.\d+))?"
)
_READ_AT_ONCE = 1000


def nearest_names(dataset, data_dir=None):
    """Returns the names of TensorFlow Datasets that are most similar to `dataset`.

    Args:
        dataset: NAME, NAME/CONFIG or NAME/CONFIG:VERSION.
        data_dir: folder of prepared datasets, see `TfdsDataset`.

    Returns:
        list of up to three str; only NAME if it exists; `None` if `dataset` does not have this form.
    """
    match = _NAME.fullmatch(dataset)
    if match is None:
        return None
    tfds, name = _import_tfds(), match["name"]
    known = tfds.list_builders(with_community_datasets=False)
    if name in known or (pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser() / name).is_dir():
        return [name]
    return difflib.get_close_matches(name, known, n=3)


class TfdsDataset:
    """A translation dataset of TensorFlow Datasets; see `open_dataset` for the interface.

    Args:
        dataset: NAME, NAME/CONFIG or NAME/CONFIG:VERSION. The config may have the two
            languages in either order; it may be omitted if the languages determine it.
        source: source language, the name of a feature.
        target: target language, the name of another feature.
        data_dir: folder of prepared datasets; `None` uses the library's default.
        manual_dir: folder of files downloaded by hand; `None` uses
            `downloads/manual` in `data_dir`.

    Raises:
        DataError: there is no such dataset, it lacks one of the languages, or it cannot be
            downloaded or prepared.
    """

    def __init__(self, dataset, source, target, *, data_dir=None, manual_dir=None):
        self.name = dataset
        self._sides = source, target
        self._builder = _make_builder(dataset, source, target, data_dir)
        _check_languages(dataset, self._builder.info.features, source, target)
        if not self._builder.is_prepared():
            _prepare(self._builder, dataset, manual_dir)

    @property
    def splits(self):
        """Names of the splits, a tuple."""
        return tuple(self._builder.info.splits)

    def blocks(self, split, num_pairs=BLOCK_LINES):
        """Yields the pairs of a split in stored order, in blocks.

        A newline within a text becomes a space. In messages, line i is example i, from 1.

        Yields:
            `Block`, see `make_blocks`.

        Raises:
            DataError: there is no such split, or its files are damaged.
        """
        check_split(self, split)
        pairs = NamedPairs(f"{self.name} {split}", self._pairs(split))
        return make_blocks([pairs], num_pairs, keep_blank_end=True)

    def fingerprint(self, split):
        """Returns a dict that identifies a split: name, version, split and number of examples."""
        check_split(self, split)
        info = self._builder.info
        return {
            "name": "/".join(info.full_name.split("/")[:-1]),
            "version": str(info.version),
            "split": split,
            "num_examples": info.splits[split].num_examples,
        }

    def _pairs(self, split):
        """Yields (source line, target line), bytes, of all examples of a split."""
        import tensorflow as tf

        tfds = _import_tfds()
        # Shards in order, and no cache, which would hold the whole dataset in memory.
        reading = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        examples = self._builder.as_dataset(split=split, shuffle_files=False, read_config=reading)
        try:
            for batch in tfds.as_numpy(examples.batch(_READ_AT_ONCE)):
                sides = (
                    [bytes(text).replace(b"\n", b" ") + b"\n" for text in batch[side]] for side in self._sides
                )
                yield from zip(*sides, strict=True)
        except tf.errors.OpError as error:
            raise DataError(
                f"{self._damaged(split)}: cannot be read ({_one_line(error.message)}). Delete the folder "
                "and run the same command again"
            ) from error

    def _damaged(self, split):
        """Returns the path of the first file that cannot be read, or the folder if all can be read."""
        import tensorflow as tf

        for path in self._builder.info.splits[split].filepaths:
            try:
                for _ in tf.data.TFRecordDataset(str(path)):
                    pass
            except tf.errors.OpError:
                return path
        return self._builder.data_dir


def _import_tfds():
    """Returns the module `tensorflow_datasets`; raises `MissingExtraError` if it cannot be imported."""
    with needs("data", "TensorFlow Datasets"):
        import tensorflow_datasets as tfds

        tfds.core  # noqa: B018  # imports the submodule, which is loaded lazily
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    return tfds


def _make_builder(dataset, source, target, data_dir):
    """Returns the TensorFlow Datasets builder for a name."""
    tfds = _import_tfds()
    name, config, version = _NAME.fullmatch(dataset).group("name", "config", "version")
    try:
        known = list(tfds.builder_cls(name).builder_configs)
    except tfds.core.registered.DatasetNotFoundError:
        known = []  # a prepared dataset can be read without its builder class
    if known and config not in known:
        config = find_config(dataset, config, known, source, target)
    full_name = "/".join(filter(None, [name, config])) + (f":{version}" if version else "")
    try:
        return tfds.builder(full_name, data_dir=data_dir or None)
    except (ValueError, AssertionError, tfds.core.registered.DatasetNotFoundError) as error:
        raise DataError(f"{dataset}: {_one_line(error)}") from error


def find_config(dataset, config, known, source, target):
    """Returns the config for two languages, given in the other order or not at all."""
    if config:
        candidates = ["-".join(reversed(config.split("-")))]
    else:
        pairs = (source, target), (target, source)
        candidates = [between.join(pair) for pair in pairs for between in ("-", "_to_", "_", "")]
    for candidate in candidates:
        if candidate in known:
            return candidate
    near = difflib.get_close_matches(config or "", known, n=3) or known[:12]
    what = f"no config {config!r}" if config else f"no config for {source} and {target}"
    raise DataError(f"{dataset}: {what}. Choose from: {', '.join(near)}{', ...' if near != known else ''}")


def _check_languages(dataset, features, source, target):
    """Raises `DataError` unless both languages are text features of the dataset."""
    text = _import_tfds().features.Text
    names = features if hasattr(features, "keys") else ()
    languages = [name for name in names if isinstance(features[name], text)]
    if len(languages) < 2:
        raise DataError(
            f"{dataset}: its examples are not texts in two languages. Received: {type(features).__name__}"
        )
    if not {source, target} <= set(languages):
        raise DataError(
            f"{dataset}: the languages are {', '.join(languages)}. Received: {source!r} and {target!r}"
        )


def _prepare(builder, dataset, manual_dir):
    """Downloads and prepares a dataset, in up to three attempts."""
    tfds = _import_tfds()
    requests = importlib.import_module("requests")
    manual_dir = manual_dir or builder.data_dir_root / "downloads" / "manual"
    settings = tfds.download.DownloadConfig(manual_dir=manual_dir)
    failures = (
        requests.RequestException,
        tfds.core.download.DownloadError,
        tfds.core.download.download_manager.NonMatchingChecksumError,
    )
    for attempt, wait in enumerate((*WAIT_SECONDS, None), start=1):
        try:
            # The library prints progress to standard output, which is for results.
            with contextlib.redirect_stdout(sys.stderr):
                builder.download_and_prepare(download_config=settings)
            return
        except failures as error:
            reason = f"{_one_line(error)} ({type(error).__name__})"
            if str(manual_dir) in str(error):
                raise DataError(
                    f"{dataset}: {reason}. Replace that file and run the same command again"
                ) from error
            # A RetryError comes after minutes of the library's own retries.
            if wait is None or isinstance(error, requests.exceptions.RetryError):
                raise DataError(_download_error(dataset, manual_dir, error, reason, attempt)) from error
            time.sleep(wait)
        except (AssertionError, ImportError, OSError, ValueError) as error:
            raise DataError(f"{dataset}: cannot be prepared: {_one_line(error)}") from error


def _download_error(dataset, manual_dir, error, reason, attempts):
    """Returns the message for a failed download: address, reason, and how to provide the file by hand."""
    named = re.search(r"https?://[^\s,]*[^\s,.]", str(error))
    url = error.request.url if getattr(error, "request", None) is not None else named and named[0]
    times = f" {attempts} times" if attempts > 1 else ""
    advice = (
        f"{dataset}: download of {url or 'a file'} failed{times}: {reason}. "
        "Run the same command again later; completed downloads are kept."
    )
    if url:
        file = url.rpartition("/")[2]
        advice += f" Or get that file by any means, put it into {manual_dir} as {file}, and run it again"
    return advice


def _one_line(error):
    return " ".join(str(error).split())
