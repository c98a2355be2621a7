"""The command line of `evaluate_wmt.py`."""

from command_line import Parser
from other_words import TRANSLATING
from search_flags import SETTINGS, add_search_flags

FEWEST_DRAWS = 40  # of which 2.5 % is one
ONLY_FILES = ("reference", "source", "target")
ONLY_RUN = ("dataset", "data_dir", "manual_dir", "split", "weights", "output", "threads", *SETTINGS)


def parse_args(argv=None, text=""):
    """Parses the command line; `text` is the docstring of the program."""
    parser = Parser(text, prog="evaluate_wmt.py", words=TRANSLATING)
    parser.add_argument(
        "runs", metavar="RUN", nargs="*", help="run folder, which translates; several are an ensemble"
    )
    parser.add_argument(
        "--hypothesis",
        action="append",
        metavar="FILE",
        help="translations to score, in place of RUN; further ones are tested against the first",
    )
    parser.add_argument(
        "--reference", action="append", metavar="FILE", help="what they should be; several count together"
    )
    parser.add_argument(
        "--test-set",
        metavar="NAME",
        help="a standard test set by sacreBLEU's name (wmt14 and wmt14/full are two), in place of "
        "--reference, or of the split that RUN translates",
    )
    parser.add_argument("--source", metavar="LANGUAGE", help="of --test-set, without RUN")
    parser.add_argument(
        "--target",
        metavar="LANGUAGE",
        help="of the translations, without RUN (default: what the names of the references end with)",
    )
    text = parser.add_argument_group("how the text is taken")
    text.add_argument(
        "--tokens",
        choices=("moses", "given"),
        help="what tokenised BLEU counts: Moses' tokens of raw text, or what spaces separate "
        "(default: moses, unless all files look tokenised)",
    )
    text.add_argument(
        "--detokenize",
        choices=("hypothesis", "reference", "both"),
        help="joins tokens and unescapes (&apos;) before scoring",
    )
    figures = parser.add_argument_group("what is computed")
    figures.add_argument("--no-ter", action="store_true", help="leaves out TER, the slowest by far")
    figures.add_argument("--confidence", action="store_true", help="also 95 %% intervals, by bootstrap")
    figures.add_argument(
        "--significance",
        choices=("bootstrap", "randomization"),
        default="bootstrap",
        help="paired test between several hypotheses (default: bootstrap)",
    )
    figures.add_argument("--draws", type=int, metavar="N", help="for both (default: sacreBLEU's own number)")
    figures.add_argument("--json", action="store_true", help="prints everything as JSON")
    run = parser.add_argument_group("with RUN")
    run.add_argument(
        "--dataset",
        action="append",
        help="corpus, folder, archive or name of TensorFlow Datasets (default: that of the run); "
        "of several, the first that has the split",
    )
    run.add_argument("--data-dir", help="prepared sets of TensorFlow Datasets, and unpacked archives")
    run.add_argument("--manual-dir", help="files downloaded by hand, for TensorFlow Datasets")
    run.add_argument("--split", help="test, validation, or a file's name before its ending (default: test)")
    run.add_argument(
        "--weights",
        metavar="NAME",
        help="final (what training delivered), averaged, last, best, ema, last-N or best-K (see "
        "average_checkpoints.py), or step-N (default: final)",
    )
    run.add_argument("--output", metavar="FILE", help="also writes the translations")
    add_search_flags(parser)
    return parser.parse_args(argv)


def check(args):
    """Refuses arguments that do not go together.

    Raises:
        ValueError: the message names them.
    """
    if bool(args.runs) == bool(args.hypothesis):
        raise ValueError("give a RUN, which translates, or --hypothesis FILE, not both and not neither")
    if args.hypothesis and bool(args.reference) == bool(args.test_set):
        raise ValueError("--hypothesis needs --reference FILE or --test-set NAME, and not both")
    if args.draws is not None and not args.confidence and len(args.hypothesis or ()) < 2:
        raise ValueError("--draws needs --confidence, or a second --hypothesis to test")
    if args.draws is not None and args.draws < FEWEST_DRAWS:
        raise ValueError(f"--draws must be at least {FEWEST_DRAWS}. Received: {args.draws}")
    if args.n_best is not None:
        raise ValueError("--n-best: only the best translation is scored. Leave it out")
    useless = ONLY_FILES if args.runs else ONLY_RUN
    if args.runs and args.test_set:
        useless += ("dataset", "split")
    # 0 is a value too.
    wrong = [f"--{name.replace('_', '-')}" for name in useless if getattr(args, name) is not None]
    if wrong:
        mode = "a RUN" if args.runs else "--hypothesis"
        also = " and --test-set" if args.test_set else ""
        raise ValueError(f"{', '.join(wrong)}: of no use with {mode}{also}. Leave it out")
