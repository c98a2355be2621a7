"""Translation sets of TensorFlow Datasets, by name.

`wmt14_translate/de-en`, or any other whose features are one text a language. A set that
is not on this machine is downloaded and prepared by TensorFlow Datasets itself, which
checks sums and shows a prepared set only when it is complete; what is added here is
three attempts, and one line that says what to do by hand.
"""

import contextlib
import difflib
import importlib
import pathlib
import re
import sys
import time

from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import BLOCK_LINES, Block

ATTEMPTS = 3
WAIT_SECONDS = (2, 10)  # before the second and third attempt

_NAME = re.compile(
    r"(?P<name>[a-z]\w*)(/(?P<config>[\w.-]*[A-Za-z][\w.-]*))?([:/](?P<version>\d+\.\d+\.\d+))?"
)
_READ_AT_ONCE = 1000


def is_name(dataset):
    """Returns whether a text has the form NAME, NAME/CONFIG or NAME/CONFIG:VERSION."""
    return bool(_NAME.fullmatch(dataset))


def nearest_names(dataset, data_dir=None):
    """Returns names of translation sets like that of `dataset`.

    Args:
        dataset: a text of the form of `is_name`.
        data_dir: folder of prepared sets, as of `TfdsDataset`.

    Returns:
        list of up to three str; the very name alone if there is such a set.
    """
    tfds = _library()
    name = _NAME.fullmatch(dataset)["name"]
    known = tfds.list_builders(with_community_datasets=False)
    if name in known or (pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser() / name).is_dir():
        return [name]
    return difflib.get_close_matches(name, known, n=3)


class TfdsDataset:
    """One translation set of TensorFlow Datasets.

    Args:
        dataset: NAME, NAME/CONFIG or NAME/CONFIG:VERSION. The config may name the two
            languages in either order, or be left out where the languages tell it.
        source: source language, one of the set's features.
        target: target language, another.
        data_dir: folder of prepared sets; `None` is the library's own default.
        manual_dir: folder of files that were downloaded by hand; `None` is
            `downloads/manual` in `data_dir`.

    Raises:
        DataError: there is no such set, it does not hold the two languages, or it can
            neither be found nor prepared.
    """

    def __init__(self, dataset, source, target, *, data_dir=None, manual_dir=None):
        self.name = dataset
        self.source = source
        self.target = target
        self._builder = _make_builder(dataset, source, target, data_dir)
        _check_languages(dataset, self._builder.info.features, source, target)
        if not self._builder.is_prepared():
            _prepare(self._builder, dataset, manual_dir)

    @property
    def splits(self):
        """Names of the splits, a tuple."""
        return tuple(self._builder.info.splits)

    def blocks(self, split, num_pairs=BLOCK_LINES):
        """Yields the pairs of a split in the order in which they are stored.

        A newline within a text becomes a space. Line i of a block's names is example i.

        Yields:
            `Block` of `num_pairs` pairs, the last perhaps of fewer.

        Raises:
            DataError: there is no such split, it is empty, or its files are damaged.
        """
        self._check_split(split)
        return self._blocks(split, num_pairs)

    def fingerprint(self, split):
        """Returns what tells a split from another and from other versions of it."""
        self._check_split(split)
        info = self._builder.info
        return {
            "name": "/".join(info.full_name.split("/")[:-1]),
            "version": str(info.version),
            "split": split,
            "num_examples": info.splits[split].num_examples,
        }

    def _check_split(self, split):
        if split not in self.splits:
            raise DataError(f"{self.name}: no split {split!r}. Known: {', '.join(self.splits)}")

    def _blocks(self, split, num_pairs):
        name = f"{self.name} {split}"
        source, target, first_line = [], [], 1
        for more_source, more_target in self._examples(split):
            source += more_source
            target += more_target
            while len(source) >= num_pairs:
                yield Block(source[:num_pairs], target[:num_pairs], name, name, first_line)
                source, target = source[num_pairs:], target[num_pairs:]
                first_line += num_pairs
        if source:
            yield Block(source, target, name, name, first_line)
        elif first_line == 1:
            raise DataError(f"{name}: the split is empty")

    def _examples(self, split):
        import tensorflow as tf

        tfds = _library()
        # One shard after the other; a cache would hold the whole set in memory.
        reading = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        examples = self._builder.as_dataset(split=split, shuffle_files=False, read_config=reading)
        try:
            for batch in tfds.as_numpy(examples.batch(_READ_AT_ONCE)):
                yield [[_line(text) for text in batch[side]] for side in (self.source, self.target)]
        except (tf.errors.DataLossError, tf.errors.OpError) as error:
            raise DataError(
                f"{self._damaged(split)}: cannot be read ({_one_line(error.message)}). Delete the folder "
                "and prepare it anew with the same command"
            ) from error

    def _damaged(self, split):
        """Returns the path of the first file that cannot be read, else the folder."""
        import tensorflow as tf

        for path in self._builder.info.splits[split].filepaths:
            try:
                for _ in tf.data.TFRecordDataset(str(path)):
                    pass
            except tf.errors.OpError:
                return path
        return self._builder.data_dir


def _library():
    try:
        import tensorflow_datasets as tfds

        tfds.core  # noqa: B018  # imported when it is first asked for
    except ImportError as error:
        raise DataError(
            f"TensorFlow Datasets cannot be imported ({_one_line(error)}). Install it: pip install "
            "'tensorflow-datasets>=4.9.9,<5'"
        ) from error
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    return tfds


def _make_builder(dataset, source, target, data_dir):
    tfds = _library()
    name, config, version = _NAME.fullmatch(dataset).group("name", "config", "version")
    known = list(_builder_configs(tfds, name))
    if known and config not in known:
        config = _find_config(dataset, config, known, source, target)
    full_name = "/".join(filter(None, [name, config])) + (f":{version}" if version else "")
    try:
        return tfds.builder(full_name, data_dir=data_dir or None)
    except (ValueError, AssertionError, tfds.core.registered.DatasetNotFoundError) as error:
        raise DataError(f"{dataset}: {_one_line(error)}") from error


def _builder_configs(tfds, name):
    try:
        return tfds.builder_cls(name).builder_configs
    except tfds.core.registered.DatasetNotFoundError:
        return {}  # its prepared files may do without the program that made them


def _find_config(dataset, config, known, source, target):
    if config:
        first, hyphen, second = config.partition("-")
        candidates = [f"{second}-{first}"] if hyphen else []
    else:
        candidates = [
            f"{first}{between}{second}"
            for first, second in ((source, target), (target, source))
            for between in ("-", "_to_", "_", "")
        ]
    for candidate in candidates:
        if candidate in known:
            return candidate
    near = difflib.get_close_matches(config or "", known, n=3) or known[:12]
    what = f"no config {config!r}" if config else f"no config for {source} and {target}"
    raise DataError(f"{dataset}: {what}. Known: {', '.join(near)}{', ...' if near != known else ''}")


def _check_languages(dataset, features, source, target):
    tfds = _library()
    languages = [
        language
        for language in (features if hasattr(features, "keys") else ())
        if isinstance(features[language], tfds.features.Text)
    ]
    if len(languages) < 2:
        raise DataError(
            f"{dataset}: its examples are no texts in two languages. Received: {type(features).__name__}"
        )
    for language in (source, target):
        if language not in languages:
            raise DataError(
                f"{dataset} holds {', '.join(languages)}. Received: source {source!r}, target {target!r}"
            )


def _prepare(builder, dataset, manual_dir):
    tfds = _library()
    requests = importlib.import_module("requests")
    manual_dir = manual_dir or builder.data_dir_root / "downloads" / "manual"
    settings = tfds.download.DownloadConfig(manual_dir=manual_dir)
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(WAIT_SECONDS[attempt - 1])
        try:
            # The library prints its progress; standard output is for results.
            with contextlib.redirect_stdout(sys.stderr):
                builder.download_and_prepare(download_config=settings)
            return
        except (
            requests.RequestException,
            tfds.core.download.DownloadError,
            tfds.core.download.download_manager.NonMatchingChecksumError,
        ) as error:
            failure = error
            if str(manual_dir) in str(error):
                reason = f"{_one_line(error)} ({type(error).__name__})"
                raise DataError(
                    f"{dataset}: {reason}. Replace that file and run the same command again"
                ) from error
            if isinstance(error, requests.exceptions.RetryError):
                break  # the library has retried by itself, for minutes
        except (AssertionError, ImportError, OSError, ValueError) as error:
            raise DataError(f"{dataset}: cannot be prepared: {_one_line(error)}") from error
    raise DataError(_advice(dataset, manual_dir, failure, attempt + 1)) from failure


def _advice(dataset, manual_dir, failure, attempts):
    request = getattr(failure, "request", None)
    said = re.search(r"https?://[^\s,]*[^\s,.]", str(failure))
    url = request.url if request is not None else said[0] if said else None
    by_hand = (
        f" Or get that file by any means, put it into {manual_dir} as {url.rpartition('/')[2]}, and run it "
        "again"
        if url
        else ""
    )
    times = f" {attempts} times" if attempts > 1 else ""
    return (
        f"{dataset}: download of {url or 'a file'} failed{times}: {_one_line(failure)} "
        f"({type(failure).__name__}). Run the same command again later; what is complete is kept.{by_hand}"
    )


def _line(text):
    return bytes(text).replace(b"\n", b" ") + b"\n"


def _one_line(error):
    return " ".join(str(error).split())
