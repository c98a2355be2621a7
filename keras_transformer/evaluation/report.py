"""All scores of one or several systems, with intervals and tests, in one table.

Intervals are sacreBLEU's bootstrap: the lines are drawn anew with replacement, so many
times. Of several systems, each is tested against the first on the same draws (paired
bootstrap, Koehn 2004) or by exchanging their lines at random (approximate randomisation,
Riezler and Maxwell 2005). Every measure is computed from translations of real search; none
from teacher-forced output.
"""

import logging
import os
import re
from typing import NamedTuple

from sacrebleu.significance import PairedTest

from keras_transformer.evaluation.bleu import exact_match, token_bleu
from keras_transformer.evaluation.measures import TOKENS, all_measures, forms_of
from keras_transformer.evaluation.test_sets import sets_with_lines

SIGNIFICANCE = {"bootstrap": "bs", "randomization": "ar"}
NOTE = """\
BLEU, chrF and TER are sacreBLEU's: they take raw text and split it by their own rules. Tokenised BLEU
counts the tokens that stand beside it. One text gets several figures: compare only what is computed alike."""

# The tests count on many lines that may be drawn or exchanged.
FEWEST_DIFFERING = 30

# Text that is not raw: sacreBLEU counts `&apos;` as three tokens. Raw text has a stray " ," now and then.
_TOKENIZED = re.compile(r" [,.](?: |$)| @-@ ")
_PROCESSED = (
    ("tokenised", _TOKENIZED, "score the text as it was before, or see --detokenize"),
    ("cut into sub-words", re.compile(r"@@(?: |$)|▁"), "join the pieces first (BPE: sed -E 's/@@( |$)//g')"),
    ("escaped", re.compile(r"&(?:apos|quot|amp|lt|gt|#39|#91|#93|#124);"),
     "unescape it first; --detokenize does"),
)  # fmt: skip
_WARNED_SHARE = 0.01  # of lines

logger = logging.getLogger(__name__)


class NamedLines(NamedTuple):
    """One file of text."""

    name: str  # for messages and tables
    lines: list  # of str


class Figure(NamedTuple):
    """One score of one system."""

    score: float  # percent; TER is lower where better
    how: str  # signature, or steps
    bleu: object = None  # `TokenBleu`, of the BLEU measures: its n-grams and lengths
    mean: float | None = None  # of the bootstrap draws
    half_width: float | None = None  # of the interval that holds 95 % of them
    p_value: float | None = None  # of the difference from the first system

    def to_dict(self):
        """Returns the figure as plain values, without those that were not computed."""
        found = {"score": self.score, "how": self.how}
        if self.bleu:
            found |= {**self.bleu._asdict(), "precisions": list(self.bleu.precisions)}
        rest = {"mean": self.mean, "half_width": self.half_width, "p_value": self.p_value}
        return found | {name: value for name, value in rest.items() if value is not None}

    @property
    def details(self):
        """Precisions, brevity penalty and lengths of BLEU as text."""
        if not self.bleu:
            return ""
        precisions = "/".join(f"{precision:.1f}" for precision in self.bleu.precisions)
        return (
            f"{precisions} (BP {self.bleu.brevity_penalty:.3f}, "
            f"{self.bleu.hypothesis_length:,} : {self.bleu.reference_length:,} tokens)"
        )


class Comparison(NamedTuple):
    """Scores of one or several systems on the same text."""

    num_lines: int
    systems: list  # of names; the first is what the others are tested against
    num_empty: list  # of int, blank hypotheses of each system
    references: list  # of names
    figures: dict  # from (key, label) of a measure to a list of `Figure`, one for each system
    left_out: str  # which measures are missing and why, or ""
    sampling: dict  # how intervals and tests were made; empty where there are none

    def to_dict(self):
        """Returns everything as plain values for JSON."""
        return {
            "num_lines": self.num_lines,
            "references": list(self.references),
            "systems": [
                {
                    "name": name,
                    "num_empty": self.num_empty[i],
                    "scores": {key: figures[i].to_dict() for (key, _), figures in self.figures.items()},
                }
                for i, name in enumerate(self.systems)
            ],
            "left_out": self.left_out,
            "sampling": self.sampling,
        }

    def format(self):
        """Returns the table as text: each figure with how it was computed."""
        several = len(self.systems) > 1
        names = _short(self.systems)
        width = max(map(len, names)) + 2 if several else 0
        lines = [f"{self.num_lines:,} lines against {' and '.join(dict.fromkeys(self.references))}", ""]
        for (_, label), figures in self.figures.items():
            for i, figure in enumerate(figures):
                interval = "" if figure.half_width is None else f" ± {figure.half_width:.2f}"
                cells = [
                    f"{'' if i else label:<21}",
                    f"{names[i]:<{width}}" if several else "",
                    f"{figure.score:6.2f}{interval}  ",
                    _p_cell(figure.p_value) if several and self.sampling else "",
                    f"{figure.details}  " if figure.details else "",
                    "" if i else figure.how,
                ]
                lines.append("".join(cells).rstrip())
        lines += ["", *([self.left_out] if self.left_out else []), *self._sampling_lines(), NOTE]
        return "\n".join(lines)

    def __str__(self):
        return self.format()

    def _sampling_lines(self):
        found = []
        if "interval" in self.sampling:
            found.append(
                f"±: 95 % of {self.sampling['interval']:,} bootstrap draws of the lines, "
                f"seed {self.sampling['seed']}"
            )
        if "test" in self.sampling:
            found.append(
                f"p: how often a system as good as {_short(self.systems)[0]} would differ as much; paired "
                f"{self.sampling['test']}, {self.sampling['draws']:,} draws, seed {self.sampling['seed']}"
            )
        return found


def compare(
    systems,
    references,
    *,
    target_language=None,
    tokens=None,
    ter=True,
    confidence=False,
    significance="bootstrap",
    draws=None,
    standard_set=None,
):
    """Scores translations by every measure.

    Args:
        systems: list of `NamedLines`, translations of the same text. Blank lines are bad
            translations: they are scored, counted, and warned about.
        references: list of `NamedLines`, one or several, as many lines each.
        target_language: such as `"de"`. Without it sacreBLEU splits as for most languages
            (13a), and what needs Moses' tokenizer is left out.
        tokens: what tokenised BLEU counts: `"moses"` tokenizes both sides, `"given"`
            splits them at spaces. `None` is `"given"` where both sides look tokenised.
        ter: also translation edit rate, which takes seconds for a thousand lines.
        confidence: also 95 % intervals.
        significance: `"bootstrap"` or `"randomization"`, the test between systems.
        draws: of lines; sacreBLEU's own number by default (1,000; 10,000 of randomization).
        standard_set: `StandardSet` of the references, if they are of one.

    Returns:
        `Comparison`. The seed is 12345, or the environment variable `SACREBLEU_SEED`.

    Raises:
        ValueError: the counts of lines differ, there are none, or a setting is wrong.
    """
    _check_settings(tokens, significance, draws)
    _check_counts(systems, references, standard_set)
    num_empty = _warn(systems, references)
    if tokens is None:
        tokenized = all(_looks_tokenized(text.lines) for text in (*systems, *references))
        tokens = "given" if tokenized else "moses"
    left_out = ""
    if tokens == "moses" and not target_language:
        left_out = "Left out: BLEU on Moses' tokens, for which --target must name the language."
    paired = len(systems) > 1
    hypothesis_forms = [forms_of(text.lines, tokens, target_language) for text in systems]
    reference_forms = [forms_of(text.lines, tokens, target_language) for text in references]
    figures = {}
    for measure in all_measures(target_language, tokens, ter=ter):
        if measure.form not in hypothesis_forms[0]:
            continue
        hypotheses = [forms[measure.form] for forms in hypothesis_forms]
        against = [forms[measure.form] for forms in reference_forms]
        results = None
        if confidence or paired:
            test = SIGNIFICANCE[significance] if paired else "bs"
            results = _sampled(measure.scorer, hypotheses, against, test, confidence, draws)
        figures[measure.key, measure.label] = _figures(
            measure, hypotheses, against, results, confidence, standard_set
        )
    lines = [text.lines for text in references]
    how = f"of {len(lines[0]):,} lines, equal to {'a' if len(lines) > 1 else 'the'} reference"
    figures["exact_match", "exact match"] = [Figure(exact_match(text.lines, lines), how) for text in systems]
    return Comparison(
        num_lines=len(lines[0]),
        systems=[text.name for text in systems],
        num_empty=num_empty,
        references=[text.name for text in references],
        figures=figures,
        left_out=left_out,
        sampling=_sampling(confidence, paired, significance, draws),
    )


def _warn(systems, references):
    """Warns of text that looks wrong; returns the number of blank lines of each system."""
    for text in (*systems, *references):
        for kind, pattern, remedy in _PROCESSED:
            found = {
                number: mark[0] for number, line in enumerate(text.lines, 1) if (mark := pattern.search(line))
            }
            if found and len(found) >= _WARNED_SHARE * len(text.lines):
                first = min(found)
                logger.warning(
                    "%s: %d of %d lines look %s (%r, first on line %d): %s",
                    *(text.name, len(found), len(text.lines), kind, found[first], first, remedy),
                )
    num_empty = [sum(not line.strip() for line in system.lines) for system in systems]
    for (name, lines), number in zip(systems, num_empty, strict=True):
        if number:
            logger.warning("%s: %d of %d lines are empty; they count as they are", name, number, len(lines))
    for name, lines in systems[1:]:
        differing = sum(map(str.__ne__, lines, systems[0].lines))
        if differing < FEWEST_DIFFERING:
            logger.warning(
                "%s: differs from %s on %d lines only: too few for a test of significance",
                *(name, systems[0].name, differing),
            )
    return num_empty


def _looks_tokenized(lines):
    """Whether at least half of the lines have a space before a comma or a last full stop."""
    return 2 * sum(map(bool, map(_TOKENIZED.search, lines))) >= max(len(lines), 1)


def _figures(measure, hypotheses, references, results, confidence, standard_set):
    figures = []
    for i, lines in enumerate(hypotheses):
        result = results[i] if results else None
        bleu = None
        if result is None or hasattr(measure.scorer, "smooth_method"):
            score = measure.scorer.corpus_score(lines, references)
            bleu = token_bleu(score) if hasattr(score, "precisions") else None
        value = bleu or result or score
        figures.append(
            Figure(
                score=float(value.score),
                how=measure.steps or _signature(measure.scorer, standard_set),
                bleu=bleu,
                mean=float(result.mean) if confidence else None,
                half_width=float(result.ci) if confidence else None,
                p_value=_p_value(results, i) if results and i else None,
            )
        )
    return figures


def _signature(scorer, standard_set):
    signature = scorer.get_signature()
    if standard_set:
        signature.update("test", standard_set.name)
        signature.update("lang", standard_set.pair)
    return str(signature)


def _p_value(results, i):
    # sacreBLEU counts the draws that differ by more, of which equal scores have none.
    return 1.0 if results[i].score == results[0].score else results[i].p_value


def _sampled(scorer, hypotheses, references, test, confidence, draws):
    """Returns sacreBLEU's `Result` of each system."""
    paired = PairedTest(
        [(str(number), lines) for number, lines in enumerate(hypotheses)],
        {"measure": scorer},
        references,
        test_type=test,
        n_samples=draws or 0,
        n_ar_confidence=0 if confidence and test == "ar" else -1,
    )
    _, scores = paired()
    (results,) = (found for name, found in scores.items() if name != "System")
    return results


def _sampling(confidence, paired, significance, draws):
    if not (confidence or paired):
        return {}
    found = {"seed": os.environ.get("SACREBLEU_SEED", "12345")}
    number = draws or (10_000 if paired and significance == "randomization" else 1000)
    if confidence:
        found["interval"] = 1000 if paired and significance == "randomization" else number
    if paired:
        found |= {"test": significance, "draws": number}
    return found


def _short(names):
    """Returns file names without their folders, unless two are alike."""
    short = [os.path.basename(name.rstrip("/")) for name in names]
    return short if len(set(short)) == len(short) else names


def _p_cell(p_value):
    return f"{'' if p_value is None else f'p = {p_value:.4f}':<12}"


def _check_settings(tokens, significance, draws):
    if tokens not in (None, *TOKENS):
        raise ValueError(f"`tokens` must be one of {list(TOKENS)}. Received: {tokens!r}")
    if significance not in SIGNIFICANCE:
        raise ValueError(f"`significance` must be one of {list(SIGNIFICANCE)}. Received: {significance!r}")
    if draws is not None and draws < 40:
        raise ValueError(f"`draws` must be at least 40, of which 2.5 % is one. Received: {draws}")


def _check_counts(systems, references, standard_set):
    if not systems or not references:
        raise ValueError(
            "`systems` and `references` must hold one text at least. "
            f"Received: {len(systems)} and {len(references)}"
        )
    number = len(references[0].lines)
    if not number:
        raise ValueError(f"{references[0].name}: has no lines. Give a file with one sentence a line")
    for text in (*references[1:], *systems):
        if len(text.lines) == number:
            continue
        fix = "Give translations of the same text, one line for each"
        if standard_set and (fitting := sets_with_lines(len(text.lines), standard_set.pair)):
            fix = f"{len(text.lines):,} lines have: {', '.join(fitting)} (--test-set)"
        raise ValueError(
            f"{text.name}: {len(text.lines):,} lines, but {references[0].name} has {number:,}. {fix}"
        )
