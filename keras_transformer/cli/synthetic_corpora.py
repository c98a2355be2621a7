"""Shared by `back-translate` and `distil`: translates text in parts and writes it as a corpus."""

import argparse
import dataclasses
import functools
import hashlib
import math
import shlex
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_transformer.cli.command_line import add_checkpoint_flag, add_search_flags, search_settings
from keras_transformer.cli.early_checks import check_task, open_runs
from keras_transformer.cli.engine import add_engine_flag, chosen_engine, identity_of
from keras_transformer.cli.shard_flags import MAX_PARTS
from keras_transformer.cli.translate_shards import translate_shards
from keras_transformer.config import programs
from keras_transformer.config.settings import Config, override, replace
from keras_transformer.text.cleaning import REASONS, Cleaner, CleaningReport
from keras_transformer.text.lines import DataError
from keras_transformer.text.synthetic import check_files, read_manifest
from keras_transformer.translation.synthetic import PARTS, Side, SyntheticCorpus

CHUNK_LINES = 1024
_CHUNKS_OF_A_PART = 16
_FEWEST_LINES = 16  # of a chunk, with minimum Bayes risk decoding, which takes many samples of each line
_FILTERS = ("cleaning.", "data.max_length=", "data.on_bad_utf8=")


class Plan(NamedTuple):
    """What one of the two programs makes.

    Attributes:
        program: str, its name.
        side: `Side`.
        languages: (source, target) of the corpus.
        config: `Config` with `cleaning`, `data.max_length` and `data.on_bad_utf8` of its filters.
        search: dict, fields of `SearchConfig`.
        settings: dict for JSON, all else that decides the content.
        read: function, see `SyntheticCorpus.collect`.
        add_splits: function, see `SyntheticCorpus.write`.
    """

    program: str
    side: Side
    languages: tuple
    config: Config
    search: dict
    settings: dict
    read: Any
    add_splits: Any


def add_shared_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that both programs have."""
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of the new corpus")
    add_checkpoint_flag(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.FIELD=VALUE",
        help="change a filter: cleaning.*, data.max_length or data.on_bad_utf8; may be repeated",
    )  # fmt: skip
    add_engine_flag(parser)
    add_search_flags(parser)


def open_translating_runs(args: argparse.Namespace) -> list:
    """Returns the `RunFolder`s.

    Raises:
        ValueError: one is missing, is a parser, has no such weights, or another direction than the first.
    """
    runs = open_runs(args.runs, args.checkpoint)
    check_task(runs, parses=False)
    first, *others = [(run.config.data.source, run.config.data.target) for run in runs]
    for run, languages in zip(runs[1:], others, strict=True):
        if languages != first:
            raise ValueError(
                f"{run.path}: not of the direction of {runs[0].path}. Give runs of one direction"
            )
    return runs


def filters(args: argparse.Namespace, config: Config) -> Config:
    """Returns a `Config` with the filters of the command line.

    Raises:
        ValueError: `--set` names another setting, or a value is invalid.
    """
    for text in args.set:
        if not text.strip().startswith(_FILTERS):
            raise ValueError(
                f"--set {text}: not a filter. Use cleaning.*, data.max_length or data.on_bad_utf8"
            )
    # Nothing is made into batches here, so any length is accepted.
    return override(replace(config, data={"batch_tokens": sys.maxsize}), args.set)


def content_identity(path: str) -> dict[str, Any]:
    """Returns a dict with the SHA-256 and the size in bytes of a file, which a copy has, too."""
    with open(path, "rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": file.tell()}


def search_fields(args: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """Returns the fields of `SearchConfig` of the command line, with changes, checked before TensorFlow."""
    for name, value in changes.items():
        setattr(args, name, value)
    return search_settings(args, args.runs[0])


def make(args: argparse.Namespace, runs: list, plan: Plan) -> dict[str, Any]:
    """Makes a synthetic corpus, or continues; prints what it does to standard error.

    Args:
        args: the parsed arguments, with `program`.
        runs: list of `RunFolder`.
        plan: `Plan`.

    Returns:
        dict, the manifest; empty if other processes still translate their parts.

    Raises:
        DataError: the text or a folder cannot be used, or a complete corpus has changed.
    """
    config, name = plan.config, programs.name(plan.program)
    search = replace(runs[0].config.search, **plan.search)
    engine = chosen_engine(args, runs, plan.search)
    settings = {
        "program": plan.program,
        "engine": identity_of(engine, args),
        "models": [run.fingerprint(args.checkpoint) for run in runs],
        "search": dataclasses.asdict(search),
        "tag": plan.side.tag,
        "noise": plan.side.noise._asdict() if plan.side.noise else None,
        "cleaning": dataclasses.asdict(config.cleaning),
        "max_length": config.data.max_length,
        "on_bad_utf8": config.data.on_bad_utf8,
        "source": plan.languages[0],
        "target": plan.languages[1],
        **plan.settings,
    }
    cleaner = make_cleaner(functools.partial(
        Cleaner, config.cleaning, *plan.languages, max_length=config.data.max_length
    ))  # fmt: skip
    corpus = SyntheticCorpus(args.output, settings)
    if not corpus.manifest:
        counts = corpus.collect(plan.read)
    if corpus.manifest:  # complete before, or by another process meanwhile
        corpus.remove_progress()
        check_files(corpus.folder, corpus.manifest)
        print(f"{name}: {corpus.folder} is complete", file=sys.stderr)
        return corpus.manifest
    print(f"{name}: {counts['lines translated']:,} lines to translate", file=sys.stderr)
    try:
        translate_shards(_translation(args, corpus, counts, search), plan.search, engine)
        if not corpus.translations.exists():  # other processes still translate
            return {}
        return _write(corpus, runs, plan, cleaner, search.n_best)
    except (DataError, FileNotFoundError):
        if corpus.manifest:  # another process has written it meanwhile
            return corpus.manifest
        raise


def _translation(args, corpus, counts, search):
    """Returns the arguments of `translate_shards`."""
    chunk = max(_FEWEST_LINES, CHUNK_LINES // search.samples) if search.mbr else CHUNK_LINES
    parts = math.ceil(counts["lines translated"] / (chunk * _CHUNKS_OF_A_PART))
    given = {
        "input": str(corpus.text), "output": str(corpus.translations), "shards": corpus.progress / PARTS,
        "num_shards": min(parts, MAX_PARTS), "chunk_lines": chunk,
        "result": corpus.folder, "part": None, "prefix_file": None, "constraints": None,
        "format": "text", "scores": False, "alignment": False,
    }  # fmt: skip
    return argparse.Namespace(**vars(args) | given)


def make_cleaner(make: Callable[[], Cleaner]) -> Cleaner:
    """Returns the result of a function that makes a `Cleaner`; its errors name the setting to change."""
    try:
        return make()
    except ValueError as error:
        filters = "--set cleaning.max_foreign_letters=1 --set cleaning.drop_damaged=false"
        raise ValueError(f"{error}. Or without these filters: {filters}") from error


def _write(corpus, runs, plan, cleaner, n_best):
    tokenizers = runs[0].load_tokenizers()
    if plan.side.reverses:
        tokenizers = type(tokenizers)(tokenizers.target, tokenizers.source)
    return corpus.write(plan.side, cleaner, tokenizers, plan.languages, plan.add_splits, n_best=n_best)


def report(manifest: dict[str, Any], folder: str) -> str:
    """Returns the counts of a synthetic corpus as text, several lines."""
    counts, lines = manifest["counts"], []
    if "lines read" in counts:
        lines.append(f"lines read: {counts['lines read']:,}")
        dropped = counts["dropped before translation"].items()
        lines += [f"- {REASONS[name][0]}: {number:,}" for name, number in dropped if number]
    table = CleaningReport.from_dict(manifest["pairs"]).table()
    lines += [f"lines translated: {counts['lines translated']:,}", "", table, ""]
    return "\n".join([f"{folder}: {manifest['pairs']['num_kept']:,} pairs", "", *lines])


def train_command(dataset: str, languages: tuple, *more: str) -> str:
    """Returns the command that trains on a corpus."""
    source, target = languages
    words = ["--dataset", dataset, "--source", source, "--target", target, *more]
    return f"  {programs.command('train')} {shlex.join(words)} --preset auto --run-dir RUN"


def origin_of(run: Any, *, synthetic: bool = True) -> tuple[str, int]:
    """Returns the raw datasets of a run and their number of training pairs.

    Args:
        run: `RunFolder`.
        synthetic: whether to count corpora that a model has written.

    Returns:
        (str, names separated by commas; int); "" and 0 where they are unknown.
    """
    from keras_transformer.batches.prepared import PreparedCorpus, is_prepared
    from keras_transformer.checkpoints.pretrained import pretrained_folder, pretrained_models
    from keras_transformer.text.datasets import check_dataset, dataset_names

    if run.path in map(pretrained_folder, pretrained_models()):
        return "", 0
    dataset, sizes = run.config.data.dataset, None
    for folder in (dataset, run.path / "corpus"):
        if is_prepared(folder):
            try:
                corpus = PreparedCorpus(folder)
            except ValueError:
                continue
            sizes = corpus.sizes
            if folder == dataset:
                dataset = corpus.settings["data"]["dataset"]
    try:
        names = dataset_names(dataset)
        for name in names:
            check_dataset(name, run.config.data.data_dir)
    except ValueError:  # not stated, or a folder that was moved
        return "", 0
    sizes = sizes or [0] * len(names)
    kept = [pair for pair in zip(names, sizes, strict=True) if synthetic or read_manifest(pair[0]) is None]
    return ",".join(name for name, _ in kept), sum(size for _, size in kept)
