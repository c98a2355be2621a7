"""What a peer's process does beside its own work: reads its arguments, takes the time, prints JSON."""

import argparse
import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time
from typing import NamedTuple

from peers.work import (
    BATCHES,
    GPU_BATCHES,
    OUTPUT_LENGTH,
    SIZES,
    Size,
    decoding_flops,
    sentences,
    training_flops,
)
from peers.work import variant_words as words_of

THREADS = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))
ON_GPU = os.environ.get("PEER_DEVICE") == "gpu"


class Job(NamedTuple):
    """What one process is to do.

    Attributes:
        task: `"train"` or `"decode"`.
        peer: str, with its variant: `torch:compile`.
        size_name: str, a key of `SIZES`.
        size: `Size`.
        words: frozenset of str, the words of the variant.
        seconds: float, about so long it is timed.
    """

    task: str
    peer: str
    size_name: str
    size: Size
    words: frozenset
    seconds: float

    @property
    def precision(self):
        """Of the products: `"float32"`, `"bfloat16"` or `"int8"`."""
        return next((name for name in ("bfloat16", "int8") if name in self.words), "float32")


def parse_job(known=(), argv=None):
    """Parses the command line of `<task>_<peer>.py`.

    Args:
        known: tuple of str, words that may stand in `--variant`, joined by `+`.
        argv: list of str; `None` for the process' own.

    Returns:
        `Job`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--variant", default="")
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args(argv)
    try:
        words = words_of(args.variant, known)
    except ValueError as error:
        parser.error(str(error))
    task, _, peer = pathlib.Path(sys.argv[0]).stem.partition("_")
    peer += f":{args.variant}" if args.variant else ""
    return Job(task, peer, args.size, SIZES[args.size], words, args.seconds)


def emit(job, *, gpu_memory=None, **record):
    """Prints one record of a `Job` as a line of JSON.

    Args:
        job: `Job`.
        gpu_memory: function without arguments, the peak of the GPU's memory in bytes; `None` on a CPU, whose
            peak is that of the process.
        **record: what else is printed.
    """
    unit = 1024 if sys.platform == "linux" else 1
    peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if ON_GPU and gpu_memory is not None:
        peak_memory = gpu_memory()
    about = {"task": job.task, "peer": job.peer, "size": job.size_name, "precision": job.precision}
    print(json.dumps({**about, **record, "peak_memory_mb": round(peak_memory / 2**20)}), flush=True)


def versions_of(libraries):
    """Returns dict: name of a distribution -> its version."""
    return {name: importlib.metadata.version(name) for name in libraries}


def time_training(job, run, *, parameters, libraries, gpu_memory=None):
    """Times training steps and prints a record, its `speed` in target tokens a second.

    Two steps warm up and one estimates how many are to be timed. Those are one call of `run`: a `fit`
    takes a twentieth of a second to begin, which training does once for hundreds of steps.

    Args:
        job: `Job`.
        run: function of a number of steps, makes so many and returns the last loss.
        parameters: function without arguments, the number of trainable parameters.
        libraries: list of str, distributions whose versions are printed.
        gpu_memory: see `emit`.
    """
    begin = time.perf_counter()
    run(2)
    warm_up = time.perf_counter() - begin
    begin = time.perf_counter()
    run(1)
    steps = max(1, round(job.seconds / (time.perf_counter() - begin)))
    begin = time.perf_counter()
    loss = float(run(steps))
    step = (time.perf_counter() - begin) / steps
    emit(
        job,
        speed=job.size.batch * job.size.length / step,
        gflops=training_flops(job.size) / step / 1e9,
        steps=steps,
        warm_up_seconds=round(warm_up, 1),
        loss=round(loss, 3),
        parameters=int(parameters()),
        versions=versions_of(libraries),
        gpu_memory=gpu_memory,
    )


def time_decoding(job, translate, *, parameters, libraries, gpu_memory=None):
    """Times searches and prints a record for each of `BATCHES`, its `speed` in sentences a second.

    One search warms up; each that is timed has other sentences.

    Args:
        job: `Job`.
        translate: function of int32, shape `(batch, length)`; returns a list of lists of ids.
        parameters: function without arguments, the number of trainable parameters.
        libraries: list of str, distributions whose versions are printed.
        gpu_memory: see `emit`.

    Raises:
        ValueError: a translation has not the length that all must have.
    """
    batches = GPU_BATCHES if ON_GPU else BATCHES
    for batch in batches:
        sources = sentences(job.size, 8 * batch)
        lengths = {len(row) for row in translate(sources[:batch])}
        if lengths != {OUTPUT_LENGTH}:
            raise ValueError(f"Translations must have {OUTPUT_LENGTH} tokens. Received: {sorted(lengths)}")
        calls, elapsed = 0, 0.0
        while calls < 3 or elapsed < job.seconds / len(batches):
            first = calls % 8 * batch
            begin = time.perf_counter()
            translate(sources[first : first + batch])
            elapsed += time.perf_counter() - begin
            calls += 1
        emit(
            job,
            batch=batch,
            speed=batch * calls / elapsed,
            gflops=decoding_flops(job.size) * batch * calls / elapsed / 1e9,
            calls=calls,
            parameters=int(parameters()),
            versions=versions_of(libraries),
            gpu_memory=gpu_memory,
        )
