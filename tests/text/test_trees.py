"""Bracketed trees: what is read, what is refused, and where."""

import pathlib
import re

import pytest

from keras_transformer.text.lines import DataError
from keras_transformer.text.trees import (
    BadTree,
    Tree,
    TreeReader,
    cut_label,
    escape_brackets,
    normalise,
    read_tree,
    read_trees,
    tags,
    words,
    write_tree,
)

TREEBANK = pathlib.Path(__file__).resolve().parents[2] / "../shared/data/treebank_craft"
DOG = "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"
DOG_TREE = Tree(
    "S",
    (
        Tree("NP", (Tree("DT", ("the",)), Tree("NN", ("dog",)))),
        Tree("VP", (Tree("VBZ", ("barks",)),)),
    ),
)


def read(text, **options):
    return [write_tree(tree) for tree in TreeReader(text.split("\n"), "f", **options)]


def dropped(text):
    """(written trees, [(line, what is wrong)]) of a text of which bad trees are dropped."""
    reader = TreeReader(text.split("\n"), "f", on_bad="drop")
    return [write_tree(tree) for tree in reader], [
        (line, reason.partition(". ")[0]) for line, reason in reader.bad
    ]


def nested(depth):
    return "(X " * depth + "(NN dog)" + ")" * depth


def test_a_tree_is_read():
    (tree,) = TreeReader([DOG], "f")
    assert tree == DOG_TREE
    assert words(tree) == ["the", "dog", "barks"]
    assert tags(tree) == ["DT", "NN", "VBZ"]
    assert [child.is_preterminal for child in tree.children] == [False, False]
    assert [child.is_preterminal for child in tree.children[0].children] == [True, True]
    assert write_tree(tree) == DOG


@pytest.mark.parametrize(
    "text",
    [
        DOG,
        f"  {DOG}\t",
        f"\n\n{DOG}\n\n",
        "( S(NP(DT the)(NN dog))(VP(VBZ barks)))",
        "(S (NP (DT\tthe)  (NN dog ) ) (VP (VBZ barks)) )",
        f"({DOG})",
        f"( {DOG} )",
        f"(TOP {DOG})",
        f"(ROOT {DOG})",
        f"(S1 {DOG})",
        f"((TOP ( S1 {DOG})))".replace("( S1", "(S1"),
        "( (S\n    (NP (DT the) (NN dog))\n    (VP (VBZ barks))) )",
        "(S\n(NP (DT the) (NN dog))\n(VP (VBZ barks)))",
        "(\nS\n(NP (DT\nthe\n)\n(NN dog)) (VP (VBZ barks)))",
    ],
)
def test_layout_and_outer_brackets_do_not_matter(text):
    assert read(text) == [DOG]


def test_several_trees_stand_on_a_line_and_one_on_several():
    text = f"{DOG} (NN a)\n(NP (NN b)\n (NN c)) (NN d)\n(NN e)"
    reader = TreeReader(text.split("\n"), "f")
    found = [(reader.line, write_tree(tree)) for tree in reader]
    assert found == [(1, DOG), (1, "(NN a)"), (2, "(NP (NN b) (NN c))"), (3, "(NN d)"), (4, "(NN e)")]
    with pytest.raises(DataError, match="f: 2 trees where one is expected. Give one tree a line"):
        read_tree(f"{DOG} {DOG}", "f")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("(NN dog)", "(NN dog)"),
        ("((NN dog))", "(NN dog)"),
        ("(TOP (NN dog))", "(NN dog)"),
        ("(TOP dog)", "(TOP dog)"),
        ("(S (TOP (NN dog)))", "(S (TOP (NN dog)))"),
        ("(TOP (NN a) (NN b))", "(TOP (NN a) (NN b))"),
        ("((NN a) (NN b))", "(TOP (NN a) (NN b))"),
        ("(S (-LRB- -LRB-) (NN a) (-RRB- -RRB-))", "(S (-LRB- -LRB-) (NN a) (-RRB- -RRB-))"),
        ("(S (NN a\u00a0b))", "(S (NN a\u00a0b))"),  # no-break space
        ("(, ,)", "(, ,)"),
    ],
)
def test_unusual_trees(text, tree):
    assert read(text) == [tree]
    assert write_tree(read_tree(text)) == tree


def test_round_brackets_in_words_are_written_in_letters():
    assert write_tree(Tree("NP", (Tree("NN", ("f(x)",)),))) == "(NP (NN f-LRB-x-RRB-))"
    assert escape_brackets(")(") == "-RRB--LRB-"


@pytest.mark.parametrize(
    "tree", [Tree("N P", (Tree("NN", ("a",)),)), Tree("(", ("a",)), Tree("NN", ("a b",)), Tree("", ("a",))]
)
def test_what_could_not_be_read_again_is_not_written(tree):
    with pytest.raises(ValueError, match="must not be empty or have spaces or brackets"):
        write_tree(tree)


BAD = [
    ("(S (NN a)", 1, "1 closing bracket is missing at the end of the text for the tree that begins here"),
    ("(S (NP (NN a)", 1, "2 closing brackets are missing at the end of the text"),
    (f"{DOG}\n\n(S\n (NN a)\n", 3, "1 closing bracket is missing at the end of the text"),
    (f"{DOG}\n(S (NN a)\n{DOG}", 2, "the brackets are not closed when line 3 begins a new tree"),
    # Two errors that balance.
    (f"{DOG}\n(S (NN a)\n{DOG}\n(S (NN a)))", 2, "the brackets are not closed when line 3 begins a new tree"),
    (f"{DOG}\n{DOG})", 2, "a closing bracket too many"),
    (")", 1, "a closing bracket too many"),
    ("()", 1, "an empty bracket ()"),
    ("(S (NN a) ())", 1, "an empty bracket ()"),
    ("(S (NN a)\n (NP))", 2, "the constituent (NP) is empty, in the tree that begins on line 1"),
    ("(NP )", 1, "the constituent (NP) is empty"),
    ("(S ((NN a)))", 1, "a constituent has no label"),
    ("(S (NN Xpd TTD))", 1, "a word has a space in it: (NN Xpd TTD)"),
    ("(S\n (NN Xpd TTD)\n)", 2, "a word has a space in it: (NN Xpd TTD)"),
    ("(S a b c)", 1, "a word has a space in it: (S a b)"),
    ("(S (NN a) b)", 1, "the word 'b' stands next to a constituent"),
    ("(S a (NN b))", 1, "the word 'a' stands next to a constituent"),
    ("(S a (NP (NN b)))", 1, "the word 'a' stands next to a constituent"),
    ("((NN a) b)", 1, "the word 'b' stands next to a constituent"),
    ("barks", 1, "'barks' is outside of a tree"),
    (f"{DOG}\nthe {DOG}", 2, "'the' is outside of a tree"),
    (f"{DOG} .", 1, "'.' is outside of a tree"),
    ("(S (-NONE- *))", 1, "the tree has no words, only traces (-NONE-)"),
    ("(S (NP (-NONE- *T*-1)) (VP (-NONE- *)))", 1, "the tree has no words, only traces (-NONE-)"),
]


@pytest.mark.parametrize(("text", "line", "reason"), BAD)
def test_a_bad_tree_is_refused_with_its_line(text, line, reason):
    with pytest.raises(DataError, match=re.escape(f"f: line {line}: {reason}")) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert re.search(r"\. [A-Z][^.]+", str(caught.value))  # the remedy


@pytest.mark.parametrize(("text", "line", "reason"), BAD)
def test_a_bad_tree_is_dropped_and_the_next_line_read(text, line, reason):
    number = text.count("\n") + 2
    reader = TreeReader([*text.split("\n"), "(NN next)", DOG], "f", on_bad="drop")
    found = [(reader.line, write_tree(tree)) for tree in reader]
    assert found[-2:] == [(number, "(NN next)"), (number + 1, DOG)]
    assert [bad.line for bad in reader.bad][0] == line
    if "at the end of the text" not in reason:
        assert reader.bad[0].reason.startswith(reason)


@pytest.mark.parametrize(
    ("text", "trees", "bad"),
    [
        # Of a line with an error, the trees before it are kept, unless the error may have cut off the last.
        ("(NN a) (NN b c) (NN d)\n(NN e)", ["(NN a)", "(NN e)"], [(1, "a word has a space in it: (NN b c)")]),
        ("(NN a) (NN b)) (NN d)\n(NN e)", ["(NN a)", "(NN e)"], [(1, "a closing bracket too many")]),
        ("(NN a) (NN b) c (NN d)\n(NN e)", ["(NN a)", "(NN e)"], [(1, "'c' is outside of a tree")]),
        # The rest of a bad tree is skipped, on all its lines.
        ("(X (A b c)\n (Y (D e))\n (F g h))\n(NN i)", ["(NN i)"], [(1, "a word has a space in it: (A b c)")]),
        ("(NN a)\n(S (NN a b)\n(NN c)", ["(NN a)", "(NN c)"], [(2, "a word has a space in it: (NN a b)")]),
        # The first tree is not closed: all lines are read again.
        (
            "(S (NN a)\n  (NN b)\n\n(NN c)\n(NN d\n(NN e)",
            ["(NN c)", "(NN e)"],
            [
                (1, "2 closing brackets are missing at the end of the text for the tree that begins here"),
                (5, "the brackets are not closed when line 6 begins a new tree"),
            ],
        ),
        # In a text whose first tree has brackets in the first column of later lines, these begin no tree.
        ("(S\n(NN a)\n(NN b))\n(S\n(NN c)\n(NN d))", ["(S (NN a) (NN b))", "(S (NN c) (NN d))"], []),
    ],
)  # fmt: skip
def test_what_is_dropped_and_what_is_kept(text, trees, bad):
    assert dropped(text) == (trees, bad)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_text_without_trees_is_refused(text):
    for on_bad in ("refuse", "drop"):
        with pytest.raises(DataError, match=r"^f: no tree. Give a file with bracketed trees, such as \(S"):
            read(text, on_bad=on_bad)


def test_a_text_with_bad_trees_only_is_refused():
    with pytest.raises(DataError, match="^f: no good tree. Line 2: the constituent .NP. is empty"):
        read("\n(NP)\nword", on_bad="drop")
    with pytest.raises(ValueError, match="on_bad"):
        read(DOG, on_bad="skip")


@pytest.mark.parametrize(
    ("label", "cut"),
    [("NP", "NP"), ("NP-SBJ", "NP"), ("NP=2", "NP"), ("NP-SBJ=2-1", "NP"), ("NN-", "NN"),
     ("A|B-CLR", "A|B"), ("PRP$", "PRP$"), ("-LRB-", "-LRB-"), ("-NONE-", "-NONE-"),
     ("--", "--"), ("-", "-"), ("=", "="), (":", ":")],
)  # fmt: skip
def test_functions_are_cut_off_labels(label, cut):
    assert cut_label(label) == cut


# From the documentation of evalb, with indices.
REPORTED = (
    "(S (NP-SBJ-1 (PRP he)) (VP (VBD reported) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))) (-RRB- -RRB-) (. .))"
)


def test_annotation_is_removed():
    kept = "(S (NP (PRP he)) (VP (VBD reported)) (-RRB- -RRB-) (. .))"
    assert read(REPORTED) == [kept]
    assert read(REPORTED, normalised=False) == [REPORTED]
    assert write_tree(normalise(read_tree(REPORTED))) == kept
    assert read("(S (-NONE- *))", normalised=False) == ["(S (-NONE- *))"]
    # Each tree for itself.
    assert read(f"{DOG}\n{REPORTED}\n{DOG}") == [DOG, kept, DOG]


def test_a_file_is_read(tmp_path):
    path = tmp_path / "t.trees"
    path.write_text(f"\ufeff{DOG}\r\n(NP (NN a b))\r\n", encoding="utf-8")
    reason = "a word has a space in it: (NN a b). Give each word a tag, or join them"
    with pytest.raises(DataError, match=re.escape(f"{path}: line 2: {reason}")):
        read_trees(path)
    assert read_trees(path, on_bad="drop") == ([DOG_TREE], [BadTree(2, reason)])
    path.write_bytes(b"(NP (NN \xff))\n")
    with pytest.raises(DataError, match="line 1: byte 9"):
        read_trees(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=f"{path}: no tree"):
        read_trees(path)


def test_a_deep_tree_needs_no_recursion():
    text = nested(5_000)
    (tree,) = TreeReader([f"({text})"], "f")
    assert write_tree(tree) == text
    assert words(tree) == ["dog"]
    assert write_tree(normalise(read_tree(text.replace("(NN", "(NN-1")))) == text
    with pytest.raises(DataError, match="line 1: 5000 closing brackets are missing"):
        read(text[:-5_000])


@pytest.mark.slow
def test_the_bad_trees_of_a_treebank_are_reported_by_number():
    if not TREEBANK.is_dir():
        pytest.skip(f"needs {TREEBANK}")
    total = 0
    for split, numbers in (("train", [24194, 24199, 24210, 24313]), ("valid", [])):
        path = TREEBANK / f"{split}.trees"
        trees, bad = read_trees(path, on_bad="drop")
        assert [tree.line for tree in bad] == numbers
        assert all(tree.reason.startswith("a word has a space in it: (NN ") for tree in bad)
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        assert len(lines) == len(trees) + len(bad)
        kept = [line for number, line in enumerate(lines, start=1) if number not in numbers]
        assert list(map(write_tree, trees)) == kept
        # The words come with the treebank.
        tokens = (TREEBANK / f"{split}.tok").read_text(encoding="utf-8").split("\n")[:-1]
        kept = [line for number, line in enumerate(tokens, start=1) if number not in numbers]
        assert [" ".join(words(tree)) for tree in trees] == kept
        total += len(lines)
    assert total == 29_288
