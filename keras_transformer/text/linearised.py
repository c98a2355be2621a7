"""Trees as sequences of symbols, the target text of a parser (Vinyals et al. 2015; Liu, Zhu and Shi 2018).

Depth first: a constituent with label X gives `(X`, its children, and `)X`. A word gives `XX`, or its tag
where tags are kept. So `(S (NP (NN dog)) (VP (VBZ barks)))` is `(S (NP XX )NP (VP XX )VP )S`. A tree that is
a single preterminal, `(NN dog)`, has no constituent: it is the one symbol `XX`.

`delinearise` reverses `linearise` and refuses all else. `mend` makes a tree of any symbols.
"""

import re

from keras_transformer.text.trees import Tree, preterminals

WORD = "XX"
# Label of a root that `mend` adds.
ROOT = "S"

_SYMBOL = re.compile(r"[()]?[^\s()]+", re.ASCII)

# Names of the rules of `mend`, in the order in which it reports them.
RULES = (
    "not_a_symbol",  # an opening or closing symbol without a label, or with white space in it: it is dropped
    "closing_dropped",  # no open constituent has the label of a closing symbol: it is dropped
    "inner_closed",  # a closing symbol is that of an outer constituent: those within are closed with it
    "closed_at_end",  # constituents that are open at the end are closed
    "empty_removed",  # a constituent without words is removed
    "words_dropped",  # more word symbols than words: the last ones are dropped
    "roots_joined",  # several roots become one
    "words_added",  # fewer word symbols than words: the rest are the last children of the root
    "flat",  # nothing is left: all words under one root
)


def is_opening(symbol):
    """Whether a symbol opens a constituent: `(X`."""
    return symbol.startswith("(")


def is_closing(symbol):
    """Whether a symbol closes a constituent: `)X`."""
    return symbol.startswith(")")


def linearise(tree, keep_tags=False):
    """Returns the symbols of a tree.

    Args:
        tree: `Tree`.
        keep_tags: whether a word gives its tag instead of `XX`.

    Returns:
        list of str.
    """
    symbols, stack = [], [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            symbols.append(node)
        elif node.is_preterminal:
            symbols.append(node.label if keep_tags else WORD)
        else:
            symbols.append(f"({node.label}")
            stack.append(f"){node.label}")
            stack.extend(reversed(node.children))
    return symbols


def delinearise(symbols, words, tags=None):
    """Returns the tree of the symbols of `linearise`.

    Args:
        symbols: iterable of str.
        words: list of str, the words of the tree.
        tags: list of str, one per word; `None`: the word symbols are the tags.

    Returns:
        `Tree`.

    Raises:
        ValueError: the symbols are not those of one tree over exactly these words.
    """
    _check_words(words, tags)
    stack, roots, position = [], [], 0
    for number, symbol in enumerate(symbols, start=1):
        if roots and not stack:
            raise ValueError(f"symbol {number}, {symbol}, stands behind the end of the tree")
        if not _SYMBOL.fullmatch(symbol):
            raise ValueError(f"symbol {number} is neither (X, )X nor a tag. Received: {symbol!r}")
        if is_opening(symbol):
            stack.append((symbol[1:], []))
            continue
        if is_closing(symbol):
            if not stack or stack[-1][0] != symbol[1:]:
                open_one = f"({stack[-1][0]} is open" if stack else "none is open"
                raise ValueError(
                    f"symbol {number}, {symbol}, does not close the innermost constituent: {open_one}"
                )
            label, children = stack.pop()
            if not children:
                raise ValueError(f"symbol {number}, {symbol}, closes a constituent without words")
            node = Tree(label, tuple(children))
        else:
            if position == len(words):
                raise ValueError(f"symbol {number}, {symbol}, is a word, but there are only {len(words)}")
            node = Tree(tags[position] if tags else symbol, (words[position],))
            position += 1
        (stack[-1][1] if stack else roots).append(node)
    if stack:
        raise ValueError(f"({stack[-1][0]} is not closed")
    if position < len(words) or not roots:
        raise ValueError(f"the symbols have {position} words, but there are {len(words)}")
    return roots[0]


def mend(symbols, words, tags=None):
    """Returns a tree over exactly the given words, whatever the symbols.

    What `delinearise` accepts gives the same tree and no rule. Any symbol that is neither opening nor closing
    is a word. Several roots become one: a constituent that covers more than half of the words takes the other
    roots in, as its first and last children; if there is none, all become children of a new `S`.

    Args:
        symbols: iterable of str.
        words: list of str, at least one.
        tags: list of str, one per word; `None`: the word symbols are the tags, and `XX` for added words.

    Returns:
        `(Tree, list of str)`: the tree; the names of the rules applied, each once, in the order of `RULES`.

    Raises:
        ValueError: there are no words, or not one tag per word.
    """
    _check_words(words, tags)
    if not words:
        raise ValueError("`words` must not be empty")
    leaves = [Tree(tag, (word,)) for tag, word in zip(tags or [WORD] * len(words), words, strict=True)]
    applied = set()
    roots, position = _build(symbols, leaves, tags is None, applied)
    if not roots:
        return Tree(ROOT, tuple(leaves)), [rule for rule in RULES if rule in {*applied, "flat"}]
    rest = leaves[position:]
    if len(roots) > 1 or (rest and roots[0].is_preterminal):
        applied.add("roots_joined")
        roots = [_join(roots, len(words))]
    (root,) = roots
    if rest:
        applied.add("words_added")
        root = Tree(root.label, (*root.children, *rest))
    return root, [rule for rule in RULES if rule in applied]


def _build(symbols, leaves, symbols_are_tags, applied):
    """Returns (list of the root nodes, number of words used); adds names of rules to `applied`."""
    stack, position = [("", [])], 0

    def close():
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))
        else:
            applied.add("empty_removed")

    for symbol in symbols:
        if not _SYMBOL.fullmatch(symbol):
            applied.add("not_a_symbol")
        elif is_opening(symbol):
            stack.append((symbol[1:], []))
        elif is_closing(symbol):
            if all(label != symbol[1:] for label, _ in stack):
                applied.add("closing_dropped")
                continue
            while stack[-1][0] != symbol[1:]:
                applied.add("inner_closed")
                close()
            close()
        elif position == len(leaves):
            applied.add("words_dropped")
        else:
            leaf = leaves[position]
            stack[-1][1].append(leaf._replace(label=symbol) if symbols_are_tags else leaf)
            position += 1
    if len(stack) > 1:
        applied.add("closed_at_end")
    while len(stack) > 1:
        close()
    return stack[0][1], position


def _join(roots, num_words):
    """Returns one root for several; see `mend`."""
    for index, root in enumerate(roots):
        if not root.is_preterminal and 2 * len(preterminals(root)) > num_words:
            return Tree(root.label, (*roots[:index], *root.children, *roots[index + 1 :]))
    return Tree(ROOT, tuple(roots))


def _check_words(words, tags):
    if tags is not None and len(tags) != len(words):
        raise ValueError(f"`tags` must be one per word. Received: {len(tags)} for {len(words)} words")
