"""How all programs read their command lines: refusals in one line, examples under `--help`."""

import argparse
import difflib
import inspect
import re

# What a vocabulary that is given has decided already.
VOCABULARY_SETTINGS = (
    "data.vocab_size",
    "data.model_type",
    "data.separate_vocabularies",
    "data.normalization",
    "data.split_digits",
)

_UNKNOWN = re.compile(r"unrecognized arguments: (.*)")
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Refuses in one line, with the nearest name, and exit code 2.

    Flags are not abbreviated: what is short for one flag today may be short for two tomorrow.

    Args:
        text: docstring of the program. Its first line says what the program does, its indented
            lines are examples.
        **options: of `argparse.ArgumentParser`, such as `prog`.
    """

    def __init__(self, text="", **options):
        lines = inspect.cleandoc(text).splitlines()
        examples = [line for line in lines if line.startswith("    ")]
        if lines:
            options.setdefault("description", lines[0])
        if examples:
            options.setdefault("epilog", "\n".join(["examples:", *(line[2:] for line in examples)]))
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        """Ends the program."""
        self.exit(2, f"{self.prog}: {self._with_nearest(message)} See {self.prog} --help\n")

    def _with_nearest(self, message):
        if found := _UNKNOWN.fullmatch(message):
            unknown = found[1].split()[0].partition("=")[0]
            return f"unknown argument {unknown}." + _nearest(unknown, self._option_string_actions)
        if found := _CHOICE.search(message):
            return f"{message}." + _nearest(found[1], re.findall(r"[\w.-]+", found[2]))
        return f"{message}."


def _nearest(name, known):
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""
