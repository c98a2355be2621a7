"""Reads parallel text files as blocks of raw line pairs, in constant memory.

Parallel text is either two files, where line i of one translates line i of the other, or one tab-separated
file. Blocks hold raw bytes; `decode_block` decodes them.
"""

import itertools
import logging
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from keras_transformer.text.lines import (
    BOM,
    DataError,
    LineReader,
    Pairs,
    decode_lines,
    iterate_lines,
    log_replaced,
    raise_empty_file,
)

logger = logging.getLogger(__name__)

BLOCK_LINES = 50_000
MAX_BLOCK_BYTES = 2**26


class Origin(NamedTuple):
    """File and line of the pairs of a block, from pair `begin` on.

    Attributes:
        begin: int, index of a pair in the block.
        source_name: name of the source file in messages.
        target_name: name of the target file in messages.
        first_line: int, line number of pair `begin` in these files, from 1.
    """

    begin: int
    source_name: str
    target_name: str
    first_line: int


class Block(NamedTuple):
    """Consecutive pairs of raw lines.

    Attributes:
        source: list of bytes, each one line with `b"\\n"` at its end.
        target: list of bytes, of the same length.
        source_name: name, in messages, of the source file of the first pair.
        target_name: name, in messages, of the target file of the first pair.
        first_line: int, line number of the first pair in these files, from 1.
        others: tuple of `Origin`, one for each further file that begins within the block.
    """

    source: list
    target: list
    source_name: str
    target_name: str
    first_line: int
    others: tuple = ()


class FilePair(NamedTuple):
    """Two files: line i of one translates line i of the other."""

    source_path: pathlib.Path
    target_path: pathlib.Path

    @property
    def paths(self):
        """The files that are read."""
        return (self.source_path, self.target_path)

    def pairs(self):
        """Yields (source line, target line), bytes.

        Raises:
            DataError: see `LineReader`; or a file is empty; or the numbers of lines differ.
        """
        number = -1
        with LineReader(self.source_path) as source, LineReader(self.target_path) as target:
            for number, pair in enumerate(itertools.zip_longest(source, target)):
                if None in pair:
                    ended = pair.index(None)
                    if not number:
                        raise_empty_file(self.paths[ended])
                    counts = [number, number]
                    counts[1 - ended] += 1 + sum(1 for _ in (target, source)[ended])
                    raise DataError(
                        f"{self.source_path} and {self.target_path} must have the same number of lines: "
                        "line i of one translates line i of the other. "
                        f"Received: {counts[0]} and {counts[1]} lines"
                    )
                yield pair
        if number < 0:
            raise_empty_file(self.source_path)


class TabSeparatedFile(NamedTuple):
    """A tab-separated file with the two sides in its first two columns.

    Further columns, such as scores or attributions, are ignored. All lines must have the same number of
    columns, so that a tab inside a sentence is detected. A blank line is a pair of blank sides.

    Attributes:
        path: the file.
        source_column: 0 or 1.
    """

    path: pathlib.Path
    source_column: int

    @property
    def paths(self):
        """The files that are read."""
        return (self.path,)

    def pairs(self):
        """Yields (source line, target line), bytes.

        Raises:
            DataError: see `LineReader`; or the file is empty; or a line has only one column, or another
                number of columns than the lines before it.
        """
        number, num_columns = 0, None
        with LineReader(self.path) as reader:
            for number, line in enumerate(reader, start=1):
                columns = line.rstrip(b"\r\n").split(b"\t")
                if len(columns) == 1 and _is_blank(columns[0].removeprefix(BOM if number == 1 else b"")):
                    columns = [b"", b""]
                elif num_columns is None and len(columns) > 1:
                    num_columns = len(columns)
                elif len(columns) != num_columns:
                    expected = f"{num_columns}, as before it" if num_columns else "at least 2"
                    raise DataError(
                        f"{self.path}: line {number}: {len(columns)} columns instead of {expected}. A line "
                        "is source, tab, target (further columns are ignored); no text holds a tab"
                    )
                yield columns[self.source_column] + b"\n", columns[1 - self.source_column] + b"\n"
        if not number:
            raise_empty_file(self.path)


class NamedPairs(NamedTuple):
    """Pairs of lines that do not come from a file.

    Attributes:
        name: name of the pairs in messages, where pair i (from 1) is called line i.
        lines: iterable of (source line, target line), bytes with `b"\\n"` at their ends.
    """

    name: str
    lines: Iterable

    @property
    def paths(self):
        """The name; there are no files."""
        return (self.name,)

    def pairs(self):
        """Returns the pairs of lines."""
        return self.lines


def make_blocks(files, num_pairs=BLOCK_LINES, *, keep_blank_end=False):
    """Yields the pairs of several files in blocks, one file after the other.

    Args:
        files: list of `FilePair`, `TabSeparatedFile` and `NamedPairs`.
        num_pairs: int, pairs per block. The last block may have fewer, and so does a block of long lines,
            which ends at about `MAX_BLOCK_BYTES`.
        keep_blank_end: if true, keeps pairs of blank lines at the end of a file and allows files without
            text.

    Yields:
        `Block`.

    Raises:
        DataError: see `pairs` of the files; or a file has no pair with text on both sides.
    """
    if num_pairs < 1:
        raise ValueError(f"`num_pairs` must be at least 1. Received: num_pairs={num_pairs}")
    source, target, origins, size = [], [], [], 0
    for file in files:
        names = str(file.paths[0]), str(file.paths[-1])
        in_block = False  # whether the block has pairs of this file
        pairs = file.pairs() if keep_blank_end else _without_blank_end(file)
        for number, (source_line, target_line) in enumerate(pairs, start=1):
            if not in_block:
                origins.append(Origin(len(source), *names, number))
                in_block = True
            source.append(source_line)
            target.append(target_line)
            size += len(source_line) + len(target_line)
            if len(source) == num_pairs or size >= MAX_BLOCK_BYTES:
                yield Block(source, target, *origins[0][1:], tuple(origins[1:]))
                source, target, origins, size, in_block = [], [], [], 0, False
    if source:
        yield Block(source, target, *origins[0][1:], tuple(origins[1:]))


def _without_blank_end(file):
    """Yields the pairs of a file without blank pairs at its end; raises `DataError` if none has text."""
    blank_pairs, num_pairs, has_text = [], 0, False  # blank pairs are held back until text follows
    for pair in file.pairs():
        num_pairs += 1
        blank = _is_blank(pair[0]), _is_blank(pair[1])
        if all(blank):
            blank_pairs.append(pair)
            continue
        has_text = has_text or not any(blank)
        yield from blank_pairs
        blank_pairs.clear()
        yield pair
    if not has_text:
        raise DataError(
            f"{' and '.join(map(str, file.paths))}: no line has text on both sides "
            f"({num_pairs} lines read). Check that these are the right files"
        )


def _is_blank(line):
    if b"!" <= line[:1] <= b"~":  # true for most lines, which need no decoding
        return False
    # `decode_lines` turns NUL into a space, but `str.strip` does not strip it.
    return not line.decode("utf-8", "replace").replace("\0", " ").strip()


def decode_block(block, *, on_bad_utf8="refuse"):
    """Decodes the lines of a block.

    Returns:
        `(Pairs, num_replaced)`: the texts, and the number of lines of both sides in which invalid UTF-8
        was replaced by U+FFFD.

    Raises:
        DataError: a byte is not UTF-8 and `on_bad_utf8` is `"refuse"`; the message names its file and line.
    """
    origins = [Origin(0, *block[2:5]), *block.others]
    ends = [origin.begin for origin in origins[1:]] + [len(block.source)]
    pairs, num_replaced = Pairs([], []), 0
    for origin, end in zip(origins, ends, strict=True):
        sides = (block.source, origin.source_name), (block.target, origin.target_name)
        for texts, (lines, name) in zip(pairs, sides, strict=True):
            decoded, replaced = decode_lines(
                lines[origin.begin : end], name=name, first_line=origin.first_line, on_bad_utf8=on_bad_utf8
            )
            texts += decoded
            num_replaced += replaced
    return pairs, num_replaced


def decode_blocks(blocks, name, *, on_bad_utf8="refuse"):
    """Decodes several blocks; logs the number of lines with replaced UTF-8 under `name`.

    Returns:
        `Pairs`.
    """
    pairs, num_replaced = Pairs([], []), 0
    for block in blocks:
        decoded, replaced = decode_block(block, on_bad_utf8=on_bad_utf8)
        pairs.source.extend(decoded.source)
        pairs.target.extend(decoded.target)
        num_replaced += replaced
    log_replaced(name, num_replaced)
    return pairs


def stream_files(source_path, target_path, num_pairs):
    """Yields the decoded pairs of two files in chunks; invalid UTF-8 becomes U+FFFD.

    All lines are pairs, blank lines at the end too.

    Args:
        source_path: a file, plain or compressed (see `LineReader`), or a pipe.
        target_path: a file or pipe.
        num_pairs: int, pairs per chunk; the last may have fewer.

    Yields:
        `Pairs`.

    Raises:
        DataError: see `FilePair.pairs`. Files that can be read twice (no pipes) are checked for equal numbers
            of lines before the first pair is yielded.
    """
    files = FilePair(pathlib.Path(source_path), pathlib.Path(target_path))
    if all(path.is_file() for path in files.paths):
        for _ in files.pairs():
            pass
    num_replaced = 0
    for block in make_blocks([files], num_pairs, keep_blank_end=True):
        pairs, replaced = decode_block(block, on_bad_utf8="replace")
        num_replaced += replaced
        yield pairs
    log_replaced(f"{source_path} and {target_path}", num_replaced)


def stream_columns(stream, name, num_pairs):
    """Yields the pairs of a tab-separated binary stream in chunks; columns after the second are ignored.

    A blank line is a pair of blank sides. Invalid UTF-8 becomes U+FFFD.

    Args:
        stream: a binary stream, see `iterate_lines`.
        name: name of the stream in messages.
        num_pairs: int, pairs per chunk; the last may have fewer.

    Yields:
        `Pairs`.

    Raises:
        DataError: a line with text has no tab.
    """
    lines = enumerate(iterate_lines(stream, name, on_bad_utf8="replace"), start=1)
    while chunk := list(itertools.islice(lines, num_pairs)):
        pairs = Pairs([], [])
        for number, line in chunk:
            columns = [*line.split("\t"), ""]
            if len(columns) == 2 and line.strip():
                raise DataError(f"{name}: line {number}: no tab. A line is source, tab, target")
            pairs.source.append(columns[0])
            pairs.target.append(columns[1])
        yield pairs


def check_split(dataset, split):
    """Raises `DataError` if a dataset (see `open_dataset`) has no such split."""
    if split not in dataset.splits:
        raise DataError(f"{dataset.name}: no split {split!r}. Choose from: {', '.join(dataset.splits)}")


def drop_empty(pairs):
    """Drops pairs with a blank side; logs a warning if they are more than 1 %.

    Returns:
        `(Pairs, num_dropped)`.

    Raises:
        DataError: all pairs have a blank side.
    """
    kept = [pair for pair in zip(*pairs, strict=True) if all(map(str.strip, pair))]
    num_pairs, num_dropped = len(pairs.source), len(pairs.source) - len(kept)
    if not kept:
        raise DataError(f"all {num_pairs} pairs have a blank side")
    if num_dropped > 0.01 * num_pairs:
        logger.warning("dropped %d of %d pairs: one side is blank", num_dropped, num_pairs)
    return Pairs(*map(list, zip(*kept, strict=True))), num_dropped
