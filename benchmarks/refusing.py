"""Bad input, refused in one line."""

import argparse
import os
import pathlib
import subprocess
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


def output_of(command, **options):
    """Returns what a child process printed.

    Args:
        command: list of str or paths.
        options: further arguments of `subprocess.run`.

    Raises:
        ValueError: it failed; its last line says why.
    """
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode:
        raise ValueError(failure(command, result.returncode, result.stderr))
    return result.stdout


def failure(command, exit_code, messages):
    """Returns the line that says why a child process failed.

    Args:
        command: list of str or paths.
        exit_code: int.
        messages: str, what it wrote to standard error.
    """
    name = next((pathlib.Path(part).name for part in command if str(part).endswith(".py")), "a process")
    lines = messages.strip().splitlines() or ["it gave no reason"]
    return f"{name} ended with exit code {exit_code}: {lines[-1].removeprefix(f'{name}: ')}"


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
