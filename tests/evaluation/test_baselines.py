"""Trees that need no parser, and the table that shows them beside a parser's."""

import json
import pathlib

import pytest

from keras_transformer.evaluation.baselines import flat_tree, most_frequent_label, right_branching_tree
from keras_transformer.evaluation.brackets import NEW, bracket_scores
from keras_transformer.evaluation.tree_report import NamedTrees, compare_trees
from keras_transformer.text.trees import read_tree, read_trees, words, write_tree

TREEBANK = pathlib.Path(__file__).resolve().parents[2] / "../shared/data/treebank_craft/valid.trees"


@pytest.mark.parametrize(
    ("gold", "right", "flat"),
    [
        (
            "(X (A a) (B b) (C c) (D d))",
            "(S (A a) (NP (B b) (NP (C c) (D d))))",
            "(S (A a) (B b) (C c) (D d))",
        ),
        ("(X (A a) (B b) (C c))", "(S (A a) (NP (B b) (C c)))", "(S (A a) (B b) (C c))"),
        ("(X (A a) (B b))", "(S (A a) (B b))", "(S (A a) (B b))"),
        ("(A a)", "(S (A a))", "(S (A a))"),
        ("(X (. .))", "(S (. .))", "(S (. .))"),
        # Punctuation at the end is attached to the root, other punctuation opens no constituent.
        (
            "(X (`` q) (A a) (, c) (: d) (B b) (, c) (C c) (. .) ('' q))",
            "(S (`` q) (A a) (, c) (: d) (NP (B b) (, c) (C c)) (. .) ('' q))",
            "(S (`` q) (A a) (, c) (: d) (B b) (, c) (C c) (. .) ('' q))",
        ),
        (
            "(X (A a) (B b) (, c) (C c) (, c) (D d) (E e))",
            "(S (A a) (NP (B b) (, c) (NP (C c) (, c) (NP (D d) (E e)))))",
            "(S (A a) (B b) (, c) (C c) (, c) (D d) (E e))",
        ),
    ],
)
def test_baselines_of_a_tree(gold, right, flat):
    gold = read_tree(gold)
    assert write_tree(right_branching_tree(gold)) == right
    assert write_tree(flat_tree(gold)) == flat
    other = right_branching_tree(gold, "VP", root="ROOT")
    assert write_tree(other) == right.replace("(S ", "(ROOT ").replace("NP", "VP")


def test_the_rules_say_which_words_open_no_constituent():
    gold = read_tree("(S (A a) (B b) (C c) (? ?))")
    assert write_tree(right_branching_tree(gold)) == "(S (A a) (NP (B b) (NP (C c) (? ?))))"
    assert write_tree(right_branching_tree(gold, rules=NEW)) == "(S (A a) (NP (B b) (C c)) (? ?))"


def test_the_most_frequent_label_is_that_below_the_roots():
    trees = [read_tree(text) for text in ("(S (S (NP (A a))))", "(S (VP (A a)) (VP (B b)))", "(NN a)")]
    assert most_frequent_label(trees) == "VP"
    assert most_frequent_label([read_tree("(NN a)")]) == "NP"


# The first sentence: gold S(0,3) NP(0,2) VP(2,3); right-branching S(0,3) NP(1,3).
GOLD = ["(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))", "(NP (NP (NN a)) (NP (NN b) (NN c)))"]
PARSED = [GOLD[0].replace("VP", "NP"), GOLD[1]]


def comparison(*systems, **options):
    named = [NamedTrees(name, [read_tree(text) for text in texts]) for name, texts in systems]
    return compare_trees(named, NamedTrees("g", [read_tree(text) for text in GOLD]), **options)


def test_a_parser_is_shown_beside_the_baselines():
    found = comparison(("a/ours.trees", PARSED), ("b/theirs.trees", GOLD))
    assert [name for name, _ in found.systems] == ["a/ours.trees", "b/theirs.trees"]
    assert [name for name, _ in found.baselines] == ["right-branching, all NP", "flat S"]
    right, flat = (scores.all for _, scores in found.baselines)
    # The second: gold NP(0,3) NP(0,1) NP(1,3); right-branching S(0,3) NP(1,3).
    assert (right.gold, right.test, right.matched, right.matched_spans, right.num_crossing) == (6, 4, 2, 3, 1)
    assert (flat.gold, flat.test, flat.matched, flat.matched_spans) == (6, 2, 1, 2)
    text = str(found)
    lines = text.split("\n")
    assert lines[0] == "2 sentences against g, rules of COLLINS.prm"
    heads = "F1 precision recall complete crossing none <=2 unlabelled"
    assert " ".join(lines[2].split()) == f"all lengths (2) {heads}"
    assert " ".join(lines[3].split()) == "ours.trees 83.33 83.33 83.33 50.00 0.00 100.00 100.00 100.00"
    assert lines[5].split()[-8:-5] == ["40.00", "50.00", "33.33"]
    assert lines[6].split()[:5] == ["flat", "S", "25.00", "50.00", "16.67"]
    assert lines[8].startswith("up to 40 words (2)")
    assert "by the tags of the reference, in both trees" in text
    assert "differ" not in text


def test_scores_of_labels_are_shown_if_asked_for():
    found = comparison(("ours", PARSED))
    rows = found.format(labels=True).split("\n")
    at = rows.index(next(row for row in rows if row.startswith("ours, by label")))
    assert [row.split() for row in rows[at + 1 : at + 4]] == [
        ["NP", "88.89", "80.00", "100.00", "4", "5", "4"],
        ["S", "100.00", "100.00", "100.00", "1", "1", "1"],
        ["VP", "0.00", "0.00", "0.00", "1", "0", "0"],
    ]
    (system,) = json.loads(json.dumps(found.to_dict(labels=True)))["systems"]
    assert system["labels"]["VP"] == {
        "f1": 0,
        "precision": 0,
        "recall": 0,
        "gold": 1,
        "test": 0,
        "matched": 0,
    }
    assert system["all"]["f1"] == pytest.approx(500 / 6)
    assert system["up_to_40_words"]["num_sentences"] == 2
    assert "labels" not in found.to_dict()["systems"][0]


def test_sentences_with_other_words_are_told():
    found = comparison(("a/x", [GOLD[0], "(NP (NN other) (NN b) (NN c))"]), ("b/x", GOLD))
    end = "in words from the reference (first: 2), scored as trees without brackets."
    assert f"a/x: 1 sentence differs {end}" in str(found)
    assert found.to_dict()["systems"][0]["disagreeing"] == [2]
    found = comparison(("x", ["(X (NN q))", "(X (NN q))"]), as_evalb=True)
    end = "in words from the reference (first: 1), left out of the scores, as evalb does."
    assert f"x: 2 sentences differ {end}" in str(found)


def test_different_numbers_of_trees_are_refused():
    with pytest.raises(ValueError, match=r"^ours: 1 trees, but g has 2. Give trees of the same sentences"):
        comparison(("ours", GOLD[:1]))
    with pytest.raises(ValueError, match="must not be empty"):
        comparison()


@pytest.mark.slow
def test_baselines_of_a_treebank_are_far_from_a_parser():
    if not TREEBANK.exists():
        pytest.skip(f"needs {TREEBANK}")
    gold, _ = read_trees(TREEBANK)
    found = compare_trees([NamedTrees("gold", gold)], NamedTrees("gold", gold))
    (_, perfect), (right_name, right), (_, flat) = found.systems + found.baselines
    assert perfect.all.f1 == perfect.short.complete_match == 100
    assert right_name == "right-branching, all NP"
    assert right.disagreeing == flat.disagreeing == ()
    assert [round(scores.all.f1, 2) for scores in (right, flat)] == [9.15, 7.99]
    assert [round(scores.short.f1, 2) for scores in (right, flat)] == [10.95, 9.23]
    assert round(right.all.unlabelled_f1, 2) == 26.05
    assert flat.all.num_crossing == 0
    assert [words(right_branching_tree(tree)) for tree in gold] == [words(tree) for tree in gold]
    assert bracket_scores(gold, [flat_tree(tree, tree.label) for tree in gold]).all.precision == 100
