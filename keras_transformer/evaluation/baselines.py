"""Trees that need no parser, to be scored beside one: right-branching trees, and flat ones.

Both are made of the words and tags of a gold tree. Their words get the tags of that tree, so they never
disagree with it.
"""

from collections import Counter

from keras_transformer.evaluation.brackets import COLLINS
from keras_transformer.text.trees import Tree, cut_label, preterminals

ROOT = "S"


def flat_tree(gold, root=ROOT):
    """Returns one constituent over the words of a gold tree, `(S a b c)`."""
    return Tree(root, tuple(preterminals(gold)))


def right_branching_tree(gold, label="NP", root=ROOT, rules=COLLINS):
    """Returns the right-branching tree over the words of a gold tree, `(S a (NP b (NP c d)))`.

    Every word but the last opens a constituent that reaches to the end. Words that are not scored open none:
    punctuation at the end is attached to the root, other punctuation to the constituent that is open.

    Args:
        gold: `Tree`.
        label: label of all constituents below the root.
        root: label of the root.
        rules: `Rules`, which say by their tags which words are not scored.

    Returns:
        `Tree`.
    """
    leaves = preterminals(gold)
    scored = [index for index, leaf in enumerate(leaves) if leaf.label not in rules.deleted]
    if len(scored) < 3:
        return flat_tree(gold, root)
    # From right to left: the constituents begin at all scored words but the first and the last.
    end = scored[-1] + 1
    inner = tuple(leaves[scored[-2] : end])
    for begin, following in zip(scored[-3::-1], scored[-2:0:-1], strict=True):
        inner = (*leaves[begin:following], Tree(label, inner))
    return Tree(root, (*leaves[: scored[0]], *inner, *leaves[end:]))


def most_frequent_label(trees):
    """Returns the label that most constituents below the roots have; `"NP"` if there are none."""
    counts = Counter()
    for tree in trees:
        stack = [] if tree.is_preterminal else list(tree.children)
        while stack:
            node = stack.pop()
            if not node.is_preterminal:
                counts[cut_label(node.label)] += 1
                stack.extend(node.children)
    return counts.most_common(1)[0][0] if counts else "NP"
