"""Trees as symbols and back; trees out of any symbols."""

import pathlib
import random

import pytest

from keras_transformer.text.linearised import RULES, WORD, delinearise, linearise, mend
from keras_transformer.text.trees import read_tree, read_trees, tags, words, write_tree

TREEBANK = pathlib.Path(__file__).resolve().parents[2] / "../shared/data/treebank_craft"
# The sentence of figure 2 of Vinyals et al. (2015), with labelled brackets.
JOHN = "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))"


@pytest.mark.parametrize(
    ("tree", "symbols", "tagged"),
    [
        (
            JOHN,
            "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S",
            "(S (NP NNP )NP (VP VBZ (NP DT NN )NP )VP . )S",
        ),
        ("(NN dog)", "XX", "NN"),
        ("(NP (NP (NP (NN dog))))", "(NP (NP (NP XX )NP )NP )NP", "(NP (NP (NP NN )NP )NP )NP"),
        ("(S (-LRB- -LRB-) (NN a))", "(S XX XX )S", "(S -LRB- NN )S"),
    ],
)
def test_symbols_of_a_tree(tree, symbols, tagged):
    tree = read_tree(tree)
    assert linearise(tree) == symbols.split()
    assert linearise(tree, keep_tags=True) == tagged.split()
    assert delinearise(symbols.split(), words(tree), tags(tree)) == tree
    assert delinearise(tagged.split(), words(tree)) == tree
    assert set(tags(delinearise(symbols.split(), words(tree)))) == {WORD}
    assert mend(symbols.split(), words(tree), tags(tree)) == (tree, [])
    assert mend(tagged.split(), words(tree)) == (tree, [])


@pytest.mark.parametrize(
    ("symbols", "words", "reason"),
    [
        ("", "a", "the symbols have 0 words, but there are 1"),
        ("", "", "the symbols have 0 words, but there are 0"),
        ("(S XX )S", "a b", "the symbols have 1 words, but there are 2"),
        ("(S XX XX )S", "a", "symbol 3, XX, is a word, but there are only 1"),
        ("(S XX", "a", r"\(S is not closed"),
        ("(S XX )S )S", "a", r"symbol 4, \)S, stands behind the end"),
        ("XX XX", "a b", "symbol 2, XX, stands behind the end"),
        ("(S (NP XX )S )NP", "a", r"symbol 4, \)S, does not close the innermost constituent: \(NP is open"),
        (")S", "", r"symbol 1, \)S, does not close the innermost constituent: none is open"),
        ("(S XX (NP )NP )S", "a", r"symbol 4, \)NP, closes a constituent without words"),
        ("( XX )", "a", "symbol 1 is neither"),
        ("(S X(X )S", "a", "symbol 2 is neither"),
    ],
)
def test_other_symbols_are_refused(symbols, words, reason):
    with pytest.raises(ValueError, match=reason):
        delinearise(symbols.split(), words.split())


def test_tags_are_one_per_word():
    for function in (delinearise, mend):
        with pytest.raises(ValueError, match="one per word. Received: 2 for 1 words"):
            function(["XX"], ["a"], ["NN", "NN"])
    with pytest.raises(ValueError, match="must not be empty"):
        mend(["(S", ")S"], [])


@pytest.mark.parametrize(
    ("symbols", "words", "tree", "rules"),
    [
        ("(S XX )VP XX )S", "a b", "(S (XX a) (XX b))", "closing_dropped"),
        ("(S XX )S )S", "a", "(S (XX a))", "closing_dropped"),
        ("(S (NP (NML XX )NP XX )S", "a b", "(S (NP (NML (XX a))) (XX b))", "inner_closed"),
        ("(S (NP XX )NP (VP XX", "a b", "(S (NP (XX a)) (VP (XX b)))", "closed_at_end"),
        ("(S (NP )NP XX (VP (NP )NP )VP )S", "a", "(S (XX a))", "empty_removed"),
        ("(S XX (NP XX XX )NP XX )S", "a b", "(S (XX a) (NP (XX b)))", "words_dropped"),
        ("(S XX (NP XX )NP )S", "a b c d", "(S (XX a) (NP (XX b)) (XX c) (XX d))", "words_added"),
        ("(NP XX )NP (VP XX )VP", "a b", "(S (NP (XX a)) (VP (XX b)))", "roots_joined"),
        ("XX (X XX XX XX )X XX", "a b c d e", "(X (XX a) (XX b) (XX c) (XX d) (XX e))", "roots_joined"),
        # Half of the words is not more than half.
        ("XX (VP XX XX )VP XX", "a b c d", "(S (XX a) (VP (XX b) (XX c)) (XX d))", "roots_joined"),
        ("XX", "a b", "(S (XX a) (XX b))", "roots_joined words_added"),
        ("(VP XX )VP XX", "a b c", "(S (VP (XX a)) (XX b) (XX c))", "roots_joined words_added"),
        ("", "a b", "(S (XX a) (XX b))", "flat"),
        ("(NP )NP", "a b", "(S (XX a) (XX b))", "empty_removed flat"),
        (")NP", "a", "(S (XX a))", "closing_dropped flat"),
        ("(S ( XX ) )S", "a", "(S (XX a))", "not_a_symbol"),
        ("(S NN VBZ )S", "a b c", "(S (NN a) (VBZ b) (XX c))", "words_added"),
        (
            "(S XX (NP (VP )NP )PP XX XX XX",
            "a b",
            "(S (XX a) (XX b))",
            "closing_dropped inner_closed closed_at_end empty_removed words_dropped",
        ),
    ],
)  # fmt: skip
def test_rules_of_mending(symbols, words, tree, rules):
    found, applied = mend(symbols.split(), words.split())
    assert write_tree(found) == tree
    assert applied == rules.split()


def test_every_rule_of_mending_is_tested():
    (mark,) = [mark for mark in test_rules_of_mending.pytestmark if mark.name == "parametrize"]
    assert {rule for *_, rules in mark.args[1] for rule in rules.split()} == set(RULES)


def test_a_tag_of_the_input_has_the_place_of_the_word():
    tree, applied = mend(["(S", "XX"], ["a", "b"], ["NN", "VBZ"])
    assert write_tree(tree) == "(S (NN a) (VBZ b))"
    assert applied == ["closed_at_end", "words_added"]


def random_symbols(generator):
    labels = generator.sample(["S", "NP", "VP", "PP"], k=generator.randint(1, 4))
    kinds = (
        [f"({label}" for label in labels]
        + [f"){label}" for label in labels]
        + ["XX"] * generator.randint(1, 6)
    )
    return generator.choices(kinds, k=generator.randint(0, 40))


def check_well_formed(tree, expected):
    """Reads the tree again from its brackets, which the strict reader refuses if they are wrong."""
    text = write_tree(tree)
    assert write_tree(read_tree(f"(TOP {text})")) == text
    assert words(tree) == expected
    symbols = linearise(tree)
    assert symbols.count(WORD) == len(expected)
    assert mend(symbols, expected) == (tree, [])


@pytest.mark.parametrize("seed", range(20))
def test_random_symbols_give_a_tree_over_the_words(seed):
    generator = random.Random(seed)
    seen = set()
    for _ in range(200):
        symbols = random_symbols(generator)
        expected = [f"w{i}" for i in range(generator.randint(1, 12))]
        tree, applied = mend(symbols, expected)
        check_well_formed(tree, expected)
        seen |= set(applied)
        try:
            strict = delinearise(symbols, expected)
        except ValueError:
            assert applied
        else:
            assert (tree, applied) == (strict, [])
    assert seen == set(RULES) - {"not_a_symbol"}


def test_a_deep_tree_needs_no_recursion():
    symbols = ["(X"] * 5_000 + ["XX"] + [")X"] * 5_000
    tree = delinearise(symbols, ["dog"], ["NN"])
    assert linearise(tree) == symbols
    mended, applied = mend(symbols[:-2_000], ["dog"])
    assert linearise(mended) == symbols
    assert applied == ["closed_at_end"]


@pytest.mark.very_slow
def test_all_trees_of_a_treebank_come_back():
    if not TREEBANK.is_dir():
        pytest.skip(f"needs {TREEBANK}")
    total, longest = 0, []
    for split in ("train", "valid"):
        trees, bad = read_trees(TREEBANK / f"{split}.trees", on_bad="drop")
        longest.append(0)
        for tree in trees:
            symbols = linearise(tree)
            longest[-1] = max(longest[-1], len(symbols))
            assert delinearise(symbols, words(tree), tags(tree)) == tree
            assert delinearise(linearise(tree, keep_tags=True), words(tree)) == tree
        total += len(trees) + len(bad)
    assert total == 29_288
    assert longest == [942, 605]
