"""Reads text files line by line; training, evaluation and translation all use this module.

A line ends at byte 0x0A and nowhere else. Python's `str.splitlines` also breaks lines at U+2028, U+0085 and
others, and text mode at carriage returns, which silently misaligns the two sides of a parallel corpus.

`LineReader` yields the raw lines of a file, plain or compressed. `decode_lines` decodes a list of raw lines;
`iterate_lines` decodes a stream line by line.
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
MAX_LINE_BYTES = 2**22

# Characters at which `str.splitlines` would break a line, and NUL; each is replaced by a space.
_LINE_BREAKS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"
_TO_SPACE = dict.fromkeys(map(ord, _LINE_BREAKS), " ")
BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

# Recognised by their first bytes, because browsers may unpack a file and keep its name, or the reverse.
_COMPRESSED = {
    "gzip": (re.compile(rb"\x1f\x8b\x08"), gzip.open),
    "xz": (re.compile(rb"\xfd7zXZ\0"), lzma.open),
    "bzip2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
}
_ENDINGS = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2"}
_UNREADABLE = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd. Decompress it (unzstd FILE)",
    b"PK\x03\x04": "a zip archive. Use it as --dataset, or unpack it",
}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


class DataError(ValueError):
    """Invalid text data; the message is one line that names the file, the line and the remedy."""


class NotUtf8Error(DataError):
    """A byte is not valid UTF-8.

    Its arguments are the message, and a further remedy for programs with the setting `data.on_bad_utf8`.
    """

    def __str__(self):
        return ", ".join(self.args)


class Pairs(NamedTuple):
    """The two sides of a parallel corpus; `target[i]` translates `source[i]`."""

    source: list  # of str
    target: list  # of str, of the same length


def iterate_lines(stream, name, *, on_bad_utf8="refuse", first_line=1, has_setting=False):
    """Yields the lines of a binary stream, such as `sys.stdin.buffer`.

    Removes a byte-order mark at the start, and a carriage return before a newline. Every other character
    that `str.splitlines` treats as the end of a line becomes a space, and so does NUL. The last line counts
    even without a newline.

    Args:
        stream: a binary file, or an iterable of bytes that each end with `b"\\n"`, such as a `LineReader`.
        name: name of the stream in messages.
        on_bad_utf8: `"refuse"` raises `DataError` at the first byte that is not UTF-8; `"replace"` replaces
            it by U+FFFD and logs the number of such lines.
        first_line: number of the stream's first line in the file, from 1. Line 1 may begin with a byte-order
            mark.
        has_setting: whether the program has the setting `data.on_bad_utf8`, which the error then names.

    Yields:
        str, one line without the newline.

    Raises:
        DataError: the text is UTF-16; it is not UTF-8 and `on_bad_utf8` is `"refuse"`; or a file has a line
            of more than `MAX_LINE_BYTES`.
    """
    num_replaced = 0
    lines = _raw_lines(stream, name) if hasattr(stream, "readline") else stream
    for number, line in enumerate(lines, start=first_line):
        try:
            texts, replaced = decode_lines([line], name=name, first_line=number, on_bad_utf8=on_bad_utf8)
        except NotUtf8Error as error:
            if has_setting:
                raise
            raise DataError(error.args[0]) from error
        num_replaced += replaced
        yield from texts
    log_replaced(name, num_replaced)


def _raw_lines(stream, name):
    """Yields the raw lines of a binary file; reads at most `MAX_LINE_BYTES` + 1 bytes of a line."""
    read = functools.partial(stream.readline, MAX_LINE_BYTES + 1)
    for number, line in enumerate(iter(read, b""), start=1):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(
                f"{name}: line {number} is longer than {MAX_LINE_BYTES:,} bytes. "
                "Give text with one sentence per line"
            )
        yield line


def decode_lines(lines, *, name, first_line=1, on_bad_utf8="refuse"):
    """Decodes consecutive lines of a file by the rules of `iterate_lines`.

    Args:
        lines: list of bytes, each with `b"\\n"` at its end; only the last may lack it.
        name: name of the file in messages.
        first_line: number of `lines[0]` in the file, from 1. Line 1 may begin with a byte-order mark.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Returns:
        `(list of str, num_replaced)`: the lines without newlines, and the number of lines in which
        invalid UTF-8 was replaced by U+FFFD.

    Raises:
        DataError: the text is UTF-16; or it is not UTF-8 and `on_bad_utf8` is `"refuse"`.
    """
    if on_bad_utf8 not in ON_BAD_UTF8:
        raise ValueError(f"`on_bad_utf8` must be one of {list(ON_BAD_UTF8)}. Received: {on_bad_utf8!r}")
    num_removed = 0  # bytes at the start of line 1
    if lines and first_line == 1:
        _check_not_utf16(lines[0], name)
        first = lines[0].removeprefix(BOM)
        num_removed = len(lines[0]) - len(first)
        lines = [first, *lines[1:]] if first else lines[1:]
    if not lines:
        return [], 0
    num_replaced = 0
    try:
        text = b"".join(lines).decode("utf-8")
    except UnicodeDecodeError:
        decoded = [
            _decode_line(line, name, number, on_bad_utf8, num_removed if number == 1 else 0)
            for number, line in enumerate(lines, first_line)
        ]
        text, num_replaced = "".join(text for text, _ in decoded), sum(replaced for _, replaced in decoded)
    text = (text if text.endswith("\n") else text + "\n").replace("\r\n", "\n")
    if any(character in text for character in _LINE_BREAKS):  # three times as fast as a pattern
        text = text.translate(_TO_SPACE)
    texts = text.removesuffix("\n").split("\n")
    if len(texts) != len(lines):
        raise ValueError(f"`lines` must be cut after each newline. Received: {len(texts)} in {len(lines)}")
    return texts, num_replaced


def _decode_line(line, name, number, on_bad_utf8, num_removed):
    """Returns (text, whether invalid bytes were replaced) of a line without its first `num_removed` bytes."""
    try:
        return line.decode("utf-8"), False
    except UnicodeDecodeError as error:
        if on_bad_utf8 == "refuse":
            raise NotUtf8Error(
                f"{name}: line {number}: byte {num_removed + error.start + 1} (0x{line[error.start]:02x}) "
                "is not valid UTF-8. Convert the file to UTF-8",
                "or replace invalid bytes: --set data.on_bad_utf8=replace",
            ) from error
        return line.decode("utf-8", errors="replace"), True


def _check_not_utf16(line, name):
    if line.startswith(_UTF16_MARKS):
        raise DataError(
            f"{name}: line 1: the text is UTF-16. Convert the file to UTF-8 (iconv -f UTF-16 -t UTF-8)"
        )


def to_one_line(text):
    """Returns a text as one line: each character that may end a line becomes a space."""
    return text.replace("\n", " ").translate(_TO_SPACE)


def log_replaced(name, num_replaced):
    """Logs the number of lines in which invalid UTF-8 was replaced, if it is not 0."""
    if num_replaced:
        logger.warning(
            "%s: replaced invalid UTF-8 on %d line%s", name, num_replaced, "s" * (num_replaced > 1)
        )


class LineReader:
    """Iterator over the raw lines of one file, plain or compressed by gzip, xz or bzip2.

    The compression is detected from the first bytes, not from the name. Each line is bytes with `b"\\n"` at
    its end. A file that consists of a byte-order mark has no lines. Use as a context manager.

    Args:
        path: the file.
        begin, end: int, the bytes to read, counted without compression; both are 0 or the end of a line.
            `None` is the end of the file.
        file: `io.BufferedReader` of the file as it is stored, for a file that is not on this machine; closed
            at the end.

    Attributes:
        is_compressed: bool, whether the file is compressed.

    Raises:
        DataError: the file is missing, a folder, unreadable, or compressed in an unsupported format; or,
            while reading: it is damaged or truncated, is UTF-16, or has a line of more than `MAX_LINE_BYTES`.
    """

    def __init__(self, path, begin=0, end=None, *, file=None):
        self.path = pathlib.Path(path)
        self._begin, self._end = begin, end
        if file is None and self.path.is_dir():
            raise DataError(f"{path} is a folder. Choose a text file")
        try:
            self._file = self.path.open("rb") if file is None else file
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such file. Check the path") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        self._stream = self._file
        try:
            self._form = self._find_form(self.path)
        except BaseException:
            self.close()
            raise
        self.is_compressed = self._form is not None
        if self.is_compressed:
            # The decompressors split lines in Python; a buffered reader around them does it in C.
            self._stream = io.BufferedReader(_COMPRESSED[self._form][1](self._file), 2**20)
        self._lines = self._read()

    def _find_form(self, path):
        """Returns the name of the compression, or `None`.

        Raises:
            DataError: the format is not supported.
        """
        try:
            first = self._file.peek(16)[:16]
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        for mark, reason in _UNREADABLE.items():
            if first.startswith(mark):
                raise DataError(f"{path}: {reason}")
        for form, (mark, _) in _COMPRESSED.items():
            if mark.match(first):
                return form
        form = _ENDINGS.get(path.suffix)
        if form and any(byte < 9 for byte in first):  # such control bytes do not occur in text
            raise DataError(
                f"{path}: ends in {path.suffix} but is neither {form} nor text. Download or create it again"
            )
        return None

    def _read(self):
        """Yields the lines; turns errors of reading and decompressing into `DataError`."""
        try:
            if self._begin:
                self._stream.seek(self._begin)
            place = self._begin
            for line in _raw_lines(self._stream, self.path):
                if self._end is not None and place >= self._end:
                    return
                if place == 0:
                    _check_not_utf16(line, self.path)
                    if line == BOM:
                        return
                place += len(line)
                yield line if line.endswith(b"\n") else line + b"\n"
        except (*_DAMAGED, OSError) as error:
            if self.is_compressed and (isinstance(error, _DAMAGED) or error.errno is None):
                reason = f"damaged or truncated ({self._form}: {error}). Download or create it again"
                raise DataError(f"{self.path}: {reason}") from error
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error

    def close(self):
        """Closes the file."""
        self._stream.close()
        self._file.close()

    def __iter__(self):
        return self._lines

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def read_lines(path, *, on_bad_utf8="refuse"):
    """Returns the lines of a UTF-8 file as a list of str; see `iterate_lines` for what a line is.

    Args:
        path: a file, plain or compressed (see `LineReader`).
        on_bad_utf8: `"refuse"` or `"replace"`.

    Raises:
        DataError: the file is missing, unreadable, damaged, empty, or not UTF-8.
    """
    with LineReader(path) as reader:
        texts = list(iterate_lines(reader, str(path), on_bad_utf8=on_bad_utf8))
    if not texts:
        raise_empty_file(path)
    return texts


def raise_empty_file(path):
    """Raises `DataError` for a file without lines."""
    raise DataError(f"{path}: the file is empty. Give a file with one sentence per line")
