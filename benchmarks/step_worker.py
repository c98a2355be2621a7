"""Training steps in a process of their own, made when another process asks; see `StepWorker`."""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

PRODUCT = 2048  # rows and columns of the matrices whose product says what the machine can do


class StepWorker:
    """A process that makes training steps of one model with one batch, or products of matrices.

    Args:
        settings: list of `"section.field=value"`, as after `--set` of `train_wmt.py`, on top of the
            paper's base model; both vocabularies must be given. `None` for products of matrices
            instead, of float32 and shape `(PRODUCT, PRODUCT)`.
        rows: sentences of the batch.
        length: tokens of each, in source and target; random ones, none of them padding.
        threads: of TensorFlow.

    It starts at once and gets ready by itself; `wait` says when it is.
    """

    def __init__(self, settings=None, *, rows=0, length=0, threads):
        task = {"settings": settings, "rows": rows, "length": length, "threads": threads}
        env = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1])}
        env["OMP_NUM_THREADS"] = str(threads)
        self._task = json.dumps(task)
        self._messages = tempfile.TemporaryFile("w+")  # noqa: SIM115  TensorFlow says much when all is well
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            env=env,
        )

    def wait(self):
        """Waits until two steps, of which the first traces, have been made.

        Returns:
            dict: `"built_mib"`, the peak of resident memory before the first step.
        """
        return self._answer()

    def measure(self, seconds, *, least=2):
        """Makes steps for so many seconds, after one that is not counted.

        Args:
            seconds: float, about.
            least: steps that are made in any case.

        Returns:
            dict: `"times"`, list of float, seconds of each step; `"peak_mib"`, the peak of the
            process's resident memory so far.
        """
        self._process.stdin.write(f"{json.dumps([seconds, least])}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self):
        """Lets the process end, and waits for it."""
        self._process.stdin.close()
        self._process.wait()
        self._messages.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            self._messages.seek(0)
            messages = "".join(self._messages.readlines()[-20:])
            raise RuntimeError(f"{self._task} ended with exit code {self._process.wait()}\n{messages}")
        return json.loads(line)


def peak_mib():
    """The most memory that this process has had, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024))


def training_step(settings, rows, length):
    """Returns a function that makes a training step."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_transformer.config.settings import Config, override
    from keras_transformer.model.transformer import Transformer
    from keras_transformer.training.fit import compile_model

    config = override(Config(), settings)
    keras.utils.set_random_seed(1)
    model = Transformer(config.model, dtype=config.training.precision)
    how = {"xla": config.devices.xla, "recompute": config.devices.recompute}
    compile_model(model, config.training, **how, towers=config.devices.cpu_towers or 1)
    rng = np.random.default_rng(1)
    vocabularies = config.model.source_vocab_size, *[config.model.target_vocab_size] * 2
    first = model.special.unk + 1
    source, target, labels = (rng.integers(first, size, (rows, length), "int32") for size in vocabularies)
    batches = iter(tf.data.Dataset.from_tensors(((source, target), labels)).cache().repeat())
    model.make_train_function()

    def step():
        logs = model.train_function(batches)
        return float(next(iter(logs.values())))  # waits for it

    return step


def product():
    """Returns a function that multiplies two matrices."""
    import tensorflow as tf

    left, right = (tf.random.stateless_normal((PRODUCT, PRODUCT), seed=(1, seed)) for seed in range(2))
    multiply = tf.function(lambda: tf.reduce_sum(tf.matmul(left, right)), autograph=False)
    return lambda: float(multiply())


def main(task):
    """Answers every line of standard input, what `measure` was given, with what it returns."""
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(task["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(task["threads"])
    if task["settings"] is None:
        step = product()
    else:
        step = training_step(task["settings"], task["rows"], task["length"])
    built = peak_mib()
    step()
    step()
    print(json.dumps({"built_mib": built}), flush=True)
    for line in sys.stdin:
        seconds, least = json.loads(line)
        step()  # others have had the caches meanwhile
        end, times = time.perf_counter() + seconds, []
        while time.perf_counter() < end or len(times) < least:
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        print(json.dumps({"times": times, "peak_mib": peak_mib()}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
