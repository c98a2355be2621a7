"""SavedModels as programs without this package see them."""

import os
import subprocess
import sys

from tensorflow.core.protobuf import saved_model_pb2

PYTHON = {"EagerPyFunc", "PyFunc", "PyFuncStateless"}


def fresh_process(*arguments, path=()):
    """Standard output of Python in a process that has not this package on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, cwd="/", capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def operations_in(path):
    """Names of all operations of a SavedModel, functions included."""
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    functions = {function.signature.name for function in graph.library.function}
    return {node.op for node in nodes} - functions
