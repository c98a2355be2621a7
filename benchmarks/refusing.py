"""Bad input, refused in one line."""

import argparse
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
