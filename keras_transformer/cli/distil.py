"""Makes a corpus for a smaller model: training sources with a model's translations as targets (distillation).

    keras-transformer distil runs/teacher --output distilled
    keras-transformer distil runs/a runs/b --output distilled --beam-size 5
    keras-transformer distil runs/teacher --output distilled --interpolate --beam-size 8
    keras-transformer train --dataset distilled --source en --target de --preset tiny --run-dir runs/student

Sequence-level knowledge distillation (Kim and Rush, 2016). Several runs form an ensemble. --interpolate takes
the translation of the n-best list that is nearest to the reference. Validation and test splits are copied.
The same command continues an interrupted one; several processes with the same command share the work.
"""

import contextlib
import functools
import itertools
import os
import sys

from keras_transformer.cli.command_line import FOLDER_SETTINGS, add_setting_flags, program_parser
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.process import exit_code
from keras_transformer.cli.synthetic_corpora import (
    Plan,
    add_shared_flags,
    content_identity,
    filters,
    make,
    open_translating_runs,
    origin_of,
    report,
    search_fields,
    train_command,
)
from keras_transformer.config import programs
from keras_transformer.config.extras import MissingExtraError
from keras_transformer.config.fields import from_values
from keras_transformer.config.sections import CleaningConfig, DataConfig
from keras_transformer.config.settings import replace
from keras_transformer.text.languages import SAMPLE_SIZE, check_languages
from keras_transformer.text.synthetic import tags_of_sources
from keras_transformer.translation.synthetic import Side


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("distil", words=TRANSLATING)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder; several form an ensemble")
    text = "corpus whose training sources are translated (default: the run's); may be repeated"
    parser.add_argument("--dataset", action="append", help=text)
    add_setting_flags(parser, DataConfig, FOLDER_SETTINGS)
    text = "take the translation nearest to the reference by sentence BLEU, of --n-best (default: the beam)"
    parser.add_argument("--interpolate", action="store_true", help=text)
    add_shared_flags(parser)
    args = parser.parse_args(argv)
    args.program = "distil"
    if args.n_best is not None and not args.interpolate:
        parser.error("--n-best needs --interpolate: each source has one translation")
    return args


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)

    def work():
        runs = open_translating_runs(args)
        plan = plan_of(args, runs)
        if manifest := make(args, runs, plan):
            print(report(manifest, args.output))
            print("\n".join(["next:", train_command(args.output, plan.languages)]))

    stopped = "stopped. The same command continues"
    return exit_code(programs.name(args.program), work, args.output, stopped=stopped)


def plan_of(args, runs):
    """Returns the `Plan` of the command line."""
    from keras_transformer.batches.sharding import open_text
    from keras_transformer.batches.text_files import write_split

    run = runs[0]
    if not args.dataset and not origin_of(run)[0]:
        raise ValueError(f"{args.runs[0]}: the model has no training text. Add --dataset DIR")
    raw = _raw(run.config, ",".join(args.dataset or []))
    data = {name: getattr(args, name) for name in FOLDER_SETTINGS if getattr(args, name) is not None}
    config = filters(args, replace(raw, data=data))
    text = open_text(config)
    _warn_of_languages(args, text, config.data)
    changes = {"n_best": 1}
    if args.interpolate:
        beam_size = args.beam_size or run.config.search.beam_size
        changes["n_best"] = beam_size if args.n_best is None else args.n_best
        if changes["n_best"] == 1:
            samples = args.sampling or args.mbr or args.n_best == 1
            flag = "--n-best" if samples else "--beam-size"
            raise ValueError(f"--interpolate needs several translations: {flag} of at least 2")
    search = search_fields(args, **changes)
    tags = frozenset(run.load_tokenizers().source.tags) | tags_of_sources(text.datasets)

    def add_splits(folder):
        for split in text.splits:
            write_split(text, folder, split)

    return Plan(
        args.program, Side(False), (config.data.source, config.data.target), config, search,
        {"inputs": _contents(text.inputs), "interpolate": args.interpolate},
        functools.partial(_read, text, tags),
        add_splits,
    )  # fmt: skip


def _raw(config, dataset):
    """Returns the `Config` with the text to read and its filters.

    For a prepared corpus, these are the text from which it was prepared, and the filters of the preparation.

    Args:
        config: `Config` of the run.
        dataset: str, the dataset given instead of that of the run; or "".
    """
    from keras_transformer.batches.prepared import is_prepared, settings_of_prepared

    dataset = dataset or config.data.dataset
    if not is_prepared(dataset):
        return replace(config, data={"dataset": dataset})
    settings = settings_of_prepared(dataset)
    names = ("dataset", *FOLDER_SETTINGS)
    data = {name: settings["data"][name] for name in names if settings["data"].get(name) is not None}
    return replace(config, data=data, cleaning=from_values(CleaningConfig, settings["cleaning"]))


def _warn_of_languages(args, text, data):
    """Warns on standard error if the first pairs seem to be in other languages, such as swapped sides."""
    sample = list(itertools.islice(text.clean_pairs(), SAMPLE_SIZE))
    if not sample or data.dataset.startswith("cldr/"):
        return
    source, target = map(list, zip(*sample, strict=True))
    with contextlib.suppress(MissingExtraError):
        for warning in check_languages(source, target, data.source, data.target).warnings():
            print(f"{programs.name(args.program)}: warning: {warning}", file=sys.stderr)


def _contents(inputs):
    """Returns nested lists of fingerprints; those of files have the content in place of path and time."""
    if isinstance(inputs, list):
        return list(map(_contents, inputs))
    path = inputs.get("path", "") if isinstance(inputs, dict) else ""
    return content_identity(path) if os.path.isfile(path) else inputs


def _read(text, tags, counts):
    """Yields (source, target) of the training pairs; tags of synthetic sources are left out."""
    for source, target in text.clean_pairs():
        if any(tag in source for tag in tags):
            source = " ".join(word for word in source.split(" ") if word not in tags)
        yield source, target
