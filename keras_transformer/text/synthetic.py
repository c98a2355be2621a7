"""Corpora that a model has written: their manifest, and the tag with which their sources begin.

Such a corpus is a folder of parallel files as any other, `train.SOURCE` and `train.TARGET`, and a manifest.
"""

import hashlib
import logging
import pathlib

from keras_transformer.files import from_checked_json
from keras_transformer.text.lines import DataError

# `manifest.json` is that of prepared corpora.
MANIFEST = "synthetic.json"
FORMAT = "keras_transformer synthetic corpus, 1"
_REMEDY = "Delete the folder and make the corpus again"

logger = logging.getLogger(__name__)


def read_manifest(folder):
    """Returns the manifest of a synthetic corpus, a dict; `None` if the folder is none.

    Raises:
        DataError: the manifest is damaged, or of another version.
    """
    path = pathlib.Path(folder) / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        manifest = from_checked_json(content, remedy=_REMEDY)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: the format is not {FORMAT!r}. {_REMEDY}")
    return manifest


def check_files(folder, manifest):
    """Checks that the files of a synthetic corpus are those that were written.

    Raises:
        DataError: one is missing, or has changed.
    """
    for change in _changes(folder, manifest):
        raise DataError(f"{change}. {_REMEDY}")


def warn_of_changes(datasets):
    """Warns of each file of a synthetic corpus that is not as it was written; such a file may still be used.

    Args:
        datasets: list of datasets as returned by `open_dataset`.
    """
    for dataset, manifest in _synthetic(datasets):
        for change in _changes(dataset.folder, manifest):
            logger.warning(f"{change}, according to {MANIFEST}. If you did not change it, make it again")


def _changes(folder, manifest):
    """Yields a str for each file of a synthetic corpus that has changed or cannot be read."""
    for name, digest in manifest["files"].items():
        path = pathlib.Path(folder) / name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            yield f"{path}: cannot be read: {error.strerror}"
        else:
            if found != digest:
                yield f"{path}: has changed since it was written"


def tags_of_sources(datasets):
    """Returns the tags of the synthetic corpora among the datasets whose tagged side is the source, a set."""
    return {
        tag for dataset, tags, (source, _) in _tagged(datasets) if dataset.source == source for tag in tags
    }


def _synthetic(datasets):
    """Yields (dataset, manifest) for each synthetic corpus."""
    for dataset in datasets:
        manifest = read_manifest(dataset.folder) if hasattr(dataset, "folder") else None
        if manifest:
            yield dataset, manifest


def _tagged(datasets):
    """Yields (dataset, tags, languages) for each synthetic corpus with tags."""
    for dataset, manifest in _synthetic(datasets):
        if manifest["tags"]:
            yield dataset, manifest["tags"], manifest["languages"]


def check_tags(datasets, tags, remedy):
    """Checks that tagged synthetic corpora are used in their direction, with a vocabulary that has the tags.

    Args:
        datasets: list of datasets as returned by `open_dataset`.
        tags: container of str, those of the vocabulary.
        remedy: str, a sentence for the message, with `{tags}` for all tags of the corpus.

    Raises:
        DataError: a tag is missing, or the tagged side is the target.
    """
    for dataset, needed, (source, target) in _tagged(datasets):
        if dataset.source == target:
            raise DataError(
                f"{dataset.name}: was made for {source} to {target}: its {source} side has the tag "
                f"{needed[0]}. Use --source {source} --target {target}, or make the corpus with --no-tag"
            )
        if missing := [tag for tag in needed if tag not in tags]:
            raise DataError(
                f"{dataset.name}: its sources have the tag {missing[0]}, which the vocabulary lacks. "
                f"{remedy.format(tags=','.join(needed))}, or make the corpus with --no-tag"
            )
