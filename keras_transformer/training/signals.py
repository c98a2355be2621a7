"""SIGTERM, SIGINT and SIGUSR1 end a run after its step, saved."""

import contextlib
import os
import signal
import sys
import threading

from keras_transformer.training.errors import StoppedError

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 143}
AGAIN_SECONDS = 1.0


class _Interrupted(BaseException):
    """A signal on its way to the end of the run. No `Exception`: Keras puts those into others."""


class Signals:
    """What this process was asked to do by a signal.

    Attributes:
        received: the signal, or `None`.
    """

    def __init__(self):
        self.received = None
        self._deferred = False
        self._raised = None  # the signal that an exception was raised for
        self._again = None  # timer that sends it once more

    @contextlib.contextmanager
    def caught(self):
        """Catches the signals; outside of `deferred` they end the process with `StoppedError`.

        Only the main thread can; in another one nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._handle) for number in EXIT_CODES}
        unraisable, sys.unraisablehook = sys.unraisablehook, _tell_others
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
            if self._again:
                self._again.cancel()
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

    def _handle(self, number, frame):
        number = signal.Signals(number)
        if not self._deferred:
            # Where it comes while an object is freed, or amid `except:`, what it raises is dropped.
            self._raised = number
            if self._again:
                self._again.cancel()
            self._again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
            self._again.daemon = True
            self._again.start()
            raise _Interrupted
        if self.received is not None:
            # No flush, no exit handlers: the second time it is to be at once.
            _say("stopped at once; the newest checkpoint is whole")
            os._exit(EXIT_CODES[number])
        self.received = number
        _say(f"{number.name}: finishing the step and saving (again: stop at once)")


def _tell_others(unraisable):
    """Tells of errors that Python drops, but for those of signals."""
    if not isinstance(unraisable.exc_value, _Interrupted):
        sys.__unraisablehook__(unraisable)


def _say(text):
    # Not by sys.stderr, which may be at work in this thread, and which in a notebook is no file.
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
