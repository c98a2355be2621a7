"""The one reader of text files: training, evaluation and translation all use it.

A line ends at byte 0x0A and nowhere else. Python's text mode and `str.splitlines`
also break lines at U+2028, U+0085 and others, which shifts one side of a parallel
corpus against the other without a word.

`iterate_lines` says what a line is, one by one, as a stream needs it. `LineReader` and
`decode_lines` take the same lines in blocks, several times as fast, from plain files
and from compressed ones.
"""

import bz2
import functools
import gzip
import io
import logging
import lzma
import pathlib
import re
import zlib
from typing import NamedTuple

logger = logging.getLogger(__name__)

ON_BAD_UTF8 = ("refuse", "replace")
BLOCK_LINES = 50_000
MAX_LINE_BYTES = 2**22
MAX_BLOCK_BYTES = 2**26

# All at which `str.splitlines` would break a line, and NUL: each becomes a space.
_ODD = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"
_TO_SPACE = dict.fromkeys(map(ord, _ODD), " ")
_BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

# By their first bytes: a browser may unpack a file and keep its name, or the reverse.
_COMPRESSED = {
    "gzip": (re.compile(rb"\x1f\x8b\x08"), gzip.open),
    "xz": (re.compile(rb"\xfd7zXZ\0"), lzma.open),
    "bzip2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
}
_ENDINGS = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2"}
_UNREADABLE = {
    b"\x28\xb5\x2f\xfd": "is compressed by zstd. Decompress it (unzstd FILE)",
    b"PK\x03\x04": "is a zip archive. Name it as --dataset, or unpack it",
}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


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
        stream: a binary file, or an iterable of bytes that are cut after `b"\\n"`.
        name: what messages call the stream.
        on_bad_utf8: `"refuse"` raises `DataError` at the first byte that is not UTF-8;
            `"replace"` puts U+FFFD in its place and logs how many lines had any.

    Yields:
        str, one line without its end.

    Raises:
        DataError: the text is UTF-16; or not UTF-8, unless that is to be replaced; or a file
            has a line of more than `MAX_LINE_BYTES`.
    """
    if on_bad_utf8 not in ON_BAD_UTF8:
        raise ValueError(f"`on_bad_utf8` must be one of {list(ON_BAD_UTF8)}. Received: {on_bad_utf8!r}")
    if hasattr(stream, "readline"):
        stream = _limited_lines(stream, name)
    return _lines(stream, name, on_bad_utf8)


def _limited_lines(stream, name, first_line=1):
    """Yields the raw lines of a binary file, and never holds more of a line than is allowed."""
    read = functools.partial(stream.readline, MAX_LINE_BYTES + 1)
    for number, line in enumerate(iter(read, b""), first_line):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(
                f"{name}: line {number} is longer than {MAX_LINE_BYTES:,} bytes. "
                "Give text with one sentence a line"
            )
        yield line


def _lines(stream, name, on_bad_utf8):
    num_replaced = 0
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = _without_mark(line, name)
            if not line:
                continue  # the stream was a byte-order mark and nothing more
        text, replaced = _decode_line(line, name, number, on_bad_utf8)
        num_replaced += replaced
        yield text
    warn_of_replaced(name, num_replaced)


def decode_lines(lines, *, name, first_line=1, on_bad_utf8="refuse"):
    """Decodes lines of a file as `iterate_lines` does, all at once.

    Args:
        lines: list of bytes, cut after `b"\\n"`; only the last may lack it.
        name: what messages call the file.
        first_line: number of the first of these lines in the file, from 1. Line 1 may
            begin with a byte-order mark.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Returns:
        `(list of str, num_replaced)`: the lines without their ends, and on how many of
        them U+FFFD stands for bytes that are not UTF-8.

    Raises:
        DataError: the text is UTF-16; or not UTF-8, unless that is to be replaced.
    """
    if on_bad_utf8 not in ON_BAD_UTF8:
        raise ValueError(f"`on_bad_utf8` must be one of {list(ON_BAD_UTF8)}. Received: {on_bad_utf8!r}")
    if not lines:
        return [], 0
    if first_line == 1 and lines[0].startswith((_BOM, *_UTF16_MARKS)):
        first = _without_mark(lines[0], name)
        lines = [first, *lines[1:]] if first else lines[1:]
        if not lines:
            return [], 0
    data = b"".join(lines)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        decoded = [
            _decode_line(line, name, number, on_bad_utf8) for number, line in enumerate(lines, first_line)
        ]
        return [text for text, _ in decoded], sum(replaced for _, replaced in decoded)
    if "\r" in text:
        if not text.endswith("\n"):
            text += "\n"
        text = text.replace("\r\n", "\n")
    if any(character in text for character in _ODD):  # a third of the time of one pattern
        text = text.translate(_TO_SPACE)
    texts = text.removesuffix("\n").split("\n")
    if len(texts) != len(lines):
        raise ValueError(f"`lines` must be cut after each newline. Received: {len(texts)} in {len(lines)}")
    return texts, 0


def _without_mark(line, name):
    if line.startswith(_UTF16_MARKS):
        raise DataError(
            f"{name}: line 1: the text is UTF-16. Convert the file to UTF-8 (iconv -f UTF-16 -t UTF-8)"
        )
    return line.removeprefix(_BOM)


def _decode_line(line, name, number, on_bad_utf8):
    """Returns the text of one line, and whether invalid bytes of it were replaced."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return line.decode("utf-8").translate(_TO_SPACE), False
    except UnicodeDecodeError as error:
        if on_bad_utf8 == "refuse":
            raise DataError(
                f"{name}: line {number}: byte {error.start + 1} "
                f"(0x{line[error.start]:02x}) is not valid UTF-8. "
                "Convert the file to UTF-8, or, in a corpus, replace them: --set data.on_bad_utf8=replace"
            ) from error
        return line.decode("utf-8", errors="replace").translate(_TO_SPACE), True


def one_line(text):
    """Returns a text with a space for each character that some program takes for a line's end."""
    return text.replace("\n", " ").translate(_TO_SPACE)


def warn_of_replaced(name, num_replaced):
    """Logs on how many lines of a file invalid UTF-8 was replaced, if on any."""
    if num_replaced:
        logger.warning("%s: replaced invalid UTF-8 on %d lines", name, num_replaced)


class LineReader:
    """The raw lines of one file, plain or compressed by gzip, xz or bzip2.

    Which it is, the first bytes tell, not the name. Use as a context manager.

    Args:
        path: the file.

    Raises:
        DataError: the file is missing, a folder, unreadable, or packed in a form that
            is not read; `read` and `count_rest` raise it where a compressed file is
            damaged or cut short, and `read` where a line has more than `MAX_LINE_BYTES`.

    Attributes:
        num_read: int, lines that `read` has given so far.
        is_cut: bool, whether the last `read` gave fewer lines than asked for because they are
            long, and more may follow.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.num_read = 0
        self.is_cut = False
        self._given_back = []
        if self.path.is_dir():
            raise DataError(f"{path}: is a folder. Name a text file")
        try:
            self._file = self.path.open("rb")
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such file. Check the path") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        self._stream, self._form = self._file, None
        try:
            first = self._guarded(lambda: self._file.peek(16))[:16]
            for mark, reason in _UNREADABLE.items():
                if first.startswith(mark):
                    raise DataError(f"{path}: {reason}")
            for form, (mark, opener) in _COMPRESSED.items():
                if mark.match(first):
                    # These read line by line in Python; a buffer round them does it in C.
                    self._stream = io.BufferedReader(opener(self._file), 2**20)
                    self._form = form
            # The first bytes may be damaged; text has none of these.
            form = _ENDINGS.get(self.path.suffix)
            if form and not self._form and any(byte < 9 for byte in first):
                raise DataError(
                    f"{path}: ends in {self.path.suffix} and is neither {form} nor text. Get or make it anew"
                )
        except BaseException:
            self.close()
            raise

    def read(self, num_lines):
        """Returns up to `num_lines` further lines, each with `b"\\n"` at its end.

        Of long lines it returns fewer, about `MAX_BLOCK_BYTES` together.

        Returns:
            list of bytes, empty at the end of the file.
        """
        lines, self._given_back = self._given_back, []
        size = sum(map(len, lines))
        if len(lines) < num_lines and size < MAX_BLOCK_BYTES:
            size = self._guarded(lambda: self._read_on(lines, size, num_lines))
        self.is_cut = len(lines) < num_lines and size >= MAX_BLOCK_BYTES
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        if not self.num_read and lines:
            _without_mark(lines[0], self.path)  # before its lines are counted against others
        if not self.num_read and lines == [_BOM + b"\n"] and self._stream.tell() == len(_BOM):
            return []  # a byte-order mark and nothing more
        self.num_read += len(lines)
        return lines

    def give_back(self, lines):
        """Takes back the last of the lines that `read` returned, to return them once more."""
        self._given_back = lines
        self.num_read -= len(lines)

    @property
    def is_compressed(self):
        """Whether the lines are not the bytes of the file."""
        return self._form is not None

    def count_rest(self):
        """Returns how many lines are left, and reads past them."""
        count, last = len(self._given_back), b"\n"
        while chunk := self._guarded(lambda: self._stream.read(2**20)):
            count += chunk.count(b"\n")
            last = chunk[-1:]
        return count + (last != b"\n")

    def close(self):
        """Closes the file."""
        self._stream.close()
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _read_on(self, lines, size, num_lines):
        """Appends to lines of so many bytes until they are enough; returns the bytes of all."""
        for line in _limited_lines(self._stream, self.path, self.num_read + len(lines) + 1):
            lines.append(line)
            size += len(line)
            if len(lines) == num_lines or size >= MAX_BLOCK_BYTES:
                break
        return size

    def _guarded(self, work):
        try:
            return work()
        except (*_DAMAGED, OSError) as error:
            if self._form is not None and (isinstance(error, _DAMAGED) or error.errno is None):
                reason = f"is damaged or cut short ({self._form}: {error}). Get or make it anew"
                raise DataError(f"{self.path}: {reason}") from error
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error


def read_lines(path, *, on_bad_utf8="refuse"):
    """Returns the lines of a UTF-8 file; see `iterate_lines` for what a line is.

    Args:
        path: a file, plain or compressed as `LineReader` reads it.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Raises:
        DataError: the file is missing, unreadable, damaged, empty, or not UTF-8.
    """
    texts, num_replaced = [], 0
    with LineReader(path) as reader:
        first_line = 1
        while lines := reader.read(BLOCK_LINES):
            found, replaced = decode_lines(
                lines, name=str(path), first_line=first_line, on_bad_utf8=on_bad_utf8
            )
            texts += found
            num_replaced += replaced
            first_line += len(lines)
    if not texts:
        raise DataError(f"{path}: the file is empty. Give a file with one sentence a line")
    warn_of_replaced(path, num_replaced)
    return texts


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


def _has_text(source, target):
    return bool(source.strip()) and bool(target.strip())
