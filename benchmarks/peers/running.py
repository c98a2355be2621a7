"""One process of one peer: started, watched, its records read."""

import json
import os
import pathlib
import platform
import resource
import signal
import subprocess
import time


def child_environment(threads, *, onednn=True):
    """Variables of a peer's process.

    Args:
        threads: int, of every library.
        onednn: whether TensorFlow uses oneDNN, which it does by itself on some processors only. All
            peers have it: they are faster with it.

    Returns:
        dict.
    """
    names = ("OMP", "MKL", "OPENBLAS", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
    variables = {f"{name}_THREADS" if "TF" in name else f"{name}_NUM_THREADS": str(threads) for name in names}
    return {
        **os.environ,
        **variables,
        "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def launch(python, program, arguments, *, environment, limit):
    """Runs one process to its end.

    Args:
        python: str, path of its Python.
        program: `pathlib.Path`, a file of a `benchmarks/peers/`; the package is that of its checkout.
        arguments: list of str.
        environment: dict of variables.
        limit: float, seconds until it is killed.

    Returns:
        list of dict, the records that it printed; each has the load by others beside it: `others_cores`,
        cores that other processes took, and `stolen_cores`, those that the host took from this machine.

    Raises:
        ValueError: the process failed, with the last line that it left.
    """
    begin, (busy, stolen), own = time.time(), _processor_seconds(), _child_seconds()
    benchmarks = program.parents[1]
    command = [python, "-m", f"peers.{program.stem}", *arguments]
    environment = {**environment, "PYTHONPATH": str(benchmarks.parent)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        process = subprocess.Popen(command, cwd=benchmarks, env=environment, start_new_session=True, **pipes)
    except OSError as error:
        raise ValueError(f"{python} cannot be started: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"over the limit of {limit:g} s") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
            process.communicate()
    wall, (busy_after, stolen_after) = time.time() - begin, _processor_seconds()
    if process.returncode:
        lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        raise ValueError(lines[-1][:200])
    others = max(0.0, busy_after - busy - (_child_seconds() - own)) / wall
    load = {"others_cores": round(others, 2), "stolen_cores": round((stolen_after - stolen) / wall, 2)}
    return [{**json.loads(line), **load} for line in output.splitlines() if line.startswith("{")]


def machine():
    """Returns dict: `processor`, `cores` and `system` of this machine."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return {"processor": processor, "cores": os.cpu_count(), "system": platform.platform()}


def _processor_seconds():
    """Seconds that all processors were busy, and stolen by the host, since the machine started."""
    try:
        words = pathlib.Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0, 0.0
    seconds = [int(word) / os.sysconf("SC_CLK_TCK") for word in words]
    return sum(seconds[:3]) + sum(seconds[5:7]), seconds[7]


def _child_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
