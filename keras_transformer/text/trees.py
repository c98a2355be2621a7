"""Constituency trees in the bracketed format of the Penn Treebank: `(S (NP (NN dog)) (VP (VBZ barks)))`.

`TreeReader` reads the trees of a text, one a line or over many lines; `write_tree` writes one on one line.
Nothing here recurses, so a tree may be thousands of constituents deep. White space is ASCII's: a no-break
space is a character of its word.
"""

import contextlib
import gc
import re
from typing import NamedTuple

from keras_transformer.text import tree_faults
from keras_transformer.text.lines import DataError, LineReader, iterate_lines

ON_BAD_TREE = ("refuse", "drop")
# Labels of an outermost bracket that is no constituent.
OUTER_LABELS = ("TOP", "ROOT", "S1")
TRACE = "-NONE-"

# A bracket with its label, and the word and the closing bracket if they follow; or any other part.
_TOKENS = re.compile(r"\(\s*([^\s()]+)(?:\s+([^\s()]+)\s*\))?|([()]|[^\s()]+)", re.ASCII)
_PART = re.compile(r"[^\s()]+", re.ASCII)
_CUT = re.compile(r"[^-=][^-=]*(?=[-=])")


class Tree(NamedTuple):
    """A node of a constituency tree: a constituent, or a preterminal, which is a word with its tag.

    Python compares and prints nested tuples by recursion; for very deep trees use `write_tree`.
    """

    label: str  # of the constituent, or the tag
    children: tuple  # of Tree, at least one; of a preterminal: one str, the word

    @property
    def is_preterminal(self):
        """Whether the node is a word with its tag."""
        return isinstance(self.children[0], str)


class BadTree(NamedTuple):
    """A tree that `TreeReader` dropped."""

    line: int  # number from 1, where the error is; of a tree that is not closed: where it begins
    reason: str  # what is wrong, and the remedy


class TreeReader:
    """Iterator over the trees of a text.

    A text has one tree a line, several trees on a line, or trees over many lines. An outermost bracket
    without a label, or with one of `OUTER_LABELS`, is removed if it holds a single node. Around several nodes
    it stays; one without a label is then called TOP.

    Brackets of several lines can balance by accident, one line with a bracket too few and another with one
    too many. So unless the first tree of the text is laid out otherwise, the lines that continue a tree must
    not begin with a bracket in their first column.

    Args:
        lines: iterable of str, such as `iterate_lines(...)`.
        name: name of the text in messages.
        on_bad: `"refuse"` raises `DataError` at the first bad tree. `"drop"` skips it together with the rest
            of the line on which it ends, adds it to `bad`, and goes on with the next line.
        normalised: whether to apply `normalise` to each tree.

    Attributes:
        bad: list of `BadTree`, the trees dropped so far.
        line: int, number of the line on which the latest tree begins.

    Raises:
        DataError: while reading, with file, line and remedy: brackets are not balanced; a constituent is
            empty; a label is missing; a word has a space in it or stands next to a constituent or outside of
            a tree; a tree has no words; or the text has no (good) tree.
    """

    def __init__(self, lines, name, *, on_bad="refuse", normalised=True):
        if on_bad not in ON_BAD_TREE:
            raise ValueError(f"`on_bad` must be one of {list(ON_BAD_TREE)}. Received: {on_bad!r}")
        self.bad = []
        self.line = 0
        self._name = name
        self._drops = on_bad == "drop"
        self._normalised = normalised
        self._trees = self._read(lines)

    def __iter__(self):
        return self._trees

    def _read(self, lines):
        builder, numbered, any_tree = _Builder(self._normalised), enumerate(lines, start=1), False
        while numbered:
            for number, line in numbered:
                found = builder.feed(number, line)
                self._report(builder)
                for self.line, tree in found:
                    any_tree = True
                    yield tree
            numbered = builder.end()
            self._report(builder)
        if not any_tree:
            fix = "Give a file with bracketed trees, such as (S (NP (NN dog)) (VP (VBZ barks)))"
            if self.bad:
                fix = f"Line {self.bad[0].line}: {self.bad[0].reason}"
            raise DataError(f"{self._name}: no {'good ' if self.bad else ''}tree. {fix}")

    def _report(self, builder):
        """Takes the bad trees of the builder; raises the first unless they are dropped."""
        bad = [*builder.bad, builder.fault]
        if bad[0] and not self._drops:
            line, reason = bad[0]
            raise DataError(f"{self._name}: line {line}: {reason}")
        self.bad += builder.bad
        builder.bad.clear()


class _Builder:
    """Builds trees from lines.

    Attributes:
        bad: list of `BadTree`, those that have ended.
        fault: `BadTree` that has not ended, the rest of which is skipped; or `None`.
    """

    def __init__(self, normalised):
        self.bad = []
        self.fault = None
        self._normalised = normalised
        self._plain = {}  # from each label that `normalise` keeps to the one object for all trees
        self._annotated = False  # whether the open tree has any other label
        self._stack = []  # of [label or `None`, children]: the open brackets
        self._begin = 0  # line of the outermost open bracket
        self._skipping = 0  # open brackets of a bad tree
        self._margin_begins = None  # whether a bracket in the first column begins a tree; None: not yet known
        self._continued = False  # whether a bracket in the first column continued the open tree
        self._kept = []  # of (number, line): the lines of the open tree, to be read again

    def feed(self, number, line):
        """Reads a line; returns a list of (line on which it begins, tree), the good trees that end on it."""
        if (self._stack or self._skipping) and line.startswith("("):
            if self._margin_begins:
                self._give_up(f"the brackets are not closed when line {number} begins a new tree")
            self._continued = True
        found, tokens = [], iter(_TOKENS.findall(line))
        if not self._skipping:
            try:
                self._build(number, tokens, found)
            except tree_faults.TreeError as error:
                what, fix = error.args
                where = f", in the tree that begins on line {self._begin}" if self._begin < number else ""
                self.fault = BadTree(number, f"{what}{where * bool(self._stack)}. {fix}")
                self._skipping = len(self._stack)
                self._stack.clear()
                if not self._skipping:
                    self._end_fault()
                    return found
        if self._skipping:
            self._skip(tokens)
        if not self._margin_begins and (self._stack or self._skipping):
            self._kept.append((number, line))
        return found

    def _skip(self, tokens):
        for label, word, other in tokens:
            self._skipping += bool(label and not word) + (other == "(") - (other == ")")
            if not self._skipping:
                self._end_fault()
                return

    def _end_fault(self):
        self.bad.append(self.fault)
        self.fault = None
        self._kept.clear()

    def _build(self, number, tokens, found):
        """Adds tokens to the open tree, and the trees that they complete to `found`."""
        stack, plain = self._stack, self._plain
        for label, word, other in tokens:
            if label or other == "(":
                if not stack:
                    self._begin, self._annotated, self._continued = number, False, False
                elif stack[-1][1] and type(stack[-1][1][-1]) is str:
                    stack += [None] * (not word)  # it counts as open
                    raise tree_faults.next_to(stack[-2 + bool(word)][1][-1])
                label = plain.get(label) or self._checked(label)
                if not word:
                    stack.append([label, []])
                elif stack:
                    stack[-1][1].append(Tree(label, (word,)))
                else:
                    found.append((number, self._finish(label, [word])))
            elif other == ")":
                if not stack:
                    del found[-1:]  # it may be cut off by this bracket
                    raise tree_faults.closing_too_many()
                label, children = stack.pop()
                if not children:
                    raise tree_faults.empty(label)
                if not stack:
                    found.append((self._begin, self._finish(label, children)))
                elif label is None:
                    raise tree_faults.no_label()
                else:
                    stack[-1][1].append(Tree(label, tuple(children)))
            elif not stack:
                del found[-1:]
                raise tree_faults.outside(other)
            else:
                label, children = stack[-1]
                if children:
                    raise tree_faults.spoiled(label, children[-1], other)
                if label is None:
                    stack[-1][0] = plain.get(other) or self._checked(other)
                else:
                    children.append(other)

    def _checked(self, label):
        """Returns a label, `None` if it is missing; notes whether `normalise` changes it."""
        if not label:
            return None
        if label == TRACE or cut_label(label) != label:
            self._annotated = True
            return label
        return self._plain.setdefault(label, label)

    def _finish(self, label, children):
        """Returns the tree of a completed outermost bracket."""
        if self._margin_begins is None:
            self._margin_begins = not self._continued
        self._kept.clear()
        tree = Tree("TOP" if label is None else label, tuple(children))
        while tree.label in OUTER_LABELS and len(tree.children) == 1 and not tree.is_preterminal:
            (tree,) = tree.children
        if self._normalised and self._annotated:
            tree = normalise(tree)
            if tree is None:
                raise tree_faults.only_traces()
        return tree

    def _give_up(self, what, again=False):
        """Ends the open tree as a bad one; with `again`, its fault may be in what is read again."""
        if self.fault is None or again:
            fix = "Close them, or indent the lines that continue a tree"
            self.fault = BadTree(self._begin, f"{what}. {fix}")
        self._stack.clear()
        self._skipping = 0
        self._end_fault()

    def end(self):
        """Ends the text; returns an iterator over the (number, line) to be read again, or `None`."""
        if not (self._stack or self._skipping):
            return None
        begins = [i for i, (_, line) in enumerate(self._kept) if i and line.startswith("(")]
        again = self._kept[begins[0] :] if begins else []
        count = len(self._stack) or self._skipping
        brackets = "1 closing bracket is" if count == 1 else f"{count} closing brackets are"
        what = f"{brackets} missing at the end of the text for the tree that begins here"
        self._give_up(what, bool(again))
        self._margin_begins = True
        return iter(again) if again else None


def read_trees(path, *, on_bad="refuse", normalised=True):
    """Reads a file of trees, plain or compressed.

    Args:
        path: the file, see `LineReader`.
        on_bad: `"refuse"` or `"drop"`.
        normalised: whether to apply `normalise`.

    Returns:
        `(list of Tree, list of BadTree)`.

    Raises:
        DataError: see `LineReader` and `TreeReader`.
    """
    with LineReader(path) as lines, _no_garbage_collection():
        reader = TreeReader(iterate_lines(lines, str(path)), str(path), on_bad=on_bad, normalised=normalised)
        return list(reader), reader.bad


@contextlib.contextmanager
def _no_garbage_collection():
    """Pauses the search for reference cycles, which takes most of the time when many trees are kept."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_tree(text, name="tree"):
    """Reads a text that is one tree, and normalises it.

    Args:
        text: str, such as `"(S (NP (NN dog)) (VP (VBZ barks)))"`.
        name: name of the text in messages.

    Raises:
        DataError: the tree is bad, or there are none or several.
    """
    trees = list(TreeReader(text.split("\n"), name))
    if len(trees) > 1:
        raise DataError(f"{name}: {len(trees)} trees where one is expected. Give one tree a line")
    return trees[0]


def cut_label(label):
    """Cuts the functions and indices off a label, at the first `-` or `=`: `NP-SBJ=2` becomes `NP`.

    Labels that begin with one of these, such as `-LRB-`, stay.
    """
    match = _CUT.match(label)
    return match[0] if match else label


def normalise(tree):
    """Removes the annotation of the Penn Treebank that parsers are not trained on.

    Traces (`-NONE-`) and the constituents left empty are removed, and all labels cut, see `cut_label`.

    Returns:
        `Tree`; or `None` if it has no words.
    """
    stack = [(tree.label, iter(tree.children), [])]
    while True:
        label, rest, kept = stack[-1]
        for child in rest:
            if isinstance(child, str):
                if label != TRACE:
                    kept.append(child)
            else:
                stack.append((child.label, iter(child.children), []))
                break
        else:
            stack.pop()
            node = Tree(cut_label(label), tuple(kept)) if kept else None
            if not stack:
                return node
            if node:
                stack[-1][2].append(node)


def preterminals(tree):
    """Returns the words of a tree with their tags: list of preterminal `Tree`, from left to right."""
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        if node.is_preterminal:
            found.append(node)
        else:
            stack.extend(reversed(node.children))
    return found


def words(tree):
    """Returns the words of a tree, list of str."""
    return [node.children[0] for node in preterminals(tree)]


def tags(tree):
    """Returns the tags of the words of a tree, list of str."""
    return [node.label for node in preterminals(tree)]


def escape_brackets(word):
    """Returns a word as trees have it: its round brackets are written -LRB- and -RRB-."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def write_tree(tree):
    """Writes a tree on one line; round brackets in words become -LRB- and -RRB-.

    Raises:
        ValueError: a label or word is empty or has white space in it, or a label has round brackets.
    """
    parts, stack = [], [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            parts.append(node)
            continue
        label, children = node
        if node.is_preterminal:
            word = escape_brackets(children[0])
            parts.append(f" ({_checked_part(label)} {_checked_part(word)})")
        else:
            parts.append(f" ({_checked_part(label)}")
            stack.append(")")
            stack.extend(reversed(children))
    return "".join(parts)[1:]


def _checked_part(text):
    if not _PART.fullmatch(text):
        raise ValueError(f"labels and words must not be empty or have spaces or brackets. Received: {text!r}")
    return text
