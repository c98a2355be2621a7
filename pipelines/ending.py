"""How every program runs and ends: at once, whatever TensorFlow has still to tidy up."""

import atexit
import errno
import io
import os
import signal
import sys
import threading

from startup import READER_LEFT, report_os_error

PATIENCE_SECONDS = 0.5
_kept = None


def run(main):
    """Runs a program and ends the process with its exit code; does not return.

    Where TensorFlow was imported, Python's own end takes seconds of freeing what the end of the
    process frees anyway, and may wait for threads of TensorFlow for a minute more. So the process
    ends here, after its output is written and what is registered with `atexit` is done.

    Args:
        main: function without arguments that returns the exit code.
    """
    global _kept
    _kept = []
    forgive_stderr()
    try:
        code = main()
    except SystemExit as error:  # of a refused argument, or of SIGTERM
        code = error.code or 0
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE):
            # Output that is not buffered fails where it is printed.
            code = _not_written(error)
        else:
            sys.excepthook(*sys.exc_info())
            code = 1
    except ModuleNotFoundError as error:
        if (error.name or "keras_transformer.").startswith("keras_transformer."):
            sys.excepthook(*sys.exc_info())
            code = 1
        else:
            code = _not_installed(error.name)
    except BaseException:  # noqa: BLE001 - told as Python tells it
        sys.excepthook(*sys.exc_info())
        code = 1
    code = _flush(code)
    if "tensorflow" in sys.modules:
        _end(code)
    sys.exit(code)


def _not_installed(name):
    """Tells how to get a package that Python does not find; returns the exit code."""
    print(
        f"{os.path.basename(sys.argv[0])}: {name} is not installed in this Python ({sys.executable}). "
        "Activate the environment that has it (. .venv/bin/activate after make demo), or install it: "
        "pip install -e . in the folder with setup.cfg",
        file=sys.stderr,
    )
    return 2


def keep(error):
    """Keeps an error of a program that `run` runs, whose traceback has models that take long to be freed."""
    if _kept is not None:
        _kept.append(error)


def forgive_stderr():
    """Lets lines that standard error does not take be lost: they change nothing of the result."""
    if sys.stderr is not None:
        raw = _Forgiving(sys.stderr.fileno(), "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw), sys.stderr.encoding, errors="backslashreplace", line_buffering=True
        )


class _Forgiving(io.FileIO):
    """A file that is full, or that nobody reads any more, without anyone being told."""

    def write(self, data):
        try:
            written = super().write(data)
        except OSError:
            written = None
        return len(data) if written is None else written


def _end(code):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # nothing is left to be saved
    last = threading.Timer(PATIENCE_SECONDS, os._exit, [code])
    last.daemon = True
    last.start()
    try:
        atexit._run_exitfuncs()
    finally:
        os._exit(_flush(code))


def _flush(code):
    """Writes what is left of the output; returns the exit code, another one where that fails."""
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        told = code or _not_written(error)
        # What could not be written is dropped, or Python would try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return told
    return code


def _not_written(error):
    """Tells that the output took no more; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return READER_LEFT
    return report_os_error(os.path.basename(sys.argv[0]), error, "standard output")
