r"""Cleans, encodes and shards a parallel corpus, so that training on it starts at once.

    keras-transformer prepare wmt14_translate/de-en data/wmt14 --source en --target de
    keras-transformer prepare DIR OUT --source en --target de --vocab-size 8000 \
        --set cleaning.drop_duplicates=true --set cleaning.max_length_ratio=2
    keras-transformer prepare OUT --examples 5
    keras-transformer train --dataset OUT --preset base --run-dir runs/wmt14
    keras-transformer prepare cldr/en-de corpus --text

The same command continues an interrupted preparation.
"""

import math
import os
import pathlib
import shlex

from keras_transformer.cli.command_line import (
    CORPUS_SETTINGS,
    FOLDER_SETTINGS,
    VOCABULARY_FLAGS,
    VOCABULARY_SETTINGS,
    add_setting_flags,
    given_settings,
    program_parser,
)
from keras_transformer.cli.process import exit_code
from keras_transformer.config import programs
from keras_transformer.config.sections import TREES, DataConfig

# Settings of `data` that only training uses; `weights` is the old name of one.
FOR_TRAINING = ("dataset", "dataset_weights", "weights", "temperature", "subword_dropout")
# Settings that change the description of a prepared folder.
FOR_DESCRIPTION = ("data.batch_tokens", "data.padding", "data.max_shapes")
# Settings that count tokens, or are of batches; text has neither.
NOT_FOR_TEXT = (
    *("cleaning.min_length", "cleaning.max_length_ratio", "data.max_length", "data.vocab_texts"),
    *FOR_DESCRIPTION,
)


def make_parser():
    """Returns the parser of the command line."""
    parser = program_parser("prepare")
    parser.add_argument(
        "dataset",
        help="folder or archive of parallel files, cldr/SOURCE-TARGET, a name of TensorFlow Datasets such as "
        "wmt14_translate/de-en, or hf:NAME/CONFIG of Hugging Face; several separated by commas; or a "
        "prepared folder to describe",
    )
    parser.add_argument("out", nargs="?", help="folder to write; without it, DATASET is described")
    named = "as in cldr/SOURCE-TARGET or a prepared folder; required for other datasets"
    languages = {"source": named, "target": named}
    add_setting_flags(parser, DataConfig, CORPUS_SETTINGS + VOCABULARY_FLAGS, defaults=languages)
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="vocabulary to use: a file, a run or a prepared folder"
    )
    parser.add_argument("--workers", type=int, help="number of processes (default: one per core)")
    parser.add_argument("--shard-pairs", type=int, help="pairs per shard (default: 100,000)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="change a setting of data or cleaning, e.g. cleaning.drop_identical=true; may be repeated",
    )
    parser.add_argument(
        "--examples", type=int, default=0, metavar="N", help="print N pairs as text, pieces and ids"
    )
    parser.add_argument(
        "--plot", metavar="PNG", help="plot sentence lengths and padding for batches of data.batch_tokens"
    )
    text = "write the pairs that pass the filters as text files, without vocabulary and ids"
    parser.add_argument("--text", action="store_true", help=text)
    return parser


def parse_args(argv=None):
    """Parses the command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.text and not args.out:
        parser.error("--text needs a folder to write: DATASET OUT --text")
    preparing = ("tokenizer", *VOCABULARY_FLAGS, "workers", "shard_pairs")
    for name in (*preparing, "examples", "plot"):
        if args.text and getattr(args, name):
            parser.error(f"--{name.replace('_', '-')} is for a prepared corpus, --text for text. Remove one")
    if not args.out:
        given = [f"--{name.replace('_', '-')}" for name in given_settings(args, preparing + FOLDER_SETTINGS)]
        given += [f"--set {text}" for text in args.set if _setting_name(text) not in FOR_DESCRIPTION]
        if given:
            parser.error(
                f"{given[0]}: without a folder to write, {args.dataset} is only described. Add the folder, "
                "or remove this argument"
            )
    return args


def _setting_name(text):
    """Returns `section.field` of a text `section.field=value`."""
    return text.partition("=")[0].strip()


def resolve(args):
    """Returns the `Config` that the command line asks for."""
    from keras_transformer.config.settings import Config, override, replace
    from keras_transformer.text.datasets import languages_of

    changes = {"dataset": args.dataset, **given_settings(args, CORPUS_SETTINGS + VOCABULARY_FLAGS)}
    if named := languages_of(args.dataset):
        changes = {"source": named[0], "target": named[1]} | changes
    elif not (args.source and args.target) and args.out:
        raise ValueError("the languages are missing: add --source LANGUAGE --target LANGUAGE")
    if changes.get("target") == TREES:
        changes["separate_vocabularies"] = True
    # The model is not used here; `tie_embeddings` must only allow two vocabularies.
    config = override(replace(Config(), model={"tie_embeddings": "none"}, data=changes), args.set)
    for text in args.set:
        section, name = (_setting_name(text).split(".") + [""])[:2]
        if section in ("model", "training", "search", "devices") or name in FOR_TRAINING:
            raise ValueError(f"--set {text}: a setting of training, not of preparation. Remove it here")
    fixed = [text for text in args.set if text.startswith(VOCABULARY_SETTINGS)]
    if args.tokenizer and (args.vocab_size or args.model_type or fixed):
        raise ValueError("--tokenizer fixes the vocabulary: remove its size, type and normalization")
    if args.text and fixed:
        raise ValueError(f"--set {fixed[0]}: a setting of the vocabulary, and --text writes none. Remove it")
    unused = [text for text in args.set if args.text and _setting_name(text) in NOT_FOR_TEXT]
    if unused:
        raise ValueError(f"--set {unused[0]}: --text counts no tokens and makes no batches. Remove it")
    if args.examples < 0:
        raise ValueError(f"--examples must be at least 0. Received: {args.examples}")
    if args.plot and (
        pathlib.Path(args.plot).suffix != ".png" or not pathlib.Path(args.plot).parent.is_dir()
    ):
        raise ValueError(f"--plot must be a .png file in a folder that exists. Received: {args.plot}")
    if args.plot:
        import keras_transformer.analysis.plots.runs  # noqa: F401 - raises before any work
    for name, given in (("workers", args.workers), ("shard-pairs", args.shard_pairs)):
        if given is not None and given < 1:
            raise ValueError(f"--{name} must be at least 1. Received: {given}")
    return config


def describe(prepared, data, *, examples=0):
    """Describes a prepared corpus.

    Args:
        prepared: `PreparedCorpus`.
        data: `DataConfig` with `batch_tokens`, `padding` and `max_shapes`.
        examples: number of pairs to show as text, pieces and ids.

    Returns:
        str, several lines: pairs kept and dropped, tokens, padding, warnings, and the command to
        train with.
    """
    from keras_transformer.batches.prepared import evenly_spaced
    from keras_transformer.config.presets import PAIRS_FOR_BASE

    pairs, tokenizers = prepared.load_pairs(), prepared.load_tokenizers()
    num_shards = len(prepared.manifest["shards"])
    lines = [
        f"{prepared.path}: {pairs.num_pairs:,} pairs in {num_shards:,} shard{'s' * (num_shards != 1)}",
        "",
        prepared.report.table(),
        "",
    ]
    for language, sequences, tokenizer in zip(prepared.languages, pairs, tokenizers, strict=True):
        lengths = sorted(sequences.lengths.tolist())
        half, most = (lengths[math.ceil(share * len(lengths)) - 1] for share in (0.5, 0.99))
        lines.append(
            f"{language}: {sum(lengths):,} tokens, vocabulary of {tokenizer.vocab_size:,}, "
            f"{sum(lengths) / len(lengths):.1f} tokens a sentence (median {half}, 99 % up to {most}, "
            f"longest {lengths[-1]})"
        )
    for split in prepared.splits:
        lines.append(f"{split}: {prepared.manifest['texts'][split]['num_pairs']:,} pairs as text")
    batches = f"batches of {data.batch_tokens:,} tokens a side"
    try:
        padding = 1 - _planner(pairs, data).real_share()
        lines.append(f"{batches}: {100 * padding:.1f} % padding")
    except ValueError as error:
        lines.append(f"{batches} cannot be made: {error}")
    lines += [f"warning: {warning}" for warning in prepared.warnings(pairs, tokenizers)]
    for number in evenly_spaced(pairs.num_pairs, examples):
        lines += ["", f"pair {number:,}"]
        for name, sequences, tokenizer in zip(("source", "target"), pairs, tokenizers, strict=True):
            ids = sequences[number].tolist()
            text = tokenizer.decode([ids])[0]
            lines += [
                f"  {name}  {text}",
                f"  pieces  {' '.join(tokenizer.pieces([text])[0])}",
                f"  ids     {' '.join(map(str, ids))}",
            ]
    path = shlex.quote(str(prepared.path))
    source, target = prepared.languages
    preset = "base" if pairs.num_pairs > PAIRS_FOR_BASE else "auto"
    preset = "parsing_small" if TREES in prepared.languages else preset
    lines += [
        "",
        "next:",
        f"  {programs.command('prepare')} {path} --examples 5 --plot lengths.png",
        f"  {programs.command('train')} --dataset {path} --source {source} --target {target} "
        f"--preset {preset} --run-dir RUN",
    ]
    return "\n".join(lines)


def write_text(config, out):
    """Writes a corpus as text files; returns what to print."""
    from keras_transformer.batches.preparing import check_outside
    from keras_transformer.batches.text_files import write_text_corpus

    check_outside(config.data.dataset, out)
    report, others = write_text_corpus(config, out)
    data, path = config.data, shlex.quote(out)
    return "\n".join(
        [
            f"{out}: {report.num_kept:,} training pairs as text",
            "",
            report.table(),
            "",
            *(f"{split}: {number:,} pairs" for split, number in others.items()),
            "",
            "next:",
            f"  {programs.command('train')} --dataset {path} --source {data.source} --target {data.target} "
            "--preset auto --run-dir RUN",
        ]
    )


def draw_lengths(prepared, data, path):
    """Plots the sentence lengths and the padding of batches by length into a PNG file."""
    # Matplotlib takes most of a second.
    from keras_transformer.analysis.plots.runs import length_histogram

    pairs = prepared.load_pairs()
    lengths = pairs.source.lengths + pairs.target.lengths
    figure = length_histogram(
        *pairs.lengths,
        [
            (
                plan.rows * (plan.source_len + plan.target_len),
                int(lengths[plan.indices].sum()),
                plan.target_len,
            )
            for plan in _planner(pairs, data).plan(0)
        ],
        names=prepared.languages,
        title=f"{prepared.path}, {data.batch_tokens:,} tokens a side",
    )
    figure.savefig(path, dpi=130)


def _planner(pairs, data):
    from keras_transformer.batches.planning import EpochPlanner

    return EpochPlanner(
        *pairs.lengths, batch_tokens=data.batch_tokens, padding=data.padding, max_shapes=data.max_shapes
    )


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # in case a dataset imports TensorFlow

    def work():
        from keras_transformer.batches.prepared import PreparedCorpus
        from keras_transformer.batches.preparing import SHARD_PAIRS, prepare
        from keras_transformer.checkpoints.pretrained import resolve as folder_of
        from keras_transformer.tokenizers.tokenizer_pair import read_tokenizers

        config = resolve(args)
        if args.text:
            print(write_text(config, args.out))
            return
        if args.out:
            tokenizers = read_tokenizers(folder_of(args.tokenizer)) if args.tokenizer else None
            prepared = prepare(
                config,
                args.out,
                tokenizers=tokenizers,
                num_workers=args.workers,
                shard_pairs=args.shard_pairs or SHARD_PAIRS,
            )
        else:
            prepared = PreparedCorpus(args.dataset, args.source, args.target)
        print(describe(prepared, config.data, examples=args.examples))
        if args.plot:
            draw_lengths(prepared, config.data, args.plot)
            print(f"wrote {args.plot}")

    stopped = "stopped. Nothing was written" if args.text else "stopped. The same command continues"
    return exit_code(programs.name("prepare"), work, stopped=stopped)
