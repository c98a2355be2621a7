"""SHA-256 of every file of an exported model, as `sha256sum --check` reads them."""

import hashlib
import os
import pathlib

from keras_transformer.files import write_text

MANIFEST = "manifest.sha256"


def write_manifest(folder):
    """Writes the sums of all files of a folder, after making sure that they are on the disk."""
    folder = pathlib.Path(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
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
            "Name a folder that export_model.py wrote"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not an exported model, or damaged ({error}). Export it again") from error
    if not lines:
        raise ValueError(f"{path}: empty. Export the model again")
    wanted = {}
    for number, line in enumerate(lines, start=1):
        digest, spaces, name = line.partition("  ")
        if not spaces or len(digest) != 64:
            raise ValueError(f"{path}: line {number} is damaged. Export the model again")
        wanted[name] = digest
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
