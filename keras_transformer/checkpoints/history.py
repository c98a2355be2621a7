"""`history.jsonl`: one JSON record per logged interval and per validation, each with a checksum."""

import contextlib
import os

from keras_transformer.checkpoints import tensor_files
from keras_transformer.files import from_checked_line, to_checked_line, write_atomically

HISTORY = "history.jsonl"


class History:
    """The history of one run.

    Args:
        path: path of the file, which need not exist.
        writes: `False` on workers other than the chief, where nothing is written.
        warn: function of a message, str, called for each damaged line.
    """

    def __init__(self, path, *, writes, warn):
        self._path, self._writes, self._warn = path, writes, warn

    def append(self, record):
        """Appends one record to `history.jsonl`.

        Raises:
            StorageError: the disk is full or not writable; no part of the line remains.
        """
        if not self._writes:
            return
        path = self._path
        line = to_checked_line(record)
        with tensor_files.storage_errors(path), path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                while line:  # a partial write is followed by another, which raises the error
                    line = line[file.write(line) :]
                os.fsync(file.fileno())  # as checkpoints: after a power cut both are there
            except OSError:
                file.truncate(before)
                raise

    def rewind(self, step):
        """Drops the records after `step`, which a resumed run will write again.

        Damaged lines are moved to the end of `history.damaged`.
        """
        if not self._writes:
            return
        path = self._path
        records, damaged = self._read_lines()
        content = b"".join(to_checked_line(record) for record in records if record.get("step", 0) <= step)
        # This also drops a record that a crash has truncated.
        if not path.exists() or path.read_bytes() == content:
            return
        with tensor_files.storage_errors(path):
            if damaged:
                aside = path.with_suffix(".damaged")
                before = aside.read_bytes() if aside.exists() else b""
                new = b"".join(line + b"\n" for line in damaged.values())
                if not before.endswith(new):  # not written yet by a process that was killed here
                    write_atomically(aside, before + new)
            write_atomically(path, content)

    def read(self):
        """Returns the records of `history.jsonl`, oldest first.

        Damaged lines are skipped with a warning, as a run can continue without them.
        """
        return self._read_lines()[0]

    def _read_lines(self):
        """Returns the list of records, and a dict {number: line} of damaged lines."""
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
                self._warn(f"{path}: line {number} is damaged and ignored ({error})")
        # Text after the last newline is a truncated record, or a whole one whose newline is damaged.
        for line in (rest, rest[:-1]):
            with contextlib.suppress(ValueError):
                records.append(from_checked_line(line))
                break
        return records, damaged
