"""Chooses devices and the `tf.distribute` strategy of a run, and connects its workers."""

import contextlib
import functools
import json
import logging
import os
import re
import socket
import time
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.batches.dataset import DeviceShare
from keras_transformer.config.cores import usable_cores
from keras_transformer.config.programs import WorkerLostError

logger = logging.getLogger(__name__)

_CROSS_DEVICE_OPS = {
    "auto": None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "reduction": tf.distribute.ReductionToOneDevice,
}
_COLLECTIVES = {"auto": "AUTO", "nccl": "NCCL", "ring": "RING"}
MOST_TOWERS = 4  # chosen by itself; more make the products small
_GO = b"go\n"
_RETRY_SECONDS = 0.5


class Devices(NamedTuple):
    """The devices of a run and the place of this process among its workers.

    Attributes:
        strategy: `tf.distribute.Strategy`; TensorFlow's default strategy for one device.
        num_workers: number of processes that train together.
        worker: index of this process; worker 0 is the chief, which writes the run folder.
        towers: number of parts of each batch that this process computes side by side, see
            `DeviceConfig.cpu_towers`; also the number of batches that it translates side by side.
    """

    strategy: tf.distribute.Strategy
    num_workers: int = 1
    worker: int = 0
    towers: int = 1

    @property
    def is_chief(self):
        """Whether this process writes the run folder."""
        return self.worker == 0

    @property
    def num_replicas(self):
        """Number of devices of all workers together."""
        return self.strategy.num_replicas_in_sync

    def distribute(self, device_tokens, make):
        """Returns the dataset for `model.fit`, distributed if there are several devices.

        Args:
            device_tokens: as in `DeviceShare`.
            make: function from the `DeviceShare` of this worker to a `tf.data.Dataset`.
        """
        share = self.share(device_tokens)
        if self.num_replicas == 1:
            return make(share)
        return self.strategy.distribute_datasets_from_function(lambda context: make(share))

    def share(self, device_tokens):
        """Returns the `DeviceShare` of this worker."""
        return DeviceShare(
            num_workers=self.num_workers,
            worker=self.worker,
            num_replicas=self.num_replicas // self.num_workers,
            device_tokens=device_tokens,
        )

    def gather(self, value):
        """Gathers an int of each worker into a list, in the order of workers. All workers must call it."""
        if self.num_workers == 1:
            return [value]

        try:
            values = _all_gather_function(self.strategy)(tf.constant(value, tf.int64)).numpy().tolist()
        except tf.errors.OpError as error:
            raise worker_lost_error(error) from error
        replicas = len(values) // self.num_workers
        return values[::replicas]

    def describe(self):
        """Returns a description such as `"2 GPUs"`."""
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        if self.num_replicas == 1:
            return f"one {kind}, {self.towers} towers" if self.towers > 1 else f"one {kind}"
        text = f"{self.num_replicas} {kind}s"
        return f"{text} of {self.num_workers} workers" if self.num_workers > 1 else text


def choose_devices(config, *, precision="float32"):
    """Chooses the devices of a run; for several workers, waits for all of them.

    Args:
        config: `DeviceConfig`.
        precision: as in `TrainingConfig`.

    Returns:
        `Devices`.

    Raises:
        ValueError: requested GPUs are missing, TF_CONFIG is malformed, or the settings cannot be
            combined.
    """
    workers, worker = _read_tf_config()
    gpus = tf.config.list_physical_devices("GPU")
    strategy = config.strategy
    if strategy == "auto":
        several = len(gpus[: config.replicas or None]) > 1 or config.replicas > 1
        strategy = "multiworker" if len(workers) > 1 else "mirrored" if several else "none"
    if strategy == "multiworker" and not workers:
        raise ValueError(
            "strategy=multiworker needs the environment variable TF_CONFIG with the addresses of all workers "
            "and the index of this one. See docs/distributed.md, or use strategy=mirrored"
        )
    if gpus and config.cpu_towers > 1:
        raise ValueError(
            f"devices.cpu_towers={config.cpu_towers} is for training on a CPU, but TensorFlow sees "
            f"{len(gpus)} GPUs. Remove it, or hide them with CUDA_VISIBLE_DEVICES=-1"
        )
    names = _device_names(
        config, gpus, needs_gpu=config.replicas > 0 or config.strategy in ("mirrored", "multiworker")
    )
    if strategy == "none":
        return Devices(tf.distribute.get_strategy(), towers=1 if gpus else divide_cores(config))
    num_replicas = len(names) * (len(workers) if strategy == "multiworker" else 1)
    if precision == "mixed_float16":
        raise ValueError(
            "precision=mixed_float16 trains on one device only: Keras checks only the first replica for "
            f"overflow. Received: strategy {strategy} with {num_replicas} replica{'s' * (num_replicas > 1)}. "
            "Use mixed_bfloat16 or devices.strategy=none"
        )
    if strategy == "mirrored":
        _check_choice(config.cross_device_ops, _CROSS_DEVICE_OPS, "on one machine")
        return Devices(mirrored(names, config.cross_device_ops), towers=max(1, config.cpu_towers))
    implementation = _check_choice(config.cross_device_ops, _COLLECTIVES, "between machines")
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation[implementation]
    )
    wait_for_workers(workers, worker)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return Devices(strategy, len(workers), worker, max(1, config.cpu_towers))


def divide_cores(config):
    """Returns the number of towers on a CPU, and gives each operation of TensorFlow its share of the cores.

    Two cores that each compute a product of their own are faster than two that share one. TensorFlow that has
    started already keeps its number of threads.

    Args:
        config: `DeviceConfig`. With XLA, whose shapes are fixed, there is one tower.
    """
    cores = usable_cores()
    towers = config.cpu_towers or (1 if config.xla else min(cores, MOST_TOWERS))
    if towers > 1:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // towers))
    return towers


def mirrored(names, cross_device_ops="auto"):
    """Returns the `MirroredStrategy` of some devices; the same object each time within a process.

    Every strategy numbers its collective operations from the same start. With two strategies, TensorFlow
    confuses operations of the same number, which then fail or hang if their shapes differ.

    Args:
        names: list of str such as `["GPU:0", "GPU:1"]`.
        cross_device_ops: as in `DeviceConfig`.
    """
    return _mirrored(tuple(names), cross_device_ops)


@functools.cache
def _mirrored(names, cross_device_ops):
    ops = _CROSS_DEVICE_OPS[cross_device_ops]
    return tf.distribute.MirroredStrategy(names, cross_device_ops=ops and ops())


def is_worker_lost(error):
    """Whether a TensorFlow error means that another worker is unreachable or has failed."""
    kinds = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
    )
    return isinstance(error, kinds) or "Collective ops is aborted" in str(error)


def worker_lost_error(error):
    """Returns the `WorkerLostError` for an error of TensorFlow's collective operations."""
    text = str(error)
    match = re.search(r"remote target /job:worker/replica:\d+/task:(\d+)", text)
    cause = f"worker {match[1]}" if match else type(error).__name__
    return WorkerLostError(
        "another worker ended or cannot be reached; saved state is not lost. Check the other "
        f"workers' output, then restart all workers with the same command ({cause})"
    )


@functools.cache
def _all_gather_function(strategy):
    """Returns a `tf.function` that gathers a number from each replica; traced once per strategy."""

    @tf.function(autograph=False)
    def gathered(value):
        def in_replica():
            return tf.distribute.get_replica_context().all_gather(value[None], axis=0)

        return strategy.experimental_local_results(strategy.run(in_replica))[0]

    return gathered


def _read_tf_config():
    """Returns the worker addresses in TF_CONFIG and the index of this worker; `([], 0)` if it is not set."""
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return [], 0
    try:
        values = json.loads(text)
        cluster, task = values["cluster"], values["task"]
        kind, number = task["type"], int(task["index"])
        workers = cluster["worker"]
        if not isinstance(workers, list) or not workers:
            raise TypeError("worker must be a list of addresses")
        others = sorted(cluster.keys() - {"worker"})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text[:80]!r} ({error!r})'
        ) from error
    if others:
        raise ValueError(
            f"TF_CONFIG names {', '.join(others)}: ParameterServerStrategy has no code path in Keras 3 "
            "(keras#20585). Make all tasks `worker`; worker 0 is the chief"
        )
    if kind != "worker" or not 0 <= number < len(workers):
        raise ValueError(
            f"TF_CONFIG: the task must be a worker from 0 to {len(workers) - 1}. Received: {kind} {number}"
        )
    return workers, number


def _device_names(config, gpus, needs_gpu):
    """Returns the names of this machine's devices, one for each replica."""
    number = config.replicas or len(gpus) or 1
    if gpus:
        if number > len(gpus):
            raise ValueError(
                f"devices.replicas={number}, but TensorFlow sees {len(gpus)} GPUs. Lower it, or check "
                "CUDA_VISIBLE_DEVICES"
            )
        if number < len(gpus):
            tf.config.set_visible_devices(gpus[:number], "GPU")
        return [f"GPU:{i}" for i in range(number)]
    if needs_gpu and not config.allow_cpu:
        raise ValueError(
            "GPUs are required but TensorFlow sees none: install the extra `gpu`, and check nvidia-smi "
            "and CUDA_VISIBLE_DEVICES; or train on the CPU with --allow-cpu"
        )
    return _logical_cpus(number)


def _logical_cpus(number):
    """Returns the names of n logical CPU devices; creates them if TensorFlow has not started yet."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    existing = tf.config.get_logical_device_configuration(cpu) or [None]
    if len(existing) < number:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
        except RuntimeError as error:
            raise ValueError(
                f"devices.replicas={number}, but TensorFlow has started with {len(existing)} logical CPU "
                "devices in this process. Start a new process"
            ) from error
    return [f"CPU:{i}" for i in range(number)]


def _check_choice(name, choices, where):
    if name not in choices:
        raise ValueError(
            f"devices.cross_device_ops must be one of {list(choices)} {where}. Received: {name!r}"
        )
    return choices[name]


def wait_for_workers(workers, number):
    """Waits until all workers have started; Ctrl-C and SIGTERM interrupt the wait.

    TensorFlow itself waits for missing workers in C++ code, silently, and ignores SIGTERM there. So the
    workers meet before TensorFlow connects them: the chief listens at its own address until every other
    worker has called, and then answers all of them.

    Args:
        workers: list of `"HOST:PORT"`, the chief's first.
        number: int, index of this process in the list.

    Raises:
        ValueError: an address is malformed or in use, or the workers have different lists.
    """
    addresses = [_address(worker) for worker in workers]
    if len(workers) < 2:
        return
    others = workers[:1] if number else workers[1:]
    logger.warning(f"worker {number}: waiting for {', '.join(others)}")
    if number == 0:
        _wait_as_chief(workers, addresses[0][1])
    else:
        _wait_for_chief(addresses[0], json.dumps([number, list(workers)]).encode() + b"\n")


def _wait_as_chief(workers, port):
    """The chief: accepts a connection from every other worker, then answers all of them."""
    callers = {}
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server(("", port), backlog=len(workers)))
        except OSError as error:
            raise ValueError(
                f"TF_CONFIG: port {port} of worker 0 cannot be used: {error.strerror}"
            ) from error
        while len(callers) < len(workers) - 1:
            caller = stack.enter_context(listener.accept()[0])
            caller.settimeout(10)
            try:
                with caller.makefile("rb") as stream:
                    number, addresses = json.loads(stream.readline(1_000_000))
            except (OSError, TypeError, ValueError):
                continue  # not a worker of this run
            if number not in range(1, len(workers)):
                continue
            if addresses != list(workers):
                raise ValueError(
                    f"TF_CONFIG: worker {number} and worker 0 have different addresses. Give all the same"
                )
            callers[number] = caller
        listener.close()
        for caller in callers.values():
            caller.sendall(_GO)
        for caller in callers.values():
            # Let the others close first: that side keeps its port blocked, and TensorFlow needs this one.
            while caller.recv(64):
                pass


def _wait_for_chief(address, hello):
    """Any other worker: connects to the chief until it answers."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=10) as connection:
            connection.sendall(hello)
            connection.settimeout(None)
            if connection.recv(len(_GO)) == _GO:
                return
        time.sleep(_RETRY_SECONDS)  # the chief has not started yet, or has restarted


def _address(worker):
    host, colon, port = str(worker).rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"TF_CONFIG: a worker's address must be HOST:PORT. Received: {worker!r}")
    return host.strip("[]"), int(port)
