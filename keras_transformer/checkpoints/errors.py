"""Why a training run ended before its end, each with the exit code of its program.

Refused input is a `ValueError` and has exit code 2.
"""


class TrainingError(Exception):
    """A run that ended early; the message says what to do. The state saved last is whole."""

    exit_code = 1


class StorageError(TrainingError):
    """The disk is full or cannot be written."""

    exit_code = 3


class NotFiniteError(TrainingError):
    """Loss, gradient or weights are not finite."""

    exit_code = 4


class OutOfMemoryError(TrainingError):
    """A batch does not fit into the memory of a device."""

    exit_code = 5


class WorkerLostError(TrainingError):
    """Another worker of the cluster ended or cannot be reached."""

    exit_code = 6


class StoppedError(TrainingError):
    """A signal asked the run to end; its state is saved.

    Args:
        message: what happened and how to go on.
        exit_code: 130 for SIGINT, 143 for SIGTERM and SIGUSR1.
    """

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code
