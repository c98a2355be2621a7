"""Translates a long text in parts: each part is a file of its own, which is complete or not there.

The files of the folder::

    manifest.json                settings, models, and where each part of the text begins and ends
    part-00003-of-00008.txt      the translations of one part
    progress/00003.txt           translations of a part that is not complete
    progress/00003.log           how much of them is complete: a line per chunk of lines, with a SHA-256
    progress/00003.lock          locked by the process that translates the part

A part is a range of whole chunks, as `line_chunks` cuts the whole text. So each line is translated in the
same batch as without parts, and its translation is the same to the bit. Nothing here imports TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_transformer.config.sections import SearchConfig
from keras_transformer.config.types import PathLike
from keras_transformer.files import (
    from_checked_json,
    from_checked_line,
    fsync_path,
    open_atomically,
    process_lock,
    to_checked_json,
    to_checked_line,
    write_atomically,
    write_text,
)
from keras_transformer.text.lines import DataError, LineReader, decode_lines
from keras_transformer.translation.lines import is_full

MANIFEST = "manifest.json"
PROGRESS = "progress"
_FORMAT = "keras_transformer translation in parts, 1"
_BLOCK = 2**20
_ANOTHER = "Choose another folder, or delete this one"
_SAME = "Use the same, or choose another folder"


class BusyError(ValueError):
    """Another process is translating this part."""


class Span(NamedTuple):
    """Consecutive lines of a file: the first and last byte without compression, and their SHA-256."""

    begin: int
    end: int
    sha256: str


class Done(NamedTuple):
    """The complete beginning of a part: lines of the text, bytes of translations, and their SHA-256."""

    num_lines: int
    num_bytes: int
    sha256: str


_NOTHING = Done(0, 0, hashlib.sha256().hexdigest())


def chunk_sizes(path: PathLike, chunk_lines: int) -> list[int]:
    """Returns the number of lines of each chunk that `line_chunks` makes of a file, a list of int.

    Raises:
        DataError: the file cannot be read.
    """
    sizes, num_lines, characters = [], 0, 0
    with LineReader(path) as reader:
        for number, line in enumerate(reader, start=1):
            texts, _ = decode_lines([line], name=str(path), first_line=number, on_bad_utf8="replace")
            num_lines += len(texts)
            characters += sum(map(len, texts))
            if is_full(num_lines, characters, chunk_lines):
                sizes.append(num_lines)
                num_lines = characters = 0
    return [*sizes, num_lines] if num_lines else sizes


def part_sizes(chunks: list[int], num_parts: int) -> list[int]:
    """Divides chunks evenly over parts, in order; returns the number of lines of each part, a list of int."""
    ends = [len(chunks) * number // num_parts for number in range(num_parts + 1)]
    return [sum(chunks[begin:end]) for begin, end in itertools.pairwise(ends)]


def cut(path: PathLike, sizes: list[int]) -> list[Span]:
    """Returns the `Span` of each part of a file, given the parts' numbers of lines.

    Raises:
        DataError: the file has more or fewer lines, or cannot be read.
    """
    spans, end, number = [], 0, 0
    with LineReader(path) as reader:
        for size in sizes:
            digest, begin = hashlib.sha256(), end
            for line in itertools.islice(reader, size):
                digest.update(line)
                end += len(line)
                number += 1
            spans.append(Span(begin, end, digest.hexdigest()))
        more = next(iter(reader), None) is not None
    if more or number < sum(sizes):
        found = (
            f"more lines than the input, which has {number}"
            if more
            else f"only {number} lines; the input has more"
        )
        raise DataError(f"{path}: {found}. Write one for each line of the input")
    return spans


class Shards:
    """A text that is translated in parts in a folder.

    The first process writes the manifest; all later ones must have the same text and settings.

    Args:
        folder: a new folder, or that of the same translation.
        files: dict from a name to a path: the text is `"input"`; others are parallel to it.
        settings: dict for JSON from name to value: all that decides the translations. It has `chunk_lines`.
        num_parts: number of parts; `None` for that of the manifest.
        ending: of the names of the files.

    Attributes:
        folder: `pathlib.Path`.
        num_lines: int, of the text.
        parts: list of `Part`.

    Raises:
        DataError: the folder was begun with other text or settings, holds other files, or is damaged; or a
            file cannot be read or differs from the text in its number of lines.
    """

    def __init__(
        self, folder: PathLike, files: dict[str, PathLike], settings: dict[str, Any],
        num_parts: int | None = None, *, ending: str = ".txt",
    ) -> None:  # fmt: skip
        self.folder, self.files = pathlib.Path(folder), files
        if not (self.folder / MANIFEST).exists():
            self._write_manifest(settings, num_parts)
        try:
            self._read_manifest(settings, num_parts, ending)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.folder / MANIFEST}: damaged ({error!r}). {_ANOTHER}") from error

    def _write_manifest(self, settings, num_parts):
        if num_parts is None:
            raise DataError(f"{self.folder}: the number of parts is missing. Add --num-shards N")
        names = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        # Another process may have just written the manifest; it is compared when it is read.
        if MANIFEST not in names and any(name != PROGRESS and name[0] != "." for name in names):
            raise DataError(f"{self.folder}: holds other files. Delete them, or choose another folder")
        sizes = part_sizes(chunk_sizes(self.files["input"], settings["chunk_lines"]), num_parts)
        spans = {name: cut(path, sizes) for name, path in self.files.items()}
        manifest = {
            "format": _FORMAT,
            "num_lines": sum(sizes),
            "settings": settings,
            "file_sizes": _file_sizes(self.files),
            "parts": [
                {"num_lines": size, "spans": {name: spans[name][i]._asdict() for name in spans}}
                for i, size in enumerate(sizes)
            ],
        }
        (self.folder / PROGRESS).mkdir(parents=True, exist_ok=True)
        with process_lock(self.folder / PROGRESS / "lock", waits=True):
            if not (self.folder / MANIFEST).exists():  # else another process was faster
                write_text(self.folder / MANIFEST, to_checked_json(manifest))

    def _read_manifest(self, settings, num_parts, ending):
        path = self.folder / MANIFEST
        try:
            manifest = from_checked_json(path.read_bytes(), remedy=_ANOTHER)
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error
        if manifest.get("format") != _FORMAT:
            raise DataError(f"{path}: the format is not {_FORMAT!r}. {_ANOTHER}")
        there, sizes = manifest["parts"], _file_sizes(self.files)
        # Manifests of earlier versions lack some.
        usual = {"engine": "tensorflow", **dataclasses.asdict(SearchConfig())}
        now = usual | settings | {"num_shards": num_parts or len(there), "files": sorted(sizes)}
        before = usual | manifest["settings"]
        before |= {"num_shards": len(there), "files": sorted(manifest["file_sizes"])}
        for name in sorted(now | before):
            if now.get(name) != before.get(name):
                said = f"{name}={before.get(name)!r}, not {now.get(name)!r}"
                said = "another model, or other weights" if name == "models" else said
                raise DataError(f"{self.folder}: was begun with {said}. {_SAME}")
        for name, size in manifest["file_sizes"].items():
            if size != sizes[name]:
                raise DataError(_other_text(self.folder, self.files[name]))
        self.num_lines, self.parts, first = manifest["num_lines"], [], 0
        for number, entry in enumerate(there, start=1):
            spans = {name: Span(**span) for name, span in entry["spans"].items()}
            name = f"part-{number:05}-of-{len(there):05}{ending}"
            self.parts.append(Part(self, number, name, first, entry["num_lines"], spans))
            first += entry["num_lines"]

    @property
    def num_complete(self) -> int:
        """Number of parts that are complete."""
        return sum(part.is_complete for part in self.parts)

    def check_text(self, parts: list["Part"]) -> None:
        """Checks that the text of parts is what it was, in one pass over each file.

        Raises:
            DataError: it has changed.
        """
        for name, path in self.files.items() if parts else ():
            spans = [part.spans[name] for part in parts]
            end = spans[0].begin
            with LineReader(path, spans[0].begin, spans[-1].end) as reader:
                lines = iter(reader)
                for span in spans:
                    digest = hashlib.sha256()
                    while end < span.end and (line := next(lines, b"")):
                        if end >= span.begin:
                            digest.update(line)
                        end += len(line)
                    if digest.hexdigest() != span.sha256:
                        raise DataError(_other_text(self.folder, path))

    def join(self, path: PathLike) -> None:
        """Writes all parts, in order, into one file, which appears when it is complete.

        Raises:
            DataError: a part is missing, or was changed after it was written.
        """
        with open_atomically(path) as output:
            for part in self.parts:
                for block in part.verified():
                    output.write(block)


class Part:
    """One part of a `Shards`.

    Attributes:
        path: `pathlib.Path` of the complete part.
        number: int, from 1.
        first_line: int, number of lines of the text before the part.
        num_lines: int.
        spans: dict from the name of a file to its `Span`.
    """

    def __init__(
        self, shards: Shards, number: int, name: str, first_line: int, num_lines: int, spans: dict[str, Span]
    ) -> None:
        self._shards, self.number, self.path = shards, number, shards.folder / name
        self.first_line, self.num_lines, self.spans = first_line, num_lines, spans
        progress = shards.folder / PROGRESS / f"{number:05}.txt"
        self._partial, self._log, self._lock = (
            progress.with_suffix(end) for end in (".txt", ".log", ".lock")
        )

    @property
    def is_complete(self) -> bool:
        """Whether the part is complete."""
        return self.path.exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Context manager that locks the part; a killed process releases the lock, too.

        Raises:
            BusyError: another process holds the lock.
        """
        self._lock.parent.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(process_lock(self._lock))
            except ValueError:
                raise BusyError(
                    f"{self.path}: another process is translating this part. Wait for it"
                ) from None
            yield
            if self.is_complete:
                self._lock.unlink(missing_ok=True)

    def check_text(self) -> None:
        """Raises `DataError` if the text of the part has changed."""
        self._shards.check_text([self])

    def resume(self) -> Done:
        """Verifies the translations that are there, and drops what is not complete. Call it under `lock`.

        Returns:
            `Done`.
        """
        done, digest = _NOTHING, hashlib.sha256()
        lines = []
        with self._partial.open("a+b") as partial:
            partial.seek(0)
            for record in self._records():
                digest.update(partial.read(record.num_bytes - done.num_bytes))
                if digest.hexdigest() != record.sha256:
                    break
                done = record
                lines.append(to_checked_line(record._asdict()))
            partial.truncate(done.num_bytes)
        write_atomically(self._log, b"".join(lines))
        return done

    def _records(self):
        """Yields the `Done` of each chunk, up to the first line that is damaged or not complete."""
        if self._log.exists():
            with self._log.open("rb") as log, contextlib.suppress(ValueError, TypeError):
                for line in log:
                    yield Done(**from_checked_line(line[:-1]))

    def write(self, done: Done, chunks: Iterator[tuple[int, bytes]]) -> None:
        """Appends translations to those that `resume` found; at the end, the part is complete.

        Args:
            done: `Done`, the result of `resume`.
            chunks: iterator over the following chunks: number of lines of the text, and translations.

        Raises:
            DataError: the text had another number of lines than the part.
            OSError: the disk is full or not writable. `resume` keeps all complete chunks.
        """
        digest = self._digest()
        for num_lines, data in chunks:
            digest.update(data)
            done = Done(done.num_lines + num_lines, done.num_bytes + len(data), digest.hexdigest())
            _append(self._partial, data)
            _append(self._log, to_checked_line(done._asdict()))
        if done.num_lines != self.num_lines:
            raise DataError(_other_text(self._shards.folder, self._shards.files["input"]))
        for path in (self._log, self._partial):
            fsync_path(path)
        os.replace(self._partial, self.path)
        fsync_path(self.path.parent)

    def _digest(self):
        digest = hashlib.sha256()
        with self._partial.open("rb") as partial:
            while block := partial.read(_BLOCK):
                digest.update(block)
        return digest

    def verified(self) -> Iterator[bytes]:
        """Yields the translations of a complete part in blocks.

        Raises:
            DataError: the part is missing, or was changed after it was written.
        """
        done, digest = _NOTHING, hashlib.sha256()
        for done in self._records():  # noqa: B007 - the last one
            pass
        try:
            with self.path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
                    yield block
        except FileNotFoundError:
            raise DataError(f"{self.path}: missing. Translate this part first") from None
        if not self._log.exists():
            remedy = f"Restore it, or join the parts yourself: cat {self.path.parent}/part-*"
            raise DataError(f"{self._log}: missing; it has the SHA-256 of the translations. {remedy}")
        if (done.num_lines, done.sha256) != (self.num_lines, digest.hexdigest()):
            remedy = "Delete it and run the command again, which translates this part again"
            raise DataError(f"{self.path}: damaged, or changed since it was written. {remedy}")


def _file_sizes(files):
    return {name: pathlib.Path(path).stat().st_size for name, path in files.items()}


def _other_text(folder, path):
    return f"{folder}: was begun with other text than {path} has now. {_SAME}"


def _append(path, data):
    """Appends bytes to a file; an `OSError` names it."""
    try:
        with path.open("ab") as file:
            file.write(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
