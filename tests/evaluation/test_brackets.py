"""Bracket scores of cases worked out by hand, and of evalb's own sample."""

import pytest

from keras_transformer.evaluation.brackets import COLLINS, NEW, bracket_scores, score_sentence
from keras_transformer.text.trees import Tree, TreeReader, read_tree, read_trees, words

DOG = "(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))"


def tree(text):
    """A tree with its annotation."""
    (found,) = TreeReader([text], "f", normalised=False)
    return found


def counts(gold, test, **options):
    """(matched, gold, test, crossing) of one sentence, or `None` if the words disagree."""
    found = score_sentence(tree(gold), tree(test), **options)
    if not found.words_agree:
        assert (found.test, found.matched, found.crossing, found.matched_spans) == ({}, {}, 0, 0)
        return None
    return found.matched.total(), found.gold.total(), found.test.total(), found.crossing


@pytest.mark.parametrize(
    ("gold", "test", "expected"),
    [
        (DOG, DOG, (3, 3, 3, 0)),
        # Another label, or span.
        (DOG, "(S (NP (DT the) (NN dog)) (NP (VBZ barks)) (. .))", (2, 3, 3, 0)),
        (DOG, "(S (DT the) (NP (NN dog)) (VP (VBZ barks)) (. .))", (2, 3, 3, 0)),
        # the | dog barks: (VP dog barks) crosses (NP the dog).
        (DOG, "(S (DT the) (VP (NN dog) (VBZ barks)) (. .))", (1, 3, 2, 1)),
        # Each crossing bracket counts once, with its duplicates, whatever the number that it crosses.
        (
            "(S (A (A (X a) (X b)) (X c)) (X d))",
            "(S (X a) (B (B (X b) (X c) (X d))))",
            (1, 3, 3, 2),
        ),
        # Punctuation makes no difference: neither its place, nor what it alone stands in, nor its own tags.
        (DOG, "(S (NP (DT the) (NN dog)) (VP (VBZ barks) (. .)))", (3, 3, 3, 0)),
        (DOG, "(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (PRN (. .)))", (3, 3, 3, 0)),
        (DOG, "(S (NP (XX the) (XX dog)) (VP (XX barks)) (XX .))", (3, 3, 3, 0)),
        (DOG, "(S (NP (, the) (, dog)) (VP (. barks)) (NN .))", (3, 3, 3, 0)),
        # ADVP = PRT, on both sides; but not ADJP.
        ("(S (PRT (RB up)))", "(S (ADVP (RB up)))", (2, 2, 2, 0)),
        ("(S (ADVP (RB up)))", "(S (PRT (RB up)))", (2, 2, 2, 0)),
        ("(S (ADVP (RB up)))", "(S (ADJP (RB up)))", (1, 2, 2, 0)),
        # Unary chains and duplicates: a multiset.
        ("(NP (NP (NN a)))", "(NP (NN a))", (1, 2, 1, 0)),
        ("(NP (NN a))", "(NP (NP (NP (NN a))))", (1, 1, 3, 0)),
        ("(NP (NP (NP (NN a))))", "(NP (NP (VP (NN a))))", (2, 3, 3, 0)),
        ("(PRT (ADVP (RB a)))", "(ADVP (NN a))", (1, 2, 1, 0)),
        ("(S (NP (NN a)))", "(NP (S (NN a)))", (2, 2, 2, 0)),  # the order of a chain does not count
        # Deleted labels of constituents: the bracket goes, its words stay.
        ("(S (NP (NN a)))", "(TOP (S (NP (NN a))))", (2, 2, 2, 0)),
        ("(TOP (NP (NN a)) (VP (VB b)))", "(S (NP (NN a)) (VP (VB b)))", (2, 2, 3, 0)),
        # Functions of labels.
        ("(S (NP-SBJ=2 (NN a)) (VP (VB b)))", "(S-1 (NP (NN a)) (VP-X (VB b)))", (3, 3, 3, 0)),
        # Traces are no words: the gold tree of the documentation of evalb, against one without.
        (
            "(S (NP (PRP he)) (VP (VBD reported) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))) (. .))",
            "(S (NP (PRP he)) (VP (VBD reported)) (. .))",
            (3, 3, 3, 0),
        ),
        # Brackets as words, and written out.
        ("(NP (-LRB- -LRB-) (NN a) (-RRB- -RRB-))", "(NP (X -LRB-) (NP (NN a)) (X -RRB-))", (1, 1, 2, 0)),
        # No constituents.
        ("(NN a)", "(NN a)", (0, 0, 0, 0)),
        ("(NN a)", "(NP (NN a))", (0, 0, 1, 0)),
        # Only punctuation.
        ("(S (. .))", "(S (NP (. .)))", (0, 0, 0, 0)),
        # Other words, or another number of them; but deleted words may differ.
        ("(NP (NN a))", "(NP (NN b))", None),
        ("(NP (NN a) (NN b))", "(NP (NN a))", None),
        ("(NP (NN a))", "(NP (NN a) (. .))", None),
        ("(NP (NN a) (. .))", "(NP (NN a) (. !))", (1, 1, 1, 0)),
    ],
)
def test_brackets_of_a_sentence(gold, test, expected):
    assert counts(gold, test) == expected


def test_a_raw_bracket_is_the_word_that_is_written_for_it():
    raw = Tree("NP", (Tree("-LRB-", ("(",)),))
    assert score_sentence(raw, tree("(NP (X -LRB-))")).words_agree


def test_by_its_own_tags_a_tree_loses_other_words():
    # Without tags, the full stop is a word of the test tree only.
    untagged = DOG.replace("(. .)", "(XX .)")
    assert counts(DOG, untagged, delete_by="own") is None
    assert counts(DOG, untagged) == (3, 3, 3, 0)
    # Of two comma tags one is wrong: as many words, but others.
    gold, test = "(S (NN a) (, ,) (NN b) (NN ,))", "(S (NN a) (NN ,) (NN b) (, ,))"
    assert counts(gold, test, delete_by="own") is None


def test_the_other_rules_delete_more_tags():
    gold, test = "(S (NP (NN a)) (? ?))", "(S1 (S (NP (NN a)) (? ?)))"
    assert counts(gold, "(S (NP (NN a) (? ?)))", rules=COLLINS) == (1, 2, 2, 0)
    assert counts(gold, "(S (NP (NN a) (? ?)))", rules=NEW) == (2, 2, 2, 0)
    more = Tree("S", (tree(test.replace("S1", "S2")), Tree("NN", ("b",))))  # an outermost S1 is not read
    assert score_sentence(more, more, COLLINS).gold["S2"] == 1
    assert COLLINS.deleted < NEW.deleted
    assert NEW.deleted - COLLINS.deleted == {"S1", "?", "!"}


def test_a_quote_that_is_possessive_in_one_tree_is_kept_in_both():
    gold, test = "(S (NP (NN a) (POS ')) (VP (VB b)))", "(S (NP (NN a) ('' ')) (VP (VB b)))"
    assert counts(gold, test, rules=COLLINS, delete_by="own") is None
    assert counts(gold, test, rules=NEW, delete_by="own") == (3, 3, 3, 0)
    assert counts(test, gold, rules=NEW, delete_by="own") == (3, 3, 3, 0)


# The sample of evalb with what its authors' sample.rsl says: matched, gold, test and crossing brackets; or
# "skip" (nothing is left) or "error" (the words disagree). "This", equal to "this" there, is "this" here.
GOLD = "(S (A (P this)) (B (Q is) (A (R a) (T test))))"
SAMPLE = [
    (GOLD, GOLD, (4, 4, 4, 0)),
    (GOLD, "(S (A (P this)) (B (Q is) (C (R a) (T test))))", (3, 4, 4, 0)),
    (GOLD, "(S (A (P this)) (B (Q is) (A (R a) (U test))))", (4, 4, 4, 0)),
    (GOLD, "(S (C (P this)) (B (Q is) (A (R a) (U test))))", (3, 4, 4, 0)),
    (GOLD, "(S (A (P this)) (B (Q is) (R a) (A (T test))))", (3, 4, 4, 0)),
    (GOLD, "(S (A (P this) (Q is)) (A (R a) (T test)))", (2, 4, 3, 1)),
    (GOLD, "(S (P this) (Q is) (R a) (T test))", (1, 4, 1, 0)),
    (GOLD, "((P this) (Q is) (R a) (T test))", (0, 4, 0, 0)),
    (GOLD, "(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))", (4, 4, 5, 0)),
    (GOLD, "(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))", (4, 4, 8, 0)),
    (GOLD, "", "skip"),
    (GOLD, "(S (A (P this)) (B (Q was) (A (A (R a) (T test)))))", "error"),
    (GOLD, "(S (A (P this)) (B (Q is) (U not) (A (A (R a) (T test)))))", "error"),
    (GOLD, "", "skip"),
    (GOLD, f"(TOP {GOLD})", (4, 4, 4, 0)),
    (GOLD, "(S (A (P this)) (NONE *) (B (Q is) (A (R a) (T test))))", "error"),
    (GOLD, "(S (A (P this)) (S (NONE abc) (A (NONE *))) (B (Q is) (A (R a) (T test))))", "error"),
    (GOLD, "(S (A (P this)) (B (Q is) (A (R a) (TT test))))", (4, 4, 4, 0)),
    (GOLD, GOLD, (4, 4, 4, 0)),
    (GOLD, GOLD.replace("this", "That"), "error"),
    (GOLD.replace("A (P", "A-SBJ-1 (P").replace("B", "B-WHATEVER"), GOLD, (4, 4, 4, 0)),
    (f"(S{GOLD[2:-1] * 11})", f"(S{GOLD[2:-1] * 11})", (34, 34, 34, 0)),
    (f"{GOLD[:-1]} (-NONE- *))", f"{GOLD[:-1]} (-NONE- *))", (4, 4, 4, 0)),
    (f"{GOLD[:-1]} (: *))", f"{GOLD[:-1]} (: *))", (4, 4, 4, 0)),
]


def test_the_sample_of_evalb_has_the_figures_of_its_authors():
    gold = [tree(line) for line, _, _ in SAMPLE]
    test = [tree(line) if line else None for _, line, _ in SAMPLE]
    for one, other, (_, _, expected) in zip(gold, test, SAMPLE, strict=True):
        found = score_sentence(one, other, delete_by="own")
        if isinstance(expected, str):
            assert not found.words_agree
        else:
            assert (found.matched.total(), found.gold.total(), found.test.total(), found.crossing) == expected
    scores = bracket_scores(gold, test, delete_by="own", disagreeing="skip")
    assert scores.disagreeing == (11, 12, 13, 14, 16, 17, 20)
    summary = {
        "all": (24, 17, 87.76, 90.53, 52.94, 0.06, 94.12, 100.0),
        "short": (23, 16, 81.25, 85.25, 50.00, 0.06, 93.75, 100.0),
    }
    for part, (sentences, valid, *expected) in summary.items():
        found = getattr(scores, part)
        assert (found.num_sentences, found.num_counted) == (sentences, valid)
        shares = (found.recall, found.precision, found.complete_match, found.average_crossing)
        shares = [*shares, found.no_crossing, found.two_crossing]
        assert [round(share, 2) for share in shares] == expected
    # Scored as trees without brackets, the seven sentences have 28 more gold brackets.
    full = bracket_scores(gold, test, delete_by="own").all
    assert (full.gold, full.test, full.matched) == (98 + 7 * 4, 95, 86)
    assert full.f1 == pytest.approx(100 * 2 * 86 / (126 + 95))
    assert (full.num_counted, full.num_disagreeing, full.num_skipped) == (24, 7, 0)
    assert full.complete_match == pytest.approx(100 * 9 / 24)
    assert full.no_crossing == pytest.approx(100 * 16 / 24)
    assert full.two_crossing == pytest.approx(100 * 17 / 24)
    assert full.average_crossing == 1 / 17


def test_sums_are_those_of_two_sentences_by_hand():
    # gold: S NP VP, NP; test: S VP VP (one wrong, one crossing), NP NP.
    gold = [tree(DOG), tree("(NP (NN a) (, ,) (NN b))")]
    test = [tree("(S (DT the) (VP (NN dog) (VP (VBZ barks))) (. .))"), tree("(NP (NN a) (, ,) (NP (NN b)))")]
    scores = bracket_scores(gold, test)
    found = scores.all
    assert (found.gold, found.test, found.matched) == (3 + 1, 3 + 2, 2 + 1)
    assert (found.precision, found.recall) == (100 * 3 / 5, 100 * 3 / 4)
    assert found.f1 == pytest.approx(2 * 60 * 75 / (60 + 75))
    assert found.matched_spans == 3
    assert (found.num_crossing, found.num_no_crossing, found.num_two_crossing) == (1, 1, 2)
    assert (found.average_crossing, found.no_crossing, found.two_crossing) == (0.5, 50, 100)
    assert scores.short == found
    assert {label: tuple(one) for label, one in scores.labels.items()} == {
        "NP": (2, 2, 1),
        "S": (1, 1, 1),
        "VP": (1, 2, 1),
    }
    assert list(scores.labels) == ["NP", "S", "VP"]
    assert (scores.labels["VP"].precision, scores.labels["VP"].recall) == (50, 100)
    assert scores.labels["VP"].f1 == pytest.approx(200 / 3)


def test_labels_may_be_ignored():
    scores = bracket_scores([tree(DOG)], [tree("(X (Y (DT the) (NN dog)) (Z (VBZ barks) (. .)) )")])
    assert (scores.all.f1, scores.all.unlabelled_f1) == (0, 100)


def test_lengths_count_punctuation_but_no_traces():
    forty = tree(f"(S {'(NN a) ' * 39}(, ,) (-NONE- *))")
    longer = tree(f"(S {'(NN a) ' * 39}(, ,) (NN a))")
    scores = bracket_scores([forty, longer], [forty, longer])
    assert [part.num_sentences for part in (scores.all, scores.short)] == [2, 1]
    assert score_sentence(forty, forty).length == 40
    assert bracket_scores([longer], [longer]).short.f1 == 0


def test_a_missing_tree_and_one_with_other_words_count_as_trees_without_brackets():
    gold = [tree(DOG), tree(DOG), tree(DOG)]
    test = [tree(DOG), None, tree("(S (NP (DT the) (NN cat)) (VP (VBZ barks)) (. .))")]
    full, skipped = (bracket_scores(gold, test, disagreeing=way) for way in ("empty", "skip"))
    assert full.disagreeing == skipped.disagreeing == (2, 3)
    assert (full.all.recall, full.all.precision) == (pytest.approx(100 / 3), 100)
    assert (skipped.all.recall, skipped.all.precision) == (100, 100)
    assert full.labels["NP"] == (3, 1, 1)
    assert skipped.labels["NP"] == (1, 1, 1)


def test_a_sentence_of_punctuation_counts_in_no_figure():
    scores = bracket_scores([tree("(X (. .))"), tree(DOG)], [tree("(X (. .))"), tree(DOG)])
    assert (scores.all.num_without_words, scores.all.num_skipped, scores.all.num_counted) == (1, 1, 1)
    assert scores.all.complete_match == 100
    assert bracket_scores([tree("(X (. .))")], [tree("(X (. .))")]).all.f1 == 0


def test_a_treebank_against_itself_is_perfect(tmp_path):
    path = tmp_path / "t.trees"
    path.write_text(f"{DOG}\n(NP (NP (NN a)) (PRT (RB up)))\n")
    trees, _ = read_trees(path)
    scores = bracket_scores(trees, trees)
    assert (scores.all.f1, scores.all.complete_match, scores.all.unlabelled_f1) == (100, 100, 100)
    assert all(one.f1 == 100 for one in scores.labels.values())


def test_a_deep_tree_needs_no_recursion():
    text = "(X " * 5_000 + "(NN dog)" + ")" * 5_000
    scores = bracket_scores([read_tree(text)], [read_tree(text)])
    assert (scores.all.matched, scores.all.f1) == (5_000, 100)
    assert words(read_tree(text)) == ["dog"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gold": [], "test": []}, "Received: 0 and 0"),
        ({"gold": [None], "test": []}, "Received: 1 and 0"),
        ({"delete_by": "test"}, "`delete_by` must be one of"),
        ({"disagreeing": "drop"}, "`disagreeing` must be one of"),
    ],
)
def test_bad_arguments_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        bracket_scores(**{"gold": [tree(DOG)], "test": [tree(DOG)], **options})
