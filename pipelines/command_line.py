"""How all programs read their command lines: refusals in one line, examples under `--help`."""

import argparse
import ast
import difflib
import inspect
import pathlib
import re
import sys

from other_words import row_of

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
            lines are examples. `None`, which `python -OO` makes of it: it is read from the source.
        words: rows of `other_words`, what other systems call the flags; those count whose example
            has flags of this program alone.
        stray: sentence for an argument that is no flag and has no place, with `{}` for it.
        **options: of `argparse.ArgumentParser`, such as `prog`.
    """

    def __init__(self, text="", *, words=(), stray="", **options):
        lines = inspect.cleandoc(_text_of_program() if text is None else text).splitlines()
        examples = [line for line in lines if line.startswith("    ")]
        if lines:
            options.setdefault("description", lines[0])
        if examples:
            options.setdefault("epilog", "\n".join(["examples:", *(line[2:] for line in examples)]))
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        self._words = words
        self._stray = stray
        self._given = []

    def parse_known_args(self, args=None, namespace=None):
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message):
        """Ends the program."""
        self.exit(2, f"{self.prog}: {self._with_nearest(message)} See {self.prog} --help\n")

    def _with_nearest(self, message):
        if found := _UNKNOWN.fullmatch(message):
            unknown = found[1].split()[0].partition("=")[0]
            return f"unknown argument {unknown}." + self._hint(unknown)
        if message.startswith("the following arguments are required"):
            # Perhaps they were given, as another system wants them.
            for word in (word.partition("=")[0] for word in self._given):
                if word.startswith("-") and word not in self._option_string_actions and self._row(word):
                    return f"unknown argument {word}." + self._hint(word)
        if found := _CHOICE.search(message):
            return f"{message}." + _nearest(found[1], re.findall(r"[\w.-]+", found[2]))
        return f"{message}."

    def _hint(self, unknown):
        if not unknown.startswith("-"):
            return f" {self._stray.format(unknown)}." if self._stray else ""
        if row := self._row(unknown):
            return f" Here {f'{row.said}: ' if row.said else 'it is '}{row.example}."
        return _nearest(unknown, self._option_string_actions)

    def _row(self, flag):
        def is_of_this_program(row):
            flags = re.findall(r"(?<!\S)--?[a-z][\w-]*", row.example)
            return all(flag in self._option_string_actions for flag in flags)

        return row_of(flag, filter(is_of_this_program, self._words))


def _text_of_program():
    source = pathlib.Path(sys.modules["__main__"].__file__).read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source))


def _nearest(name, known):
    # Without hyphens, which make short names alike.
    bare = {one.lstrip("-"): one for one in known}
    near = difflib.get_close_matches(name.lstrip("-"), bare, n=1)
    return f" Did you mean {bare[near[0]]}?" if near else ""
