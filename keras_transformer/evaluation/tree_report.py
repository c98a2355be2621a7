"""Comparison of parsers: bracket scores of their trees in one table, beside trees that need no parser."""

import os
from typing import NamedTuple

from keras_transformer.evaluation.baselines import flat_tree, most_frequent_label, right_branching_tree
from keras_transformer.evaluation.brackets import COLLINS, bracket_scores
from keras_transformer.text.trees import read_tree

# Attribute of `BracketScores`, and its column.
_COLUMNS = (
    ("f1", "F1"),
    ("precision", "precision"),
    ("recall", "recall"),
    ("complete_match", "complete"),
    ("average_crossing", "crossing"),
    ("no_crossing", "none"),
    ("two_crossing", "<=2"),
    ("unlabelled_f1", "unlabelled"),
)
_LABEL_COLUMNS = ("F1", "precision", "recall", "gold", "found", "matched")
NOTE = """\
F1, precision, recall: labelled brackets of all sentences together. complete: sentences without an error.
crossing: crossing brackets a sentence; none, <=2: sentences with so many. unlabelled: F1 of brackets
without labels. Shares are in percent."""


class NamedTrees(NamedTuple):
    """The trees of a text and its name."""

    name: str  # for messages and tables
    trees: list  # of Tree


class TreeComparison(NamedTuple):
    """Scores of one or several parsers on the same sentences."""

    reference: str  # its name
    systems: list  # of (name, `TreeScores`)
    baselines: list  # of (name, `TreeScores`)
    as_evalb: bool  # whether words are deleted and sentences skipped as evalb does

    def to_dict(self, labels=False):
        """Returns all values as a dict for JSON; with `labels`, those of each label, too."""

        def values(name, scores):
            found = {
                "name": name,
                "disagreeing": list(scores.disagreeing),
                "all": scores.all.to_dict(),
                f"up_to_{scores.rules.short}_words": scores.short.to_dict(),
            }
            if labels:
                found["labels"] = {
                    label: {"f1": one.f1, "precision": one.precision, "recall": one.recall, **one._asdict()}
                    for label, one in scores.labels.items()
                }
            return found

        return {
            "reference": self.reference,
            "rules": self._rules.name,
            "as_evalb": self.as_evalb,
            "systems": [values(*each) for each in self.systems],
            "baselines": [values(*each) for each in self.baselines],
        }

    def to_record(self):
        """Returns the figures of the first system as a flat dict, for the history of a run."""
        scores = self.systems[0][1]
        return {
            "num_lines": scores.all.num_sentences,
            **{key: getattr(scores.all, key) for key, _ in _COLUMNS},
            f"f1_up_to_{scores.rules.short}_words": scores.short.f1,
            "num_disagreeing": len(scores.disagreeing),
        }

    @property
    def _rules(self):
        return self.systems[0][1].rules

    def format(self, labels=False):
        """Returns the tables as text; with `labels`, one of the labels for each system, too."""
        shown = _with_short_names(self.systems)
        rows, counts = shown + self.baselines, self.systems[0][1]
        width = 2 + max(len(name) for name, _ in [*rows, ("up to 40 words (10,000)", None)])
        lines = [
            f"{counts.all.num_sentences:,} sentences against {self.reference}, rules of {self._rules.name}"
        ]
        for part, title in (("all", "all lengths"), ("short", f"up to {self._rules.short} words")):
            title += f" ({getattr(counts, part).num_sentences:,})"
            lines += ["", _row(title, width, [head for _, head in _COLUMNS])]
            for name, scores in rows:
                figures = (getattr(getattr(scores, part), key) for key, _ in _COLUMNS)
                lines.append(_row(name, width, [f"{value:.2f}" for value in figures]))
        for name, scores in shown if labels else ():
            lines += ["", _row(f"{name}, by label", width, _LABEL_COLUMNS)]
            for label, one in scores.labels.items():
                same = (other for other, known in self._rules.same_label if known == label)
                cells = (f"{value:.2f}" for value in (one.f1, one.precision, one.recall))
                lines.append(
                    _row(" = ".join([label, *same]), width, [*cells, *(f"{value:,}" for value in one)])
                )
        return "\n".join([*lines, "", NOTE, *self._about_words(shown)])

    def _about_words(self, shown):
        """Returns lines: how words are deleted, and which sentences of which system disagree."""
        if self.as_evalb:
            lines = ["Words are deleted by each tree's own tags, as evalb does."]
            fate = "left out of the scores, as evalb does"
        else:
            lines = ["Words, mostly punctuation, are deleted by the tags of the reference, in both trees."]
            fate = "scored as trees without brackets"
        for name, scores in shown:
            if count := len(scores.disagreeing):
                sentences = "1 sentence differs" if count == 1 else f"{count:,} sentences differ"
                first = scores.disagreeing[0]
                lines.append(f"{name}: {sentences} in words from the reference (first: {first}), {fate}.")
        return lines

    def __str__(self):
        return self.format()


def _with_short_names(systems):
    """Returns the systems with their file names without folders, if these differ."""
    short = [os.path.basename(name) for name, _ in systems]
    if len(set(short)) < len(short):
        return list(systems)
    return [(name, scores) for name, (_, scores) in zip(short, systems, strict=True)]


def _row(name, width, cells):
    """Returns a row of a table, its cells aligned with those of the others."""
    return f"{name:<{width}}" + "".join(f"{cell:>11}" for cell in cells)


def compare_trees(systems, reference, rules=COLLINS, *, as_evalb=False):
    """Scores the trees of one or several parsers, and baselines.

    Args:
        systems: list of `NamedTrees`, parses of the same sentences.
        reference: `NamedTrees`, the gold trees.
        rules: `Rules`.
        as_evalb: whether words are deleted by each tree's own tags, and sentences left out whose words then
            disagree, as by evalb; see `bracket_scores`.

    Returns:
        `TreeComparison`. Its baselines are right-branching trees, all with the reference's most frequent
        label, and flat ones.

    Raises:
        ValueError: the numbers of trees differ or are 0.
    """
    gold = reference.trees
    if not gold or not systems:
        raise ValueError("`systems` and `reference` must not be empty")
    for name, trees in systems:
        if len(trees) != len(gold):
            raise ValueError(
                f"{name}: {len(trees):,} trees, but {reference.name} has {len(gold):,}. "
                "Give trees of the same sentences, one for each"
            )
    options = {"delete_by": "own", "disagreeing": "skip"} if as_evalb else {}
    label = most_frequent_label(gold)
    right = NamedTrees(
        f"right-branching, all {label}", [right_branching_tree(tree, label, rules=rules) for tree in gold]
    )
    flat = NamedTrees("flat S", [flat_tree(tree) for tree in gold])

    def scored(named):
        return [(name, bracket_scores(gold, trees, rules, **options)) for name, trees in named]

    return TreeComparison(
        reference=reference.name,
        systems=scored(systems),
        baselines=scored([right, flat]),
        as_evalb=as_evalb,
    )


def compare_lines(lines, reference, *, name, reference_name):
    """Scores parses given as text, as `Parser` writes them.

    Args:
        lines: list of str, one tree each; "" for a sentence without words.
        reference: list of str, the gold trees.
        name: str, of the parser.
        reference_name: str, of the gold trees.

    Returns:
        `TreeComparison`.
    """
    parses, gold = ([read_tree(line) if line else None for line in side] for side in (lines, reference))
    return compare_trees([NamedTrees(name, parses)], NamedTrees(reference_name, gold))
