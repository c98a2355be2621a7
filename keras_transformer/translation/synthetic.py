"""Synthetic corpora: pairs of which a model has written one side (back-translation, distillation).

The steps of `SyntheticCorpus` are `collect`, the translation of the collected lines in parts (`shards`), and
`write`. Each leaves complete files or none, in the folder `OUT.progress` beside the corpus::

    collected.json     settings, and what `collect` read and dropped
    text.txt           the lines to translate
    references.txt     parallel to them; only with `interpolate`
    parts/             their translations in parts, see `shards`
    translations.txt   the parts, joined

`OUT` appears when it is complete; then `OUT.progress` is removed. Nothing here imports TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import keras_transformer
from keras_transformer.config.sections import CleaningConfig, SearchConfig
from keras_transformer.config.tags import is_tag
from keras_transformer.config.types import PathLike
from keras_transformer.evaluation.bleu import bleu_scorer
from keras_transformer.files import (
    create_folder_atomically,
    from_checked_json,
    open_atomically,
    process_lock,
    remove_leftover_folders,
    to_checked_json,
    write_text,
)
from keras_transformer.text.cleaning import CODES, REASONS, Cleaner, CleaningReport, HashSet, pair_hashes
from keras_transformer.text.folders import TRAIN
from keras_transformer.text.lines import DataError, LineReader, iterate_lines
from keras_transformer.text.noise import Noise
from keras_transformer.text.synthetic import FORMAT, MANIFEST, read_manifest
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers

_KNOWN = ("text.txt", "references.txt", "translations.txt", "parts", "collected.json", "lock")
TEXT, REFERENCES, TRANSLATIONS, PARTS, _COLLECTED, _LOCK = _KNOWN
_BLOCK = 5000  # lines that are cleaned together
_DEFAULTS = {"search": dataclasses.asdict(SearchConfig()), "cleaning": dataclasses.asdict(CleaningConfig())}
_SAME = "Use the same, or choose another folder"


class Side(NamedTuple):
    """How the pairs of a synthetic corpus are made of lines and their translations.

    Attributes:
        reverses: bool, whether the translation is the source (back-translation) or the target (distillation).
        tag: str before each source; "" for none.
        noise: `Noise` of the sources, or `None`.
    """

    reverses: bool
    tag: str = ""
    noise: Noise | None = None

    @property
    def tags(self) -> list[str]:
        """Tags that the vocabulary must have: that of the sources, and a filler that is one."""
        filler = self.noise.filler if self.noise and self.noise.replace else ""
        return [name for name in dict.fromkeys((self.tag, filler)) if is_tag(name)]


class SyntheticCorpus:
    """A corpus of translations that is made in steps, which any interruption only repeats in part.

    Args:
        folder: the corpus; a new folder, or that of the same call.
        settings: dict for JSON from name to value, all that decides the content; it has `tag`.

    Attributes:
        folder, progress: `pathlib.Path`.

    Raises:
        DataError: the folder holds something else, or was made or begun with other settings.
    """

    def __init__(self, folder: PathLike, settings: dict[str, Any]) -> None:
        self.folder = pathlib.Path(folder)
        self.progress = self.folder.with_name(f"{self.folder.name}.progress")
        self.settings = json.loads(json.dumps(settings))
        self._check_folders()

    def _check_folders(self):
        """Raises `DataError` if the corpus or its progress is of other settings, or is something else."""
        is_used = self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir()))
        if self.manifest is None and is_used:
            raise DataError(f"{self.folder}: exists and is not an empty folder. Choose a new folder")
        if others := {path.name for path in self.progress.glob("[!.]*")} - set(_KNOWN):
            raise DataError(f"{self.progress}: holds {min(others)}, not of this corpus. Move it elsewhere")
        if self.manifest:
            self._check(self.folder, self.manifest["settings"])
        elif collected := self._collected():
            self._check(self.progress, collected["settings"])

    @property
    def manifest(self) -> dict[str, Any] | None:
        """The manifest of the complete corpus, a dict; `None` until it is complete."""
        return read_manifest(self.folder)

    @property
    def text(self) -> pathlib.Path:
        """The file of lines to translate."""
        return self.progress / TEXT

    @property
    def translations(self) -> pathlib.Path:
        """The file of their translations."""
        return self.progress / TRANSLATIONS

    def _collected(self):
        path = self.progress / _COLLECTED
        if not path.exists():
            return None
        try:
            return from_checked_json(path.read_bytes(), remedy=f"Delete {self.progress}")
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error

    def _check(self, folder, before):
        before, now = _flat(before), _flat(self.settings)
        for name in sorted(before | now, key=lambda name: (name != "program", name)):
            if before.get(name) != now.get(name):
                said = f"{name}={before.get(name)!r}, not {now.get(name)!r}"
                said = {"models": "another model, or other weights", "inputs": "other text"}.get(name, said)
                raise DataError(f"{folder}: was begun with {said}. {_SAME}")

    @contextlib.contextmanager
    def _lock(self):
        """Locks the folder of the progress; waits for another process that collects or writes.

        If that one completes the corpus, it removes the folder, with the lock file: then a new one is locked.
        """
        path = self.progress / _LOCK
        with contextlib.ExitStack() as stack:
            while True:
                self.progress.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as attempt:
                    file = attempt.enter_context(process_lock(path, waits=True))
                    if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                        stack.enter_context(attempt.pop_all())
                        break
            yield

    def remove_progress(self) -> None:
        """Removes the folder of the progress beside a complete corpus; a killed process may have left it."""
        if self.progress.exists():
            with self._lock():
                shutil.rmtree(self.progress, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.progress.rmdir()  # over NFS, the open lock file was still in it

    @contextlib.contextmanager
    def _removed_if_unused(self):
        """Removes the folder of the progress after an error, if it holds nothing but the lock."""
        try:
            yield
        except BaseException:
            if [path.name for path in self.progress.iterdir()] == [_LOCK]:
                shutil.rmtree(self.progress)
            raise

    def collect(self, read: Callable[[dict], Iterator[tuple[str, str]]]) -> dict[str, Any]:
        """Writes the lines to translate, unless they are there.

        Args:
            read: function from a dict, to which it adds counts by name, to an iterator over
                (line, reference); a reference is not used unless the setting `interpolate` is true.

        Returns:
            dict, the counts.

        Raises:
            DataError: `read` raises it, no line is left, or meanwhile another process has begun or completed
                the corpus with other settings.
        """
        with self._lock():
            self._check_folders()
            if self.manifest:
                return self.manifest["counts"]
            if collected := self._collected():
                return collected["counts"]
            counts: dict[str, Any] = {}
            with self._removed_if_unused(), contextlib.ExitStack() as stack:
                text = stack.enter_context(open_atomically(self.text))
                references = None
                if self.settings.get("interpolate"):
                    references = stack.enter_context(open_atomically(self.progress / REFERENCES))
                number = 0
                for line, reference in read(counts):
                    number += 1
                    text.write(f"{line}\n".encode())
                    if references is not None:
                        references.write(f"{reference}\n".encode())
                if not number:
                    said = counts.get("lines read", 0), counts.get("dropped before translation", {})
                    change = _change(said[1] | {"empty": 0})  # blank lines are always dropped
                    raise DataError(f"{self.folder}: no line is left to translate ({_list(*said)}){change}")
            values = {"settings": self.settings, "counts": counts | {"lines translated": number}}
            write_text(self.progress / _COLLECTED, to_checked_json(values))
            return values["counts"]

    def write(
        self, side: Side, cleaner: Cleaner, tokenizers: Tokenizers, languages: tuple[str, str],
        add_splits: Callable[[pathlib.Path], None] = lambda folder: None, *, n_best: int = 1,
    ) -> dict[str, Any]:  # fmt: skip
        """Filters the pairs and writes the corpus, unless another process has; removes the progress.

        Args:
            side: `Side`.
            cleaner: `Cleaner` of the pairs (source, target).
            tokenizers: `Tokenizers` that count the tokens of the pairs.
            languages: source and target, the endings of the files.
            add_splits: function that writes other splits into the folder.
            n_best: int, translations of each line; of several, the nearest to the reference is used.

        Returns:
            dict, the manifest.

        Raises:
            DataError: no pair is left.
        """
        with self._lock():
            if self.manifest is None:
                remove_leftover_folders(self.folder)
                with create_folder_atomically(self.folder) as folder:
                    self._write(folder, side, cleaner, tokenizers, languages, n_best)
                    add_splits(folder)
        self.remove_progress()
        return typing.cast(dict[str, Any], self.manifest)

    def _write(self, folder, side, cleaner, tokenizers, languages, n_best):
        report, seen = CleaningReport(), HashSet() if cleaner.config.drop_duplicates else None
        names = [f"{TRAIN}.{language}" for language in languages]
        digests = [hashlib.sha256(), hashlib.sha256()]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(folder / name, "wb")) for name in names]
            triples = enumerate(self._translated(n_best, languages[1]))
            while block := list(itertools.islice(triples, _BLOCK)):
                numbers = [number for number, _ in block]
                lines, translations = zip(*(pair for _, pair in block), strict=True)
                pairs = (translations, lines) if side.reverses else (lines, translations)
                codes = filter_pairs(*map(list, pairs), cleaner, tokenizers, seen)
                report += CleaningReport.of(codes, *map(list, pairs))
                for index in np.flatnonzero(codes == 0).tolist():
                    source = pairs[0][index]
                    if side.noise:
                        source = side.noise.apply(source, numbers[index])
                    source = f"{side.tag} {source}" if side.tag else source
                    for file, digest, text in zip(files, digests, (source, pairs[1][index]), strict=True):
                        digest.update(data := f"{text}\n".encode())
                        file.write(data)
        if not report.num_kept:
            change = _change(report.dropped)
            if report.dropped["empty"] == max(report.dropped.values()):  # blank lines are not translated
                change = ". The translations are blank: train the model longer, or choose another"
            reason = f"the filters drop all pairs ({_list(report.num_pairs, report.dropped)}){change}"
            raise DataError(f"{self.folder}: {reason}, and delete {self.progress}")
        manifest = {
            "format": FORMAT,
            "version": keras_transformer.__version__,
            "settings": self.settings,
            "languages": list(languages),
            "tags": side.tags,
            "counts": self._collected()["counts"],
            "pairs": report.to_dict(),
            "files": {name: digest.hexdigest() for name, digest in zip(names, digests, strict=True)},
        }
        write_text(folder / MANIFEST, to_checked_json(manifest))

    def _translated(self, n_best, language):
        """Yields (line, translation)."""
        score = bleu_scorer(language, effective_order=True).sentence_score if n_best > 1 else None
        with contextlib.ExitStack() as stack:
            names = (TEXT, TRANSLATIONS, REFERENCES) if score else (TEXT, TRANSLATIONS)
            texts, translations, *references = (
                iterate_lines(stack.enter_context(LineReader(self.progress / name)), name) for name in names
            )
            for line in texts:
                hypotheses = list(itertools.islice(translations, n_best))
                if len(hypotheses) < n_best:
                    raise DataError(f"{self.translations}: too few lines. Delete {self.progress}")
                if score:
                    yield line, nearest(hypotheses, next(references[0]), score)
                else:
                    yield line, hypotheses[0]


def nearest(hypotheses, reference, score):
    """Returns the hypothesis with the highest sentence score against a reference; the first of several.

    Kim and Rush (2016), section 3.3, "sequence-level interpolation", with sacreBLEU's smoothed sentence BLEU.

    Args:
        hypotheses: list of str, best first; blank ones are not chosen unless all are.
        reference: str.
        score: function from (hypothesis, list of references) to an object with the attribute `score`.
    """
    hypotheses = list(filter(str.strip, hypotheses)) or hypotheses[:1]
    return max(hypotheses, key=lambda text: score(text, [reference]).score)  # `max` returns the first


def filter_pairs(source, target, cleaner, tokenizers, seen=None):
    """Applies all filters to pairs.

    Args:
        source, target: lists of str.
        cleaner: `Cleaner`.
        tokenizers: `Tokenizers`, which count the tokens.
        seen: `HashSet` of earlier pairs, or `None` to keep duplicates.

    Returns:
        uint8 NumPy array, shape `(num_pairs,)`, codes as in `Cleaner`.
    """
    codes = cleaner.text_reasons(source, target)
    kept = np.flatnonzero(codes == 0)
    lengths = [
        np.array([len(row) + 1 for row in tokenizer.encode([texts[i] for i in kept.tolist()])], np.int64)
        for texts, tokenizer in zip((source, target), tokenizers, strict=True)
    ]
    codes[kept] = cleaner.length_reasons(*lengths)
    if seen is not None:
        kept = np.flatnonzero(codes == 0)
        pairs = ([texts[i] for i in kept.tolist()] for texts in (source, target))
        codes[kept[seen.add(pair_hashes(*pairs))]] = CODES["duplicate"]
    return codes


def monolingual_lines(
    paths: Iterable[PathLike], cleaner: Cleaner, tokenizer: Any, counts: dict[str, Any], *, on_bad_utf8: str
) -> Iterator[tuple[str, str]]:
    """Yields (line, "") for the lines of files that pass the filters which need only one side.

    Args:
        paths: files, plain or compressed.
        cleaner: `Cleaner` of pairs whose two sides are the same line, see `monolingual_cleaner`.
        tokenizer: `Tokenizer` that counts the tokens.
        counts: dict to which the number of lines read and of those dropped for each reason are added.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Raises:
        DataError: a file cannot be read or is not UTF-8, or no file has a line.
    """
    seen = HashSet() if cleaner.config.drop_duplicates else None
    tokenizers = Tokenizers(tokenizer, tokenizer)
    dropped = dict.fromkeys(REASONS, 0)
    counts |= {"lines read": 0, "dropped before translation": dropped}
    for path in paths:
        with LineReader(path) as reader:
            lines = iterate_lines(reader, str(path), on_bad_utf8=on_bad_utf8, has_setting=True)
            while block := list(itertools.islice(lines, _BLOCK)):
                codes = filter_pairs(block, block, cleaner, tokenizers, seen)
                counts["lines read"] += len(block)
                for reason, code in CODES.items():
                    dropped[reason] += int(np.sum(codes == code))
                yield from ((line, "") for line in itertools.compress(block, codes == 0))
    if not counts["lines read"]:
        raise DataError(f"{', '.join(map(str, paths))}: no line. Give text with lines")


def monolingual_cleaner(config: CleaningConfig, language: str, max_length: int) -> Cleaner:
    """Returns the `Cleaner` of `monolingual_lines`: it always drops blank lines."""
    config = dataclasses.replace(config, drop_empty=True, drop_identical=False)
    return Cleaner(config, language, language, max_length=max_length)


def _list(number, dropped):
    """Returns the number of lines or pairs, and of those dropped for each reason, as text."""
    reasons = [f"{REASONS[name][0]}: {count:,}" for name, count in dropped.items() if count]
    return ", ".join([f"{number:,} read", *reasons])


def _change(dropped):
    """Returns the end of a message: which filter to change, the one that drops most."""
    most = max(dropped, key=dropped.get, default=None)
    return ". Check the text" + (f", or change --set {REASONS[most][1]}" if most and dropped[most] else "")


def _flat(settings):
    """Returns the settings, those of a section as `section.name`, with defaults for what is missing."""
    flat = {"engine": "tensorflow"}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": item for key, item in (_DEFAULTS.get(name, {}) | value).items()}
        else:
            flat[name] = value
    return flat
