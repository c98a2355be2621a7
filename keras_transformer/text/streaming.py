"""Pairs of sentences a chunk at a time, from two files or from one tab-separated stream.

Unlike a corpus, nothing is left out: blank lines, also at the end, are pairs.
"""

import itertools
import pathlib

from keras_transformer.text.lines import (
    DataError,
    LineReader,
    Pairs,
    decode_lines,
    iterate_lines,
    warn_of_replaced,
)
from keras_transformer.text.parallel import FilePair


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
