"""Raw text, cut into shards: each is cleaned, encoded and written by this process or by one of several."""

import collections
import concurrent.futures
import contextlib
import functools
import io
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
from typing import NamedTuple

import numpy as np
import tqdm

from keras_transformer.batches.ids import encode_flat
from keras_transformer.batches.prepared import PROGRESS, refuse_prepared, write_array, write_json
from keras_transformer.config.programs import ExitCode
from keras_transformer.config.settings import DataConfig
from keras_transformer.text.cleaning import CODES, Cleaner, CleaningReport, Seen, pair_hashes
from keras_transformer.text.datasets import first_split, open_datasets
from keras_transformer.text.folders import ENDINGS, TRAIN
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import decode_block

BLOCK_PAIRS = 5000  # looked at together; more costs memory, and no time is won


class UnfinishedError(OSError):
    """Disk or memory does not suffice; the message says how to continue."""

    exit_code = ExitCode.STORAGE


class RawText(NamedTuple):
    """Text that has not been prepared.

    Attributes:
        data: `DataConfig`.
        cleaner: `Cleaner`.
        datasets: list of what `open_dataset` returns, in order.
        splits: list of str, the splits that are prepared besides the training split.
    """

    data: DataConfig
    cleaner: Cleaner
    datasets: list
    splits: list

    @property
    def inputs(self):
        """list, which changes when the text does."""
        return [
            dataset.fingerprint(split)
            for dataset in self.datasets
            for split in (TRAIN, *self.splits)
            if split in dataset.splits
        ]

    def blocks(self, num_pairs=BLOCK_PAIRS):
        """Yields (place of the dataset, `Block`) of all training text, in order."""
        for place, dataset in enumerate(self.datasets):
            if TRAIN in dataset.splits:
                yield from ((place, block) for block in dataset.blocks(TRAIN, num_pairs))

    def clean_pairs(self):
        """Yields the (source, target) texts that cleaning by text alone keeps.

        Raises:
            DataError: the text cannot be read, or none of it is kept.
        """
        report = CleaningReport()
        for _, block in self.blocks():
            pairs, _ = decode_block(block, on_bad_utf8=self.data.on_bad_utf8)
            codes = self.cleaner.text_reasons(*pairs)
            report += CleaningReport.of(codes, *pairs)
            yield from itertools.compress(zip(*pairs, strict=True), codes == 0)
        report.check(self.data.dataset)


def open_text(config):
    """Opens the raw text of a configuration; reads none of it.

    Args:
        config: `Config`, of which the sections `data` and `cleaning` count.

    Returns:
        `RawText` with all splits.

    Raises:
        DataError: there is no such dataset, or it has no training or no validation split.
    """
    data = config.data
    refuse_prepared(data.dataset)
    cleaner = Cleaner(config.cleaning, data.source, data.target, max_length=data.max_length)
    datasets = open_datasets(
        data.dataset, data.source, data.target, data_dir=data.data_dir, manual_dir=data.manual_dir
    )
    splits = list(dict.fromkeys(split for dataset in datasets for split in dataset.splits))
    if first_split(datasets, "validation") is None:
        raise DataError(
            f"{data.dataset}: no validation split. Add valid.{data.source} and valid.{data.target} (valid, "
            "validation, val or dev), or a further --dataset that has them"
        )
    if TRAIN not in splits:
        raise DataError(f"{data.dataset}: no training split ({TRAIN})")
    splits.remove(TRAIN)
    return RawText(data, cleaner, datasets, splits)


class Job(NamedTuple):
    """One shard to make: blocks of raw lines, each side of a block as one bytes."""

    name: str
    dataset: int
    blocks: list
    occurred: list  # for each block: bool array, which pairs occurred before, or None

    @property
    def num_bytes(self):
        """Bytes of text."""
        return sum(len(block.source) + len(block.target) for block in self.blocks)


def write_shards(text, folder, tokenizers, num_workers, shard_pairs):
    """Writes the shards that are missing.

    Args:
        text: `RawText`.
        folder: `pathlib.Path` of the prepared corpus, with its `PROGRESS`.
        tokenizers: `Tokenizers`.
        num_workers: processes that make shards; 0 for this one.
        shard_pairs: raw pairs of a shard.

    Returns:
        (list of all shards for the manifest, `CleaningReport` of all text)
    """
    earlier = {path.stem for path in (folder / PROGRESS).glob(f"{TRAIN}-*.json")}
    shards, report = [], CleaningReport()
    total, unit = _amount_of_text(text.datasets)
    with (
        _progress_bar(total, unit) as bar,
        _shard_makers(num_workers, folder, text.data, text.cleaner, tokenizers) as make,
    ):
        for record in make(_jobs(text, shard_pairs)):
            shard, part = record["shard"], CleaningReport.from_dict(record["report"])
            report += part
            if shard["num_pairs"]:
                shards.append(shard)
            amount = record["num_bytes"] if unit == "bytes" else part.num_pairs
            if shard["name"] in earlier:
                bar.initial += amount  # counts for the share, not for the speed
            bar.update(amount)
    return shards, report


class _Lines:
    """Standard error where it is a file: each state of a bar is a line of its own."""

    def write(self, text):
        if text.strip():
            sys.stderr.write(text.strip() + "\n")

    def flush(self):
        sys.stderr.flush()


def _progress_bar(total, unit):
    """Returns a bar of tqdm's; work of less than five seconds shows none."""
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
        total=total,
        unit=" B" if unit == "bytes" else " pairs",
        unit_scale=True,
        desc="preparing",
        delay=5,
        mininterval=0.5 if terminal else 5,
        dynamic_ncols=terminal,
        file=sys.stderr if terminal else _Lines(),
    )


def _amount_of_text(datasets):
    """Returns how much training text there is and in what unit, as far as it is known unread."""
    found = [dataset.fingerprint(TRAIN) for dataset in datasets if TRAIN in dataset.splits]
    if all("num_examples" in split for split in found):
        return sum(split["num_examples"] for split in found), "pairs"
    if all(isinstance(split, list) for split in found):
        files = list(itertools.chain.from_iterable(found))
        if not any(file["path"].endswith((".gz", ".xz", ".bz2", *ENDINGS)) for file in files):
            return sum(file["size"] for file in files), "bytes"
    return None, "pairs"


def _jobs(text, shard_pairs):
    """Yields a `Job` for each shard, in order."""
    seen = Seen() if text.cleaner.config.drop_duplicates else None
    numbers = itertools.count()
    job, num_pairs = None, 0
    for place, block in text.blocks(min(BLOCK_PAIRS, shard_pairs)):
        if job and (place != job.dataset or num_pairs + len(block.source) > shard_pairs):
            yield job
            job = None
        if job is None:
            job, num_pairs = Job(f"{TRAIN}-{next(numbers):05}", place, [], []), 0
        occurred = None
        if seen is not None:
            pairs, _ = decode_block(block, on_bad_utf8=text.data.on_bad_utf8)
            occurred = seen.add(pair_hashes(*pairs))
        # Packed: a list of lines takes three times the memory, and waits here.
        packed = block._replace(source=b"".join(block.source), target=b"".join(block.target))
        job.blocks.append(packed)
        job.occurred.append(occurred)
        num_pairs += len(block.source)
    if job:
        yield job


@contextlib.contextmanager
def _shard_makers(number, *work):
    """Yields a function from jobs to their records, in order."""
    make_shard = functools.partial(_make_shard, *work)
    if not number:
        yield functools.partial(map, make_shard)
        return
    # Not forked: TensorFlow's threads, where a dataset needs it, do not survive that.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(number, context, initializer=_end_with_parent)

    def make(jobs):
        waiting = collections.deque()
        for job in jobs:
            waiting.append(pool.submit(make_shard, job))
            if len(waiting) > number + 1:  # few in flight: each holds its text
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield make
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UnfinishedError(
            "a worker process was killed, perhaps for want of memory. Run the same command again "
            "(it continues), with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent():
    """Ends this worker process with its parent, even one that is killed."""
    parent = multiprocessing.parent_process().sentinel

    def wait():
        multiprocessing.connection.wait([parent])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _make_shard(folder, data, cleaner, tokenizers, job):
    """Cleans, encodes and writes one shard, unless it is there; returns its record."""
    path = folder / PROGRESS / f"{job.name}.json"
    if path.exists():
        return {"num_bytes": job.num_bytes} | json.loads(path.read_bytes())
    report, num_pairs, sides = CleaningReport(), 0, ([], [])
    for packed, occurred in zip(job.blocks, job.occurred, strict=True):
        # Lines end at a newline and nowhere else, as `BytesIO` cuts them.
        block = packed._replace(
            source=io.BytesIO(packed.source).readlines(), target=io.BytesIO(packed.target).readlines()
        )
        pairs, num_replaced = decode_block(block, on_bad_utf8=data.on_bad_utf8)
        codes = cleaner.text_reasons(*pairs)
        kept = np.flatnonzero(codes == 0)
        encoded = [
            encode_flat([texts[i] for i in kept.tolist()], tokenizer)
            for texts, tokenizer in zip(pairs, tokenizers, strict=True)
        ]
        lengths = [np.diff(starts) for _, starts in encoded]
        by_length = cleaner.length_reasons(*lengths)
        if occurred is not None:
            by_length[(by_length == 0) & occurred[kept]] = CODES["duplicate"]
        codes[kept] = by_length
        report += CleaningReport.of(codes, *pairs, num_replaced_utf8=num_replaced)
        num_pairs += int(np.sum(by_length == 0))
        for side, (ids, _), length, tokenizer in zip(sides, encoded, lengths, tokenizers, strict=True):
            side.append(ids[np.repeat(by_length == 0, length)].astype(id_type(tokenizer.vocab_size)))
    shard = {"name": job.name, "dataset": job.dataset, "num_pairs": num_pairs}
    for name, language, parts in zip(("source", "target"), (data.source, data.target), sides, strict=True):
        ids = np.concatenate(parts)
        shard[name] = {"num_tokens": len(ids)}
        if len(ids):
            shard[name] |= write_array(folder, f"{job.name}.{language}.npy", ids)
    record = {"shard": shard, "report": report.to_dict(), "num_bytes": job.num_bytes}
    write_json(path, record)
    return record


def id_type(vocab_size):
    """Returns the narrowest type of the ids of a vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.int32
