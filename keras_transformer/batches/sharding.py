"""Writes the shards of a prepared corpus: cleans and encodes raw text, in this process or in several."""

import collections
import concurrent.futures
import contextlib
import functools
import io
import itertools
import json
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from typing import NamedTuple

import numpy as np
import tqdm

from keras_transformer.batches.ids import encode_flat
from keras_transformer.batches.prepared import PROGRESS, check_not_prepared, write_array, write_json
from keras_transformer.config.programs import ExitCode
from keras_transformer.config.settings import DataConfig
from keras_transformer.text.cleaning import CODES, Cleaner, CleaningReport, HashSet, pair_hashes
from keras_transformer.text.datasets import check_splits, open_datasets
from keras_transformer.text.folders import ENDINGS, TRAIN
from keras_transformer.text.parallel import decode_block

logger = logging.getLogger(__name__)

BLOCK_PAIRS = 5000  # pairs cleaned and encoded together; more take memory and save no time


class UnfinishedError(OSError):
    """Disk or memory ran out; the message says how to continue the preparation."""

    exit_code = ExitCode.STORAGE


class RawText(NamedTuple):
    """The raw text of a corpus, before cleaning and encoding.

    Attributes:
        data: `DataConfig`.
        cleaner: `Cleaner`.
        datasets: list of datasets as returned by `open_dataset`, in order.
        splits: list of str, the splits to prepare in addition to the training split.
    """

    data: DataConfig
    cleaner: Cleaner
    datasets: list
    splits: list

    @property
    def inputs(self):
        """Fingerprints of the datasets and splits, a list; it changes when the text changes."""
        return [
            dataset.fingerprint(split)
            for dataset in self.datasets
            for split in (TRAIN, *self.splits)
            if split in dataset.splits
        ]

    def blocks(self, num_pairs=BLOCK_PAIRS):
        """Yields (index of the dataset, `Block`) of all training text, in order."""
        for index, dataset in enumerate(self.datasets):
            if TRAIN in dataset.splits:
                yield from ((index, block) for block in dataset.blocks(TRAIN, num_pairs))

    def clean_pairs(self):
        """Yields the (source, target) texts that pass the text filters; length filters are not applied.

        Raises:
            DataError: the text cannot be read, or no pair passes.
        """
        report = CleaningReport()
        for _, block in self.blocks():
            pairs, _ = decode_block(block, on_bad_utf8=self.data.on_bad_utf8)
            codes = self.cleaner.text_reasons(*pairs)
            report += CleaningReport.of(codes, *pairs)
            yield from itertools.compress(zip(*pairs, strict=True), codes == 0)
        report.check(self.data.dataset)


def open_text(config):
    """Opens the raw text of a configuration without reading it.

    Args:
        config: `Config`; only the sections `data` and `cleaning` are used.

    Returns:
        `RawText` with all splits.

    Raises:
        DataError: there is no such dataset, or it has no training or no validation split.
    """
    data = config.data
    check_not_prepared(data.dataset)
    cleaner = Cleaner(config.cleaning, data.source, data.target, max_length=data.max_length)
    datasets = open_datasets(
        data.dataset, data.source, data.target, data_dir=data.data_dir, manual_dir=data.manual_dir
    )
    check_splits(data.dataset, datasets, data.source, data.target)
    splits = list(
        dict.fromkeys(
            split
            for dataset in datasets
            for split in dataset.splits
            if split != TRAIN and split not in getattr(dataset, "training_names", ())
        )
    )
    return RawText(data, cleaner, datasets, splits)


class ShardJob(NamedTuple):
    """One shard to make, as blocks of raw text.

    Attributes:
        name: str, such as `train-00000`.
        dataset: int, index of the dataset.
        blocks: list of `Block` whose source and target are one bytes object each, not lists of lines.
        repeated: list with a bool NumPy array per block, true for pairs that occurred before; or with `None`
            per block if duplicates are kept.
    """

    name: str
    dataset: int
    blocks: list
    repeated: list

    @property
    def num_bytes(self):
        """Size of the text in bytes."""
        return sum(len(block.source) + len(block.target) for block in self.blocks)

    def decode(self, data):
        """Yields (`Pairs`, number of lines with replaced UTF-8) of each block, for a `DataConfig`.

        Raises:
            DataError: as `decode_block`.
        """
        for packed in self.blocks:
            # `BytesIO` splits at newlines only, `bytes.splitlines` also at carriage returns.
            sides = {name: io.BytesIO(getattr(packed, name)).readlines() for name in ("source", "target")}
            yield decode_block(packed._replace(**sides), on_bad_utf8=data.on_bad_utf8)


def write_shards(text, folder, tokenizers, num_workers, shard_pairs):
    """Writes the shards that are missing.

    Args:
        text: `RawText`.
        folder: `pathlib.Path` of the prepared corpus, with its `PROGRESS`.
        tokenizers: `Tokenizers`.
        num_workers: number of worker processes; 0 for none but this process.
        shard_pairs: number of raw pairs per shard.

    Returns:
        (list of all shards for the manifest, `CleaningReport` of all text)
    """
    earlier = {path.stem for path in (folder / PROGRESS).glob(f"{TRAIN}-*.json")}
    shards, report = [], CleaningReport()
    total, unit = _amount_of_text(text.datasets)
    with (
        _progress_bar(total, unit) as bar,
        _shard_pool(num_workers, folder, text.data, text.cleaner, tokenizers) as make_shards,
    ):
        for record in make_shards(shard_jobs(text, shard_pairs)):
            shard, part = record["shard"], CleaningReport.from_dict(record["report"])
            report += part
            if shard["num_pairs"]:
                shards.append(shard)
            amount = record["num_bytes"] if unit == "bytes" else part.num_pairs
            if shard["name"] in earlier:
                bar.initial += amount  # counts as progress, but not towards the speed
            bar.update(amount)
    return shards, report


class _LinePerUpdate:
    """Writes each update of a progress bar as a line of its own, for a standard error that is a file."""

    def write(self, text):
        if text.strip():
            sys.stderr.write(text.strip() + "\n")

    def flush(self):
        sys.stderr.flush()


def _progress_bar(total, unit):
    """Returns a tqdm progress bar that appears after five seconds, unless messages of level INFO are off."""
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
        total=total,
        unit=" B" if unit == "bytes" else " pairs",
        unit_scale=True,
        desc="preparing",
        delay=5 if logger.isEnabledFor(logging.INFO) else math.inf,
        mininterval=0.5 if terminal else 5,
        dynamic_ncols=terminal,
        file=sys.stderr if terminal else _LinePerUpdate(),
    )


def _amount_of_text(datasets):
    """Returns (amount, unit) of the training text; the amount is `None` if it is unknown without reading."""
    fingerprints = [dataset.fingerprint(TRAIN) for dataset in datasets if TRAIN in dataset.splits]
    if all("num_examples" in split for split in fingerprints):
        return sum(split["num_examples"] for split in fingerprints), "pairs"
    if all(isinstance(split, list) for split in fingerprints):
        files = list(itertools.chain.from_iterable(fingerprints))
        if not any(file["path"].endswith((".gz", ".xz", ".bz2", *ENDINGS)) for file in files):
            return sum(file["size"] for file in files), "bytes"
    return None, "pairs"


def shard_jobs(text, shard_pairs, *, finds_repeated=True):
    """Yields a `ShardJob` for each shard, in order.

    Args:
        text: `RawText`.
        shard_pairs: number of raw pairs per shard.
        finds_repeated: bool, finds the pairs that occurred before, if duplicates are dropped.
    """
    seen = HashSet() if finds_repeated and text.cleaner.config.drop_duplicates else None
    numbers = itertools.count()
    job, num_pairs = None, 0
    for index, block in text.blocks(min(BLOCK_PAIRS, shard_pairs)):
        if job and (index != job.dataset or num_pairs + len(block.source) > shard_pairs):
            yield job
            job = None
        if job is None:
            job, num_pairs = ShardJob(f"{TRAIN}-{next(numbers):05}", index, [], []), 0
        repeated = None
        if seen is not None:
            pairs, _ = decode_block(block, on_bad_utf8=text.data.on_bad_utf8)
            repeated = seen.add(pair_hashes(*pairs))
        # Joined, because jobs wait in a queue and a list of lines takes three times the memory.
        packed = block._replace(source=b"".join(block.source), target=b"".join(block.target))
        job.blocks.append(packed)
        job.repeated.append(repeated)
        num_pairs += len(block.source)
    if job:
        yield job


@contextlib.contextmanager
def _shard_pool(number, *work):
    """Context manager: a function from an iterable of jobs to their records, in order."""
    make_shard = functools.partial(_make_shard, *work)
    if not number:
        yield functools.partial(map, make_shard)
        return
    # Spawned, because the threads of TensorFlow (used by some datasets) do not survive a fork.
    context = multiprocessing.get_context("spawn")
    given_up, give_up = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(number, context, _exit_with_parent, (given_up,))

    def make(jobs):
        waiting = collections.deque()
        for job in jobs:
            with _workers_ignore_interrupts():
                waiting.append(pool.submit(make_shard, job))
            if len(waiting) > number + 1:  # bounds memory: each job holds its text
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield make
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UnfinishedError(
            "a worker process was killed, perhaps because memory ran out. Run the same command again "
            "(it continues), with fewer --workers"
        ) from error
    except BaseException:
        give_up.close()  # the workers end at once, without finishing their shards
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        give_up.close()
        given_up.close()


@contextlib.contextmanager
def _workers_ignore_interrupts():
    """Context manager: processes started within it never receive SIGINT; it reaches this process afterwards.

    Ctrl-C signals all processes of the terminal, and each would print a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_parent(given_up):
    """Ends this worker process when its parent ends, even if the parent is killed, or closes a pipe.

    Args:
        given_up: `multiprocessing.connection.Connection`, the end of the pipe to read.
    """
    parent = multiprocessing.parent_process().sentinel

    def wait():
        multiprocessing.connection.wait([parent, given_up])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _make_shard(folder, data, cleaner, tokenizers, job):
    """Cleans, encodes and writes one shard, unless it exists; returns its record."""
    path = folder / PROGRESS / f"{job.name}.json"
    if path.exists():
        return {"num_bytes": job.num_bytes} | json.loads(path.read_bytes())
    shard, report, arrays = encode_shard(data, cleaner, tokenizers, job)
    for name, (file, array) in arrays.items():
        shard[name] |= write_array(folder, file, array)
    record = {"shard": shard, "report": report.to_dict(), "num_bytes": job.num_bytes}
    write_json(path, record)
    return record


def encode_shard(data, cleaner, tokenizers, job):
    """Cleans and encodes one shard.

    Args:
        data: `DataConfig`.
        cleaner: `Cleaner`.
        tokenizers: `Tokenizers`.
        job: `ShardJob`.

    Returns:
        `(entry, report, arrays)`: the shard's entry in the manifest, without those of its files;
        `CleaningReport`; dict from a side that has tokens to (file name, NumPy array of its ids).

    Raises:
        DataError: invalid UTF-8.
    """
    report, num_pairs, sides = CleaningReport(), 0, ([], [])
    for (pairs, num_replaced), repeated in zip(job.decode(data), job.repeated, strict=True):
        codes = cleaner.text_reasons(*pairs)
        kept = np.flatnonzero(codes == 0)
        encoded = [
            encode_flat([texts[i] for i in kept.tolist()], tokenizer, tagged=side == "source")
            for side, texts, tokenizer in zip(pairs._fields, pairs, tokenizers, strict=True)
        ]
        lengths = [np.diff(starts) for _, starts in encoded]
        by_length = cleaner.length_reasons(*lengths)
        if repeated is not None:
            by_length[(by_length == 0) & repeated[kept]] = CODES["duplicate"]
        codes[kept] = by_length
        report += CleaningReport.of(codes, *pairs, num_replaced_utf8=num_replaced)
        num_pairs += int(np.sum(by_length == 0))
        for side, (ids, _), length, tokenizer in zip(sides, encoded, lengths, tokenizers, strict=True):
            side.append(ids[np.repeat(by_length == 0, length)].astype(id_type(tokenizer.vocab_size)))
    shard, arrays = {"name": job.name, "dataset": job.dataset, "num_pairs": num_pairs}, {}
    for name, language, parts in zip(("source", "target"), (data.source, data.target), sides, strict=True):
        ids = np.concatenate(parts)
        shard[name] = {"num_tokens": len(ids)}
        if len(ids):
            arrays[name] = f"{job.name}.{language}.npy", ids
    return shard, report, arrays


def id_type(vocab_size):
    """Returns the narrowest NumPy dtype for the ids of a vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.int32
