"""What every program does before TensorFlow is imported."""

import contextlib
import errno
import gc
import importlib
import os
import signal
import sys
import threading

READER_LEFT = 141  # what a shell says of `cat` when `head` has enough: 128 + SIGPIPE


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
    with _ending_at_once(), _no_stderr() if quiet else contextlib.nullcontext():
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
def _ending_at_once():
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
        signal.signal(signal.SIGTERM, _end)


def _end(number, frame):
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
    sys.exit(143)


def report_os_error(program, error, output):
    """Prints an `OSError` as one line; returns the exit code: 3 where the disk is full, else 2.

    Args:
        program: name that the line begins with.
        error: the `OSError`.
        output: what was written to, which errors of writing do not name.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    reason = f"{error.filename or output}: {(error.strerror or str(error)).lower()}"
    remedy = ". Make room, and run it again" if full else ". Name another, or see to its permissions"
    print(f"{program}: {reason}{remedy}", file=sys.stderr)
    return 3 if full else 2


def exit_code(program, work, output):
    """Calls `work` and returns the exit code of the program, which says why it failed in one line.

    Args:
        program: name that the line begins with.
        work: function without arguments.
        output: what is written to, which errors of writing do not name.

    Returns:
        0; 2 where the input was refused, 3 where the disk is full, 130 after Ctrl-C, and
        `READER_LEFT` where nobody reads on.
    """
    try:
        work()
    except BrokenPipeError:
        # Whoever read the lines has had enough; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    except OSError as error:
        return report_os_error(program, error, output)
    except ValueError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
