"""A program as a process: TensorFlow is loaded late and without its chatter, and the end comes at once."""

import atexit
import contextlib
import errno
import gc
import importlib
import io
import os
import signal
import sys
import threading

from keras_transformer.config.programs import ExitCode, TrainingError

PATIENCE_SECONDS = 0.5
_kept_errors = None


def import_quietly(module="keras_transformer.model.transformer", *, batches_at_once=False):
    """Sets TensorFlow up and imports a module of the package without TensorFlow's chatter.

    CPUs without AVX-512 lose about a third of their speed unless oneDNN is asked for.
    TensorFlow writes half a dozen lines about itself when it is imported; they are held
    back unless the user has set TF_CPP_MIN_LOG_LEVEL. Python's own errors always show.

    Args:
        module: its name; what it imports is imported as well.
        batches_at_once: several batches are to be searched at the same time: each operation
            keeps to one core, so that each core has a batch of its own.
    """
    open_closed_streams()
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    quiet = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    if quiet:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    with _default_sigint(), _no_stderr() if quiet else contextlib.nullcontext():
        import tensorflow as tf

        if batches_at_once:
            with contextlib.suppress(RuntimeError):  # TensorFlow works already, as the caller has set it up
                tf.config.threading.set_intra_op_parallelism_threads(1)
        importlib.import_module(module)
        tf.config.list_physical_devices()  # where there is no GPU, CUDA says so here


def open_closed_streams():
    """Opens `/dev/null` for each standard stream that is closed.

    Otherwise the next file that is opened would get its number, and be written to by
    whatever prints.

    Returns:
        Whether standard output was closed.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for number in closed:  # the lowest first: that is the one that `open` returns
        os.open(os.devnull, os.O_RDWR)
        mode, name = ("r", "stdin") if number == 0 else ("w", ("stdout", "stderr")[number - 1])
        setattr(sys, name, os.fdopen(number, mode))
    return 1 in closed


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _default_sigint():
    """Ctrl-C ends the process without a traceback: seconds pass in which nothing has begun."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _no_stderr():
    """Sends file descriptor 2, which C++ writes to, nowhere for a while."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def end_on_sigterm():
    """Lets SIGTERM end the program as Ctrl-C does, unfinished files removed, with code 143."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number, frame):
    # Python drops what is raised in a callback of the garbage collector (JAX has one) or a
    # `__del__`; the signal is sent once more, then.
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            again = threading.Timer(0.05, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    sys.exit(ExitCode.TERMINATED)


def exit_code(program, work, output="standard output", *, stopped=""):
    """Calls `work` and returns an `ExitCode`; what ended it is printed in one line.

    Args:
        program: name that the line begins with.
        work: function without arguments.
        output: what is written to, which errors of writing do not name.
        stopped: what is printed after Ctrl-C.
    """
    try:
        work()
    except BrokenPipeError:
        drop_output()
        return ExitCode.READER_LEFT
    except KeyboardInterrupt:
        if stopped:
            print(f"{program}: {stopped}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except OSError as error:
        return _report_os_error(program, error, output)
    except (TrainingError, ValueError) as error:
        keep(error)
        print(f"{program}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", ExitCode.REFUSED)
    return ExitCode.DONE


def _report_os_error(program, error, output):
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if error.errno is None:
        message = str(error)
    else:
        message = f"{error.filename or output}: {(error.strerror or str(error)).lower()}"
        message += ". Make room, and run it again" if full else ". Name another, or see to its permissions"
    print(f"{program}: {message}", file=sys.stderr)
    return getattr(error, "exit_code", ExitCode.STORAGE if full else ExitCode.REFUSED)


def drop_output():
    """Lets what is still to be written to standard output be lost; Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(main):
    """Runs a program and ends the process with its exit code; does not return.

    Where TensorFlow was imported, Python's own end takes seconds of freeing what the end of the
    process frees anyway, and may wait for threads of TensorFlow for a minute more. So the process
    ends here, after its output is written and what is registered with `atexit` is done.

    Args:
        main: function without arguments that returns the exit code.
    """
    global _kept_errors
    _kept_errors = []
    ignore_stderr_errors()
    try:
        code = main()
    except BaseException as error:  # noqa: BLE001 - a fault is shown as Python shows it
        code = _code_of(error)
    code = _flush(code)
    if "tensorflow" in sys.modules:
        _end(code)
    sys.exit(code)


def _code_of(error):
    """Returns the exit code of an error that ends the process; a fault is printed with its traceback."""
    if isinstance(error, SystemExit):  # of a refused argument, or of SIGTERM
        return error.code or ExitCode.DONE
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE):
        return _report_lost_output(error)  # output that is not buffered fails where it is printed
    own = "keras_transformer."
    if isinstance(error, ModuleNotFoundError) and not (error.name or own).startswith(own):
        print(
            f"{os.path.basename(sys.argv[0])}: {error.name} is not installed in this Python "
            f"({sys.executable}). Activate the environment that has it (. .venv/bin/activate after make "
            "demo), or install it: pip install -e . in the folder with setup.cfg",
            file=sys.stderr,
        )
        return ExitCode.REFUSED
    sys.excepthook(type(error), error, error.__traceback__)
    return ExitCode.FAULT


def keep(error):
    """Keeps an error of a program that `run` runs, whose traceback has models that take long to be freed."""
    if _kept_errors is not None:
        _kept_errors.append(error)


def ignore_stderr_errors():
    """Lets lines that standard error does not take be lost: they change nothing of the result."""
    if sys.stderr is not None:
        raw = _LossyFile(sys.stderr.fileno(), "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw), sys.stderr.encoding, errors="backslashreplace", line_buffering=True
        )


class _LossyFile(io.FileIO):
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
        told = code or _report_lost_output(error)
        drop_output()
        return told
    return code


def _report_lost_output(error):
    """Tells that the output took no more; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return ExitCode.READER_LEFT
    return _report_os_error(os.path.basename(sys.argv[0]), error, "standard output")
