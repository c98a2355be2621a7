"""How fast this machine multiplies matrices, by every library that this Python has; prints a record."""

import functools
import importlib.util
import json
import os
import time

import numpy as np

from peers.timing import ON_GPU, THREADS

WIDTH = 8192 if ON_GPU else 2048
REPEATS, MAX_SECONDS = 8, 5  # PyTorch's bfloat16 takes 13 s on a CPU without AVX-512


def gflops(multiply):
    """GFLOP/s of the fastest of some calls, each a product of two square matrices."""
    multiply()
    times = []
    while len(times) < REPEATS and sum(times) < MAX_SECONDS:
        begin = time.perf_counter()
        multiply()
        times.append(time.perf_counter() - begin)
    return 2 * WIDTH**3 / min(times) / 1e9


def on_gpu(matrix):
    """Returns dict: library and type -> GFLOP/s; products of float32 are computed in TF32."""
    found = {}
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_float32_matmul_precision("high")

        def multiply(tensor):
            torch.matmul(tensor, tensor)
            torch.cuda.synchronize()

        for kind in (torch.float32, torch.bfloat16):
            tensor = torch.from_numpy(matrix).to("cuda", kind)
            name = str(kind).removeprefix("torch.")
            found[f"PyTorch {name}"] = gflops(functools.partial(multiply, tensor))
    if importlib.util.find_spec("jax"):
        import jax
        from jax import numpy as jnp

        product = jax.jit(jnp.matmul)
        for name in ("float32", "bfloat16"):
            array = jnp.asarray(matrix, name)
            found[f"JAX {name}"] = gflops(lambda array=array: product(array, array).block_until_ready())
    return found


def main():
    """Measures and prints."""
    matrix = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), dtype="float32")
    if ON_GPU:
        print(json.dumps({"task": "peak", "gflops": on_gpu(matrix)}), flush=True)
        return
    found = {"NumPy float32": gflops(lambda: matrix @ matrix)}
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(THREADS)
        for kind in (torch.float32, torch.bfloat16):
            tensor = torch.from_numpy(matrix).to(kind)
            name = str(kind).removeprefix("torch.")
            found[f"PyTorch {name}"] = gflops(lambda tensor=tensor: tensor @ tensor)
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        without = " without oneDNN" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" else ""
        for kind in (tf.float32, tf.bfloat16):
            tensor = tf.cast(matrix, kind)
            product = tf.function(lambda tensor=tensor: tf.matmul(tensor, tensor)[0, 0])
            found[f"TensorFlow {kind.name}{without}"] = gflops(lambda product=product: float(product()))
    print(json.dumps({"task": "peak", "gflops": found}), flush=True)


if __name__ == "__main__":
    main()
