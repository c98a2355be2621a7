"""Files of parallel text as blocks of raw line pairs, in constant memory.

Two forms: two files where line i of one translates line i of the other, and one tab-separated file. The
bytes stay as they are until `decode_block`. `stream_files` and `stream_columns` leave nothing out: there,
blank lines at the end are pairs as well.
"""

import itertools
import pathlib
from typing import NamedTuple

from keras_transformer.text.lines import (
    BLOCK_LINES,
    MAX_BLOCK_BYTES,
    DataError,
    LineReader,
    Pairs,
    decode_lines,
    iterate_lines,
    warn_of_replaced,
)


class Origin(NamedTuple):
    """Where the pairs of a block from number `begin` on stand.

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
        target: list of bytes, as many.
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
    """Two files of which line i of one translates line i of the other."""

    source_path: pathlib.Path
    target_path: pathlib.Path

    @property
    def paths(self):
        """The files that are read."""
        return (self.source_path, self.target_path)

    def chunks(self, num_pairs):
        """Yields (source lines, target lines), up to `num_pairs` of each.

        Raises:
            DataError: as `LineReader`; or a file is empty; or they differ in their
                number of lines.
        """
        with LineReader(self.source_path) as source, LineReader(self.target_path) as target:
            while True:
                lines = source.read(num_pairs), target.read(num_pairs)
                for path, found, reader in zip(self.paths, lines, (source, target), strict=True):
                    if not found and not reader.num_read:
                        _refuse_empty(path)
                if len(lines[0]) != len(lines[1]) and all(lines) and (source.is_cut or target.is_cut):
                    number = min(map(len, lines))
                    for found, reader in zip(lines, (source, target), strict=True):
                        reader.give_back(found[number:])
                    lines = tuple(found[:number] for found in lines)
                elif len(lines[0]) != len(lines[1]):
                    counts = [reader.num_read + reader.count_rest() for reader in (source, target)]
                    raise DataError(
                        f"{self.source_path} and {self.target_path} must have as many lines: line i of one "
                        f"translates line i of the other. Received: {counts[0]} and {counts[1]} lines"
                    )
                if not lines[0]:
                    return
                yield lines


class TabSeparatedFile(NamedTuple):
    """One file with the two sides in its first two columns.

    Further columns, such as scores or attributions, are ignored. Every line has as many
    columns as the first, so that a tab inside a sentence is found out; a blank line is
    a pair of blank sides.

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

    def chunks(self, num_pairs):
        """Yields (source lines, target lines), up to `num_pairs` of each.

        Raises:
            DataError: as `LineReader`; or the file is empty; or a line has another
                number of columns than the first, or only one.
        """
        with LineReader(self.path) as reader:
            number, num_columns = 0, None
            while lines := reader.read(num_pairs):
                sides = [], []
                for line in lines:
                    number += 1
                    columns = line.rstrip(b"\r\n").split(b"\t")
                    if columns == [b""]:
                        columns = [b"", b""]
                    elif num_columns is None and len(columns) > 1:
                        num_columns = len(columns)
                    elif len(columns) != num_columns:
                        wanted = f"{num_columns}, as before it" if num_columns else "at least 2"
                        raise DataError(
                            f"{self.path}: line {number}: {len(columns)} columns instead of {wanted}. A line "
                            "is source, tab, target (further columns are ignored); no text holds a tab"
                        )
                    sides[0].append(columns[self.source_column] + b"\n")
                    sides[1].append(columns[1 - self.source_column] + b"\n")
                yield sides
            if not number:
                _refuse_empty(self.path)


def make_blocks(files, num_pairs=BLOCK_LINES):
    """Yields the pairs of several files, one after the other.

    Pairs of blank lines at the end of a file are left out.

    Args:
        files: list of `FilePair` and `TabSeparatedFile`.
        num_pairs: int, pairs of each block but the last, which may have fewer, and those of
            long lines, which end at about `MAX_BLOCK_BYTES`.

    Yields:
        `Block`.

    Raises:
        DataError: as `chunks` of the files; or a file has no pair with text on both
            sides.
    """
    if num_pairs < 1:
        raise ValueError(f"`num_pairs` must be at least 1. Received: num_pairs={num_pairs}")
    source, target, origins, size = [], [], [], 0
    for file in files:
        names = str(file.paths[0]), str(file.paths[-1])
        line = 1
        for chunk in _without_blank_tail(file, num_pairs):
            begin = 0
            while begin < len(chunk[0]):
                end = begin + num_pairs - len(source)
                if not origins or origins[-1][1:3] != names:
                    origins.append(Origin(len(source), *names, line + begin))
                added = [side[begin:end] for side in chunk]
                source += added[0]
                target += added[1]
                size += sum(len(line) for side in added for line in side)
                if len(source) == num_pairs or size >= MAX_BLOCK_BYTES:
                    yield Block(source, target, *origins[0][1:], tuple(origins[1:]))
                    source, target, origins, size = [], [], [], 0
                begin = end
            line += len(chunk[0])
    if source:
        yield Block(source, target, *origins[0][1:], tuple(origins[1:]))


def decode_block(block, *, on_bad_utf8="refuse"):
    """Decodes the lines of a block.

    Returns:
        `(Pairs, num_replaced)`: the texts, and on how many lines of both sides U+FFFD
        stands for bytes that are not UTF-8.

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


def _without_blank_tail(file, num_pairs):
    held = [], []  # blank pairs: a tail, until text follows
    num_lines, has_text = 0, False
    for source, target in file.chunks(num_pairs):
        num_lines += len(source)
        if held[0]:
            source, target = held[0] + source, held[1] + target
        end = len(source)
        while end and _is_blank(source[end - 1]) and _is_blank(target[end - 1]):
            end -= 1
        held = source[end:], target[end:]
        if held[0]:
            source, target = source[:end], target[:end]
        has_text = has_text or any(
            not (_is_blank(a) or _is_blank(b)) for a, b in zip(source, target, strict=True)
        )
        if source:
            yield source, target
    if not has_text:
        raise DataError(
            f"{' and '.join(map(str, file.paths))}: no line has text on both sides "
            f"({num_lines} lines read). Check that these are the right files"
        )


def _is_blank(line):
    # Of the bytes that are a space in `decode_lines`, NUL alone is none to `str.strip`.
    return not line.strip(b" \n") or not line.decode("utf-8", "replace").replace("\0", " ").strip()


def _refuse_empty(path):
    raise DataError(f"{path}: the file is empty. Give a file with one sentence a line")


def stream_files(source_path, target_path, num_pairs):
    """Yields the pairs of two files, decoded; bytes that are not UTF-8 become U+FFFD.

    Args:
        source_path: a file, plain or compressed as `LineReader` reads it, or a pipe.
        target_path: another.
        num_pairs: int, pairs of each chunk but the last.

    Yields:
        `Pairs`.

    Raises:
        DataError: as `FilePair.chunks`; of files that can be read twice, it is found out
            before the first pair is yielded that they differ in their number of lines.
    """
    files = FilePair(pathlib.Path(source_path), pathlib.Path(target_path))
    if all(path.is_file() for path in files.paths):
        _check_line_counts(files)
    first_line, num_replaced = 1, [0, 0]
    for lines in files.chunks(num_pairs):
        pairs = Pairs([], [])
        for number, (side, path) in enumerate(zip(lines, files.paths, strict=True)):
            texts, replaced = decode_lines(side, name=str(path), first_line=first_line, on_bad_utf8="replace")
            pairs[number].extend(texts)
            num_replaced[number] += replaced
        yield pairs
        first_line += len(lines[0])
    for path, number in zip(files.paths, num_replaced, strict=True):
        warn_of_replaced(path, number)


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
    first_line = 1
    lines = iterate_lines(stream, name, on_bad_utf8="replace")
    while chunk := list(itertools.islice(lines, num_pairs)):
        pairs = Pairs([], [])
        for number, line in enumerate(chunk, start=first_line):
            source, tab, rest = line.partition("\t")
            if source.strip() and not tab:
                raise DataError(f"{name}: line {number}: no tab. A line is source, tab, target")
            pairs.source.append(source)
            pairs.target.append(rest.partition("\t")[0])
        yield pairs
        first_line += len(chunk)


def _check_line_counts(files):
    counts = []
    for path in files.paths:
        with LineReader(path) as reader:
            counts.append(reader.count_rest())
    if counts[0] != counts[1]:
        raise DataError(
            f"{files.source_path} and {files.target_path} must have as many lines: line i of one "
            f"translates line i of the other. Received: {counts[0]} and {counts[1]} lines"
        )
