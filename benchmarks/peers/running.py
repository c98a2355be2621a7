"""One process of one peer: started, watched, its records read."""

import json
import os
import pathlib
import platform
import resource
import shutil
import signal
import subprocess
import time

_CPUINFO = pathlib.Path("/proc/cpuinfo")
# What the programs of this package set themselves: freed memory is kept. It speeds up every library.
TUNED_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(2**26),
}
# MKL has AVX-512 for Intel's processors only, unless these say that another is one.
UNLOCKED_MKL = """
int mkl_serv_intel_cpu(void) { return 1; }
int mkl_serv_intel_cpu_true(void) { return 1; }
"""


def child_environment(threads, *, onednn=True, malloc="tuned", preload=None, device="cpu"):
    """Variables of a peer's process.

    Args:
        threads: int, of every library.
        onednn: whether TensorFlow uses oneDNN, which it does by itself on some processors only. All
            peers have it: they are faster with it.
        malloc: `"tuned"` keeps freed memory, `"default"` is the C library's own way.
        preload: path of a library that is loaded first, as of `unlocked_mkl`; or `None`.
        device: `"cpu"` hides all GPUs; `"gpu"` shows them.

    Returns:
        dict.
    """
    names = ("OMP", "MKL", "OPENBLAS", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
    variables = {f"{name}_THREADS" if "TF" in name else f"{name}_NUM_THREADS": str(threads) for name in names}
    variables |= TUNED_MALLOC if malloc == "tuned" else {}
    if preload:
        variables["LD_PRELOAD"] = str(preload)
    others = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"} if device == "cpu" else {}
    return {
        **others,
        **variables,
        **hidden,
        "PEER_DEVICE": device,
        "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def unlocked_mkl(folder, *, cpuinfo=_CPUINFO):
    """Makes the library that lets MKL use AVX-512 on AMD's processors: PyTorch's products need half the time.

    Args:
        folder: `pathlib.Path`, where it is made.
        cpuinfo: `pathlib.Path`, what Linux says of the processors.

    Returns:
        `pathlib.Path`; `None` for other processors, and without a C compiler.
    """
    try:
        is_amd = "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return None
    compiler, library = shutil.which("cc"), folder / "unlocked_mkl.so"
    if not is_amd or not compiler:
        return None
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    done = subprocess.run(command, input=UNLOCKED_MKL, text=True, capture_output=True)
    return None if done.returncode else library


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


def gpu_names():
    """Returns list of str, the names of the GPUs that NVIDIA's driver knows."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
        )
    except OSError:
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def machine():
    """Returns dict: `processor`, `cores` and `system` of this machine."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
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
