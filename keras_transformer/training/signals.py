"""SIGTERM, SIGINT and SIGUSR1 end a run after its step, saved."""

import contextlib
import os
import signal
import threading

from keras_transformer.training.errors import StoppedError

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 143}


class Signals:
    """What this process was asked to do by a signal.

    Attributes:
        received: the signal, or `None`.
    """

    def __init__(self):
        self.received = None
        self._deferred = False

    @contextlib.contextmanager
    def caught(self):
        """Catches the signals; outside of `deferred` they end the process with `StoppedError`.

        Only the main thread can; in another one nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._handle) for number in EXIT_CODES}
        try:
            yield self
        finally:
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
            raise StoppedError(
                f"stopped by {number.name}; the same command goes on from what is saved", EXIT_CODES[number]
            )
        if self.received is not None:
            # No flush, no exit handlers: the second time it is to be at once.
            _say("stopped at once; the newest checkpoint is whole")
            os._exit(EXIT_CODES[number])
        self.received = number
        _say(f"{number.name}: finishing the step and saving (again: stop at once)")


def _say(text):
    # Not by sys.stderr, which may be at work in this thread, and which in a notebook is no file.
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
