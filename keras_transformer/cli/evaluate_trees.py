"""The part of `evaluate` that scores constituency trees: those of a run, or of files."""

import sys
import time

from keras_transformer.cli.command_line import describe_search, number_of_threads, search_settings
from keras_transformer.cli.early_checks import open_runs


def score_run(args, load_test_set):
    """Parses a split with a run and scores the trees.

    Without `--tree-grammar` or `--no-tree-grammar`, both kinds of search are compared.

    Args:
        args: arguments of the program.
        load_test_set: function of `args` and a `DataConfig`, see `evaluate`.

    Returns:
        (`TreeComparison`, list of str: lines on what was mended).
    """
    from keras_transformer.config.settings import replace
    from keras_transformer.evaluation.brackets import RULE_SETS
    from keras_transformer.evaluation.tree_report import NamedTrees, compare_trees
    from keras_transformer.files import check_output, write_text
    from keras_transformer.text.trees import read_tree

    if args.output:
        check_output(args.output)
    checkpoint = args.checkpoint or "final"
    data = open_runs(args.runs, checkpoint)[0].config.data
    search = search_settings(args, args.runs[0])
    name, source, (gold,), _ = load_test_set(args, data)
    threads = number_of_threads(args)
    from keras_transformer.translation.parser import Parser

    parser = Parser.load(args.runs, checkpoint=checkpoint, threads=threads)
    kinds = [search["tree_grammar"]] if "tree_grammar" in search else [False, True]
    systems, notes = [], []
    for constrained in kinds:
        settings = search | {"tree_grammar": constrained}
        kind = "tree grammar" if constrained else "free search"
        used = describe_search(replace(parser.search, **settings))
        task = (
            f"{len(source):,} sentences of {name} with the {checkpoint} weights of {' and '.join(args.runs)}"
        )
        print(f"parsing {task} ({used})", file=sys.stderr)
        begin = time.monotonic()
        parsed = parser.parse(source, **settings)
        print(f"{len(source) / (time.monotonic() - begin):.1f} sentences/s", file=sys.stderr)
        systems.append(NamedTrees(kind, [one.tree for one in parsed]))
        mended = sum(bool(one.mended) for one in parsed)
        too_long = sum(one.too_long for one in parsed)
        line = f"{kind}: {mended:,} of {len(parsed):,} results ({mended / len(parsed):.1%}) were mended"
        notes.append(f"{line}, {too_long:,} sentences over the length limit got flat trees.")
    if args.output:
        write_text(args.output, "".join(f"{one.text}\n" for one in parsed))
        notes.append(f"{args.output}: the trees of the {kind}.")
    reference = NamedTrees(name, [read_tree(tree) for tree in gold])
    return compare_trees(systems, reference, RULE_SETS[args.rules or "collins"]), notes


def score_files(args):
    """Returns the `TreeComparison` of files of trees."""
    from keras_transformer.evaluation.brackets import RULE_SETS
    from keras_transformer.evaluation.tree_report import NamedTrees, compare_trees
    from keras_transformer.text.treebanks import read_parses
    from keras_transformer.text.trees import read_trees

    # The rules remove traces and functions of labels.
    gold = read_trees(args.reference[0], normalised=False)[0]
    reference = NamedTrees(args.reference[0], gold)
    systems = [NamedTrees(path, read_parses(path, len(gold))) for path in args.hypothesis]
    rules = RULE_SETS[args.rules or "collins"]
    return compare_trees(systems, reference, rules, as_evalb=bool(args.as_evalb))
