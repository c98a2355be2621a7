"""Command-line parser of all programs: one-line errors, examples in `--help`, flags of settings."""

import argparse
import ast
import dataclasses
import itertools
import pathlib
import re
import sys

from keras_transformer.cli.foreign_flags import find_row
from keras_transformer.cli.process import import_quietly
from keras_transformer.config import programs
from keras_transformer.config.cores import usable_cores
from keras_transformer.config.fields import check_value, did_you_mean
from keras_transformer.config.sections import VOCABULARY, SearchConfig

# Settings that an existing vocabulary has fixed.
VOCABULARY_SETTINGS = tuple(f"data.{name}" for name in VOCABULARY)
# Fields of `SearchConfig`; each has a flag.
SEARCH_SETTINGS = tuple(field.name for field in dataclasses.fields(SearchConfig))
# Settings of `data` and `devices` that have flags.
FOLDER_SETTINGS = ("data_dir", "manual_dir")
CORPUS_SETTINGS = ("source", "target", *FOLDER_SETTINGS)
VOCABULARY_FLAGS = ("vocab_size", "model_type")
MAX_THREADS = 1024  # of `--threads`; more only take memory and time to start
DEVICE_SETTINGS = ("strategy", "replicas", "cross_device_ops", "allow_cpu")
_SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "seed")
_MBR_SETTINGS = ("samples", "utility")
_BEAM_SETTINGS = ("beam_size", "early_stop")

_UNKNOWN = re.compile(r"unrecognized arguments: (.*)")
_PATHS = ("FILE", "DIR", "RUN")  # metavars of flags whose value cannot be empty
_UNWANTED = re.compile(r"argument (.*): ignored explicit argument '(.*)'")
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


# Flag of an earlier version, or such a flag with a value -> its replacement.
OLD_FLAGS = {
    "--settings": "--print-config",
    "--weights": "--checkpoint",
    "--show": "--examples",
    "--draws": "--bootstrap-samples",
    "--tokens moses": "--no-tokenized",
    "--tokens given": "--tokenized",
    "--stop exact": "--no-early-stop",
    "--stop first": "--early-stop",
    "--extra-length": "--max-length-offset",
    "--length-factor": "--max-length-ratio",
}


class Parser(argparse.ArgumentParser):
    """`argparse` parser whose errors are one line with the most similar flag, and exit code 2.

    Flags cannot be abbreviated: a later version may have another flag with the same beginning.

    Args:
        text: docstring of the program. Its first line is the description, its indented lines are
            examples.
        words: rows of `foreign_flags`, the names of flags in other toolkits. Rows whose example has
            flags of other programs are ignored.
        stray: sentence for an unexpected positional argument, which replaces `{}`.
        **options: of `argparse.ArgumentParser`, such as `prog`.
    """

    def __init__(self, text="", *, words=(), stray="", **options):
        lines = text.splitlines()
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
        """Replaces flags of earlier versions, then parses; stores the arguments for `error`."""
        self._given = self._renamed(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(self._given, namespace)
        for action in self._actions:
            value = getattr(found, action.dest, None)
            is_empty = value == "" or (isinstance(value, list) and "" in value)
            if action.option_strings and action.metavar in _PATHS and is_empty:
                flag = action.option_strings[0]
                self.error(f"{flag} is empty. Remove it, or check the variable that it comes from.")
        return found, unknown

    def _renamed(self, args):
        """Returns the arguments with current flags; prints a line to standard error for each old flag."""
        words, renamed, own = list(args), [], self._option_string_actions
        while words and words[0] != "--":
            flag, equals, value = words[0].partition("=")
            with_value = f"{flag} {value}" if equals else " ".join(words[:2])
            old = with_value if with_value in OLD_FLAGS else flag
            new = OLD_FLAGS.get(old)
            if flag in own or new not in own:
                renamed.append(words.pop(0))
                continue
            print(f"{self.prog}: {old} is now called {new}", file=sys.stderr)
            del words[: 1 if old == flag or equals else 2]
            renamed.append(f"{new}{equals}{value}" if old == flag else new)
        return renamed + words

    def error(self, message):
        """Prints the error and ends the program with exit code 2."""
        self.exit(2, f"{self.prog}: {self._with_nearest(message)} See {self.prog} --help\n")

    def _with_nearest(self, message):
        if match := _UNKNOWN.fullmatch(message):
            if not match[1].strip():
                return "an argument is empty. Remove it, or check the variable that it comes from."
            unknown = match[1].split()[0].partition("=")[0]
            return f"unknown argument {unknown}." + self._hint(unknown)
        missing = message.startswith(("the following arguments are required", "one of the arguments"))
        if missing and (unknown := self._unknown_flag()):
            # Perhaps what is missing was given under a misspelt name, or under that of another toolkit.
            return f"unknown argument {unknown}." + self._hint(unknown)
        if match := _CHOICE.search(message):
            return f"{message}." + _nearest(match[1], re.findall(r"[\w.-]+", match[2]))
        if match := _UNWANTED.fullmatch(message):
            return f"{match[1]} is a flag without a value. Received: {match[2]}."
        return message if message.endswith(("?", ".")) else f"{message}."

    def _unknown_flag(self):
        """Returns the first flag of the command line that this parser does not have; "" without any."""
        words = itertools.takewhile("--".__ne__, self._given)
        flags = (word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word))
        return next((flag for flag in flags if flag not in self._option_string_actions), "")

    def _hint(self, unknown):
        if not unknown.startswith("-"):
            return f" {self._stray.format(unknown)}." if self._stray else ""
        if row := self._row(unknown):
            answer = ": ".join(filter(None, (row.said, row.example))) if row.said else f"Use {row.example}"
            return f" {answer[0].upper()}{answer[1:]}."
        return _nearest(unknown, self._option_string_actions)

    def _row(self, flag):
        def is_of_this_program(row):
            flags = re.findall(r"(?<!\S)--?[a-z][\w-]*", row.example)
            return all(flag in self._option_string_actions for flag in flags)

        return find_row(flag, filter(is_of_this_program, self._words))


def program_parser(program, **options):
    """Returns the `Parser` of a program.

    Args:
        program: its sub-command, such as `"train"`.
        **options: of `Parser`.
    """
    return Parser(program_text(program), prog=programs.name(program), **options)


def program_text(program):
    """Returns the docstring of a program, with commands in the form in which the caller runs them.

    It is read from the source file, as `python -OO` removes docstrings.
    """
    path = pathlib.Path(__file__).with_name(f"{program.replace('-', '_')}.py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return re.sub(rf"{programs.CONSOLE_SCRIPT} ([a-z0-9-]+)", lambda match: programs.command(match[1]), text)


def _nearest(name, known):
    # Compared without the leading hyphens, which make all short flags similar.
    bare = {flag.lstrip("-"): flag for flag in known}
    hint = did_you_mean(name.lstrip("-"), list(bare), bare.get)
    return f" {hint}" if hint else ""


def add_checkpoint_flag(parser, default="final"):
    """Adds `--checkpoint` to an `argparse.ArgumentParser` or a group of one."""
    parser.add_argument(
        "--checkpoint",
        default=default,
        metavar="NAME",
        help="weights to load: final (the result of training), averaged, last, best, ema, last-N or best-K "
        f"(made by {programs.name('average')}), or step-N (default: final)",
    )


def add_setting_flags(parser, section, names=None, *, defaults=None):
    """Adds a flag for each setting; without the flag, the setting keeps its value.

    Args:
        parser: an `argparse.ArgumentParser` or a group of one.
        section: class of the settings, such as `SearchConfig`.
        names: names of the settings; `None` for all settings of the section.
        defaults: dict from name to str, what the help says of settings whose default depends on the other
            arguments.
    """
    for field in dataclasses.fields(section):
        if names is None or field.name in names:
            flag, kind = f"--{field.name.replace('_', '-')}", field.type
            text = re.sub('[`"]', "", field.metadata["meaning"]).replace("%", "%%")
            if kind is bool:
                parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
            else:
                default = (defaults or {}).get(field.name, field.default)
                text += f" (default: {default})" if default != "" else ""
                metavar = None if kind is str else kind.__name__.upper()
                parser.add_argument(flag, type=_value_of(field), metavar=metavar, help=text)


def _value_of(field):
    """Returns the function that makes the value of a setting from text; its errors are the parser's."""

    def value_of(text):
        value = field.type(text)
        try:
            check_value(value, field, (field.type,))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    value_of.__name__ = field.type.__name__  # argparse names it if the text is no number
    return value_of


def given_settings(args, names):
    """Returns the settings whose flags were given, a dict from name to value."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def add_search_flags(parser, *, threads=True):
    """Adds a flag for every setting of search to an `argparse.ArgumentParser`.

    Args:
        parser: the parser.
        threads: whether to add `--threads`, too.
    """
    group = parser.add_argument_group(
        "search", "flags not given keep the run's values; defaults shown are those of the preset base"
    )
    add_setting_flags(group, SearchConfig)
    if threads:
        group.add_argument(
            "--threads",
            type=int,
            metavar="INT",
            help="batches translated in parallel, one CPU core each (default: all cores; 1 with a GPU)",
        )


def add_line_flags(parser):
    """Adds `--format`, `--scores` and `--chunk-lines`, for programs that translate line by line."""
    parser.add_argument(
        "--format", default="text", choices=("text", "jsonl", "moses"), help="output format (default: text)"
    )
    parser.add_argument("--scores", action="store_true", help="print the score and a tab before each text")
    text = "lines read, sorted by length and translated together (default: 1024)"
    parser.add_argument("--chunk-lines", type=int, default=1024, metavar="N", help=text)


def check_line_flags(parser, args):
    """Ends the program if the flags of `add_line_flags` are out of range or cannot be combined."""
    check_chunk_lines(parser, args)
    if args.scores and args.format != "text":
        parser.error(f"--scores needs --format text; {args.format} always has scores")


def check_chunk_lines(parser, args):
    """Ends the program if `--chunk-lines` is out of range."""
    if not 1 <= args.chunk_lines <= 2**24:
        parser.error(f"--chunk-lines must be from 1 to {2**24}, not {args.chunk_lines}")


def search_settings(args, run):
    """Returns the fields of `SearchConfig` given on the command line.

    They are checked together with the settings of the run, before TensorFlow is imported.

    Args:
        args: arguments parsed by a parser with `add_search_flags`.
        run: the run folder whose settings they override, or the name of a model that comes with the package.

    Returns:
        dict from name to value.

    Raises:
        ValueError: a value is invalid; the message has the range.
    """
    from keras_transformer.checkpoints.pretrained import resolve
    from keras_transformer.config.settings import from_dict, replace
    from keras_transformer.files import from_checked_json

    settings = given_settings(args, SEARCH_SETTINGS)
    try:
        search = from_dict(from_checked_json((resolve(run) / "config.json").read_bytes())).search
    except (OSError, ValueError):
        return settings  # not a run folder: opening it will raise the error
    check_sampling_settings(settings, replace(search, **settings))
    return settings


def check_sampling_settings(settings, changed):
    """Raises `ValueError` if settings of another search than the one chosen are given.

    Args:
        settings: dict from name to value, the settings given.
        changed: `SearchConfig` with these settings.

    Raises:
        ValueError: the message names the flag.
    """
    samples = changed.sampling or changed.mbr
    for names, flags, is_on in (
        (_SAMPLING_SETTINGS, "--sampling or --mbr", samples),
        (_MBR_SETTINGS, "--mbr", changed.mbr),
    ):
        unused = [name for name in names if name in settings and not is_on]
        if unused:
            raise ValueError(f"--{unused[0].replace('_', '-')} needs {flags}. Add {flags}, or remove it")
    kind = "mbr" if changed.mbr else "sampling"
    for name in (*_BEAM_SETTINGS, *(["sampling"] if changed.mbr else [])):
        if samples and settings.get(name):
            reason = "draws samples itself" if name == "sampling" else "has no beam"
            flag = f"--{name.replace('_', '-')}"
            if kind in settings:
                raise ValueError(f"{flag}: --{kind} {reason}. Remove one of them")
            raise ValueError(f"{flag}: the run has search.{kind}=true, which {reason}. Add --no-{kind}")


def check_threads(args):
    """Raises `ValueError` if `--threads` is below 1 or above `MAX_THREADS`."""
    if args.threads is not None and not 1 <= args.threads <= MAX_THREADS:
        raise ValueError(f"`--threads` must be from 1 to {MAX_THREADS}. Received: {args.threads}")


def number_of_threads(args):
    """Returns the number of batches to translate in parallel; imports TensorFlow.

    Raises:
        ValueError: `--threads` is below 1 or above `MAX_THREADS`.
    """
    check_threads(args)
    import_quietly("keras_transformer.translation.translator", batches_at_once=args.threads != 1)
    import tensorflow as tf

    if args.threads is None:
        return 1 if tf.config.list_physical_devices("GPU") else usable_cores()
    return args.threads


def describe_search(search):
    """Returns a description of a `SearchConfig` such as `"beam 4, gnmt length penalty, alpha 0.6"`."""
    if search.mbr:
        utility = {"chrf": "chrF", "bleu": "BLEU"}[search.utility]
        return f"minimum Bayes risk, {search.samples} samples, {utility}"
    if search.sampling:
        return f"sampling, temperature {search.temperature:g}"
    if search.beam_size == 1:
        return "greedy"
    words = f"beam {search.beam_size}, no length penalty"
    if search.length_penalty != "none" and search.alpha:
        words = f"beam {search.beam_size}, {search.length_penalty} length penalty, alpha {search.alpha:g}"
    covers = search.coverage_penalty
    return f"{words}, coverage penalty {covers:g}" if covers else words
