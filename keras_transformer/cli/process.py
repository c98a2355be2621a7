"""Process handling of the programs: quiet import of TensorFlow, signals, exit codes, fast exit."""

import atexit
import contextlib
import errno
import gc
import importlib
import io
import json
import os
import signal
import sys
import threading

from keras_transformer.config.console import console
from keras_transformer.config.programs import ExitCode, TrainingError

PATIENCE_SECONDS = 0.5
# Environment variable -> parameter of `mallopt`, as in <malloc.h>, and its value: no block is mapped on its
# own, none is given back to the system, and the heap grows by 64 MiB at a time.
_MALLOC = {
    "MALLOC_MMAP_MAX_": (-4, 0),
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_TOP_PAD_": (-2, 2**26),
}
# Packages that TensorFlow and Keras import where they are installed, for features that no program uses.
_OPTIONAL_PACKAGES = ("IPython", "matplotlib", "pandas")
_kept_errors = None


def import_quietly(module="keras_transformer.model.transformer", *, batches_at_once=False):
    """Configures TensorFlow and imports a module of the package without TensorFlow's log messages.

    Keeps TensorFlow and Keras from importing JAX, pandas, Matplotlib and IPython. Where these are installed,
    that saves a third of the time and 200 MB. The program can import them later.
    Enables oneDNN, without which CPUs that lack AVX-512 are about a third slower, and lets it keep more of
    what it compiles: search in batches of mixed lengths takes 0.9 of the time. TensorFlow's messages at
    import are suppressed unless the user has set TF_CPP_MIN_LOG_LEVEL; Python errors are always shown.

    Args:
        module: name of the module.
        batches_at_once: whether several batches will be translated in parallel. Then each operation
            uses one core, so that every core works on its own batch.
    """
    open_closed_streams()
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # oneDNN compiles the products of attention for each batch size and length, and keeps 1,024 by default.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    quiet = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    if quiet:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    with _default_sigint(), _no_stderr() if quiet else contextlib.nullcontext():
        with _without_optional_packages():
            import keras  # noqa: F401
            import tensorflow as tf

        if batches_at_once:
            with contextlib.suppress(RuntimeError):  # TensorFlow has started with the caller's configuration
                tf.config.threading.set_intra_op_parallelism_threads(1)
        importlib.import_module(module)
        tf.config.list_physical_devices()  # here CUDA logs that there is no GPU


@contextlib.contextmanager
def _without_optional_packages():
    """Context manager in which optional packages that are not imported yet cannot be imported."""
    names = [*_OPTIONAL_PACKAGES, *(["jax"] if _keras_backend() == "tensorflow" else [])]
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # to import a module that is `None` here is an ImportError
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]


def _keras_backend():
    """Returns the name of the backend that Keras will choose at import."""
    if name := os.environ.get("KERAS_BACKEND"):
        return name
    folder = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    try:
        with open(os.path.join(folder, "keras.json"), encoding="utf-8") as file:
            return json.load(file).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def keep_freed_memory():
    """Makes the C library keep freed memory for reuse, because getting it again costs a training step time.

    Does nothing where the C library is not GNU's, and does not change what the user has set by environment
    variables (`MALLOC_MMAP_MAX_`, ...).
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    for name, (parameter, value) in _MALLOC.items():
        if mallopt is not None and name not in os.environ:
            mallopt(parameter, value)


def open_closed_streams():
    """Opens `/dev/null` for each standard stream that is closed.

    Otherwise the next file to be opened would get its file descriptor, and printed text would end up in it.

    Returns:
        bool, whether standard output was closed.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for number in closed:  # ascending, as `open` returns the lowest free descriptor
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
    """Context manager in which Ctrl-C ends the process at once, without a traceback of a half-done import."""
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
    """Context manager that redirects file descriptor 2, which C++ code writes to, to `/dev/null`."""
    sys.stderr.flush()
    saved = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(devnull)


def end_on_sigterm():
    """Makes SIGTERM end the program with exit code 143, after removing unfinished files."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number, frame):
    # Python drops exceptions raised in `__del__` or in callbacks of the garbage collector (JAX has one): then
    # the signal is sent again.
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
            timer.daemon = True
            timer.start()
            return
        frame = frame.f_back
    sys.exit(ExitCode.TERMINATED)


def exit_code(program, work, output="standard output", *, stopped=""):
    """Calls `work`, prints an error in one line, and returns the `ExitCode`.

    Args:
        program: name of the program, with which the line begins.
        work: function without arguments.
        output: name of the output, for write errors that have no file name.
        stopped: message to print after Ctrl-C.
    """
    try:
        with console(always=True):
            work()
    except BrokenPipeError:
        drop_output()
        return ExitCode.READER_LEFT
    except KeyboardInterrupt as error:
        keep_reference(error)
        if stopped:
            print(f"{program}: {stopped}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except OSError as error:
        return _report_os_error(program, error, output)
    except (TrainingError, ValueError) as error:
        keep_reference(error)
        print(f"{program}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", ExitCode.REFUSED)
    return ExitCode.DONE


def _report_os_error(program, error, output):
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if error.errno is None:
        message = str(error)
    else:
        message = f"{error.filename or output}: {(error.strerror or str(error)).lower()}"
        message += ". Free disk space and try again" if full else ". Choose another or check permissions"
    print(f"{program}: {message}", file=sys.stderr)
    return getattr(error, "exit_code", ExitCode.STORAGE if full else ExitCode.REFUSED)


def drop_output():
    """Discards buffered standard output, for which Python would print an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(main):
    """Runs a program and ends the process with its exit code; does not return.

    With TensorFlow, a normal exit of Python takes seconds to free memory, and may wait a minute for threads
    of TensorFlow. CTranslate2 first translates all that it has been given. So the process is ended directly,
    after flushing its output and calling the functions registered with `atexit`.

    Args:
        main: function without arguments that returns the exit code.
    """
    global _kept_errors
    _kept_errors = []
    ignore_stderr_errors()
    try:
        code = main()
    except BaseException as error:  # noqa: BLE001 - `_code_of` prints the traceback
        keep_reference(error)
        code = _code_of(error)
    code = _flush(code)
    if not sys.modules.keys().isdisjoint({"tensorflow", "ctranslate2"}):
        _end(code)
    sys.exit(code)


def _code_of(error):
    """Returns the exit code for an uncaught exception; prints the traceback if it is a bug."""
    if isinstance(error, SystemExit):  # by argparse or SIGTERM
        return error.code or ExitCode.DONE
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE):
        return _report_lost_output(error)  # unbuffered output fails in `print`
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


def keep_reference(error):
    """Keeps a reference to an error, because it would take long to free the models in its traceback."""
    if _kept_errors is not None:
        _kept_errors.append(error)


def ignore_stderr_errors():
    """Ignores write errors of standard error, so that a closed or full log cannot end the program."""
    if sys.stderr is not None:
        raw = _LossyFile(sys.stderr.fileno(), "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw), sys.stderr.encoding, errors="backslashreplace", line_buffering=True
        )


class _LossyFile(io.FileIO):
    """File that ignores write errors."""

    def write(self, data):
        try:
            written = super().write(data)
        except OSError:
            written = None
        return len(data) if written is None else written


def _end(code):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # everything is saved
    timer = threading.Timer(PATIENCE_SECONDS, os._exit, [code])
    timer.daemon = True
    timer.start()
    try:
        atexit._run_exitfuncs()
    finally:
        os._exit(_flush(code))


def _flush(code):
    """Flushes the output; returns the exit code, or that of the write error."""
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = code or _report_lost_output(error)
        drop_output()
    return code


def _report_lost_output(error):
    """Reports a write error of standard output; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return ExitCode.READER_LEFT
    return _report_os_error(os.path.basename(sys.argv[0]), error, "standard output")
