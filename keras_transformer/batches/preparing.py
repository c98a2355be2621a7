"""From raw text to a prepared corpus: clean, learn a vocabulary, encode, write shards.

One process reads the text in order; the others clean, encode and write one shard each.
A shard is a fixed number of raw pairs, so it depends on nothing but the text and the
settings: an interrupted preparation finds the shards that are there and makes the rest,
and the result is the same to the byte.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shutil

from keras_transformer.batches.prepared import (
    FORMAT,
    MANIFEST,
    PROGRESS,
    PreparedCorpus,
    refuse_prepared,
    write_file,
)
from keras_transformer.batches.sharding import Job, UnfinishedError, make_shard, worker_processes
from keras_transformer.files import only_process, sealed, why_not_written, write_atomically
from keras_transformer.text.cleaning import Cleaner, CleaningReport, Seen, pair_hashes
from keras_transformer.text.datasets import dataset_names, first_split, open_datasets
from keras_transformer.text.folders import TRAIN
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import decode_block
from keras_transformer.text.progress import Progress, amount_of_text, say
from keras_transformer.tokenizers.tokenizer_pair import (
    learn_tokenizers,
    load_tokenizers,
    save_tokenizers,
    vocabulary_files,
)

REPORT = "report.txt"
SHARD_PAIRS = 100_000
_BLOCK_PAIRS = 5000  # looked at together; more costs memory, and no time is won
# Settings that decide what is written; the others belong to training.
DATA_SETTINGS = (
    "dataset",
    "source",
    "target",
    "model_type",
    "vocab_size",
    "separate_vocabularies",
    "vocab_texts",
    "normalization",
    "split_digits",
    "max_length",
    "on_bad_utf8",
)
_LOCK = ".lock"


def prepare(config, folder, *, tokenizers=None, num_workers=None, shard_pairs=SHARD_PAIRS):
    """Prepares a corpus, or continues an interrupted preparation.

    It starts processes that import the main module anew: a script calls it under
    `if __name__ == "__main__":`.

    Args:
        config: `Config`, of which the sections `data` and `cleaning` count.
        folder: a folder that is new, empty, or that of the same preparation before.
        tokenizers: `Tokenizers` to encode with; `None` learns them from the text.
        num_workers: processes that clean and encode; `None` for one a core.
        shard_pairs: raw pairs of a shard.

    Returns:
        `PreparedCorpus`.

    Raises:
        DataError: the text is refused, or nothing of it is left to train on. A folder that
            was new is left as it was.
        ValueError: the folder holds something else, or another process works in it.
        UnfinishedError: the disk is full or cannot be written, or a worker process was
            killed; a later call continues.
    """
    folder = pathlib.Path(folder)
    data = config.data
    settings = {
        "data": {name: getattr(data, name) for name in DATA_SETTINGS} | _of_vocabulary(tokenizers),
        "cleaning": dataclasses.asdict(config.cleaning),
        "shard_pairs": shard_pairs,
        "tokenizers": [tokenizer.sha256 for tokenizer in tokenizers] if tokenizers else None,
    }
    if (folder / MANIFEST).exists():
        return _finished(folder, settings)
    refuse_prepared(data.dataset)
    _check_place(folder, data.dataset)
    cleaner = Cleaner(config.cleaning, data.source, data.target, max_length=data.max_length)
    datasets = open_datasets(
        data.dataset, data.source, data.target, data_dir=data.data_dir, manual_dir=data.manual_dir
    )
    _check_splits(datasets, data)
    _check_folder(folder)
    with _disk_errors(folder), _working_in(folder):
        progress = folder / PROGRESS
        _start(progress, settings, datasets)
        texts = _write_texts(folder, progress, datasets, data)
        tokenizers = _tokenizers(folder, tokenizers, datasets, data, cleaner)
        shards, report = _write_shards(
            folder, progress, datasets, data, cleaner, tokenizers, num_workers or os.cpu_count(), shard_pairs
        )
        report.check(data.dataset)
        manifest = {
            "format": FORMAT,
            "languages": [data.source, data.target],
            "settings": settings,
            "num_pairs": report.num_kept,
            "report": report.to_dict(),
            "tokenizers": [_entry(folder, name) for name in vocabulary_files(tokenizers.shared)],
            "texts": texts,
            "shards": shards,
        }
        write_atomically(folder / REPORT, f"{report.table()}\n".encode())
        write_atomically(folder / MANIFEST, sealed(manifest).encode())
        shutil.rmtree(progress)
    return PreparedCorpus(folder)


@contextlib.contextmanager
def _working_in(folder):
    """Keeps other processes out; a new preparation that is refused leaves nothing behind."""
    is_made_here = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder / _LOCK):
        is_new = not (folder / PROGRESS).exists()
        try:
            yield
        except ValueError as error:
            # Nobody can continue with text that must change; but what a disk or network
            # could not read, it may read later.
            if is_new and getattr(error.__cause__, "errno", None) is None:
                _empty(folder)
                if is_made_here:
                    folder.rmdir()
            raise
        (folder / _LOCK).unlink()


def _empty(folder):
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def _disk_errors(folder):
    """Tells what to do when a file cannot be written."""
    try:
        yield
    except UnfinishedError:
        raise
    except OSError as error:
        reason, remedy = why_not_written(error, error.filename or folder / MANIFEST)
        raise UnfinishedError(
            f"{folder}: cannot be written: {reason}. What is finished stays, the same command continues. "
            f"{remedy}"
        ) from error


def _finished(folder, settings):
    prepared = PreparedCorpus(folder)
    _refuse_changes(folder, prepared.settings, settings)
    shutil.rmtree(folder / PROGRESS, ignore_errors=True)  # killed between manifest and end
    (folder / _LOCK).unlink(missing_ok=True)
    return prepared


def _check_folder(folder):
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file. Name a folder")
    # The lock alone is what a process leaves that is killed as it begins.
    names = {path.name for path in folder.iterdir()} - {_LOCK} if folder.exists() else {}
    if names and not (folder / PROGRESS).is_dir():
        raise DataError(f"{folder}: holds other files. Name a new or empty folder")


def _of_vocabulary(tokenizers):
    """What is so because the vocabulary was given, whatever the settings say."""
    if tokenizers is None:
        return {}
    return {
        "vocab_size": tokenizers.target.vocab_size,
        "separate_vocabularies": not tokenizers.shared,
        "normalization": tokenizers.source.normalization,
    }


def _check_place(folder, dataset):
    for name in dataset_names(dataset):
        if pathlib.Path(name).is_dir() and folder.resolve().is_relative_to(pathlib.Path(name).resolve()):
            raise DataError(f"{folder}: lies in the corpus {name}. Name a folder outside it")


def _check_splits(datasets, data):
    if not any(TRAIN in dataset.splits for dataset in datasets):
        raise DataError(f"{data.dataset}: no training split ({TRAIN})")
    if first_split(datasets, "validation") is None:
        raise DataError(
            f"{data.dataset}: no validation split. Add valid.{data.source} and valid.{data.target} "
            "(valid, validation, val or dev)"
        )


def _start(progress, settings, datasets):
    """Writes down what is prepared; refuses to continue something else."""
    settings = settings | {
        "inputs": [dataset.fingerprint(split) for dataset in datasets for split in dataset.splits]
    }
    path = progress / "settings.json"
    if path.exists():
        _refuse_changes(progress.parent, json.loads(path.read_text(encoding="utf-8")), settings)
    progress.mkdir(exist_ok=True)
    for leftover in [
        *progress.glob(".*"),
        *progress.parent.glob(".*.tmp"),
        *progress.parent.glob(".*.npy.*"),
    ]:
        leftover.unlink(missing_ok=True)  # a file that a killed process had begun
    write_atomically(path, _json(settings))


def _refuse_changes(folder, before, now):
    before, now = _flat(before), _flat(json.loads(_json(now)))
    for name in now:
        if name == "inputs" and before.get(name) != now[name]:
            raise DataError(
                f"{folder}: the text has changed since the preparation began ({_changed(before, now)}). "
                "Name another folder, or remove this one"
            )
        if before.get(name) != now[name]:
            raise DataError(
                f"{folder}: was prepared with {name}={before.get(name)!r}, not {now[name]!r}. "
                "Use the same settings and text, or name another folder"
            )


def _changed(before, now):
    """The first input that is not as it was."""
    files = [
        {json.dumps(one) for entry in settings.get("inputs") or [] for one in _as_list(entry)}
        for settings in (before, now)
    ]
    for text in sorted(files[0] ^ files[1]):
        entry = json.loads(text)
        return entry.get("path") or entry.get("name") or text
    return "the order of the files"


def _as_list(entry):
    return entry if isinstance(entry, list) else [entry]


def _flat(settings):
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{field}": one for field, one in value.items()}
        else:
            flat[name] = value
    return flat


def _write_texts(folder, progress, datasets, data):
    """Writes every split but the training split as text; returns their manifest entries."""
    path = progress / "texts.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    texts = {}
    for name in dict.fromkeys(split for dataset in datasets for split in dataset.splits if split != TRAIN):
        pairs = first_split(datasets, name).load(on_bad_utf8=data.on_bad_utf8)
        texts[name] = {"num_pairs": len(pairs.source)}
        for side, language, lines in (
            ("source", data.source, pairs.source),
            ("target", data.target, pairs.target),
        ):
            content = "".join(f"{line}\n" for line in lines).encode()
            texts[name][side] = write_file(folder, f"{name}.{language}", content)
    write_atomically(path, _json(texts))
    return texts


def _tokenizers(folder, given, datasets, data, cleaner):
    """Returns the vocabularies: those given, those there already, or newly learned ones."""
    shared = given.shared if given else not data.separate_vocabularies
    if given is None and all((folder / name).exists() for name in vocabulary_files(shared)):
        return load_tokenizers(folder)
    if given is None:
        say(f"learning a vocabulary of {data.vocab_size:,} tokens ({data.model_type})")
        given = learn_tokenizers(lambda: _clean_pairs(datasets, data, cleaner), data)
    save_tokenizers(folder, given)
    return given


def _clean_pairs(datasets, data, cleaner):
    """Yields the (source, target) texts that cleaning by text alone keeps."""
    for dataset in datasets:
        if TRAIN in dataset.splits:
            for block in dataset.blocks(TRAIN):
                pairs, _ = decode_block(block, on_bad_utf8=data.on_bad_utf8)
                codes = cleaner.text_reasons(*pairs)
                yield from itertools.compress(zip(*pairs, strict=True), codes == 0)


def _write_shards(folder, progress, datasets, data, cleaner, tokenizers, num_workers, shard_pairs):
    """Makes the shards that are missing; returns all manifest entries and the whole report."""
    shown = Progress(*amount_of_text(datasets))
    shards, report = [], CleaningReport()
    with worker_processes(num_workers, (folder, data, cleaner, tokenizers)) as pool:
        waiting = collections.deque()
        for job in itertools.chain(_jobs(datasets, data, cleaner, shard_pairs), itertools.repeat(None)):
            if job is not None:
                path = progress / f"{job.name}.json"
                waiting.append((path, None if path.exists() else pool.submit(make_shard, job), job.size))
            # Few in flight: each holds its text.
            if waiting and (job is None or len(waiting) > num_workers + 1):
                path, future, size = waiting.popleft()
                if future is None:
                    record = json.loads(path.read_text(encoding="utf-8"))
                else:
                    record = future.result()
                    write_atomically(path, _json(record))
                report += (part := CleaningReport.from_dict(record["report"]))
                if record["shard"]["num_pairs"]:
                    shards.append(record["shard"])
                shown.add(part.num_pairs, size, made=future is not None)
            if job is None and not waiting:
                break
    shown.show()
    return shards, report


def _jobs(datasets, data, cleaner, shard_pairs):
    """Yields a `_Job` for each shard, in order."""
    seen = Seen() if cleaner.config.drop_duplicates else None
    numbers = itertools.count()
    for place, dataset in enumerate(datasets):
        if TRAIN not in dataset.splits:
            continue
        job, num_pairs = None, 0
        for block in dataset.blocks(TRAIN, min(_BLOCK_PAIRS, shard_pairs)):
            if job is None or num_pairs + len(block.source) > shard_pairs:
                if job is not None:
                    yield job
                job, num_pairs = Job(f"{TRAIN}-{next(numbers):05}", place, [], []), 0
            occurred = None
            if seen is not None:
                pairs, _ = decode_block(block, on_bad_utf8=data.on_bad_utf8)
                occurred = seen.add(pair_hashes(*pairs))
            # Packed: a list of lines takes three times the memory, and waits here.
            packed = block._replace(source=b"".join(block.source), target=b"".join(block.target))
            job.blocks.append(packed)
            job.occurred.append(occurred)
            num_pairs += len(block.source)
        if job is not None:
            yield job


def _entry(folder, name):
    content = (folder / name).read_bytes()
    return {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _json(values):
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()
