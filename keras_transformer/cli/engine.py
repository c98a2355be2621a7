"""`--engine`: chooses what translates, and loads it."""

import functools
import sys

from keras_transformer.cli.command_line import check_threads, number_of_threads
from keras_transformer.cli.process import import_quietly
from keras_transformer.config import programs
from keras_transformer.config.cores import usable_cores


def add_engine_flag(parser):
    """Adds `--engine` and `--precision` to an `argparse.ArgumentParser`."""
    parser.add_argument(
        "--engine",
        choices=("tensorflow", "ctranslate2", "auto"),
        default="tensorflow",
        help="what translates: tensorflow; ctranslate2, which keeps converted weights in RUN; "
        "or auto: ctranslate2 if it gives the same translations (default: tensorflow)",
    )
    add_precision_flag(parser)


def add_precision_flag(parser):
    """Adds `--precision` to an `argparse.ArgumentParser`."""
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        help="of the weights with tensorflow; bfloat16 rounds them, and is faster for few sentences on a CPU "
        "with bfloat16 products (default: float32)",
    )


def identity_of(engine, args):
    """Returns an engine as text, with `--precision` if it is not float32: both decide the translations."""
    return f"{engine}, {args.precision}" if args.precision == "bfloat16" else engine


def chosen_engine(args, runs, search):
    """Returns the name of the engine of `--engine`; prints the reason to standard error, if there is one.

    Args:
        args: arguments parsed by a parser with `add_engine_flag` and `add_search_flags`; optionally with
            `program`, the name in messages.
        runs: list of `RunFolder`.
        search: dict, search settings that override those of the run.

    Returns:
        `"tensorflow"` or `"ctranslate2"`.

    Raises:
        ValueError: ctranslate2 lacks something that is needed, a setting is invalid, or `--threads` is
            below 1 or above the maximum.
    """
    check_threads(args)
    if args.engine == "tensorflow":
        return args.engine
    from keras_transformer.config.settings import replace
    from keras_transformer.export.engines import choose_engine

    flags = {"--prefix-file": "prefix_file", "--constraints": "constraints"}
    uses = tuple(flag for flag, name in flags.items() if getattr(args, name, None))
    uses += ("--precision bfloat16",) if args.precision == "bfloat16" else ()
    choice = choose_engine(args.engine, runs, replace(runs[0].config.search, **search), uses=uses)
    if choice.reason:
        _say(args, f"{choice.name}: {choice.reason}")
    return choice.name


def engine_loader(engine, args, runs, *, is_file):
    """Imports what an engine needs.

    Args:
        engine: str, the result of `chosen_engine`.
        args, runs: as in `chosen_engine`.
        is_file: whether the input is a file: its lines are divided among the cores. Otherwise, all cores
            translate the line that has arrived.

    Returns:
        Function that loads the `Translator` or `CTranslate2Translator`.
    """
    if engine == "ctranslate2":
        from keras_transformer.export.conversions import load_conversion

        threads = args.threads
        if threads is None:
            threads = usable_cores() if is_file else 1
        announce = functools.partial(_announce, args)
        # At once, as TensorFlow may be imported for it, before the output is opened.
        translator = load_conversion(runs[0], args.checkpoint, threads=threads, before=announce)
        return lambda: translator
    threads = number_of_threads(args)
    from keras_transformer.translation.translator import Translator

    options = {"checkpoint": args.checkpoint, "threads": threads, "precision": args.precision}
    return functools.partial(Translator.load, args.runs, **options)


def _announce(args):
    _say(args, "ctranslate2: converting the weights, once")
    import_quietly()


def _say(args, text):
    print(f"{programs.name(getattr(args, 'program', 'translate'))}: {text}", file=sys.stderr)
