"""Messages of the package: records of the loggers below "keras_transformer", shown on the console by default.

Progress and results have level INFO, everything else WARNING. The package adds no handler when it is
imported: without one, Python itself writes warnings to standard error. Programs, and functions whose
messages are their output, such as `train`, run under `console`.
"""

import contextlib
import logging
import sys

PACKAGE = logging.getLogger("keras_transformer")


class ConsoleHandler(logging.Handler):
    """Prints messages as bare lines: warnings to standard error, others to standard output.

    Like `print`, and unlike other handlers, it raises `OSError` if a line cannot be written.
    """

    def emit(self, record):
        """Prints the message of a `logging.LogRecord`."""
        stream = sys.stderr if record.levelno > logging.INFO else sys.stdout
        # One string: a message of the signal thread must not come between a line and its end.
        print(f"{self.format(record)}\n", end="", file=stream, flush=True)


@contextlib.contextmanager
def console(*, always=False):
    """Context manager, or decorator, that shows the messages of the package, unless logging is configured.

    If the root logger or "keras_transformer" has a handler, messages go there only. INFO is enabled unless
    "keras_transformer" has a level, or the root logger has another one than its default, WARNING.

    Args:
        always: shows the messages on the console whatever handlers there are; for programs.
    """
    handler, propagate = ConsoleHandler(), PACKAGE.propagate
    with contextlib.ExitStack() as stack:
        if not logging.root.handlers:
            stack.callback(_remove_default_handlers)
        if PACKAGE.level == logging.NOTSET and logging.root.level == logging.WARNING:
            PACKAGE.setLevel(logging.INFO)
            stack.callback(PACKAGE.setLevel, logging.NOTSET)
        is_shown = any(isinstance(other, ConsoleHandler) for other in PACKAGE.handlers)
        if not is_shown and (always or not PACKAGE.hasHandlers()):
            PACKAGE.addHandler(handler)
            stack.callback(PACKAGE.removeHandler, handler)
            PACKAGE.propagate = False  # another library may configure the root logger meanwhile
            stack.callback(setattr, PACKAGE, "propagate", propagate)
        yield


def _remove_default_handlers():
    """Removes what `logging.basicConfig()` adds: TensorFlow calls it when it saves a checkpoint.

    Otherwise the next call would take it for a handler of the user's.
    """
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler.formatter._fmt == logging.BASIC_FORMAT:
            logging.root.removeHandler(handler)
