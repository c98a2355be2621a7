"""The one reader of text files: training, evaluation and translation all use it.

A line ends at byte 0x0A and nowhere else. Python's text mode and `str.splitlines`
also break lines at U+2028, U+0085 and others, which shifts one side of a parallel
corpus against the other without a word.
"""

import logging
import pathlib
from typing import NamedTuple

logger = logging.getLogger(__name__)

ON_BAD_UTF8 = ("refuse", "replace")

# All at which `str.splitlines` would break a line, and NUL: each becomes a space.
_TO_SPACE = dict.fromkeys(map(ord, "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"), " ")
_BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class DataError(ValueError):
    """Text that cannot be used; the message is one line with file, line and remedy."""


class Pairs(NamedTuple):
    """The two sides of a parallel corpus; line i of one translates line i of the other."""

    source: list  # of str
    target: list  # of str, as many


class Filtered(NamedTuple):
    """Pairs that are left after a filter, and how many are not."""

    pairs: Pairs
    num_dropped: int


def iterate_lines(stream, name, *, on_bad_utf8="refuse"):
    """Yields the lines of a binary stream, such as `sys.stdin.buffer`.

    A byte-order mark at the start and a carriage return before a line's end are
    removed; any other character that some program takes for a line's end becomes a
    space. The last line counts whether or not a newline ends it.

    Args:
        stream: an iterable of bytes, cut after `b"\\n"`, as binary files are.
        name: what messages call the stream.
        on_bad_utf8: `"refuse"` raises `DataError` at the first byte that is not UTF-8;
            `"replace"` puts U+FFFD in its place and logs how many lines had any.

    Yields:
        str, one line without its end.
    """
    if on_bad_utf8 not in ON_BAD_UTF8:
        raise ValueError(f"`on_bad_utf8` must be one of {list(ON_BAD_UTF8)}. Received: {on_bad_utf8!r}")
    return _lines(stream, name, on_bad_utf8)


def _lines(stream, name, on_bad_utf8):
    num_replaced = 0
    for number, line in enumerate(stream, start=1):
        if number == 1:
            if line.startswith(_UTF16_MARKS):
                raise DataError(
                    f"{name}: line 1: the text is UTF-16. "
                    "Convert the file to UTF-8 (iconv -f UTF-16 -t UTF-8)"
                )
            line = line.removeprefix(_BOM)
            if not line:
                continue  # the stream was a byte-order mark and nothing more
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if on_bad_utf8 == "refuse":
                raise DataError(
                    f"{name}: line {number}: byte {error.start + 1} "
                    f"(0x{line[error.start]:02x}) is not valid UTF-8. "
                    "Convert the file to UTF-8, or replace such bytes with --set data.on_bad_utf8=replace"
                ) from error
            text = line.decode("utf-8", errors="replace")
            num_replaced += 1
        yield text.translate(_TO_SPACE)
    if num_replaced:
        logger.warning("%s: replaced invalid UTF-8 on %d lines", name, num_replaced)


def read_lines(path, *, on_bad_utf8="refuse"):
    """Returns the lines of a UTF-8 file; see `iterate_lines` for what a line is.

    Raises:
        DataError: the file is missing, unreadable, empty, or not UTF-8.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder. Name a text file")
    try:
        with path.open("rb") as stream:
            lines = list(iterate_lines(stream, str(path), on_bad_utf8=on_bad_utf8))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file. Check the path") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not lines:
        raise DataError(f"{path}: the file is empty. Give a file with one sentence a line")
    return lines


def read_parallel(source_path, target_path, *, on_bad_utf8="refuse"):
    """Reads two files of which line i of one translates line i of the other.

    Blank lines at the end are ignored where both files have them. Blank lines within
    stay (a test set keeps its numbering); `drop_empty` removes them.

    Returns:
        `Pairs`, both sides equally long.

    Raises:
        DataError: as `read_lines`; or the files differ in their number of lines; or
            no pair has text on both sides.
    """
    source = read_lines(source_path, on_bad_utf8=on_bad_utf8)
    target = read_lines(target_path, on_bad_utf8=on_bad_utf8)
    counts = len(source), len(target)
    while source and target and _is_blank(source[-1]) and _is_blank(target[-1]):
        source.pop()
        target.pop()
    if len(source) != len(target):
        raise DataError(
            f"{source_path} and {target_path} must have as many lines: line i of one "
            f"translates line i of the other. Received: {counts[0]} and {counts[1]} lines"
        )
    if not any(map(_has_text, source, target)):
        raise DataError(
            f"{source_path} and {target_path}: no line has text on both sides "
            f"({counts[0]} lines read). Check that these are the right files"
        )
    return Pairs(source, target)


def drop_empty(pairs):
    """Drops pairs of which either side is blank; warns where they are over 1 %.

    Returns:
        `Filtered`.

    Raises:
        DataError: nothing is left.
    """
    kept = [pair for pair in zip(*pairs, strict=True) if _has_text(*pair)]
    num_pairs = len(pairs.source)
    num_dropped = num_pairs - len(kept)
    if not kept:
        raise DataError(f"all {num_pairs} pairs are blank on one side or both: nothing is left")
    if num_dropped > 0.01 * num_pairs:
        logger.warning("dropped %d of %d pairs: one side is blank", num_dropped, num_pairs)
    source, target = map(list, zip(*kept, strict=True))
    return Filtered(Pairs(source, target), num_dropped)


def _is_blank(text):
    return not text.strip()


def _has_text(source, target):
    return not _is_blank(source) and not _is_blank(target)
