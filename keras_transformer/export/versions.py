"""Folders of exported models: numbered versions for TensorFlow Serving, manifests, settings.

A folder is complete or invisible, and has a manifest: the SHA-256 of every file, as `sha256sum --check`
reads them. A SavedModel is a version, in a folder whose name is its number; the other formats have
`keras_transformer.json`, the settings that are needed to use the model without its run. Nothing here
imports Keras, and only `load_exported` imports TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
from typing import NamedTuple

from keras_transformer import __version__
from keras_transformer.config import programs
from keras_transformer.config.settings import replace
from keras_transformer.files import (
    create_folder_atomically,
    fsync_path,
    process_lock,
    wildcard_free_path,
    write_text,
)
from keras_transformer.tokenizers.base import import_tensorflow_text
from keras_transformer.tokenizers.tokenizer_pair import save_tokenizers

MANIFEST = "manifest.sha256"
FACTS = "keras_transformer.json"
CARD = "assets.extra/model_card.json"

# Folder, among the versions, of the versions for ids alone.
IDS = "ids"
_LOCK = ".lock"
_PARTIAL = ".partial"
_VERSION = re.compile("[0-9]+")
_MAX_VERSION = 2**63 - 1


class NewVersion(NamedTuple):
    """A version that is being written.

    Attributes:
        number: int.
        folders: list of `pathlib.Path`, temporary folders, one for each that was asked for.
    """

    number: int
    folders: list


@contextlib.contextmanager
def new_version(folders, version=None):
    """Makes one version in several folders; each gets its number as its name at the end.

    TensorFlow Serving takes a folder whose name is a number for a version that it may load
    at once, and passes over all others. What an earlier process left half written is removed.

    Args:
        folders: list of paths of the folders of versions, the last to be renamed first in the list.
        version: int, or `None` for the one after the highest that any of them has.

    Yields:
        `NewVersion`. After an exception within the block nothing is left behind.

    Raises:
        ValueError: the version is no number or there already, a folder has something else than
            versions, or another process exports there.
    """
    folders = [pathlib.Path(folder) for folder in folders]
    free_version(folders, version)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with process_lock(folders[0] / _LOCK):
        version = free_version(folders, version)
        for folder in folders:
            for left in folder.glob(f".*{_PARTIAL}"):
                shutil.rmtree(left)
        partial = [folder / f".{version}{_PARTIAL}" for folder in folders]
        try:
            for path in partial:
                path.mkdir()
            yield NewVersion(version, partial)
            for folder, path in reversed(list(zip(folders, partial, strict=True))):
                os.rename(path, folder / str(version))
                fsync_path(folder)
        except BaseException:
            for path in partial:
                shutil.rmtree(path, ignore_errors=True)
            raise


def free_version(folders, version=None):
    """Returns the number that a new version gets; writes nothing.

    Args:
        folders: list of `pathlib.Path` of the folders of versions.
        version: int, or `None` for the one after the highest that any of them has.

    Raises:
        ValueError: as `new_version`, but for other processes.
    """
    if version is not None and not (type(version) is int and 0 < version <= _MAX_VERSION):
        raise ValueError(f"A version must be a whole number from 1 to {_MAX_VERSION}. Received: {version!r}")
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: not a folder. Name another to export to")
        for path in sorted(folder.glob("*")):
            name = path.name
            if not (_VERSION.fullmatch(name) or name in (_LOCK, IDS) or name.endswith(_PARTIAL)):
                raise ValueError(
                    f"{folder}: holds {name}, which is no version of a served model. Name another folder"
                )
    taken = {number for folder in folders for number in versions(folder)}
    if version in taken:
        raise ValueError(
            f"{folders[0] / str(version)}: this version is there. Choose another --version, "
            f"or leave it out for {max(taken) + 1}"
        )
    return max(taken, default=0) + 1 if version is None else version


def versions(folder):
    """Returns the numbers of the versions in a folder, ascending; none where there is no folder."""
    names = [path.name for path in pathlib.Path(folder).glob("*") if path.is_dir()]
    return sorted(int(name) for name in names if _VERSION.fullmatch(name))


def write_manifest(folder):
    """Writes the sums of all files of a folder, after making sure that they are on the disk."""
    folder = pathlib.Path(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            fsync_path(path)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(_sums(folder).items())]
    write_text(folder / MANIFEST, "".join(lines))


def check_manifest(folder):
    """Refuses a folder in which anything is not as it was written.

    Raises:
        ValueError: there is no manifest, or a file was changed, removed or added; the
            message names it.
    """
    folder = pathlib.Path(folder)
    path = folder / MANIFEST
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder}: not an exported model (it has no {MANIFEST}). "
            f"Name a folder that {programs.name('export')} wrote"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not an exported model, or damaged ({error}). Export it again") from error
    matches = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines]
    if not matches or not all(matches):
        raise ValueError(f"{path}: empty or damaged. Export the model again")
    wanted = {name: digest for digest, name in map(re.Match.groups, matches)}
    found = _sums(folder)
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            problem = "is missing"
        elif name not in wanted:
            problem = f"was added: {MANIFEST} does not have it"
        elif found[name] != wanted[name]:
            problem = f"was changed: its SHA-256 is not that in {MANIFEST}"
        else:
            continue
        raise ValueError(f"{folder / name}: {problem}. Export the model again, or put it back from a copy")


def _sums(folder):
    """{name with slashes: SHA-256 in hexadecimal} of all files but the manifest."""
    sums = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise ValueError(f"{path}: a link; an exported model has none. Remove it")
        if path.is_file() and name != MANIFEST:
            with path.open("rb") as file:
                sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def with_search(config, search):
    """Returns a `Config` with other settings of search.

    Args:
        config: `Config`.
        search: dict, name -> value; or `None`.

    Raises:
        ValueError: a setting that is refused.
    """
    return replace(config, search=replace(config.search, **(search or {})))


@contextlib.contextmanager
def exported_folder(run, out, kind, config, *, checkpoint, versions, **more):
    """Makes a folder of a model that is used without its run: complete, or it does not appear.

    Its `keras_transformer.json` has the run's settings of the model and of search, and the languages:
    neither time nor place, nor where the text came from.

    Args:
        run: `RunFolder`.
        out: a folder that does not exist or is empty.
        kind: str, the format.
        config: `Config` of the run, maybe with other settings of search.
        checkpoint: which weights, as `RunFolder.load_weights` takes it.
        versions: dict, library -> version.
        **more: what else the file has.

    Yields:
        `pathlib.Path` of the folder, where the block writes the model; the `Transformer`; the `Tokenizers`.

    Raises:
        ValueError: `out` is in use, or the weights are missing.
    """
    tokenizers = run.load_tokenizers()
    model = run.load_model(checkpoint=checkpoint)
    facts = {
        "format": kind,
        "weights": checkpoint,
        "languages": {"source": config.data.source, "target": config.data.target},
        "model": dataclasses.asdict(config.model),
        "search": dataclasses.asdict(config.search),
        "made_with": {"keras_transformer": __version__, **versions},
        **more,
    }
    with create_folder_atomically(out) as folder:
        yield folder, model, tokenizers
        save_tokenizers(folder, tokenizers)
        (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        write_manifest(folder)


def read_facts(folder, kinds):
    """Returns the dict that `exported_folder` wrote.

    Args:
        folder: its path.
        kinds: the formats which it may be of.

    Raises:
        ValueError: no such file, or of another format.
    """
    path = pathlib.Path(folder) / FACTS
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        kind = facts["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: not an exported model, or damaged ({error}). "
            f"Export it with {programs.command('export')}"
        ) from error
    if kind not in kinds:
        raise ValueError(f"{path}: the model's format must be {' or '.join(kinds)}. Received: {kind!r}")
    return facts


def load_exported(path):
    """Loads a SavedModel that `export_saved_model` wrote, if every file is as it was written.

    A SavedModel is a program: load none of which you do not know where it comes from.

    Args:
        path: folder of one version, or of several, of which the newest is taken.

    Returns:
        The object that `tf.saved_model.load` gives; `signatures` has the functions.

    Raises:
        ValueError: not an exported model, or a file of it was changed, removed or added.
        ImportError: tensorflow-text is missing, which all but the `ids` models need.
    """
    import tensorflow as tf

    path = pathlib.Path(path)
    numbers = versions(path)
    if numbers and not (path / "saved_model.pb").exists():
        path = path / str(numbers[-1])
    check_manifest(path)
    if not (path / CARD).is_file():
        raise ValueError(
            f"{path}: not a SavedModel of this package. Export one: {programs.command('export')} RUN OUT"
        )
    card = json.loads((path / CARD).read_text(encoding="utf-8"))
    if card["signatures"] != ["translate_ids"]:
        import_tensorflow_text()  # it registers the operations of the tokenizers
    with wildcard_free_path(path) as plain:
        return tf.saved_model.load(str(plain))
