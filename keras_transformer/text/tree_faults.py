"""What can be wrong with a bracketed tree, in words; each function returns a `TreeError`."""


class TreeError(Exception):
    """A tree is bad; its arguments are what is wrong, and the remedy."""


def closing_too_many():
    """A closing bracket where none is open."""
    return TreeError("a closing bracket too many", "Remove it, or open the constituent")


def empty(label):
    """A bracket that holds nothing; its label may be `None`."""
    if label is None:
        return TreeError("an empty bracket ()", "Remove it")
    return TreeError(f"the constituent ({label[:40]}) is empty", "Give it a word, or remove it")


def no_label():
    """A constituent, not the outermost, without a label."""
    return TreeError("a constituent has no label", "Write it after the bracket: (NP ...)")


def next_to(word):
    """A word beside a constituent."""
    fix = f"Give it a tag of its own: (NN {word[:40]})"
    return TreeError(f"the word {_shown(word)} stands next to a constituent", fix)


def spoiled(label, before, word):
    """A word that follows a child of the same bracket; `before` is a str or `Tree`."""
    if not isinstance(before, str):
        return next_to(word)
    both = f"({label[:20]} {before[:40]} {word[:40]})"
    return TreeError(f"a word has a space in it: {both}", "Give each word a tag, or join them")


def outside(word):
    """A word where no bracket is open."""
    return TreeError(f"{_shown(word)} is outside of a tree", "Remove it, or put it into brackets")


def only_traces():
    """A tree of which `normalise` leaves nothing."""
    return TreeError("the tree has no words, only traces (-NONE-)", "Remove it")


def _shown(word):
    return repr(word if len(word) <= 40 else word[:37] + "...")
