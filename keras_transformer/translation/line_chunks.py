"""Lines of a stream, read ahead by a thread and handed out in chunks without delay."""

import itertools
import os
import stat
import threading
import time

from keras_transformer.text.lines import DataError, iterate_lines

# A chunk that is not full is handed out when nothing comes for so long ...
PAUSE_SECONDS = 0.02
# ... and in any case after this.
LONGEST_WAIT_SECONDS = 0.25
MAX_CHUNK_CHARACTERS = 2**20


class Input:
    """Lines that come from somewhere, and what is known of them beforehand.

    Args:
        stream: as `iterate_lines` takes it.
        name: what messages call it.
        is_regular: whether it is a file on disk, whose end needs no waiting for.
        num_bytes: its size; `None` where it is not known.
    """

    def __init__(self, stream, name, *, is_regular, num_bytes=None):
        self._lines = iterate_lines(stream, name, on_bad_utf8="replace")
        self._name = name
        self._num_taken = 0
        self.is_regular = is_regular
        self.num_bytes = num_bytes

    @classmethod
    def of_stream(cls, stream, name):
        """Reads a binary stream."""
        is_regular = is_regular_file(stream)
        num_bytes = os.fstat(stream.fileno()).st_size if is_regular else None
        return cls(stream, name, is_regular=is_regular, num_bytes=num_bytes)

    @classmethod
    def of_reader(cls, reader):
        """Reads a `LineReader`, of a plain or a compressed file."""
        size = None if reader.is_compressed else reader.path.stat().st_size
        return cls(reader, str(reader.path), is_regular=True, num_bytes=size)

    def __iter__(self):
        """Yields str, one line after the other; invalid UTF-8 becomes U+FFFD.

        Raises:
            DataError: the text is UTF-16, damaged, or has a line without end.
        """
        return self._lines

    def take(self, number):
        """Returns the next lines of a file that has as many as another.

        Raises:
            DataError: there are no more, or as `__iter__`.
        """
        lines = list(itertools.islice(self._lines, number))
        self._num_taken += len(lines)
        if len(lines) < number:
            raise DataError(f"{self._name}: ends after {self._num_taken} lines; the input has more")
        return lines

    def expect_end(self):
        """Raises `DataError` if lines are left after the other file has ended."""
        if next(self._lines, None) is not None:
            raise DataError(f"{self._name}: has more than the {self._num_taken} lines of the input")


def is_regular_file(stream):
    """Whether a stream comes from a file on disk, so that its end needs no waiting for."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, AttributeError):
        return False


class LineChunks:
    """Hands out lines in chunks: what has come, up to a number.

    Of a stream that pauses, a chunk is what came until the pause, so that each line of
    `tail -f` is answered at once; of one that brings more than is used, each chunk is full.
    While a chunk is used, a thread reads the next one, and no more: an endless stream takes
    no more memory than two chunks.

    Args:
        lines: iterable of str, which the thread uses up.
        chunk_lines: most lines of a chunk. One of `MAX_CHUNK_CHARACTERS` is also full.
        waits: waits until each chunk is full, for files, which never pause.
    """

    def __init__(self, lines, chunk_lines, *, waits=False):
        self._lines = lines
        self._chunk_lines = chunk_lines
        self._waits = waits
        self._changed = threading.Condition()
        self._waiting = []
        self._characters = 0
        self._ended = False
        self._error = None

    def __iter__(self):
        """Yields lists of str. An exception of `lines` comes after the lines before it."""
        # A daemon: at the end of the program it may hang in a read that never returns.
        threading.Thread(target=self._read, daemon=True).start()
        while chunk := self._take():
            yield chunk
        if self._error is not None:
            raise self._error

    def _read(self):
        try:
            for line in self._lines:
                with self._changed:
                    self._changed.wait_for(lambda: not self._full())
                    self._waiting.append(line)
                    self._characters += len(line)
                    if len(self._waiting) == 1 or self._full():
                        self._changed.notify_all()
        except Exception as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _take(self):
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._waits:
                self._changed.wait_for(lambda: self._full() or self._ended)
            else:
                self._wait_for_a_pause()
            chunk, self._waiting, self._characters = self._waiting, [], 0
            self._changed.notify_all()
        return chunk

    def _wait_for_a_pause(self):
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        seen = 0
        while len(self._waiting) > seen and not self._full() and time.monotonic() < deadline:
            seen = len(self._waiting)
            self._changed.wait_for(lambda: self._full() or self._ended, PAUSE_SECONDS)

    def _full(self):
        return len(self._waiting) >= self._chunk_lines or self._characters >= MAX_CHUNK_CHARACTERS
