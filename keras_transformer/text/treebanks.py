"""Folders and archives of bracketed trees as datasets: the source is the words, the target the tree.

A split is one file, `SPLIT.trees`, or a subfolder of such files. Numbered parts and compressed files are
named as in `folders`.
"""

import logging
import pathlib
from typing import NamedTuple

from keras_transformer.config.sections import TREES
from keras_transformer.text.folders import TRAIN, ArchiveDataset, FolderDataset
from keras_transformer.text.lines import DataError, LineReader, iterate_lines
from keras_transformer.text.trees import TreeReader, read_trees, words, write_tree

logger = logging.getLogger(__name__)

# A larger share of bad training trees is an error of the file, not of single trees.
MAX_BAD_SHARE = 0.01
_LISTED = 5


def read_parses(path, number):
    """Reads the output of a parser, in which a line without a tree is a sentence that it could not parse.

    Such a line is blank or `(())`, as evalb has it. Other layouts are read as those of `read_trees`.

    Args:
        path: the file, see `LineReader`.
        number: int, how many sentences there are.

    Returns:
        list of `Tree` or `None`, not normalised.

    Raises:
        DataError: see `LineReader` and `TreeReader`.
    """
    with LineReader(path) as lines:
        texts = list(iterate_lines(lines, str(path)))
    without_failed = ["" if "".join(text.split()) == "(())" else text for text in texts]
    num_trees = sum(bool(text.strip()) for text in without_failed)
    if len(texts) == number > num_trees > 0:
        reader = TreeReader(without_failed, str(path), normalised=False)
        parses = [None] * number
        for tree in reader:
            parses[reader.line - 1] = tree
        if number - parses.count(None) == num_trees:  # each tree is on a line of its own
            return parses
    return read_trees(path, normalised=False)[0]


class TreebankFile(NamedTuple):
    """One file of bracketed trees.

    Attributes:
        path: the file, plain or compressed.
        on_bad: `"refuse"` raises `DataError` at the first bad tree; `"drop"` drops up to `MAX_BAD_SHARE` of
            the trees, with a warning that names their lines.
    """

    path: pathlib.Path
    on_bad: str

    @property
    def paths(self):
        """The files that are read."""
        return (self.path,)

    def pairs(self):
        """Yields (words, tree), bytes: the words separated by spaces, and the tree on one line.

        Raises:
            DataError: a tree is not well-formed, see `TreeReader`; or too many are bad.
        """
        number, name = 0, str(self.path)
        with LineReader(self.path) as lines:
            reader = TreeReader(iterate_lines(lines, name), name, on_bad=self.on_bad)
            for tree in reader:
                number += 1
                yield f"{' '.join(words(tree))}\n".encode(), f"{write_tree(tree)}\n".encode()
        if not reader.bad:
            return
        number += len(reader.bad)
        listed = "; ".join(f"line {line}: {reason}" for line, reason in reader.bad[:_LISTED])
        more = f"; and {len(reader.bad) - _LISTED} more" if len(reader.bad) > _LISTED else ""
        problem = f"{len(reader.bad)} of {number:,} trees are bad ({listed}{more})"
        if len(reader.bad) > MAX_BAD_SHARE * number:
            raise DataError(f"{name}: {problem}. Mend or delete them")
        if name not in _WARNED:
            _WARNED.add(name)
            logger.warning("%s: dropped: %s", name, problem)


_WARNED = set()  # files are read several times


class Treebank:
    """Mix-in of `FolderDataset`: each split has files of trees, which hold both sides."""

    def _parse_name(self, path):
        split, side = super()._parse_name(path) or (None, None)
        return (split, side) if side == "target" else None

    def _file_of(self, sides):
        (path,) = sides.values()
        return TreebankFile(path, "drop" if self._is_training(path) else "refuse")

    def _is_training(self, path):
        # A split may be a subfolder; the name of the dataset's own folder says nothing about a split.
        names = [path.name] if path.parent == self.folder else [path.name, path.parent.name]
        return any(name == TRAIN or name.startswith((f"{TRAIN}.", f"{TRAIN}-")) for name in names)


class TreebankFolder(Treebank, FolderDataset):
    """The trees of one folder as a dataset; see `open_dataset` for the interface."""


class TreebankArchive(Treebank, ArchiveDataset):
    """The trees of one archive as a dataset; see `open_dataset` for the interface."""


def open_treebank(dataset, source, data_dir=None):
    """Opens a folder or archive of trees.

    Args:
        dataset: its path.
        source: language code of the words.
        data_dir: as in `open_dataset`.

    Raises:
        DataError: it is neither a folder nor an archive, or has no trees.
    """
    path = pathlib.Path(dataset)
    if dataset.startswith("cldr/") or not path.exists():
        raise DataError(
            f"{dataset}: a treebank must be a folder or archive with train.{TREES} and valid.{TREES}, "
            "bracketed trees as in the Penn Treebank"
        )
    if path.is_dir():
        opened = TreebankFolder(path, source, TREES)
    else:
        opened = TreebankArchive(path, source, TREES, data_dir)
    if not opened.splits:
        raise DataError(f"{dataset}: no files of trees. Add train.{TREES} and valid.{TREES}")
    return opened
