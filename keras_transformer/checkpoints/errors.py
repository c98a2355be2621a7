"""Why a training run ended before its end, each with the exit code of its program.

Refused input is a `ValueError`.
"""

from keras_transformer.config.programs import ExitCode


class TrainingError(Exception):
    """A run that ended early; the message says what to do. The state saved last is whole."""

    exit_code = ExitCode.FAULT


class StorageError(TrainingError):
    """The disk is full or cannot be written."""

    exit_code = ExitCode.STORAGE


class NotFiniteError(TrainingError):
    """Loss, gradient or weights are not finite."""

    exit_code = ExitCode.NOT_FINITE


class OutOfMemoryError(TrainingError):
    """A batch does not fit into the memory of a device."""

    exit_code = ExitCode.OUT_OF_MEMORY


class WorkerLostError(TrainingError):
    """Another worker of the cluster ended or cannot be reached."""

    exit_code = ExitCode.WORKER_LOST


class StoppedError(TrainingError):
    """A signal asked the run to end; its state is saved.

    Args:
        message: what happened and how to go on.
        exit_code: `ExitCode`, `INTERRUPTED` or `TERMINATED`.
    """

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code
