"""`history.jsonl`: one line of JSON for each logged interval and each validation, with its checksum."""

import contextlib
import os

from keras_transformer.checkpoints import tensor_files
from keras_transformer.files import from_checked_line, to_checked_line, write_atomically

HISTORY = "history.jsonl"


class History:
    """The history of one run.

    Args:
        path: of the file; it need not exist.
        writes: `False` on the workers of a cluster that are not its chief.
        warn: function of a text; it is called for each damaged line.
    """

    def __init__(self, path, *, writes, warn):
        self._path, self._writes, self._warn = path, writes, warn

    def append(self, record):
        """Adds one line of JSON to `history.jsonl`.

        Raises:
            StorageError: there is no room; no part of the line is left behind.
        """
        if not self._writes:
            return
        path = self._path
        line = to_checked_line(record)
        with tensor_files.storage_errors(path), path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                while line:  # after a part, the next write says what is wrong
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(before)
                raise

    def rewind(self, step):
        """Drops the records of steps after `step`: a run that continues makes them again.

        Damaged lines go to `history.damaged`, behind those that are there.
        """
        if not self._writes:
            return
        path = self._path
        records, damaged = self._read_lines()
        content = b"".join(to_checked_line(each) for each in records if each.get("step", 0) <= step)
        # A record that a crash cut short goes, too.
        if not path.exists() or path.read_bytes() == content:
            return
        with tensor_files.storage_errors(path):
            if damaged:
                aside = path.with_suffix(".damaged")
                before = aside.read_bytes() if aside.exists() else b""
                new = b"".join(line + b"\n" for line in damaged.values())
                if not before.endswith(new):  # it may have been killed before the next writing
                    write_atomically(aside, before + new)
            write_atomically(path, content)

    def read(self):
        """Returns the records of `history.jsonl`, oldest first.

        Lines that are damaged are left out, and said on standard error: without them a run can
        go on, and with them its best weights might be others.
        """
        return self._read_lines()[0]

    def _read_lines(self):
        """Returns the records of the history, and {number: line} of what is none."""
        path = self._path
        if not path.exists():
            return [], {}
        *lines, rest = path.read_bytes().split(b"\n")
        records, damaged = [], {}
        for number, line in enumerate(lines, start=1):
            try:
                records.append(from_checked_line(line))
            except ValueError as error:
                damaged[number] = line
                self._warn(f"{path}: line {number} is damaged ({error}) and left out")
        # What follows the last newline is a record that a crash cut short, or has a damaged newline.
        for line in (rest, rest[:-1]):
            with contextlib.suppress(ValueError):
                records.append(from_checked_line(line))
                break
        return records, damaged
