"""Bracket scores against the C program evalb, compiled here with larger limits."""

import os
import pathlib
import random
import re
import shutil
import subprocess

import pytest

from keras_transformer.evaluation.brackets import COLLINS, NEW, bracket_scores, score_sentence
from keras_transformer.text.linearised import linearise, mend
from keras_transformer.text.trees import Tree, read_tree, read_trees, tags, words, write_tree

DATA = pathlib.Path(__file__).resolve().parents[2] / "../shared/data"
EVALB = DATA / "evalb"
TREEBANK = DATA / "treebank_craft/valid.trees"
# Its limits, and the larger ones.
LIMITS = {
    r"(MAX_SENT_LEN|MAX_LINE_LEN) +\d+": r"\1 50000",
    r"(MAX_WORD_IN_SENT|MAX_BRACKET_IN_SENT|MAX_WORD_LEN) +\d+": r"\1 2000",
    r"(MAX_QUOTE_TERM) +\d+": r"\1 200",
    r"\b5000\b": "50000",
    r"match_j\[200\]": "match_j[2000]",
}
SUMMARY = {
    "Number of sentence": "num_sentences",
    "Bracketing Recall": "recall",
    "Bracketing Precision": "precision",
    "Bracketing FMeasure": "f1",
    "Complete match": "complete_match",
    "Average crossing": "average_crossing",
    "No crossing": "no_crossing",
    "2 or less crossing": "two_crossing",
}


@pytest.fixture(scope="module")
def evalb(tmp_path_factory):
    """Function of (gold trees, test trees, parameter file): (lines of sentences, two summaries)."""
    if not EVALB.is_dir():
        pytest.skip(f"needs {EVALB}")
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("evalb")
    source = (EVALB / "evalb.c").read_text(encoding="utf-8")
    for pattern, limit in LIMITS.items():
        source, count = re.subn(pattern, limit, source)
        assert count, pattern
    (folder / "evalb.c").write_text(source, encoding="utf-8")
    subprocess.run(["gcc", "-O2", "-w", "-o", "evalb", "evalb.c"], cwd=folder, check=True)

    def run(gold, test, parameters):
        for name, trees in (("gold", gold), ("test", test)):
            (folder / name).write_text("".join(f"{write_tree(tree)}\n" for tree in trees), encoding="utf-8")
        command = ["./evalb", "-p", EVALB / parameters, "-e", "1000000", "gold", "test"]
        printed = subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout.decode()
        rows = re.split(r"(?m)^=+$", printed)[1].strip().split("\n")
        summaries = re.split(r"-- (?:All|len<=40) --", printed)[1:]
        return [row.split() for row in rows], [
            dict(re.findall(r"(.+?) += +(\S+)", text)) for text in summaries
        ]

    return run


def mutable(tree):
    return [tree.label, list(tree.children) if tree.is_preterminal else list(map(mutable, tree.children))]


def frozen(node):
    label, children = node
    return Tree(label, tuple(child if isinstance(child, str) else frozen(child) for child in children))


def constituents(node):
    if not isinstance(node[1][0], str):
        yield node
        for child in node[1]:
            yield from constituents(child)


def relabel(node, _, generator):
    node[0] = generator.choice(["NP", "VP", "ADVP", "PRT", "TOP", "NP-SBJ", "S=1", "?", ","])


def remove(node, parent, generator):
    """The children of a constituent become its parent's."""
    if parent:
        at = next(i for i, child in enumerate(parent[1]) if child is node)
        parent[1][at : at + 1] = node[1]


def add(node, _, generator):
    """A constituent around some neighbours, perhaps a single one."""
    begin = generator.randrange(len(node[1]))
    end = generator.randint(begin + 1, len(node[1]))
    node[1][begin:end] = [[generator.choice(["NP", "VP", "PRT", node[0]]), node[1][begin:end]]]


def move(node, parent, generator):
    """The first or last child moves out of its constituent, perhaps into the next one."""
    if parent and len(node[1]) > 1:
        at = next(i for i, child in enumerate(parent[1]) if child is node)
        last = generator.random() < 0.5
        child = node[1].pop(-1 if last else 0)
        beside = parent[1][at + 1 : at + 2] if last else parent[1][max(at - 1, 0) : at]
        if beside and not isinstance(beside[0][1][0], str) and generator.random() < 0.7:
            beside[0][1].insert(0 if last else len(beside[0][1]), child)
        else:
            parent[1].insert(at + last, child)


def damaged(tree, generator, share=0.2):
    """A copy with about `share` of its constituents damaged; words and tags stay."""
    if tree.is_preterminal:
        return tree
    root = mutable(tree)
    for _ in range(round(share * generator.uniform(0, 2) * len(list(constituents(root))))):
        parents = {id(child): node for node in constituents(root) for child in node[1]}
        node = generator.choice(list(constituents(root)))
        generator.choice([relabel, remove, add, move])(node, parents.get(id(node)), generator)
    return frozen(root)


def compare(evalb, gold, test, rules, **options):
    """Requires equal numbers for each sentence and in the summaries; returns ours."""
    rows, summaries = evalb(gold, test, rules.name)
    assert len(rows) == len(gold)
    for row, one, other in zip(rows, gold, test, strict=True):
        found = score_sentence(one, other, rules, delete_by=options.get("delete_by", "gold"))
        length, status, matched, in_gold, in_test, crossing = map(int, (*row[1:3], *row[5:9]))
        assert length == found.length, row
        assert (status == 0) == (found.words_agree and found.has_words), row
        if status == 0:
            ours = (found.matched.total(), found.gold.total(), found.test.total(), found.crossing)
            assert ours == (matched, in_gold, in_test, crossing), row
    scores = bracket_scores(gold, test, rules, **options)
    for summary, ours in zip(summaries, (scores.all, scores.short), strict=True):
        assert int(summary["Number of Valid sentence"]) == ours.num_counted
        for name, key in SUMMARY.items():
            assert float(summary[name].replace("nan", "0")) == pytest.approx(
                getattr(ours, key), abs=0.005001
            ), name
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules", [pytest.param(COLLINS, id="collins"), pytest.param(NEW, id="new", marks=pytest.mark.very_slow)]
)
@pytest.mark.parametrize("number", [10, pytest.param(1541, marks=pytest.mark.very_slow)])
def test_damaged_trees_of_a_treebank_get_the_same_scores(evalb, rules, number):
    if not TREEBANK.exists():
        pytest.skip(f"needs {TREEBANK}")
    gold, _ = read_trees(TREEBANK)
    generator = random.Random(1)
    figures = []
    for copy in range(200):
        some = generator.sample(gold, number)
        test = [damaged(tree, generator, share=copy / 200) for tree in some]
        figures.append(compare(evalb, some, test, rules).all.f1)
    assert figures[0] == 100
    assert min(figures) < 65
    scores = compare(evalb, gold, [damaged(tree, generator) for tree in gold], rules)
    assert scores.disagreeing == ()
    assert 70 < scores.all.f1 < 90


@pytest.mark.very_slow
@pytest.mark.parametrize("rules", [COLLINS, NEW], ids=["collins", "new"])
def test_the_trees_of_a_model_get_the_same_scores(evalb, rules):
    """`PARSES` names what `parse.py` or `evaluate_wmt.py --output` wrote for the treebank."""
    if not os.environ.get("PARSES"):
        pytest.skip("needs the environment variable PARSES, a file of parses of the treebank")
    gold, _ = read_trees(TREEBANK)
    parses, _ = read_trees(os.environ["PARSES"])
    by_gold = bracket_scores(gold, parses, rules)
    # The C program deletes by each tree's own tags: these are the gold tree's now.
    test = [
        mend(linearise(parse), words(parse), tags(tree))[0] for tree, parse in zip(gold, parses, strict=True)
    ]
    scores = compare(evalb, gold, test, rules)
    assert scores == by_gold
    print(scores.all, scores.short)


def random_tree(generator, depth=0):
    if depth and generator.random() < 0.5:
        tag = generator.choice(["NN", "''", "``", "POS", ",", ".", "-NONE-", "CD", "?", "VBZ"])
        return Tree(tag, (generator.choice(["'", '"', "/", "a", "b"]),))
    children = tuple(
        random_tree(generator, depth + 1) for _ in range(generator.randint(1, 3 if depth < 4 else 1))
    )
    return Tree(generator.choice(["NP", "VP", "ADVP", "PRT", "TOP", "S1"]), children)


def other_tags(tree, generator):
    """A copy with some tags, and rarely a word, replaced."""
    if not tree.is_preterminal:
        return tree._replace(children=tuple(other_tags(child, generator) for child in tree.children))
    if generator.random() < 0.1:
        tree = tree._replace(label=generator.choice(["NN", "''", "``", "POS", ",", ":", "-NONE-"]))
    return tree._replace(children=("c",)) if generator.random() < 0.005 else tree


@pytest.mark.slow
@pytest.mark.parametrize("rules", [COLLINS, NEW], ids=["collins", "new"])
def test_deleting_by_each_trees_own_tags_is_evalbs(evalb, rules):
    generator = random.Random(2)
    gold = [random_tree(generator) for _ in range(4_000)]
    test = [other_tags(damaged(tree, generator), generator) for tree in gold]
    scores = compare(evalb, gold, test, rules, delete_by="own", disagreeing="skip")
    assert 100 < scores.all.num_disagreeing < 3_000
    assert scores.all.num_without_words > 20
    # By the gold tree's tags, only other words disagree, and traces.
    by_gold = bracket_scores(gold, test, rules)
    assert 0 < by_gold.all.num_disagreeing < scores.all.num_disagreeing
    assert by_gold.all.num_skipped == by_gold.all.num_without_words


@pytest.mark.slow
def test_scores_without_labels_are_evalbs(evalb, tmp_path):
    parameters = (EVALB / "COLLINS.prm").read_text(encoding="utf-8").replace("LABELED 1", "LABELED 0")
    (tmp_path / "unlabelled.prm").write_text(parameters, encoding="utf-8")
    generator = random.Random(3)
    gold = [random_tree(generator) for _ in range(1_000)]
    test = [damaged(tree, generator, share=0.5) for tree in gold]
    _, summaries = evalb(gold, test, tmp_path / "unlabelled.prm")
    scores = bracket_scores(gold, test)
    for summary, ours in zip(summaries, (scores.all, scores.short), strict=True):
        assert float(summary["Bracketing FMeasure"]) == pytest.approx(ours.unlabelled_f1, abs=0.005001)
    assert scores.all.unlabelled_f1 > scores.all.f1 + 2


def test_the_example_of_evalbs_correction_is_scored_alike(evalb):
    gold, test = (read_trees(EVALB / f"bug/bug.{kind}", normalised=False)[0] for kind in ("gld", "tst"))
    options = {"delete_by": "own", "disagreeing": "skip"}
    found = compare(evalb, gold, test, NEW, **options).all
    # Of bug.rsl-new.
    assert (found.matched, found.gold, found.test, found.num_disagreeing) == (71, 113, 123, 0)
    assert compare(evalb, gold, test, COLLINS, **options).all.num_disagreeing > 0
    # By the tags of the gold trees, no correction is needed.
    assert bracket_scores(gold, test, COLLINS).disagreeing == ()


def test_quotes_with_tags_of_two_kinds_are_kept_as_evalb_does(evalb):
    texts = [
        ("(S (`` ') (NP (NN a)) (POS '))", "(S (POS ') (NP (NN a)) (POS '))"),
        ("(S (NP (NN a)) (VP (VP (POS '))) (. .))", "(S (NP (NN a)) (VP (VP ('' '))) (. .))"),
        ("(S (NP (NN a) ('' ')) ('' \") (NP (NN b)))", "(S (NP (NN a) (POS ')) (NN \") (NP (NN b)))"),
        ("(S (NP ('' ') ('' ') (NN b)))", "(S (NP (POS ') (POS ') (NN b)))"),
    ]
    for gold, test in texts:
        pair = [read_tree(gold)], [read_tree(test)]
        compare(evalb, *pair, NEW, delete_by="own", disagreeing="skip")
        compare(evalb, *reversed(pair), NEW, delete_by="own", disagreeing="skip")
