"""Flags of translation search, the same for every program that translates."""

import os
import pathlib

from startup import import_quietly

_FLAGS = (
    ("beam-size", int, "hypotheses kept; 1 is greedy (4)"),
    ("alpha", float, "exponent of the length penalty (0.6)"),
    ("length-penalty", str, "gnmt, ((5 + n) / 6)^alpha; average, n^alpha; or none (gnmt)"),
    ("stop", str, "exact: when nothing better can follow; first: at beam-size ended ones (exact)"),
    ("extra-length", int, "tokens that a translation may have more than its source, ... (50)"),
    ("length-factor", float, "... times this ... (1)"),
    ("max-length", int, "... and never more than these (1024)"),
    ("min-length", int, "fewest tokens of a translation (0)"),
    ("no-repeat-ngram", int, "no so many tokens in a row occur twice; 0 for no such rule (0)"),
    ("n-best", int, "translations of each line (1)"),
    ("temperature", float, "of --sampling (1)"),
    ("top-k", int, "--sampling draws from so many tokens; 0 for all (0)"),
    ("top-p", float, "--sampling draws from tokens that together have this probability (1)"),
    ("seed", int, "of --sampling (1)"),
    ("max-source-length", int, "longest source in tokens, end included (256)"),
    ("long-lines", str, "longer ones: split at ends of sentences, or cut (split)"),
    ("batch-tokens", int, "source tokens of a batch, padding included (2048)"),
)
_OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")
# Names of the fields of `SearchConfig`.
SETTINGS = (*(name.replace("-", "_") for name, _, _ in _FLAGS), "sampling")


def add_search_flags(parser, *, threads=True):
    """Adds a flag for every setting of search to an `argparse.ArgumentParser`.

    A flag that is not given leaves the setting as the run has it.

    Args:
        parser: the parser.
        threads: also adds `--threads`, for programs that search.
    """
    group = parser.add_argument_group("search", "what is not given is as the run has it")
    for name, kind, text in _FLAGS:
        group.add_argument(f"--{name}", type=kind, metavar=kind.__name__.upper(), help=text)
    if threads:
        group.add_argument(
            "--threads",
            type=int,
            metavar="INT",
            help="batches that are searched at the same time, a CPU core for each (all cores; with a GPU, 1)",
        )
    group.add_argument(
        "--sampling", action="store_true", default=None, help="draws tokens at random in place of a search"
    )


def search_settings(args, run):
    """Returns the fields of `SearchConfig` that a command line changes.

    They are checked against the settings of the run without TensorFlow, so that a bad one
    is refused at once.

    Args:
        args: what a parser with `add_search_flags` parsed.
        run: the run folder whose settings are changed.

    Returns:
        dict, name -> value.

    Raises:
        ValueError: a value is refused; the message has the range.
    """
    from keras_transformer.config.settings import from_dict, replace
    from keras_transformer.files import unsealed

    settings = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    try:
        search = from_dict(unsealed((pathlib.Path(run) / "config.json").read_bytes())).search
    except (OSError, ValueError):
        return settings  # no run: whoever opens it says so
    refuse_without_sampling(settings, replace(search, **settings))
    return settings


def refuse_without_sampling(settings, changed):
    """Refuses settings of sampling where there is none.

    Args:
        settings: dict, name -> value, what was asked for.
        changed: `SearchConfig` with it.

    Raises:
        ValueError: the message names the flag.
    """
    drawn = [name for name in _OF_SAMPLING if name in settings and not changed.sampling]
    if drawn:
        raise ValueError(f"--{drawn[0].replace('_', '-')} is for --sampling. Add that, or leave it out")


def number_of_threads(args):
    """Returns how many batches are searched at the same time; imports TensorFlow.

    Raises:
        ValueError: `--threads` is below 1.
    """
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"`--threads` must be at least 1. Received: {args.threads}")
    import_quietly("keras_transformer.translation.translator", batches_at_once=args.threads != 1)
    import tensorflow as tf

    if args.threads is None:
        return 1 if tf.config.list_physical_devices("GPU") else len(os.sched_getaffinity(0))
    return args.threads


def describe(search):
    """Returns a few words on a `SearchConfig`, such as `"beam 4, gnmt length penalty, alpha 0.6"`."""
    if search.sampling:
        return f"sampling, temperature {search.temperature:g}"
    if search.beam_size == 1:
        return "greedy"
    if search.length_penalty == "none" or search.alpha == 0:
        return f"beam {search.beam_size}, no length penalty"
    return f"beam {search.beam_size}, {search.length_penalty} length penalty, alpha {search.alpha:g}"
