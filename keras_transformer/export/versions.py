"""Folders of exported models: numbered versions for TensorFlow Serving, manifests, metadata.

A folder appears only when it is complete. Its manifest has the SHA-256 of every file, in the format of
`sha256sum --check`. A SavedModel is a version, in a folder named by its number. The other formats have
`keras_transformer.json`, the settings that replace the run folder. Nothing here imports Keras, and only
`load_exported` imports TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
from typing import Any, NamedTuple

from keras_transformer import __version__
from keras_transformer.config import programs
from keras_transformer.config.settings import replace
from keras_transformer.config.types import PathLike
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
METADATA = "keras_transformer.json"
CARD = "assets.extra/model_card.json"

# Folder of the versions with `translate_ids` or `parse_ids` only, next to the other versions.
IDS = "ids"
_LOCK = ".lock"
_PARTIAL = ".partial"
_VERSION = re.compile("[0-9]+")
_MAX_VERSION = 2**63 - 1


class NewVersion(NamedTuple):
    """A version while it is written.

    Attributes:
        number: int.
        folders: list of `pathlib.Path`, temporary folders, one per folder of versions.
    """

    number: int
    folders: list


def check_translates(run):
    """Raises `ValueError` for the `RunFolder` of a parser, because CTranslate2 has no tree grammar."""
    if run.config.data.parses:
        raise ValueError(
            f"{run.path}: this run parses, and only translators can be exported in this format. "
            "Use --format savedmodel or --format keras"
        )


@contextlib.contextmanager
def new_version(folders, version=None):
    """Creates a version in one or several folders; each appears only when it is complete.

    TensorFlow Serving may load a folder at once when its name is a number, and ignores other
    folders. So a version is written under a temporary name and renamed at the end.
    Temporary folders of killed processes are removed first.

    Args:
        folders: list of paths of folders of versions. The last is renamed first.
        version: int; `None` for one more than the highest version in any of them.

    Yields:
        `NewVersion`. An exception in the block removes its folders.

    Raises:
        ValueError: the version is invalid or exists, a folder contains other files than
            versions, or another process is exporting to it.
    """
    folders = [pathlib.Path(folder) for folder in folders]
    free_version(folders, version)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with process_lock(folders[0] / _LOCK):
        version = free_version(folders, version)
        for folder in folders:
            for leftover in folder.glob(f".*{_PARTIAL}"):
                shutil.rmtree(leftover)
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
    """Returns the number of a new version; writes nothing.

    Args:
        folders: list of `pathlib.Path` of folders of versions.
        version: int; `None` for one more than the highest version in any of them.

    Raises:
        ValueError: as `new_version`, except for other processes.
    """
    if version is not None and not (type(version) is int and 0 < version <= _MAX_VERSION):
        raise ValueError(
            f"The version must be a whole number from 1 to {_MAX_VERSION}. Received: {version!r}"
        )
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: not a folder. Choose another to export to")
        for path in sorted(folder.glob("*")):
            name = path.name
            if not (_VERSION.fullmatch(name) or name in (_LOCK, IDS) or name.endswith(_PARTIAL)):
                raise ValueError(
                    f"{folder}: contains {name}, which is not a version of a served model. Choose another"
                )
    taken = {number for folder in folders for number in versions(folder)}
    if version in taken:
        raise ValueError(
            f"{folders[0] / str(version)}: this version exists. Choose another --version, "
            f"or omit it for {max(taken) + 1}"
        )
    return max(taken, default=0) + 1 if version is None else version


def versions(folder):
    """Returns the version numbers in a folder, ascending; an empty list if the folder does not exist."""
    names = [path.name for path in pathlib.Path(folder).glob("*") if path.is_dir()]
    return sorted(int(name) for name in names if _VERSION.fullmatch(name))


def write_manifest(folder):
    """Flushes all files of a folder to disk, then writes their checksums."""
    folder = pathlib.Path(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            fsync_path(path)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(_checksums(folder).items())]
    write_text(folder / MANIFEST, "".join(lines))


def check_manifest(folder):
    """Checks the files of a folder against its manifest.

    Raises:
        ValueError: there is no manifest, or a file was changed, removed or added.
    """
    folder = pathlib.Path(folder)
    path = folder / MANIFEST
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder}: not an exported model ({MANIFEST} is missing). "
            f"Choose a folder written by {programs.name('export')}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not an exported model, or damaged ({error}). Export it again") from error
    matches = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines]
    if not matches or not all(matches):
        raise ValueError(f"{path}: empty or damaged. Export the model again")
    expected = {name: digest for digest, name in map(re.Match.groups, matches)}
    actual = _checksums(folder)
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            problem = "is missing"
        elif name not in expected:
            problem = f"is not in {MANIFEST}"
        elif actual[name] != expected[name]:
            problem = f"was changed: its SHA-256 differs from {MANIFEST}"
        else:
            continue
        raise ValueError(f"{folder / name}: {problem}. Export the model again, or restore it from a copy")


def _checksums(folder):
    """Returns {path with slashes: SHA-256 in hexadecimal} of all files except the manifest."""
    checksums = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise ValueError(f"{path}: a link, not allowed in an exported model. Delete it")
        if path.is_file() and name != MANIFEST:
            with path.open("rb") as file:
                checksums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return checksums


def with_search(config, search):
    """Returns a `Config` with some search settings replaced.

    Args:
        config: `Config`.
        search: dict, name -> value; or `None`.

    Raises:
        ValueError: an invalid setting.
    """
    return replace(config, search=replace(config.search, **(search or {})))


@contextlib.contextmanager
def exported_folder(run, out, kind, config, *, checkpoint, versions, **more):
    """Creates the folder of an exported model atomically: complete or not at all.

    Its `keras_transformer.json` has the run's model settings, search settings and languages, but no
    time, no path and no origin of the data.

    Args:
        run: `RunFolder`.
        out: path of a new or empty folder.
        kind: str, the format.
        config: `Config` of the run; its search settings may be changed.
        checkpoint: the weights to export, as in `RunFolder.load_weights`.
        versions: dict, library -> version.
        **more: further entries of the file.

    Yields:
        `pathlib.Path` of the folder, where the block writes the model; the `Transformer`; the `Tokenizers`.

    Raises:
        ValueError: `out` is in use, or the weights are missing.
    """
    tokenizers = run.load_tokenizers()
    model = run.load_model(checkpoint=checkpoint)
    metadata = {
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
        (folder / METADATA).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
        write_manifest(folder)


def read_metadata(folder, kinds):
    """Returns the contents of the `keras_transformer.json` that `exported_folder` wrote.

    Args:
        folder: its path.
        kinds: tuple of str, the allowed formats.

    Raises:
        ValueError: no such file, or another format.
    """
    path = pathlib.Path(folder) / METADATA
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        kind = metadata["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: not an exported model, or damaged ({error}). "
            f"Export it with {programs.command('export')}"
        ) from error
    if kind not in kinds:
        raise ValueError(f"{path}: the model's format must be {' or '.join(kinds)}. Received: {kind!r}")
    return metadata


def load_exported(path: PathLike) -> Any:
    """Loads a SavedModel that `export_saved_model` wrote, after checking its manifest.

    A SavedModel is a program: load only trusted ones.

    Args:
        path: folder of a version, or of several versions; then the newest is loaded.

    Returns:
        Result of `tf.saved_model.load`; its `signatures` are the functions.

    Raises:
        ValueError: not an exported model, or a file was changed, removed or added.
        ImportError: tensorflow-text is missing; only the `ids` models load without it.
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
    if card["signatures"] not in (["translate_ids"], ["parse_ids"]):
        import_tensorflow_text()  # it registers the operations of the tokenizers
    with wildcard_free_path(path) as plain:
        return tf.saved_model.load(str(plain))
