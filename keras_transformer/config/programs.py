"""Commands of the programs, their exit codes, and the errors that map to exit codes."""

import enum
import pathlib
import shlex
import sys

CONSOLE_SCRIPT = "keras-transformer"
# Sub-command of the console script -> script in `pipelines/` of a clone that runs the same program.
SCRIPTS = {
    "train": "train_wmt.py",
    "prepare": "prepare_wmt.py",
    "back-translate": "back_translate.py",
    "distil": "distil.py",
    "translate": "translate.py",
    "parse": "parse.py",
    "evaluate": "evaluate_wmt.py",
    "average": "average_checkpoints.py",
    "export": "export_model.py",
    "serve": "serve.py",
    "score": "score.py",
    "inspect": "inspect_vocabulary.py",
    "translate-ctranslate2": "translate_ctranslate2.py",
}


class ExitCode(enum.IntEnum):
    """Exit codes of all programs.

    | code | name | meaning |
    |---|---|---|
    | 0 | `DONE` | done |
    | 1 | `FAULT` | a bug: a traceback was printed |
    | 2 | `REFUSED` | bad arguments, input or settings, or no permission to begin: one line names the remedy |
    | 3 | `STORAGE` | the disk is full, or no longer writable; the same command resumes or repeats the work |
    | 4 | `NOT_FINITE` | training: loss, gradient or weights are not finite |
    | 5 | `OUT_OF_MEMORY` | training: a batch does not fit into the memory of a device |
    | 6 | `WORKER_LOST` | training: another worker of the cluster ended or cannot be reached |
    | 130 | `INTERRUPTED` | Ctrl-C (SIGINT); training, parts and synthetic corpora keep their state |
    | 141 | `READER_LEFT` | the output pipe was closed (`| head -1`): 128 + SIGPIPE |
    | 143 | `TERMINATED` | SIGTERM or, in training, SIGUSR1; training has saved its state |
    """

    DONE = 0
    FAULT = 1
    REFUSED = 2
    STORAGE = 3
    NOT_FINITE = 4
    OUT_OF_MEMORY = 5
    WORKER_LOST = 6
    INTERRUPTED = 130
    READER_LEFT = 141
    TERMINATED = 143


class TrainingError(Exception):
    """Training ended early. The message has a remedy; the last checkpoint is complete."""

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
    """A signal ended training; a checkpoint was saved.

    Args:
        message: str, the cause and how to resume.
        exit_code: `ExitCode`, `INTERRUPTED` or `TERMINATED`.
    """

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code


def command(program):
    """Returns the shell command of a program, in the form in which the current program was called.

    Args:
        program: a sub-command, such as `"train"`.

    Returns:
        `"python pipelines/train_wmt.py"` if the current program is a script in `pipelines/`, else
        `"keras-transformer train"`.
    """
    script = _script(program)
    return f"python {shlex.quote(str(script))}" if script else f"{CONSOLE_SCRIPT} {program}"


def name(program):
    """Returns the name of a program for its messages: `train_wmt.py` or `keras-transformer train`."""
    script = _script(program)
    return script.name if script else f"{CONSOLE_SCRIPT} {program}"


def _script(program):
    called = pathlib.Path(sys.argv[0])
    is_script = called.suffix == ".py" and called.absolute().parent.name == "pipelines"
    return called.with_name(SCRIPTS[program]) if is_script else None
