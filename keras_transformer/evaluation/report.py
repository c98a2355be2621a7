"""Comparison of systems: all scores in one table, with confidence intervals and significance tests.

Intervals are computed by sacreBLEU's bootstrap resampling of the lines. Each further system is tested against
the first one, by paired bootstrap resampling (Koehn 2004) or by approximate randomisation, which exchanges
lines of the two systems at random (Riezler and Maxwell 2005).
"""

import logging
import os
import re
from typing import Any, NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from keras_transformer.config.fields import require
from keras_transformer.evaluation.bleu import (
    bleu_scorer,
    exact_match,
    hide_unicode_spaces,
    replace_unicode_punctuation,
    split_compounds,
    token_bleu,
    token_scorer,
    tokenize,
    without_region,
)
from keras_transformer.evaluation.test_sets import sets_with_lines

# Name of the test -> (sacreBLEU's name, its default number of samples).
SIGNIFICANCE = {"bootstrap": ("bs", 1000), "randomization": ("ar", 10_000)}
NOTE = """\
BLEU, chrF2 and TER are sacreBLEU's: they take raw text and tokenize it themselves. Tokenized BLEU
uses the tokenization named in its line. Compare only scores that were computed in the same way."""

MIN_BOOTSTRAP_SAMPLES = 40
# With fewer differing lines, the tests are unreliable.
FEWEST_DIFFERING = 30

# Signs of processed text, where sacreBLEU needs raw text: it counts `&apos;` as three tokens. Raw text, too,
# has an occasional " ,", so only a share of lines above `_WARNED_SHARE` gives a warning.
_TOKENIZED = re.compile(r" [,.](?: |$)| @-@ ")
_PROCESSED = (
    ("tokenized", _TOKENIZED, "score the original text, or use --detokenize"),
    ("cut into sub-words", re.compile(r"@@(?: |$)|▁"), "join the pieces first (BPE: sed -E 's/@@( |$)//g')"),
    ("escaped", re.compile(r"&(?:apos|quot|amp|lt|gt|#39|#91|#93|#124);"),
     "unescape it first, or use --detokenize"),
)  # fmt: skip
_WARNED_SHARE = 0.01  # of lines

logger = logging.getLogger(__name__)


class NamedLines(NamedTuple):
    """The lines of a text and its name."""

    name: str  # for messages and tables
    lines: list  # of str


class Measure(NamedTuple):
    """One metric and the form of text that it scores."""

    key: str  # in JSON
    label: str  # in tables
    scorer: Any  # of `sacrebleu.metrics`
    form: str  # of the text: "raw", "tokens" or "compounds"
    steps: str  # description of the preprocessing; "" if the scorer's signature describes it


class Figure(NamedTuple):
    """One score of one system."""

    score: float  # percent; TER is lower where better
    how: str  # signature, or description of the preprocessing
    bleu: Any = None  # `TokenBleu` with precisions and lengths, for BLEU only
    mean: float | None = None  # of the bootstrap samples
    half_width: float | None = None  # of the 95 % confidence interval
    p_value: float | None = None  # of the difference from the first system

    def to_dict(self):
        """Returns the computed values as a dict for JSON."""
        values = {**self._asdict(), **(self.bleu.to_dict() if self.bleu else {})}
        return {name: value for name, value in values.items() if value is not None and name != "bleu"}


class Comparison(NamedTuple):
    """Scores of one or several systems on the same test set."""

    num_lines: int
    systems: list  # of names; the first is the baseline of the tests
    num_empty: list  # of int, blank hypotheses of each system
    references: list  # of names
    figures: dict  # from (key, label) of a measure to a list of `Figure`, one for each system
    left_out: str  # which metrics are missing and why, or ""
    sampling: dict  # seed, samples and test of intervals and p-values; empty without them

    def to_dict(self):
        """Returns all values as a dict for JSON."""
        systems = [
            {
                "name": name,
                "num_empty": self.num_empty[i],
                "scores": {key: figures[i].to_dict() for (key, _), figures in self.figures.items()},
            }
            for i, name in enumerate(self.systems)
        ]
        names = ("num_lines", "references", "systems", "left_out", "sampling")
        values = {**self._asdict(), "systems": systems}
        return {name: values[name] for name in names}

    def format(self):
        """Returns the table as text: each score with its signature."""
        names = [""]
        if len(self.systems) > 1:
            names = [os.path.basename(name.rstrip("/")) for name in self.systems]
            names = names if len(set(names)) == len(names) else self.systems
        width = max(map(len, names)) + 2 * (len(names) > 1)
        lines = [f"{self.num_lines:,} lines against {' and '.join(dict.fromkeys(self.references))}", ""]
        for (_, label), figures in self.figures.items():
            for i, figure in enumerate(figures):
                interval = "" if figure.half_width is None else f" ± {figure.half_width:.2f}"
                p_value = "" if figure.p_value is None else f"p = {figure.p_value:.4f}"
                cells = f"{'' if i else label:<22}{names[i]:<{width}}{figure.score:6.2f}{interval}  "
                cells += f"{p_value:<{12 * (len(names) > 1)}}"
                cells += f"{figure.bleu.details}  " if figure.bleu else ""
                lines.append((cells + ("" if i else figure.how)).rstrip())
        lines += ["", *filter(None, [self.left_out])]
        sampling = self.sampling
        if "interval" in sampling:
            samples = f"{sampling['interval']:,} bootstrap samples of the lines, seed {sampling['seed']}"
            lines.append(f"±: 95 % of {samples}")
        if "test" in sampling:
            test = f"paired {sampling['test']}, {sampling['samples']:,} samples, seed {sampling['seed']}"
            lines.append(f"p: probability of such a difference for a system as good as {names[0]}; {test}")
        return "\n".join([*lines, NOTE])

    def __str__(self):
        return self.format()


def all_measures(language, tokenized, *, ter=True):
    """Returns the list of `Measure`, each with its own scorer.

    Args:
        language: code of the target language, such as `"de"` or `"zh-CN"`, or `None`.
        tokenized: bool, whether the text is already tokenized.
        ter: whether to include translation edit rate.
    """
    language = without_region(language)
    split = "tokens as given" if tokenized else f"Moses tokens ({language})"
    asian = {"normalized": True, "asian_support": True} if language in ("ja", "zh") else {}
    kinds = [
        ("bleu", "BLEU", lambda lower: bleu_scorer(language, lowercase=lower, force=True), "raw"),
        ("chrf", "chrF2", lambda lower: CHRF(lowercase=lower), "raw"),
        ("ter", "TER (lower is better)", lambda lower: TER(case_sensitive=not lower, **asian), "raw"),
        ("tokenized_bleu", "tokenized BLEU", lambda lower: token_scorer(lowercase=lower), "tokens"),
    ]
    measures = []
    for key, label, scorer, form in kinds:
        if key != "ter" or ter:
            steps = f"multi-bleu of {split}, " if form == "tokens" else ""
            cased, lower = (steps and steps + case for case in ("cased", "lower-cased"))
            measures.append(Measure(key, label, scorer(False), form, cased))
            measures.append(Measure(f"{key}_lowercase", "  lower case", scorer(True), form, lower))
    steps = "" if tokenized else "Unicode punctuation replaced, "
    steps = f"the paper's: multi-bleu of {steps}{split}, hyphens split (##AT##-##AT##), cased"
    return [*measures, Measure("paper_bleu", "  compounds split", token_scorer(), "compounds", steps)]


def forms_of(lines, tokenized, language):
    """Preprocesses lines into the forms of text that the metrics score.

    `"compounds"` follows Tensor2Tensor's `get_ende_bleu.sh`, which scored the paper's English-German
    translations: it replaces Unicode punctuation, tokenizes, and splits words at hyphens. Text that is
    already tokenized is only split at hyphens.

    Args:
        lines: list of str.
        tokenized: bool, whether the text is already tokenized.
        language: code such as `"de"`; with `None` the Moses tokenizer cannot be used.

    Returns:
        dict from the name of a form to its lines; without tokens only `"raw"`.
    """
    if tokenized:
        tokens, normalized = lines, lines
    elif language:
        tokens, normalized = tokenize(lines, language), tokenize(replace_unicode_punctuation(lines), language)
    else:
        return {"raw": lines}
    return {
        "raw": lines,
        "tokens": hide_unicode_spaces(tokens),
        "compounds": hide_unicode_spaces(split_compounds(normalized)),
    }


def compare(
    systems: list[NamedLines],
    references: list[NamedLines],
    *,
    target_language: str | None = None,
    tokenized: bool | None = None,
    ter: bool = True,
    confidence: bool = False,
    significance: str = "bootstrap",
    bootstrap_samples: int | None = None,
    standard_set: str | None = None,
) -> "Comparison":
    """Scores one or several systems with all metrics.

    Args:
        systems: list of `NamedLines`, translations of the same text. Blank lines are scored as bad
            translations, with a warning.
        references: list of `NamedLines`, one or several, with the same number of lines.
        target_language: code such as `"de"`. Without it sacreBLEU uses its default tokenizer (13a), and
            metrics that need the Moses tokenizer are left out.
        tokenized: bool, whether the text is already tokenized. If so, tokenized BLEU splits it at spaces;
            otherwise it uses the Moses tokenizer. `None` guesses from the text.
        ter: whether to compute translation edit rate, which takes seconds per thousand lines.
        confidence: whether to compute 95 % confidence intervals.
        significance: `"bootstrap"` or `"randomization"`, the test between systems.
        bootstrap_samples: number of samples for intervals and tests, also for randomization; `None`
            for sacreBLEU's default (1,000, and 10,000 for randomization).
        standard_set: `StandardSet` of the references, if they belong to one.

    Returns:
        `Comparison`. The random seed is 12345, or the environment variable `SACREBLEU_SEED`.

    Raises:
        ValueError: the numbers of lines differ or are 0, or a setting is invalid.
    """
    demand = f"`significance` must be one of {list(SIGNIFICANCE)}"
    require(significance in SIGNIFICANCE, demand, significance=significance)
    demand = f"`bootstrap_samples` must be at least {MIN_BOOTSTRAP_SAMPLES} (2.5 % of them is one)"
    enough = bootstrap_samples is None or bootstrap_samples >= MIN_BOOTSTRAP_SAMPLES
    require(enough, demand, bootstrap_samples=bootstrap_samples)
    _check_counts(systems, references, standard_set)
    num_empty = _warn(systems, references)
    if tokenized is None:
        tokenized = all(_looks_tokenized(text.lines) for text in (*systems, *references))
    test, default_samples = SIGNIFICANCE[significance if len(systems) > 1 else "bootstrap"]
    sampling: dict[str, str | int] = {}
    if confidence or len(systems) > 1:
        sampling = {"seed": os.environ.get("SACREBLEU_SEED", "12345")}
    if confidence:
        sampling["interval"] = 1000 if test == "ar" else bootstrap_samples or default_samples
    if len(systems) > 1:
        sampling |= {"test": significance, "samples": bootstrap_samples or default_samples}
    forms = [forms_of(text.lines, tokenized, target_language) for text in (*systems, *references)]
    figures = {}
    for measure in all_measures(target_language, tokenized, ter=ter):
        if measure.form in forms[0]:
            lines = [form[measure.form] for form in forms]
            hypotheses, reference_lines = lines[: len(systems)], lines[len(systems) :]
            results = [None] * len(systems)
            if sampling:
                results = _sampled(
                    measure.scorer, hypotheses, reference_lines, test, confidence, bootstrap_samples
                )
            figures[measure.key, measure.label] = [
                _figure(measure, lines, reference_lines, result, results[0], confidence, standard_set)
                for lines, result in zip(hypotheses, results, strict=True)
            ]
    lines = [text.lines for text in references]
    how = f"of {len(lines[0]):,} lines, equal to {'a' if len(lines) > 1 else 'the'} reference"
    figures["exact_match", "exact match"] = [Figure(exact_match(text.lines, lines), how) for text in systems]
    missing = "BLEU on Moses tokens is left out: it needs the language, --target."
    return Comparison(
        num_lines=len(lines[0]),
        systems=[text.name for text in systems],
        num_empty=num_empty,
        references=[text.name for text in references],
        figures=figures,
        left_out="" if "tokens" in forms[0] else missing,
        sampling=sampling,
    )


def _sampled(scorer, hypotheses, references, test, confidence, bootstrap_samples):
    """Runs sacreBLEU's resampling; returns its `Result` for each system."""
    paired = PairedTest(
        [(str(number), lines) for number, lines in enumerate(hypotheses)],
        {"measure": scorer},
        references,
        test_type=test,
        n_samples=bootstrap_samples or 0,
        n_ar_confidence=0 if confidence and test == "ar" else -1,
    )
    _, scores = paired()
    (results,) = (results for name, results in scores.items() if name != "System")
    return results


def _figure(measure, lines, references, result, first, confidence, standard_set):
    """Returns the `Figure` of a system; `result` and `first`: `Result` of this and of the first system."""
    is_bleu = isinstance(measure.scorer, BLEU)
    score = measure.scorer.corpus_score(lines, references) if is_bleu or result is None else result
    bleu = token_bleu(score) if is_bleu else None
    signature = measure.scorer.get_signature()
    if standard_set:
        signature.update("test", standard_set.name)
        signature.update("lang", standard_set.pair)
    p_value = None
    if result is not first:
        # sacreBLEU counts samples that differ by more. Equal systems have none, and a p-value near 0.
        p_value = 1.0 if result.score == first.score else result.p_value
    return Figure(
        score=float((bleu or score).score),
        how=measure.steps or str(signature),
        bleu=bleu,
        mean=float(result.mean) if confidence else None,
        half_width=float(result.ci) if confidence else None,
        p_value=p_value,
    )


def _warn(systems, references):
    """Logs warnings about suspicious text; returns the number of blank lines of each system."""
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
            logger.warning("%s: %d of %d lines are empty and scored as they are", name, number, len(lines))
    for name, lines in systems[1:]:
        differing = sum(map(str.__ne__, lines, systems[0].lines))
        if differing < FEWEST_DIFFERING:
            logger.warning(
                "%s: differs from %s on only %d lines, too few for a significance test",
                *(name, systems[0].name, differing),
            )
    return num_empty


def _looks_tokenized(lines):
    """Whether at least half of the lines have a space before a comma or a final full stop."""
    return 2 * sum(map(bool, map(_TOKENIZED.search, lines))) >= max(len(lines), 1)


def _check_counts(systems, references, standard_set):
    demand = "`systems` and `references` must have at least one text"
    require(systems and references, demand, systems=len(systems), references=len(references))
    number = len(references[0].lines)
    if not number:
        raise ValueError(f"{references[0].name}: no lines. Give a file with one sentence per line")
    for name, lines in (*references[1:], *systems):
        if len(lines) != number:
            fix = "Give translations of the same text, one line for each"
            if standard_set and (fitting := sets_with_lines(len(lines), standard_set.pair)):
                fix = f"{len(lines):,} lines have: {', '.join(fitting)} (--test-set)"
            raise ValueError(f"{name}: {len(lines):,} lines, but {references[0].name} has {number:,}. {fix}")
