"""SIGTERM, SIGINT and SIGUSR1 end a run after its step, saved."""

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
# `timeout` and others send a signal to the process and to its group: that is one, not a second one.
DUPLICATE_SECONDS = 0.2
_END = b"\0"


class _Interrupted(BaseException):
    """A signal on its way to the end of the run. No `Exception`: Keras puts those into others."""


class Signals:
    """What this process was asked to do by a signal.

    Python calls a handler between two of its own instructions: while TensorFlow compiles, that
    can be a minute later. A thread hears the signal at once, says so, and ends the process if a
    second one comes. It is late only where C++ code keeps Python's lock, which TensorFlow does
    for moments.

    Attributes:
        received: the signal, or `None`.
    """

    def __init__(self):
        self.received = None
        self._deferred = False
        self._raised = None  # the signal that an exception was raised for
        self._resend_timer = None  # timer that sends it once more
        self._num_resent = 0  # how many of those the thread has not met yet

    @contextlib.contextmanager
    def caught(self):
        """Catches the signals; outside of `deferred` they end the process with `StoppedError`.

        Only the main thread can; in another one nothing changes.
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
                # TensorFlow turned what the signal raised into an error of its own.
                cause = None if isinstance(error, _Interrupted) else error
                raise StoppedError(
                    f"stopped by {self._raised.name}; the same command goes on from what is saved",
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
        """While training: a signal is only noted, to be acted on after the step."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    @contextlib.contextmanager
    def _listening(self):
        """Has a thread that is told of signals as they come."""
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
        first = None  # when the first signal came
        while (byte := os.read(reading, 1)) != _END:
            if byte[0] not in EXIT_CODES:
                continue
            number, now = signal.Signals(byte[0]), time.monotonic()
            if self._num_resent:
                self._num_resent -= 1
            elif first is None:
                first = now
                what = "the step at work ends first, then the state is saved" if self._deferred else "ending"
                _write_stderr(f"{number.name}: heard; {what} (again: stop at once)")
            elif now - first > DUPLICATE_SECONDS:
                # No flush, no exit handlers: the second time it is to be at once.
                _write_stderr("stopped at once; the newest checkpoint is whole")
                os._exit(EXIT_CODES[number])

    def _handle(self, number, frame):
        number = signal.Signals(number)
        if self._deferred:
            self.received = self.received or number
            return
        # Where it comes while an object is freed, or amid `except:`, what it raises is dropped.
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
    """Tells of errors that Python drops, but for those of signals."""
    if not isinstance(unraisable.exc_value, _Interrupted):
        sys.__unraisablehook__(unraisable)


def _write_stderr(text):
    # Not by sys.stderr, which may be at work in this thread, and which in a notebook is no file.
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
