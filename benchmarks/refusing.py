"""Bad input, refused in one line."""

import argparse
import pathlib
import sys


class Parser(argparse.ArgumentParser):
    """A parser whose `error` prints what is wrong and nothing else, and ends with exit code 2."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


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
