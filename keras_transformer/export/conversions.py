"""Conversions of a run for CTranslate2, made once and kept in the run folder, in `ctranslate2/`.

Those of a model that comes with the package are in the user's cache instead.

The folder `NAME-KEY` is a complete export, or does not exist. NAME is that of the weights, such as `final`.
KEY is a hash of all that the conversion depends on. So other weights, settings or vocabularies under the
same name have another key: they are converted anew, and the earlier conversion is removed. Nothing here
imports Keras or TensorFlow until a conversion is made.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile

from keras_transformer import __version__
from keras_transformer.checkpoints.pretrained import comes_with_package
from keras_transformer.config.cores import usable_cores
from keras_transformer.config.programs import StorageError
from keras_transformer.export.ctranslate2 import CTranslate2Translator, convert
from keras_transformer.export.ctranslate2_model import import_ctranslate2
from keras_transformer.files import process_lock

logger = logging.getLogger(__name__)

FOLDER = "ctranslate2"  # within the run folder
_LOCK = ".lock"
_CONVERSION = re.compile(r"(.+)-[0-9a-f]{16}")
_UNFINISHED = re.compile(r"\..+-[0-9a-f]{16}\.[0-9a-f]{8}\.tmp")  # what a killed process has left


def conversion_path(run, checkpoint="final"):
    """Returns the path of the conversion of weights of a run, made or not.

    Its key depends on the weights, the settings of model and search, the languages, the vocabularies and the
    version of this package.

    Args:
        run: `RunFolder`.
        checkpoint: name of the weights, as in `RunFolder.load_weights`.

    Raises:
        ValueError: no weights have this name.
    """
    config = run.config
    vocabularies = [path.read_bytes() for path in sorted(run.path.glob("tokenizer*.model"))]
    facts = [
        __version__,
        run.weights_sha256(checkpoint),
        dataclasses.asdict(config.model),
        dataclasses.asdict(config.search),
        [config.data.source, config.data.target],
        [hashlib.sha256(content).hexdigest() for content in vocabularies],
    ]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return _folder(run) / f"{checkpoint}-{key[:16]}"


def _folder(run):
    """Returns the folder of a run's conversions."""
    if not comes_with_package(run.path):
        return run.path / FOLDER
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache, "keras_transformer", FOLDER, run.path.name)


def load_conversion(run, checkpoint="final", *, threads=1, before=None):
    """Loads the conversion of weights of a run; makes it if it does not exist or is damaged.

    Processes that need the same conversion wait for the first one to make it. If the run folder cannot be
    written, a warning says so, and the conversion is made in a temporary folder, which is removed when
    the model is loaded.

    Args:
        run: `RunFolder`.
        checkpoint: as in `conversion_path`.
        threads: int, number of batches that are translated in parallel; they share the cores, at most 4 each.
        before: function without arguments, called before a conversion is made, once.

    Returns:
        `CTranslate2Translator`.

    Raises:
        ValueError: ctranslate2 is not installed, no weights have this name, or they are damaged.
    """
    import_ctranslate2()
    if threads < 1:
        raise ValueError(f"`threads` must be at least 1. Received: {threads}")
    path = conversion_path(run, checkpoint)
    # As many as CTranslate2 uses by default.
    cores = min(max(usable_cores() // threads, 1), 4)

    def load(folder):
        return CTranslate2Translator(folder, inter_threads=threads, intra_threads=cores)

    with contextlib.suppress(ValueError, OSError):  # it is missing, damaged, or was just removed
        return load(path)
    before = functools.cache(before or (lambda: None))
    try:
        path.parent.mkdir(parents=comes_with_package(run.path), exist_ok=True)
        with process_lock(path.parent / _LOCK, waits=True):
            with contextlib.suppress(ValueError, OSError):  # another process may have made it meanwhile
                return load(path)
            _remove(one for one in path.parent.glob(".*.tmp") if _UNFINISHED.fullmatch(one.name))
            _remove([path])
            before()
            convert(run, path, checkpoint=checkpoint)
            _remove(_outdated(run, path))
            return load(path)
    except (OSError, StorageError) as error:
        reason = getattr(error, "strerror", None) or error
        logger.warning(
            f"{path.parent}: cannot be written ({reason}). The weights are converted in a temporary folder, "
            "and again at the next start"
        )
    before()
    with tempfile.TemporaryDirectory(prefix="ctranslate2-") as folder:
        return load(convert(run, pathlib.Path(folder, path.name), checkpoint=checkpoint))


def _outdated(run, path):
    """Yields other conversions under the name of the one at `path`, and those of weights that are gone."""
    name, names = path.name.rpartition("-")[0], {*run.weights_names(), "ema"}
    for other in path.parent.iterdir():
        made = _CONVERSION.fullmatch(other.name)  # not what a user has put there
        if made and other.is_dir() and other != path and (made[1] == name or made[1] not in names):
            yield other


def _remove(paths):
    for path in list(paths):
        shutil.rmtree(path, ignore_errors=True)
