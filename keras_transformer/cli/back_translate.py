r"""Makes a synthetic corpus from text of the target language, by translating it back into the source.

    keras-transformer back-translate runs/de-en --input news.de.gz --output synthetic
    keras-transformer back-translate runs/de-en --input a.de b.de --output out --method sampling --seed 3
    keras-transformer back-translate runs/de-en --input news.de --output out --method noised-beam \
        --no-tag --set cleaning.max_length_ratio=2

RUN translates in the reverse direction: to train English-German, give a run from German to English and German
text. The corpus has the translations as sources, each after a tag, and the text as targets. The last lines
that are printed are a command that trains on it together with the real corpus. The same command continues an
interrupted one; several processes with the same command share the work.
"""

import functools
import itertools
import pathlib

from keras_transformer.cli.command_line import program_parser
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.process import exit_code
from keras_transformer.cli.synthetic_corpora import (
    Plan,
    add_shared_flags,
    content_identity,
    filters,
    make,
    make_cleaner,
    open_translating_runs,
    origin_of,
    report,
    search_fields,
    train_command,
)
from keras_transformer.config import programs
from keras_transformer.config.extras import MissingExtraError
from keras_transformer.config.settings import Config, replace
from keras_transformer.config.tags import RESERVED, RESERVED_NAMES, is_tag
from keras_transformer.text.languages import SAMPLE_SIZE, check_languages
from keras_transformer.text.lines import DataError, LineReader
from keras_transformer.text.noise import Noise
from keras_transformer.translation.synthetic import Side, monolingual_cleaner, monolingual_lines

METHODS = ("beam", "sampling", "noised-beam")
TAG = "<BT>"
FILTERS = {
    "drop_identical": True,
    "drop_duplicates": True,
    "max_length_ratio": 1.5,
    "max_foreign_letters": 0.5,
}
MAX_LENGTH = 250
_NOISE = {"drop_words": "drop", "replace_words": "replace", "shuffle_words": "shuffle", "filler": "filler"}


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("back-translate", words=TRANSLATING)
    text = "run folder of the reverse direction; several form an ensemble"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=text)
    text = "text of the target language, one sentence a line; also .gz, .xz or .bz2"
    parser.add_argument("--input", metavar="FILE", nargs="+", required=True, help=text)
    add_shared_flags(parser)
    parser.add_argument("--source", metavar="LANGUAGE", help="source of the model to train, to check RUN")
    parser.add_argument("--target", metavar="LANGUAGE", help="target of the model to train, to check RUN")
    text = "beam search, samples, or beam search with noise in the translations (default: beam)"
    parser.add_argument("--method", choices=METHODS, default="beam", help=text)
    text = f"word before each source, to be reserved with data.tags (default: {TAG})"
    tag = parser.add_mutually_exclusive_group()
    tag.add_argument("--tag", default=TAG, help=text)
    tag.add_argument("--no-tag", action="store_const", const=None, dest="tag", help="no tag")
    noise = parser.add_argument_group("noise", "with --method noised-beam")
    text = "probability of dropping each word (default: 0.1)"
    noise.add_argument("--drop-words", type=float, metavar="FLOAT", help=text)
    text = "probability of replacing each remaining word by --filler (default: 0.1)"
    noise.add_argument("--replace-words", type=float, metavar="FLOAT", help=text)
    text = "largest number of positions by which words are moved (default: 3)"
    noise.add_argument("--shuffle-words", type=int, metavar="INT", help=text)
    noise.add_argument("--filler", metavar="WORD", help="word that replaces others (default: _)")
    args = parser.parse_args(argv)
    args.program = "back-translate"
    if args.tag is not None and not is_tag(args.tag):
        form = f"letters, digits and _ in angle brackets, such as {TAG}"
        parser.error(f"--tag must be {form}, and not {RESERVED}. Received: {args.tag!r}")
    args.tag = args.tag or ""
    if args.filler in RESERVED_NAMES:
        parser.error(f"--filler must not be {RESERVED}. Received: {args.filler!r}")
    if args.filler and args.filler == args.tag:
        parser.error(f"--filler must not be the --tag of the sources. Received: {args.filler!r}")
    if args.n_best is not None:
        parser.error("--n-best: each line has one translation. Remove this flag")
    if args.sampling is not None:
        parser.error("--sampling: use --method sampling")
    for name in () if args.mbr else ("temperature", "top_k", "top_p", "seed"):  # --mbr draws samples
        methods = METHODS[1:] if name == "seed" else METHODS[1:2]
        if getattr(args, name) is not None and args.method not in methods:
            parser.error(f"--{name.replace('_', '-')} needs --method {' or '.join(methods)}")
    if args.mbr and args.method == "sampling":
        parser.error("--mbr: --method sampling takes one sample of each line. Remove one of them")
    for name in ("beam_size", "early_stop"):
        if args.method == "sampling" and getattr(args, name):
            parser.error(f"--{name.replace('_', '-')}: --method sampling has no beam. Remove one of them")
    if args.method != "noised-beam":
        for name in _NOISE:
            if getattr(args, name) is not None:
                parser.error(f"--{name.replace('_', '-')} needs --method noised-beam")
    return args


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)

    def work():
        runs = open_translating_runs(args)
        for path in args.input:
            if pathlib.Path(path).is_fifo():
                raise ValueError(f"{path}: a pipe can be read only once. Save the text in a file")
            LineReader(path).close()  # raises if it cannot be read
        check_direction(args, runs)
        plan = plan_of(args, runs)
        if manifest := make(args, runs, plan):
            print(report(manifest, args.output))
            print(next_steps(args.output, runs[0], manifest))

    stopped = "stopped. The same command continues"
    return exit_code(programs.name(args.program), work, args.output, stopped=stopped)


def check_direction(args, runs):
    """Checks that the runs translate from the language of the text.

    Without `--source` and `--target`, the language of a sample of the text is identified, if the extra
    `data` is installed.

    Raises:
        ValueError: a run has another direction.
    """
    wanted = {"target": args.source, "source": args.target}  # of the reverse run
    for path, run in zip(args.runs, runs, strict=True):
        found = {"source": run.config.data.source, "target": run.config.data.target}
        if any(language not in (None, found[side]) for side, language in wanted.items()):
            given = {"--source": args.source, "--target": args.target}
            given = " ".join(f"{flag} {language}" for flag, language in given.items() if language)
            raise ValueError(
                f"{path}: this run translates from {found['source']} to {found['target']}, which makes "
                f"data for a model from {found['target']} to {found['source']}. Received: {given}. Give a "
                "run of the other direction"
            )
    first = runs[0].config.data
    if args.source or args.target:
        return
    for path in args.input:
        with LineReader(path) as reader:
            lines = (line.decode("utf-8", "replace").strip() for line in reader)
            sample = list(itertools.islice(filter(None, lines), SAMPLE_SIZE))
        try:
            check = check_languages(sample, sample, first.source, first.target)
        except MissingExtraError:
            return
        if 2 * check.num_source_in_target > check.num_pairs:
            raise DataError(
                f"{path}: seems to be in {first.target} ({check.num_source_in_target:,} of "
                f"{check.num_pairs:,} sampled lines), but {args.runs[0]} translates from {first.source}. "
                f"Give a run of the other direction, or confirm with --target {first.source}"
            )


def plan_of(args, runs):
    """Returns the `Plan` of the command line."""
    data = runs[0].config.data
    config = replace(Config(), cleaning=FILTERS, data={"max_length": MAX_LENGTH})
    config = filters(args, config)
    noise, changes = None, {}
    if args.method == "noised-beam":
        given = {field: getattr(args, name) for name, field in _NOISE.items()}
        given |= {"seed": args.seed}
        noise = Noise(**{name: value for name, value in given.items() if value is not None})
        try:
            noise.check()
        except ValueError as error:
            names = {f"`{field}`": f"--{name.replace('_', '-')}" for name, field in _NOISE.items()}
            field = str(error).partition(" ")[0]
            raise ValueError(str(error).replace(field, names[field])) from error
        if not args.mbr:
            changes["seed"] = None  # that of the noise
    changes["sampling"] = args.method == "sampling"
    if changes["sampling"]:  # of the whole distribution, whatever the run's settings
        changes["mbr"] = False
        usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        changes |= {name: value for name, value in usual.items() if getattr(args, name) is None}
    search = search_fields(args, n_best=1, **changes)
    on_bad_utf8, language = config.data.on_bad_utf8, data.source
    cleaner = make_cleaner(
        functools.partial(monolingual_cleaner, config.cleaning, language, config.data.max_length)
    )
    tokenizer = runs[0].load_tokenizers().source
    return Plan(
        args.program, Side(True, args.tag, noise), (data.target, data.source), config, search,
        {"method": args.method, "inputs": [content_identity(path) for path in args.input]},
        functools.partial(_read, args.input, cleaner, tokenizer, on_bad_utf8),
        lambda folder: None,
    )  # fmt: skip


def _read(paths, cleaner, tokenizer, on_bad_utf8, counts):
    return monolingual_lines(paths, cleaner, tokenizer, counts, on_bad_utf8=on_bad_utf8)


def next_steps(folder, run, manifest):
    """Returns the command that trains on the real and the synthetic corpus.

    Synthetic corpora on which the reverse run was trained are left out: they are of its direction.
    """
    dataset, size = origin_of(run, synthetic=False)
    more = []
    if size:
        # Passes over the real pairs, so that an epoch has at least as many of them as synthetic ones.
        passes = f"{max(1.0, manifest['pairs']['num_kept'] / size):.1f}".removesuffix(".0")
        weights = [passes] * len(dataset.split(",")) + ["1"]
        more = ["--set", f"data.dataset_weights={','.join(weights)}"]
    if tags := manifest["tags"]:
        more += ["--set", f"data.tags={','.join(tags)}"]
    command = train_command(f"{dataset or 'REAL'},{folder}", manifest["languages"], *more)
    return f"next{'' if dataset else ', where REAL is your parallel corpus'}:\n{command}"
