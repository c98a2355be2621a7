"""Signals held back while TensorFlow calls Python from C++, where an exception may get lost."""

import contextlib
import signal
import threading


@contextlib.contextmanager
def uninterrupted():
    """Holds SIGINT and SIGTERM back until the end of the block, when their handlers are called.

    In another thread than the main one, which no handler interrupts, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(signal.getsignal(number))  # not where the system's own handling is wanted
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received[:1]:
        before[number](number, None)
