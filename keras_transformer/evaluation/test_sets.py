"""The standard test sets, by the names that sacreBLEU gives them.

`wmt14` is newstest2014 as it was filtered for the evaluation (2,737 lines of English and
German), `wmt14/full` what was translated (3,003); papers mean either by "newstest2014".
"""

import contextlib
import difflib
import hashlib
import http.client
import logging
import os
import pathlib
import tarfile
import zipfile
from typing import NamedTuple

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from keras_transformer.text.lines import read_lines

# Lines of newstest20NN, either direction, as WMT published them.
_LINES = {
    ("de", "en"): {
        "wmt12": 3003,
        "wmt13": 3000,
        "wmt14": 2737,
        "wmt14/full": 3003,
        "wmt15": 2169,
        "wmt16": 2999,
        "wmt17": 3004,
        "wmt18": 2998,
    },
    ("en", "fr"): {"wmt12": 3003, "wmt13": 3000, "wmt14": 3003, "wmt14/full": 3003},
}


class StandardSet(NamedTuple):
    """One test set in one direction."""

    name: str  # sacreBLEU's, such as "wmt14/full"
    pair: str  # such as "en-de"
    source: list  # of str
    references: list  # of lists of str, as many lines each

    def __str__(self):
        return f"{self.name} {self.pair}"


def load_standard_set(name, source, target):
    """Reads a test set, which sacreBLEU downloads into `~/.sacrebleu` if it is not there.

    The environment variable `SACREBLEU` names another folder than `~/.sacrebleu`.

    Args:
        name: sacreBLEU's, such as `"wmt14/full"`.
        source: source language, such as `"en"`.
        target: target language.

    Returns:
        `StandardSet`.

    Raises:
        ValueError: sacreBLEU knows no such set or not this direction of it, it cannot be
            downloaded, or its files are damaged.
    """
    pair = f"{source}-{target}"
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`sacrebleu --list` shows all"
        raise ValueError(f"sacreBLEU knows no test set {name!r}. {hint}")
    dataset = DATASETS[name]
    if pair not in dataset.langpairs:
        raise ValueError(f"test set {name} has no direction {pair}. It has: {', '.join(dataset.langpairs)}")
    archives = _archives(dataset)
    folder = pathlib.Path(SACREBLEU_DIR, name)
    for archive in archives:
        _check_and_unpack(archive, folder / "raw")
    try:
        with _quiet_sacrebleu():
            files = [dataset.get_source_file(pair), *dataset.get_reference_files(pair)]
    except (OSError, http.client.HTTPException, tarfile.TarError, EOFError, SystemExit) as error:
        missing = [archive for archive in archives if not archive.is_whole()]
        for archive in missing:
            archive.path.unlink(missing_ok=True)  # sacreBLEU would take it for whole next time
        if not missing:
            raise ValueError(
                f"test set {name} {pair}: its files in {folder} are damaged ({_reason(error)}). "
                "Remove that folder and run again"
            ) from error
        files = " and ".join(f"{archive.url} as {archive.path}" for archive in missing)
        raise ValueError(
            f"test set {name} {pair} cannot be downloaded ({_reason(error)}). Put {files}, and run again"
        ) from error
    lines, *references = map(read_lines, files)
    expected = _LINES.get(tuple(sorted((source, target))), {}).get(name, len(lines))
    counts = [len(lines), *map(len, references)]
    if any(count != expected for count in counts):
        raise ValueError(
            f"test set {name} {pair} must have {expected:,} lines, and {folder} has "
            f"{' and '.join(f'{count:,}' for count in counts)}. Remove that folder and run again"
        )
    return StandardSet(name, pair, lines, references)


def sets_with_lines(number, pair):
    """Returns the names of the known sets of a direction that have so many lines.

    Args:
        number: of lines.
        pair: such as `"en-de"`.
    """
    known = _LINES.get(tuple(sorted(pair.split("-"))), {})
    return [name for name, lines in known.items() if lines == number]


class _Archive(NamedTuple):
    """A file that a test set is made of."""

    url: str
    path: pathlib.Path  # where sacreBLEU looks for it
    md5: str | None

    def is_whole(self):
        if not self.path.exists():
            return False
        data = self.path.read_bytes()
        # MD5 because sacreBLEU lists no other.
        return bool(data) and self.md5 in (None, hashlib.md5(data, usedforsecurity=False).hexdigest())


def _archives(dataset):
    folder = pathlib.Path(SACREBLEU_DIR, dataset.name, "raw")
    sums = dataset.md5 or [None] * len(dataset.data)
    return [
        _Archive(url, folder / f"{dataset.name.replace('/', '_')}.{os.path.basename(url)}", md5)
        for url, md5 in zip(dataset.data, sums, strict=True)
    ]


def _check_and_unpack(archive, folder):
    """SacreBLEU neither checks nor unpacks an archive that it did not download itself."""
    if not archive.path.exists():
        return
    if not archive.is_whole():
        raise ValueError(
            f"{archive.path}: is not {archive.url}: its MD5 is not {archive.md5}. Remove it and run again"
        )
    unpacked = archive.path.with_name(archive.path.name + ".unpacked")
    if unpacked.exists():
        return
    if archive.path.name.endswith((".tgz", ".tar.gz")):
        with tarfile.open(archive.path) as tar:
            tar.extractall(folder, filter="data")
    elif archive.path.name.endswith(".zip"):
        with zipfile.ZipFile(archive.path) as archive_zip:
            archive_zip.extractall(folder)
    unpacked.touch()


@contextlib.contextmanager
def _quiet_sacrebleu():
    """What it logs, in several lines, is said in the one line of the exception."""
    logger = logging.getLogger("sacrebleu")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _reason(error):
    if isinstance(error, SystemExit):
        return "what arrived is not the file, or the connection is not trusted"
    return str(error) or type(error).__name__
