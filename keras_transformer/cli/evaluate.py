"""Evaluates translations, by a trained model or from files, with BLEU, chrF2 and TER; or parses.

    keras-transformer evaluate RUN
    keras-transformer evaluate RUN --dataset DIR --split test --output hypotheses.de
    keras-transformer evaluate RUN --test-set wmt14/full
    keras-transformer evaluate --hypothesis A.de --hypothesis B.de --reference test.de
    keras-transformer evaluate --task parsing --hypothesis A.trees --reference test.trees

Prints BLEU, chrF2 and TER of sacreBLEU with their signatures, and tokenized BLEU as computed by
multi-bleu.perl, cased and lower-cased, including the paper's variant with split compounds. The scores are
not comparable with each other. With RUN, translations are found by search, without teacher forcing.

With `--task parsing`, the files are bracketed trees, and the scores are evalb's, beside baselines.
"""

import argparse
import json
import re
import sys
import time

from keras_transformer.cli.command_line import (
    FOLDER_SETTINGS,
    SEARCH_SETTINGS,
    add_checkpoint_flag,
    add_search_flags,
    add_setting_flags,
    describe_search,
    number_of_threads,
    program_parser,
    search_settings,
)
from keras_transformer.cli.early_checks import is_local, open_runs
from keras_transformer.cli.engine import add_precision_flag
from keras_transformer.cli.evaluate_trees import score_files, score_run
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.process import exit_code
from keras_transformer.config import programs
from keras_transformer.config.sections import DataConfig

ONLY_FILES = ("reference", "source", "target")
ONLY_TRANSLATION = (
    *("test_set", "source", "target", "tokenized", "detokenize", "no_ter", "confidence"),
    *("significance", "bootstrap_samples", "precision"),
)
ONLY_PARSING = ("rules", "as_evalb", "labels")
ONLY_RUN = (
    *("dataset", *FOLDER_SETTINGS, "split", "checkpoint", "output", "threads", "precision"),
    *SEARCH_SETTINGS,
)


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("evaluate", words=TRANSLATING)
    text, tasks = "what is scored (default: translation)", ("translation", "parsing")
    parser.add_argument("--task", choices=tasks, default="translation", help=text)
    text = "run folder whose model translates; several form an ensemble"
    parser.add_argument("runs", metavar="RUN", nargs="*", help=text)
    text = "translations to score, without RUN; if repeated, each is compared with the first"
    parser.add_argument("--hypothesis", action="append", metavar="FILE", help=text)
    text = "reference translations; repeat for several references"
    parser.add_argument("--reference", action="append", metavar="FILE", help=text)
    text = "sacreBLEU test set, such as wmt14 or wmt14/full, instead of --reference or --split"
    parser.add_argument("--test-set", metavar="NAME", help=text)
    parser.add_argument("--source", metavar="LANGUAGE", help="source language of --test-set, without RUN")
    text = "language of the translations, without RUN (default: the ending of the references' names)"
    parser.add_argument("--target", metavar="LANGUAGE", help=text)
    forms = parser.add_argument_group("text")
    text = "the text is already tokenized: tokenized BLEU splits at spaces, without Moses' tokenizer "
    text += "(default: detected from the files)"
    forms.add_argument("--tokenized", action=argparse.BooleanOptionalAction, help=text)
    text = "join tokens and unescape (&apos;) before scoring"
    forms.add_argument("--detokenize", choices=("hypothesis", "reference", "both"), help=text)
    figures = parser.add_argument_group("metrics")
    figures.add_argument(
        "--no-ter", action="store_true", default=None, help="skip TER, by far the slowest metric"
    )
    text = "also print 95 %% bootstrap intervals"
    figures.add_argument("--confidence", action="store_true", default=None, help=text)
    text, tests = (
        "paired significance test between several hypotheses (default: bootstrap)",
        ("bootstrap", "randomization"),
    )
    figures.add_argument("--significance", choices=tests, help=text)
    text = "samples for intervals and tests (default: sacreBLEU's)"
    figures.add_argument("--bootstrap-samples", type=int, metavar="N", help=text)
    figures.add_argument("--json", action="store_true", help="print the results as JSON")
    trees = parser.add_argument_group("with --task parsing")
    text = "what counts as a bracket: evalb's COLLINS.prm or new.prm (default: collins)"
    trees.add_argument("--rules", choices=("collins", "new"), help=text)
    text = "delete punctuation by each tree's own tags, and leave out sentences whose words then disagree"
    trees.add_argument("--as-evalb", action="store_true", default=None, help=text)
    text = "also print the scores of each label"
    trees.add_argument("--labels", action="store_true", default=None, help=text)
    run = parser.add_argument_group("with RUN")
    text = "folder, archive, name of TensorFlow Datasets or hf:NAME (default: the run's); may be repeated: "
    run.add_argument("--dataset", action="append", help=text + "the first that has the split is translated")
    add_setting_flags(run, DataConfig, FOLDER_SETTINGS)
    run.add_argument("--split", help="test, validation, or a file's name without ending (default: test)")
    add_checkpoint_flag(run, default=None)
    run.add_argument("--output", metavar="FILE", help="also write the translations to FILE")
    add_precision_flag(run)
    add_search_flags(parser)
    return parser.parse_args(argv)


def check_args(args):
    """Raises `ValueError` for arguments that cannot be combined."""
    if bool(args.runs) == bool(args.hypothesis):
        raise ValueError("give either RUN or --hypothesis FILE")
    if args.hypothesis and bool(args.reference) == bool(args.test_set):
        raise ValueError("--hypothesis needs either --reference FILE or --test-set NAME")
    if args.bootstrap_samples is not None:
        from keras_transformer.evaluation.report import MIN_BOOTSTRAP_SAMPLES

        if not args.confidence and len(args.hypothesis or ()) < 2:
            raise ValueError("--bootstrap-samples needs --confidence or a second --hypothesis")
        if args.bootstrap_samples < MIN_BOOTSTRAP_SAMPLES:
            raise ValueError(
                f"--bootstrap-samples must be at least {MIN_BOOTSTRAP_SAMPLES}. "
                f"Received: {args.bootstrap_samples}"
            )
    if args.significance and args.task != "parsing" and len(args.hypothesis or ()) < 2:
        raise ValueError("--significance needs a second --hypothesis")
    if args.n_best is not None:
        raise ValueError("--n-best: only the best translation is scored. Remove this flag")
    useless = ONLY_FILES if args.runs else ONLY_RUN
    if args.runs and args.test_set:
        useless += ("dataset", "split")
    if wrong := flags_given(args, useless):
        mode = "a RUN" if args.runs else "--hypothesis"
        also = " and --test-set" if args.test_set else ""
        raise ValueError(f"{wrong} cannot be used with {mode}{also}. Remove it")


def check_task(args):
    """Raises `ValueError` for arguments of another task; a run decides the task itself."""
    parsing = args.task == "parsing"
    if args.runs:
        run = open_runs(args.runs, args.checkpoint or "final")[0]
        if parsing and not run.config.data.parses:
            raise ValueError(f"{run.path}: this run translates. Remove --task parsing")
        parsing = run.config.data.parses
        args.task = "parsing" if parsing else "translation"
    if wrong := flags_given(args, ONLY_TRANSLATION if parsing else ONLY_PARSING):
        raise ValueError(f"{wrong} cannot be used {'with' if parsing else 'without'} --task parsing")
    if parsing and args.hypothesis and len(args.reference or ()) != 1:
        raise ValueError("--task parsing needs one --reference FILE")
    if parsing and args.runs and args.as_evalb:
        raise ValueError("--as-evalb needs --hypothesis FILE: score the file that --output writes")
    if parsing and args.long_lines is not None:
        raise ValueError("--long-lines: a sentence over the limit gets a flat tree. Remove this flag")


def flags_given(args, names):
    """Returns the flags of those of the arguments that were given, separated by commas."""
    # `is not None`, as 0 is a value.
    return ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None)


def translate_test_set(args):
    """Translates with a run; returns systems, references, standard set and language."""
    from keras_transformer.checkpoints.pretrained import pretrained_models
    from keras_transformer.config.settings import replace
    from keras_transformer.evaluation.report import NamedLines
    from keras_transformer.files import check_output, write_text
    from keras_transformer.text.datasets import check_dataset, dataset_names

    if args.output:
        check_output(args.output)
    checkpoint = args.checkpoint or "final"
    data = open_runs(args.runs, checkpoint)[0].config.data
    search = search_settings(args, args.runs[0])
    if not (args.dataset or args.test_set) and (
        data.dataset == "not stated" or args.runs[0] in pretrained_models()
    ):
        raise ValueError(f"{args.runs[0]}: the model has no test text. Add --dataset DIR or --test-set NAME")
    names = dataset_names(",".join(args.dataset or [data.dataset]))
    for name in names:
        check_dataset(name, args.data_dir or data.data_dir)
    if args.test_set or all(map(is_local, names)):
        name, source, targets, standard = load_test_set(args, data)
        threads = number_of_threads(args)
    else:
        threads = number_of_threads(args)  # quietly: TensorFlow Datasets imports TensorFlow, too
        name, source, targets, standard = load_test_set(args, data)
    from keras_transformer.translation.translator import Translator

    options = {"checkpoint": checkpoint, "threads": threads, "precision": args.precision}
    translator = Translator.load(args.runs, **options)
    used = describe_search(replace(translator.search, **search))
    runs = " and ".join(args.runs)
    task = f"{len(source):,} lines of {name} with the {checkpoint} weights of {runs} ({used})"
    print(f"translating {task}", file=sys.stderr)
    begin = time.monotonic()
    translations = translator.translate(source, **search)
    print(f"{len(source) / (time.monotonic() - begin):.1f} sentences/s", file=sys.stderr)
    if args.output:
        write_text(args.output, "".join(f"{text}\n" for text in translations))
    references = [NamedLines(name, lines) for lines in targets]
    return [NamedLines(runs, translations)], references, standard, data.target


def load_test_set(args, data):
    """Returns (name, source, list of references, `StandardSet` or `None`) of the text to translate.

    Raises:
        ValueError: the text cannot be read, or `--output` is one of its files.
    """
    from keras_transformer.evaluation.test_sets import load_standard_set
    from keras_transformer.files import check_output
    from keras_transformer.text.datasets import open_split
    from keras_transformer.text.lines import DataError, NotUtf8Error

    if args.test_set:
        standard = load_standard_set(args.test_set, data.source, data.target)
        return str(standard), standard.source, standard.references, standard
    split = open_split(
        ",".join(args.dataset or [data.dataset]),
        args.split or "test",
        data.source,
        data.target,
        data_dir=args.data_dir or data.data_dir,
        manual_dir=args.manual_dir or data.manual_dir,
    )
    if args.output:
        check_output(args.output, *split.paths)
    try:
        source, target = split.load(on_bad_utf8=data.on_bad_utf8)
    except NotUtf8Error as error:
        raise DataError(error.args[0]) from error  # this program cannot change the run's setting
    return f"{split.dataset.name} {split.name}", source, [target], None


def read_files(args):
    """Reads files; returns systems, references, standard set and language."""
    from keras_transformer.evaluation.report import NamedLines
    from keras_transformer.evaluation.test_sets import load_standard_set
    from keras_transformer.text.lines import read_lines

    systems = [NamedLines(path, read_lines(path)) for path in args.hypothesis]
    if args.test_set:
        if not (args.source and args.target):
            raise ValueError("--test-set needs --source and --target, such as --source en --target de")
        standard = load_standard_set(args.test_set, args.source, args.target)
        return systems, [NamedLines(str(standard), x) for x in standard.references], standard, args.target
    references = [NamedLines(path, read_lines(path)) for path in args.reference]
    return systems, references, None, args.target or language_of(args.reference)


# The two-letter codes of the locales of CLDR 48.
_LANGUAGES = (
    "aa ab af ak am an ar as az ba be bg bm bn bo br bs ca ce co cs cu cv cy da de dv dz ee el en eo es "
    "et eu fa ff fi fo fr fy ga gd gl gn gu gv ha he hi hr ht hu hy ia id ie ig ii io is it iu ja jv ka "
    "ki kk kl km kn ko ks ku kw ky la lb lg ln lo lt lu lv mg mi mk ml mn mr ms mt my nb nd ne nl nn no "
    "nr nv ny oc om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sn so sq sr ss st su sv "
    "sw ta te tg th ti tk tn to tr ts tt ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)


def language_of(paths):
    """Returns the language code that all names end with, such as `zh-CN` of `test.zh-CN.gz`, or `None`."""
    endings = {re.sub(r"\.(gz|xz|bz2)$", "", path).rpartition(".")[2] for path in paths}
    ending = endings.pop() if len(endings) == 1 else ""
    match = re.fullmatch(r"([a-z]{2})([-_](?:[A-Z][A-Za-z]+|\d{3}))*", ending)
    return ending if match and match[1] in _LANGUAGES.split() else None


def detokenize_sides(which, systems, references, language):
    """Returns systems and references, with the hypotheses, the references or both detokenized."""
    from keras_transformer.evaluation.bleu import detokenize

    if not language:
        raise ValueError("--detokenize needs the language: add --target, such as --target de")

    def join(texts):
        return [text._replace(lines=detokenize(text.lines, language)) for text in texts]

    return (
        systems if which == "reference" else join(systems),
        references if which == "hypothesis" else join(references),
    )


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)

    def work():
        check_args(args)
        check_task(args)
        if args.runs:
            args.n_best = 1  # whatever the run has
        if args.task == "parsing":
            comparison, notes = score_run(args, load_test_set) if args.runs else (score_files(args), [])
            as_json = json.dumps(comparison.to_dict(args.labels), indent=2) if args.json else ""
            print(as_json or "\n".join([comparison.format(args.labels), *notes]))
            return
        from keras_transformer.evaluation.report import compare

        systems, references, standard, language = (translate_test_set if args.runs else read_files)(args)
        if args.detokenize:
            systems, references = detokenize_sides(args.detokenize, systems, references, language)
        comparison = compare(
            systems,
            references,
            target_language=language,
            tokenized=args.tokenized,
            ter=not args.no_ter,
            confidence=args.confidence,
            significance=args.significance or "bootstrap",
            bootstrap_samples=args.bootstrap_samples,
            standard_set=standard,
        )
        print(json.dumps(comparison.to_dict(), indent=2) if args.json else comparison)

    return exit_code(programs.name("evaluate"), work, args.output or "standard output")
