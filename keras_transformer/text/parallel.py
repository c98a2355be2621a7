"""Files of parallel text as blocks of raw line pairs, in constant memory.

Two forms: two files where line i of one translates line i of the other, and one tab-separated file. The
bytes stay as they are until `decode_block`.
"""

import itertools
import logging
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from keras_transformer.text.lines import (
    DataError,
    LineReader,
    Pairs,
    decode_lines,
    iterate_lines,
    refuse_empty,
    warn_of_replaced,
)

logger = logging.getLogger(__name__)

BLOCK_LINES = 50_000
MAX_BLOCK_BYTES = 2**26


class Origin(NamedTuple):
    """Where the pairs of a block from number `begin` on come from.

    Attributes:
        begin: int, a pair of the block, from 0.
        source_name: what messages call the file of the source side.
        target_name: what messages call the file of the target side.
        first_line: int, line of pair `begin` in those files, from 1.
    """

    begin: int
    source_name: str
    target_name: str
    first_line: int


class Block(NamedTuple):
    """Consecutive pairs of raw lines.

    Attributes:
        source: list of bytes, each with `b"\\n"` at its end and nowhere else.
        target: list of bytes, of the same length.
        source_name: what messages call the file of the first pair's source.
        target_name: the same of its target.
        first_line: int, line of the first pair in those files, from 1.
        others: tuple of `Origin`, one for each further file within the block.
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
            DataError: as `LineReader`; or a file is empty; or they differ in their number of lines.
        """
        number = -1
        with LineReader(self.source_path) as source, LineReader(self.target_path) as target:
            for number, pair in enumerate(itertools.zip_longest(source, target)):
                if None in pair:
                    ended = pair.index(None)
                    if not number:
                        refuse_empty(self.paths[ended])
                    counts = [number, number]
                    counts[1 - ended] += 1 + sum(1 for _ in (target, source)[ended])
                    raise DataError(
                        f"{self.source_path} and {self.target_path} must have the same number of lines: "
                        "line i of one translates line i of the other. "
                        f"Received: {counts[0]} and {counts[1]} lines"
                    )
                yield pair
        if number < 0:
            refuse_empty(self.source_path)


class TabSeparatedFile(NamedTuple):
    """One file with the two sides in its first two columns.

    Further columns, such as scores or attributions, are ignored. Every line has as many columns as the
    first, so that a tab inside a sentence is noticed; a blank line is a pair of blank sides.

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
            DataError: as `LineReader`; or the file is empty; or a line has another number of columns
                than the first, or only one.
        """
        number, num_columns = 0, None
        with LineReader(self.path) as reader:
            for number, line in enumerate(reader, start=1):
                columns = line.rstrip(b"\r\n").split(b"\t")
                if columns == [b""]:
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
            refuse_empty(self.path)


class NamedPairs(NamedTuple):
    """Pairs of lines that are in no file.

    Attributes:
        name: what messages call their place; pair i is line i of it.
        lines: iterable of (source line, target line), bytes with `b"\\n"` at their ends.
    """

    name: str
    lines: Iterable

    @property
    def paths(self):
        """The name."""
        return (self.name,)

    def pairs(self):
        """Returns the pairs of lines."""
        return self.lines


def make_blocks(files, num_pairs=BLOCK_LINES, *, keep_blank_end=False):
    """Yields the pairs of several files, one after the other.

    Args:
        files: list of `FilePair`, `TabSeparatedFile` and `NamedPairs`.
        num_pairs: int, pairs of each block but the last, which may have fewer, and those of
            long lines, which end at about `MAX_BLOCK_BYTES`.
        keep_blank_end: keeps pairs of blank lines at the end of a file, and takes files without text.

    Yields:
        `Block`.

    Raises:
        DataError: as `pairs` of the files; or a file has no pair with text on both sides.
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
    blank_pairs, num_pairs, has_text = [], 0, False  # blank pairs are an end, until text follows
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
    if b"!" <= line[:1] <= b"~":  # nearly always: spares the decoding
        return False
    # Of the bytes that are a space in `decode_lines`, `str.strip` keeps NUL alone.
    return not line.decode("utf-8", "replace").replace("\0", " ").strip()


def decode_block(block, *, on_bad_utf8="refuse"):
    """Decodes the lines of a block.

    Returns:
        `(Pairs, num_replaced)`: the texts, and the number of lines of both sides on which U+FFFD stands
        for bytes that are not UTF-8.

    Raises:
        DataError: names the file and line of the first byte that is not UTF-8.
    """
    origins = [Origin(0, *block[2:5]), *block.others]
    ends = [origin.begin for origin in origins[1:]] + [len(block.source)]
    pairs, num_replaced = Pairs([], []), 0
    for origin, end in zip(origins, ends, strict=True):
        sides = (block.source, origin.source_name), (block.target, origin.target_name)
        for texts, (lines, name) in zip(pairs, sides, strict=True):
            found, replaced = decode_lines(
                lines[origin.begin : end], name=name, first_line=origin.first_line, on_bad_utf8=on_bad_utf8
            )
            texts += found
            num_replaced += replaced
    return pairs, num_replaced


def decode_blocks(blocks, name, *, on_bad_utf8="refuse"):
    """Decodes all of some blocks; logs under `name` on how many lines bytes were replaced.

    Returns:
        `Pairs`.
    """
    pairs, num_replaced = Pairs([], []), 0
    for block in blocks:
        found, replaced = decode_block(block, on_bad_utf8=on_bad_utf8)
        pairs.source.extend(found.source)
        pairs.target.extend(found.target)
        num_replaced += replaced
    warn_of_replaced(name, num_replaced)
    return pairs


def stream_files(source_path, target_path, num_pairs):
    """Yields the pairs of two files, decoded; bytes that are not UTF-8 become U+FFFD.

    Nothing is left out: blank lines at the end are pairs, too.

    Args:
        source_path: a file, plain or compressed as `LineReader` reads it, or a pipe.
        target_path: another.
        num_pairs: int, pairs of each chunk but the last.

    Yields:
        `Pairs`.

    Raises:
        DataError: as `FilePair.pairs`; for files that can be read twice, different numbers of lines are
            reported before the first pair is yielded.
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
    warn_of_replaced(f"{source_path} and {target_path}", num_replaced)


def stream_columns(stream, name, num_pairs):
    """Yields the pairs of a binary stream: source, tab, target; further columns are ignored.

    A blank line is a pair of blank sides. Bytes that are not UTF-8 become U+FFFD.

    Args:
        stream: as `iterate_lines` takes it.
        name: what messages call it.
        num_pairs: int, pairs of each chunk but the last.

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
    """Raises `DataError` if a dataset, as of `open_dataset`, has no such split."""
    if split not in dataset.splits:
        raise DataError(f"{dataset.name}: no split {split!r}. Known: {', '.join(dataset.splits)}")


def drop_empty(pairs):
    """Drops pairs with a blank side; warns where they are over 1 %.

    Returns:
        `(Pairs, num_dropped)`.

    Raises:
        DataError: nothing is left.
    """
    kept = [pair for pair in zip(*pairs, strict=True) if all(map(str.strip, pair))]
    num_pairs, num_dropped = len(pairs.source), len(pairs.source) - len(kept)
    if not kept:
        raise DataError(f"all {num_pairs} pairs are blank on one side or both: nothing is left")
    if num_dropped > 0.01 * num_pairs:
        logger.warning("dropped %d of %d pairs: one side is blank", num_dropped, num_pairs)
    return Pairs(*map(list, zip(*kept, strict=True))), num_dropped
