"""Signal handling: SIGTERM, SIGINT and SIGUSR1 end training after the current step, with a checkpoint."""

import contextlib
import os
import signal
import sys
import threading
import time

from keras_transformer.config.programs import ExitCode, StoppedError

EXIT_CODES = {
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGUSR1: ExitCode.TERMINATED,
}
RESEND_SECONDS = 1.0
# `timeout` and others signal the process and its group: two signals within this time count as one.
DUPLICATE_SECONDS = 0.2
_END = b"\0"


class _Interrupted(BaseException):
    """Raised by the signal handler. Not an `Exception`, as Keras wraps those in other exceptions."""


class Signals:
    """Records signals and ends the process with `StoppedError`.

    Python runs a signal handler only between two bytecode instructions, which can be a minute later
    while TensorFlow compiles. So a thread listens for signals, too: it confirms the first signal at
    once and ends the process at the second. The thread is delayed only while C++ code holds the GIL,
    which TensorFlow does briefly.

    Attributes:
        received: `signal.Signals`, the signal received within `deferred`, or `None`.
    """

    def __init__(self):
        self.received = None
        self._deferred = False
        self._raised = None  # the signal for which the handler has raised
        self._resend_timer = None  # sends that signal again if the exception was lost
        self._num_resent = 0  # resent signals that the thread has not read yet

    @contextlib.contextmanager
    def caught(self):
        """Context manager that handles signals; outside of `deferred` they raise `StoppedError`.

        Does nothing in threads other than the main thread, where Python cannot handle signals.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        with self._listening():
            before = {number: signal.signal(number, self._handle) for number in EXIT_CODES}
            unraisable, sys.unraisablehook = sys.unraisablehook, _report_unraisable
            try:
                yield self
            except BaseException as error:
                if self._raised is None:
                    raise
                # TensorFlow may have converted the handler's exception to an error of its own.
                cause = None if isinstance(error, _Interrupted) else error
                raise StoppedError(
                    f"stopped by {self._raised.name}; the same command continues from the saved state",
                    EXIT_CODES[self._raised],
                ) from cause
            finally:
                if self._resend_timer:
                    self._resend_timer.cancel()
                sys.unraisablehook = unraisable
                for number, handler in before.items():
                    signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self):
        """Context manager in which a signal is only recorded, so that training can finish its step."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    @contextlib.contextmanager
    def _listening(self):
        """Context manager that runs the listening thread."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        thread = threading.Thread(target=self._listen, args=(reading,), daemon=True)
        thread.start()
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.write(writing, _END)
            thread.join()
            os.close(reading)
            os.close(writing)

    def _listen(self, reading):
        first = None  # time of the first signal
        while (byte := os.read(reading, 1)) != _END:
            if byte[0] not in EXIT_CODES:
                continue
            number, now = signal.Signals(byte[0]), time.monotonic()
            if self._num_resent:
                self._num_resent -= 1
            elif first is None:
                first = now
                what = "finishing the current step and saving" if self._deferred else "ending"
                _write_stderr(f"{number.name}: {what}; send it again to stop at once")
            elif now - first > DUPLICATE_SECONDS:
                # No flushing and no exit handlers: the second signal must end the process at once.
                _write_stderr("stopped at once; the run resumes from its newest checkpoint, if any")
                os._exit(EXIT_CODES[number])

    def _handle(self, number, frame):
        number = signal.Signals(number)
        if self._deferred:
            self.received = self.received or number
            return
        # `__del__` or a bare `except:` may swallow the exception: then the timer sends the signal again.
        self._raised = number
        if self._resend_timer:
            self._resend_timer.cancel()
        self._resend_timer = threading.Timer(RESEND_SECONDS, self._resend, (number,))
        self._resend_timer.daemon = True
        self._resend_timer.start()
        raise _Interrupted

    def _resend(self, number):
        self._num_resent += 1
        os.kill(os.getpid(), number)


def _report_unraisable(unraisable):
    """Reports exceptions that Python drops, except those of signals."""
    if not isinstance(unraisable.exc_value, _Interrupted):
        sys.__unraisablehook__(unraisable)


def _write_stderr(text):
    # Not `sys.stderr`: the main thread may hold its lock, and in a notebook it is not a file.
    with contextlib.suppress(OSError):
        erase = "\r\x1b[K" if os.isatty(2) else ""  # a progress bar, and the ^C of the terminal
        os.write(2, f"{erase}{text}\n".encode())
