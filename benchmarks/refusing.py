"""Bad input, refused in one line."""

import argparse
import os
import pathlib
import sys


class Parser(argparse.ArgumentParser):
    """A parser whose `error` prints what is wrong and nothing else, and ends with exit code 2."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def check_picture(parser, path=None):
    """Refuses a picture that cannot be drawn or written, before anything is measured.

    Args:
        parser: `Parser`.
        path: path of the picture; `None` checks only that pictures can be drawn.
    """
    if path is not None:
        path = pathlib.Path(path)
        if path.suffix not in (".png", ".svg", ".pdf"):
            parser.error(f"--plot {path}: the name must end in .png, .svg or .pdf")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            parser.error(f"--plot {path}: cannot be written there")
    try:
        import keras_transformer.analysis.plots  # noqa: F401
    except ValueError as error:
        parser.error(str(error))


def refused(program, error):
    """Prints why a program does not begin.

    Args:
        program: str, its name.
        error: OSError of a file, or another exception whose text names the fix.

    Returns:
        int, the exit code, 2.
    """
    of_a_file = isinstance(error, OSError) and error.filename is not None
    reason = f"{error.filename}: {error.strerror.lower()}" if of_a_file else error
    print(f"{program}: {reason}", file=sys.stderr)
    return 2


def run(main):
    """Runs a program that may find bad input at any time.

    Args:
        main: function without arguments; returns an exit code, or `None`.

    Returns:
        int, the exit code; 2 after one line for a ValueError or OSError.
    """
    try:
        return main() or 0
    except (OSError, ValueError) as error:
        return refused(pathlib.Path(sys.argv[0]).name, error)
