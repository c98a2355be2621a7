"""One shard of a prepared corpus, made by one of several processes.

A shard is a fixed number of raw pairs, so its bytes depend on nothing but the text and
the settings.
"""

import concurrent.futures
import contextlib
import io
import multiprocessing
import multiprocessing.connection
import os
import threading
from typing import NamedTuple

import numpy as np

from keras_transformer.batches.ids import encode_flat
from keras_transformer.batches.prepared import array_bytes, write_file
from keras_transformer.config.programs import ExitCode
from keras_transformer.text.cleaning import CODES, CleaningReport
from keras_transformer.text.parallel import decode_block


class UnfinishedError(OSError):
    """Disk or memory does not suffice; the message says how to continue."""

    exit_code = ExitCode.STORAGE


class Job(NamedTuple):
    """One shard to make: blocks of raw lines, each side of a block as one bytes."""

    name: str
    dataset: int
    blocks: list
    occurred: list  # for each block: bool array, which pairs occurred before, or None

    @property
    def size(self):
        """Bytes of text."""
        return sum(len(block.source) + len(block.target) for block in self.blocks)


@contextlib.contextmanager
def worker_processes(number, arguments):
    """A pool of processes that end with this one, even when it is killed."""
    # Not forked: TensorFlow's threads, where a dataset needs it, do not survive that.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
        number, mp_context=context, initializer=_begin_work, initargs=arguments
    )
    try:
        yield pool
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UnfinishedError(
            "a worker process was killed, perhaps for want of memory. Run the same command again "
            "(it continues), with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_work = None


def _begin_work(*arguments):
    """Keeps what every shard needs; ends with the parent process."""
    global _work
    _work = arguments
    parent = multiprocessing.parent_process().sentinel

    def end_with_parent():
        multiprocessing.connection.wait([parent])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def make_shard(job):
    """Cleans, encodes and writes one shard; returns its record for the manifest."""
    folder, data, cleaner, tokenizers = _work
    report, num_pairs, sides = CleaningReport(), 0, ([], [])
    for packed, occurred in zip(job.blocks, job.occurred, strict=True):
        # Lines end at a newline and nowhere else, as `BytesIO` cuts them.
        block = packed._replace(
            source=io.BytesIO(packed.source).readlines(), target=io.BytesIO(packed.target).readlines()
        )
        pairs, num_replaced = decode_block(block, on_bad_utf8=data.on_bad_utf8)
        codes, encoded = _clean_and_encode(pairs, occurred, cleaner, tokenizers)
        report += CleaningReport.of(codes, *pairs, num_replaced_utf8=num_replaced)
        num_pairs += int(np.sum(codes == 0))
        for side, ids in zip(sides, encoded, strict=True):
            side.append(ids)
    shard = {"name": job.name, "dataset": job.dataset, "num_pairs": num_pairs}
    for name, language, parts in zip(("source", "target"), (data.source, data.target), sides, strict=True):
        ids = np.concatenate(parts)
        shard[name] = {"num_tokens": len(ids)}
        if len(ids):
            shard[name] |= write_file(folder, f"{job.name}.{language}.npy", array_bytes(ids))
    return {"shard": shard, "report": report.to_dict()}


def _clean_and_encode(pairs, occurred, cleaner, tokenizers):
    """Returns a code for each pair, and the ids of both sides of the pairs that are kept."""
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
    keep = by_length == 0
    return codes, [
        ids[np.repeat(keep, length)].astype(id_type(tokenizer.vocab_size))
        for (ids, _), length, tokenizer in zip(encoded, lengths, tokenizers, strict=True)
    ]


def id_type(vocab_size):
    """Returns the narrowest type of the ids of a vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.int32
