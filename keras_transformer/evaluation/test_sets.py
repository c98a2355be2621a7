"""Standard test sets such as newstest2014, under sacreBLEU's names.

`wmt14` is newstest2014 as filtered for the evaluation (2,737 lines for English and German), `wmt14/full` the
unfiltered set (3,003 lines). "newstest2014" in papers may mean either of them.
"""

import http.client
import logging
import os
import pathlib
import tarfile
from typing import NamedTuple

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR, extract_tarball, get_md5sum

from keras_transformer.config.fields import did_you_mean
from keras_transformer.text.lines import read_lines

# Number of lines of newstest20NN in either direction, as published by WMT.
_LINES = {
    ("de", "en"): {"wmt12": 3003, "wmt13": 3000, "wmt14": 2737, "wmt14/full": 3003}
    | {"wmt15": 2169, "wmt16": 2999, "wmt17": 3004, "wmt18": 2998},
    ("en", "fr"): {"wmt12": 3003, "wmt13": 3000, "wmt14": 3003, "wmt14/full": 3003},
}


class StandardSet(NamedTuple):
    """One test set in one translation direction."""

    name: str  # sacreBLEU's, such as "wmt14/full"
    pair: str  # such as "en-de"
    source: list  # of str
    references: list  # of lists of str, each as long as `source`

    def __str__(self):
        return f"{self.name} {self.pair}"


def load_standard_set(name, source, target):
    """Loads a test set; sacreBLEU downloads it into `~/.sacrebleu` at first use.

    The environment variable `SACREBLEU` sets another folder than `~/.sacrebleu`.

    Args:
        name: sacreBLEU's name, such as `"wmt14/full"`.
        source: source language code, such as `"en"`.
        target: target language code.

    Returns:
        `StandardSet`.

    Raises:
        ValueError: sacreBLEU does not have this set or direction, the download fails, or its files
            are damaged.
    """
    pair = f"{source}-{target}"
    if name not in DATASETS:
        hint = did_you_mean(name, list(DATASETS), str) or "Run `sacrebleu --list` for all names"
        raise ValueError(f"sacreBLEU has no test set {name!r}. {hint}")
    dataset = DATASETS[name]
    if pair not in dataset.langpairs:
        raise ValueError(
            f"test set {name} has no direction {pair}. Choose from: {', '.join(dataset.langpairs)}"
        )
    folder = pathlib.Path(SACREBLEU_DIR, name)
    archives = [
        (url, folder / "raw" / f"{name.replace('/', '_')}.{os.path.basename(url)}", md5)
        for url, md5 in zip(dataset.data, dataset.md5 or [None] * len(dataset.data), strict=True)
    ]
    logger = logging.getLogger("sacrebleu")
    try:
        logger.disabled = True  # the exception has the same information in one line
        for url, path, md5 in archives:
            if path.exists():  # sacreBLEU neither verifies nor unpacks existing files
                if not _is_whole(path, md5):
                    raise ValueError(
                        f"{path}: not the file {url}: its MD5 is not {md5}. Delete it and run again"
                    )
                extract_tarball(str(path), str(path.parent))
        files = [dataset.get_source_file(pair), *dataset.get_reference_files(pair)]
    except (OSError, http.client.HTTPException, tarfile.TarError, EOFError, SystemExit) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, SystemExit):
            reason = "wrong checksum, or the connection is not trusted"
        missing = [(url, path) for url, path, md5 in archives if not _is_whole(path, md5)]
        for _, path in missing:
            path.unlink(missing_ok=True)  # next time, sacreBLEU would not verify it
        puts = " and ".join(f"{url} as {path}" for url, path in missing)
        fault = f"cannot be downloaded ({reason}). Put {puts}"
        if not missing:
            fault = f"has damaged files ({reason}). Delete {folder}"
        raise ValueError(f"test set {name} {pair} {fault}, and run again") from error
    finally:
        logger.disabled = False
    lines, *references = map(read_lines, files)
    expected = _LINES.get(tuple(sorted((source, target))), {}).get(name, len(lines))
    counts = [len(lines), *map(len, references)]
    if set(counts) != {expected}:
        raise ValueError(
            f"test set {name} {pair} must have {expected:,} lines, and {folder} has "
            f"{' and '.join(f'{count:,}' for count in counts)}. Delete that folder and run again"
        )
    return StandardSet(name, pair, lines, references)


def sets_with_lines(number, pair):
    """Returns the names of the standard sets of a direction with n lines.

    Args:
        number: n, number of lines.
        pair: translation direction such as `"en-de"`.
    """
    known = _LINES.get(tuple(sorted(pair.split("-"))), {})
    return [name for name, lines in known.items() if lines == number]


def _is_whole(path, md5):
    return path.exists() and path.stat().st_size > 0 and md5 in (None, get_md5sum(str(path)))
