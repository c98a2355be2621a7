"""Plots of constituency trees and of their scores."""

from collections import Counter

from keras_transformer.analysis.plots.style import BLUE, ORANGE, SKY, drawable, subplots, tidy
from keras_transformer.analysis.trees import closings
from keras_transformer.text.linearised import linearise

_WIDTH, _GAP = 0.085, 0.14  # inches: of a character, between words
_LEVEL = 0.42  # inches between the levels of a tree


def tree_diagrams(trees, *, reference=None, title=""):
    """Plots trees: constituents above their words, one tree below the other.

    Args:
        trees: dict: name -> `text.trees.Tree`.
        reference: `Tree` over the same words; or `None`. A constituent that it lacks, with the same label
            over the same words, is drawn in orange with dashed lines.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure` with one panel per tree.
    """
    layouts = [_Layout(tree, reference) for tree in trees.values()]
    heights = [_LEVEL * (layout.depth + 1.4) for layout in layouts]
    width = max(4.0, max(layout.width for layout in layouts) + 0.4)
    figure, panels = subplots(width, sum(heights) + 0.3 * len(heights), len(heights), title=title)
    panels[0].get_gridspec().set_height_ratios(heights)
    for axes, name, layout in zip(panels, trees, layouts, strict=True):
        for one in layout.nodes:
            colour, style = (ORANGE, "--") if one["wrong"] else (BLUE, "-")
            for x, depth in one["children"]:
                axes.plot(
                    [one["x"], x], [one["depth"] + 0.22, depth - 0.22], style, color=colour, linewidth=1
                )
            axes.text(
                one["x"], one["depth"], *drawable([one["label"]]), ha="center", va="center", fontsize=8,
                color=colour, weight="bold",
            )  # fmt: skip
        for x, depth, tag, word in layout.leaves:
            axes.text(x, depth, *drawable([tag]), ha="center", va="center", fontsize=7, color="0.4")
            axes.text(x, layout.depth + 0.45, *drawable([word]), ha="center", va="center", fontsize=8.5)
            axes.plot([x, x], [depth + 0.22, layout.depth + 0.22], ":", color="0.7", linewidth=0.8)
        axes.set(xlim=(0, layout.width + _GAP), ylim=(layout.depth + 0.8, -0.6))
        axes.set_title(*drawable([name]), fontsize=9, loc="left")
        axes.axis("off")
    return figure


class _Layout:
    """Positions of the nodes of a tree.

    Attributes:
        nodes: list of dict, one per constituent: label, x (inches), depth (levels), children (list of x and
            depth), wrong (bool).
        leaves: list of (x, depth, tag, word).
        depth: int, largest depth of a word's tag.
        width: float, inches.
    """

    def __init__(self, tree, reference):
        self.nodes, self.leaves, self.depth, self.width = [], [], 0, _GAP
        self._missing = Counter() if reference is None else Counter(_spans(reference))
        self._compares = reference is not None
        self._place(tree, 0)

    def _place(self, node, depth):
        """Adds a node and what is below it; returns its x."""
        if node.is_preterminal:
            width = _WIDTH * max(len(node.children[0]), len(node.label)) + _GAP
            x = self.width + width / 2
            self.width += width
            self.depth = max(self.depth, depth)
            self.leaves.append((x, depth, node.label, node.children[0]))
            return x
        own = {"label": node.label, "depth": depth, "wrong": False}
        self.nodes.append(own)
        begin = len(self.leaves)
        places = [(self._place(child, depth + 1), depth + 1) for child in node.children]
        span = node.label, begin, len(self.leaves)
        if self._compares:
            own["wrong"] = self._missing[span] == 0
            self._missing[span] -= not own["wrong"]
        own.update(x=sum(x for x, _ in places) / len(places), children=places)
        return own["x"]


def _spans(tree):
    """Returns (label, first word, word after the last) of all constituents."""
    symbols = linearise(tree)
    return [(symbols[one.opening][1:], one.first, one.last + 1) for one in closings(symbols)]


def label_bars(labels, *, most=12, title=""):
    """Plots precision and recall of each label, the most frequent ones first.

    Args:
        labels: dict: label -> `evaluation.brackets.LabelScore`, such as `TreeScores.labels`.
        most: int, maximum number of labels.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure`.
    """
    shown = sorted(labels.items(), key=lambda item: -item[1].gold)[:most]
    figure, (axes,) = subplots(6.4, 0.34 * len(shown) + 1.1, title=title)
    for offset, name, colour in ((-0.19, "precision", BLUE), (0.19, "recall", SKY)):
        values = [getattr(score, name) for _, score in shown]
        places = [number + offset for number in range(len(shown))]
        axes.barh(places, values, height=0.36, color=colour, label=name, edgecolor="black", linewidth=0.4)
    names = [f"{label} ({score.gold:,})" for label, score in shown]
    axes.set_yticks(range(len(shown)), drawable(names))
    axes.set(xlim=(0, 100), xlabel="percent of the brackets", ylabel="label (in the references)")
    axes.invert_yaxis()
    tidy(axes)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
