"""Bracket scores of constituency trees, as evalb computes them (Black et al. 1991; Sekine and Collins 1997).

A bracket is a constituent's label with its first and last word. The brackets of a sentence are a multiset:
two unary constituents of the same label and words are two brackets. Words with their tags are no brackets.

What counts is set by `Rules`, the contents of one of evalb's parameter files. Words with certain tags, mostly
punctuation, are deleted before the words are counted; with them constituents that hold nothing else.

evalb deletes the words of each tree by that tree's own tags. If a parser predicts no tags, or one comma's tag
is wrong, the trees differ in length, and evalb leaves the sentence out of the totals. That flatters the
parser. By default, the words of both trees are deleted by the gold tree's tags here, and a sentence whose
words disagree is scored as a tree without brackets. `delete_by="own"` with `disagreeing="skip"` is evalb.
"""

import itertools
import re
from collections import Counter
from typing import NamedTuple

from keras_transformer.text.trees import escape_brackets

DELETE_BY = ("gold", "own")
DISAGREEING = ("empty", "skip")

_CUT = re.compile(r"[-=].*", re.DOTALL)
_QUOTES = ("'", '"', "/")
_SCORES = (
    *("f1", "precision", "recall", "complete_match", "average_crossing", "no_crossing", "two_crossing"),
    "unlabelled_f1",
)


class Rules(NamedTuple):
    """What counts as a word and as a bracket: the settings of an evalb parameter file."""

    name: str  # of the file
    deleted: frozenset  # DELETE_LABEL: tags of words, and labels of constituents, that do not count
    not_in_length: frozenset = frozenset(["-NONE-"])  # DELETE_LABEL_FOR_LENGTH: tags of no words at all
    same_label: tuple = (("PRT", "ADVP"),)  # EQ_LABEL: pairs of labels that count as equal
    quote_tags: frozenset = frozenset()  # QUOTE_LABEL, for `delete_by="own"`: see `_reinsert_quotes`
    short: int = 40  # CUTOFF_LEN: words, with punctuation, of the second set of scores


COLLINS = Rules("COLLINS.prm", frozenset(["TOP", "-NONE-", ",", ":", "``", "''", "."]))
NEW = Rules(
    "new.prm",
    COLLINS.deleted | {"S1", "?", "!"},
    quote_tags=frozenset(["``", "''", "POS", "NN", "CD", "VBZ", ":"]),
)
RULE_SETS = {"collins": COLLINS, "new": NEW}


class SentenceScore(NamedTuple):
    """Brackets of one sentence."""

    length: int  # words of the gold tree, with punctuation
    words_agree: bool  # False: `test`, `matched` and `crossing` are 0
    has_words: bool  # whether any word counts
    gold: Counter  # label -> number of brackets of the gold tree
    test: Counter  # label -> number of brackets of the tree to be scored
    matched: Counter  # label -> number of brackets of the test tree that the gold tree has, too
    matched_spans: int  # the same if labels are ignored
    crossing: (
        int  # brackets of the test tree that overlap with one of the gold tree, neither within the other
    )


class BracketScores(NamedTuple):
    """Sums over sentences; the scores are properties, in percent."""

    num_sentences: int
    num_disagreeing: int  # sentences whose words are not those of the gold tree
    num_without_words: int  # sentences with punctuation only, which do not count
    num_skipped: int  # of the two kinds above, those that are in no figure below
    gold: int  # brackets of the gold trees
    test: int  # brackets of the trees to be scored
    matched: int
    matched_spans: int  # brackets that match if labels are ignored
    num_crossing: int  # crossing brackets
    num_complete: int  # sentences with all brackets matched
    num_no_crossing: int  # sentences without crossing brackets
    num_two_crossing: int  # sentences with two or fewer

    @property
    def precision(self):
        """Labelled precision: matched / test."""
        return _percent(self.matched, self.test)

    @property
    def recall(self):
        """Labelled recall: matched / gold."""
        return _percent(self.matched, self.gold)

    @property
    def f1(self):
        """Labelled F1 of the corpus: 2 PR / (P + R) = 2 matched / (gold + test)."""
        return _percent(2 * self.matched, self.gold + self.test)

    @property
    def unlabelled_f1(self):
        """F1 if labels are ignored."""
        return _percent(2 * self.matched_spans, self.gold + self.test)

    @property
    def complete_match(self):
        """Share of sentences with all brackets right and none too many."""
        return _percent(self.num_complete, self.num_counted)

    @property
    def average_crossing(self):
        """Crossing brackets per sentence (no percentage), of sentences whose words agree."""
        compared = self.num_sentences - self.num_without_words - self.num_disagreeing
        return self.num_crossing / max(compared, 1)

    @property
    def no_crossing(self):
        """Share of sentences without crossing brackets and whose words agree."""
        return _percent(self.num_no_crossing, self.num_counted)

    @property
    def two_crossing(self):
        """Share of sentences with two or fewer crossing brackets and whose words agree."""
        return _percent(self.num_two_crossing, self.num_counted)

    @property
    def num_counted(self):
        """Number of sentences in the figures."""
        return self.num_sentences - self.num_skipped

    def to_dict(self):
        """Returns scores and counts as plain values for JSON."""
        return {name: getattr(self, name) for name in (*_SCORES, *self._fields)}


class LabelScore(NamedTuple):
    """Brackets of one label."""

    gold: int
    test: int
    matched: int

    @property
    def precision(self):
        """matched / test, in percent."""
        return _percent(self.matched, self.test)

    @property
    def recall(self):
        """matched / gold, in percent."""
        return _percent(self.matched, self.gold)

    @property
    def f1(self):
        """2 matched / (gold + test), in percent."""
        return _percent(2 * self.matched, self.gold + self.test)


class TreeScores(NamedTuple):
    """Scores of a corpus of trees."""

    rules: Rules
    all: BracketScores  # of all sentences
    short: BracketScores  # of sentences of at most `rules.short` words
    labels: dict  # label -> `LabelScore`, the most frequent in the gold trees first
    disagreeing: tuple  # of int: numbers, from 1, of the sentences whose words disagree


def bracket_scores(gold, test, rules=COLLINS, *, delete_by="gold", disagreeing="empty"):
    """Scores trees against gold trees.

    Args:
        gold: list of `Tree`, at least one.
        test: list of `Tree`, one per gold tree; `None` where there is none.
        rules: `Rules`.
        delete_by: whose tags decide which words are deleted: `"gold"`, the gold tree's in both trees; or
            `"own"`, each tree's own.
        disagreeing: what becomes of a sentence whose words or length disagree. `"empty"`: its tree counts as
            one without brackets. `"skip"`: it is left out of the figures, as by evalb. It is counted anyway.

    Returns:
        `TreeScores`.

    Raises:
        ValueError: the numbers of trees differ or are 0.
    """
    for name, value, known in (
        ("delete_by", delete_by, DELETE_BY),
        ("disagreeing", disagreeing, DISAGREEING),
    ):
        if value not in known:
            raise ValueError(f"`{name}` must be one of {list(known)}. Received: {value!r}")
    if len(gold) != len(test) or not gold:
        raise ValueError(
            f"`gold` and `test` must have the same number of trees, at least one. "
            f"Received: {len(gold)} and {len(test)}"
        )
    found = [score_sentence(*pair, rules, delete_by=delete_by) for pair in zip(gold, test, strict=True)]
    skip = disagreeing == "skip"
    counted = [one for one in found if one.words_agree or not skip]
    gold_labels, test_labels, matched = (
        sum((getattr(one, name) for one in counted), Counter()) for name in ("gold", "test", "matched")
    )
    names = sorted(gold_labels | test_labels, key=lambda label: (-gold_labels[label], label))
    return TreeScores(
        rules=rules,
        all=_total(found, skip),
        short=_total([one for one in found if one.length <= rules.short], skip),
        labels={name: LabelScore(gold_labels[name], test_labels[name], matched[name]) for name in names},
        disagreeing=tuple(number for number, one in enumerate(found, 1) if not one.words_agree),
    )


def score_sentence(gold, test, rules=COLLINS, *, delete_by="gold"):
    """Compares two trees over the same words.

    Args:
        gold: `Tree`.
        test: `Tree`, or `None`.
        rules: `Rules`.
        delete_by: `"gold"` or `"own"`, see `bracket_scores`.

    Returns:
        `SentenceScore`.
    """
    first = _Side(gold, rules)
    second = _Side(test, rules) if test else None
    first.delete(first.deleted)
    if second and delete_by == "own":
        second.delete(second.deleted)
        if second.words and len(first.words) != len(second.words) and rules.quote_tags:
            _reinsert_quotes(first, second, rules)
    elif second and len(first.all_words) == len(second.all_words):
        second.delete(first.deleted)
    agree = bool(second) and second.words == first.words
    labels = dict(rules.same_label)
    gold_brackets, test_brackets = first.count(labels), second.count(labels) if agree else Counter()
    spans, test_spans = _spans(gold_brackets), _spans(test_brackets)
    return SentenceScore(
        length=len(first.all_words),
        words_agree=agree,
        has_words=bool(first.words) or not agree,
        gold=_by_label(gold_brackets),
        test=_by_label(test_brackets),
        matched=_by_label(gold_brackets & test_brackets),
        matched_spans=(spans & test_spans).total(),
        crossing=sum(count for span, count in test_spans.items() if any(_cross(span, one) for one in spans)),
    )


class _Side:
    """Words and brackets of one tree, before and after the deletion of words.

    Attributes:
        all_words: list of str, those that count for the length.
        deleted: list of bool, one for each of `all_words`.
        words: list of str, those that are left; `None` until `delete`.
        brackets: list of [label, start, end] in the order of their opening, indices into `words`.
        quotes: list of [index of the word in `words`, its position in `all_words`, number of brackets opened
            before it, brackets open at it].
    """

    def __init__(self, tree, rules):
        self.all_words, self.tags, self.brackets, self.quotes, self.words = [], [], [], [], None
        open_brackets, stack = [], [tree]
        while stack:
            node = stack.pop()
            if node is None:
                self.brackets[open_brackets.pop()][2] = len(self.tags)
            elif not node.is_preterminal:
                open_brackets.append(len(self.brackets))
                label = _CUT.sub("", node.label)
                self.brackets.append([None if label in rules.deleted else label, len(self.tags), None])
                stack.append(None)
                stack.extend(reversed(node.children))
            elif node.label not in rules.not_in_length:
                (word,) = node.children
                if word in _QUOTES and node.label in rules.quote_tags:
                    self.quotes.append([None, len(self.tags), len(self.brackets), tuple(open_brackets)])
                self.all_words.append(escape_brackets(word))
                self.tags.append(node.label)
        self.deleted = [tag in rules.deleted for tag in self.tags]

    def delete(self, deleted):
        """Deletes words, a list of bool."""
        self.words = [word for word, gone in zip(self.all_words, deleted, strict=True) if not gone]
        before = [0, *itertools.accumulate(not gone for gone in deleted)]
        for bracket in self.brackets:
            bracket[1:] = before[bracket[1]], before[bracket[2]]
        for quote in self.quotes:
            quote[0] = before[quote[1]]

    def reinsert(self, quote):
        """Takes the deletion of a word back."""
        index, position, opened, around = quote
        self.words.insert(index, self.all_words[position])
        for bracket in self.brackets[opened:]:
            bracket[1:] = bracket[1] + 1, bracket[2] + 1
        for number in around:
            self.brackets[number][2] += 1

    def count(self, same_label):
        """Returns the multiset of (label, start, end) that count."""
        return Counter(
            (same_label.get(label, label), start, end)
            for label, start, end in self.brackets
            if label is not None and start < end
        )


def _reinsert_quotes(gold, test, rules):
    """Takes back the deletion of quotes whose tag is one of punctuation in one tree only.

    The `fix_quote` of evalb, which applies where the lengths differ, step by step.
    """
    for i, other in enumerate(test.quotes):
        index = other[0]
        for j, one in enumerate(gold.quotes):
            of_gold = gold.tags[one[1]] in rules.deleted
            if one[0] != index or of_gold == (test.tags[other[1]] in rules.deleted):
                continue
            side, quotes = (gold, gold.quotes[j:]) if of_gold else (test, test.quotes[i:])
            side.reinsert([index, *quotes[0][1:]])
            for quote in quotes:
                quote[0] += 1


def _cross(one, other):
    return one[0] < other[0] < one[1] < other[1] or other[0] < one[0] < other[1] < one[1]


def _by_label(brackets):
    total = Counter()
    for (label, _, _), count in brackets.items():
        total[label] += count
    return total


def _spans(brackets):
    total = Counter()
    for (_, *span), count in brackets.items():
        total[tuple(span)] += count
    return total


def _total(found, skip):
    """Returns the `BracketScores` of a list of `SentenceScore`; `skip`: leave out those that disagree."""
    counted = [one for one in found if one.has_words and (one.words_agree or not skip)]
    agree = [one for one in counted if one.words_agree]
    complete = [one for one in agree if one.gold.total() == one.test.total() == one.matched.total()]
    return BracketScores(
        num_sentences=len(found),
        num_disagreeing=sum(not one.words_agree for one in found),
        num_without_words=sum(not one.has_words for one in found),
        num_skipped=len(found) - len(counted),
        gold=sum(one.gold.total() for one in counted),
        test=sum(one.test.total() for one in counted),
        matched=sum(one.matched.total() for one in counted),
        matched_spans=sum(one.matched_spans for one in counted),
        num_crossing=sum(one.crossing for one in counted),
        num_complete=len(complete),
        num_no_crossing=sum(one.crossing == 0 for one in agree),
        num_two_crossing=sum(one.crossing <= 2 for one in agree),
    )


def _percent(part, whole):
    return 100 * part / whole if whole else 0.0
