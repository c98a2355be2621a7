"""Scores of translations: sacreBLEU, and BLEU on tokens as the paper reports it.

The two BLEU figures differ by design and must not be compared with each other. sacreBLEU
tokenizes the references itself and is comparable between papers by its signature; BLEU
on Moses tokens is what `multi-bleu.perl` printed for the papers of 2017.
"""

import re
from typing import NamedTuple

import sacremoses
from sacrebleu.metrics import BLEU, CHRF

# multi-bleu.perl splits at ASCII white space alone; `str.split` also splits at these.
_UNICODE_SPACE = re.compile(r"[^\S \t\n\r\f\v]")
_NOT_A_SPACE = "\u2060"


class TokenBleu(NamedTuple):
    """BLEU over given tokens, as `multi-bleu.perl` computes it."""

    score: float  # percent
    precisions: tuple  # of float, percent, for n-grams of 1 to 4 tokens
    brevity_penalty: float  # at most 1
    hypothesis_length: int  # in tokens, over all lines
    reference_length: int  # in tokens, over all lines

    def __str__(self):
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        return f"{self.score:.2f} {precisions} (BP {self.brevity_penalty:.3f})"


class Scores(NamedTuple):
    """Scores of one set of translations; all but the counts are percent."""

    num_lines: int
    bleu: float  # sacreBLEU, cased, detokenised
    bleu_signature: str
    chrf: float  # chrF2
    chrf_signature: str
    tokenized_bleu: TokenBleu  # cased
    tokenized_bleu_lowercase: TokenBleu
    exact_match: float  # lines equal to their reference

    def to_dict(self):
        """Returns the scores as plain values for JSON."""
        return {
            **self._asdict(),
            "tokenized_bleu": _plain(self.tokenized_bleu),
            "tokenized_bleu_lowercase": _plain(self.tokenized_bleu_lowercase),
        }

    def format(self):
        """Returns a table of a few lines, each figure with how it was computed."""
        rows = (
            ("BLEU", f"{self.bleu:.2f}", self.bleu_signature),
            ("chrF", f"{self.chrf:.2f}", self.chrf_signature),
            _token_row("tokenized BLEU", self.tokenized_bleu),
            _token_row("  lower case", self.tokenized_bleu_lowercase),
            ("exact match", f"{self.exact_match:.2f}", f"of {self.num_lines} lines"),
        )
        return "\n".join(f"{name:<15}{score:>6}  {how}" for name, score, how in rows)

    def __str__(self):
        return self.format()


def corpus_scores(hypotheses, references, *, target_language):
    """Scores translations against one reference each.

    Args:
        hypotheses: list of str, detokenised translations. An empty line is a bad
            translation, and counts.
        references: list of str, the untouched references, as many.
        target_language: such as `"de"`; chooses the rules of the Moses tokenizer and
            sacreBLEU's tokenizer, see `bleu_scorer`.

    Returns:
        `Scores`.
    """
    _check_lines(hypotheses, references)
    if not isinstance(target_language, str) or not target_language:
        raise ValueError(f"`target_language` must be a code such as 'de'. Received: {target_language!r}")
    bleu = bleu_scorer(target_language)
    chrf = CHRF()
    moses = sacremoses.MosesTokenizer(lang=target_language)
    hypotheses_tokenized = [" ".join(moses.tokenize(line, escape=False)) for line in hypotheses]
    references_tokenized = [" ".join(moses.tokenize(line, escape=False)) for line in references]
    equal = sum(map(str.__eq__, map(str.strip, hypotheses), map(str.strip, references)))
    return Scores(
        num_lines=len(references),
        bleu=min(bleu.corpus_score(hypotheses, [references]).score, 100.0),
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        chrf_signature=str(chrf.get_signature()),
        tokenized_bleu=multi_bleu(hypotheses_tokenized, references_tokenized),
        tokenized_bleu_lowercase=multi_bleu(hypotheses_tokenized, references_tokenized, lowercase=True),
        exact_match=100 * equal / len(references),
    )


def bleu_scorer(target_language):
    """Returns the `sacrebleu.BLEU` of a language; its signature names the tokenizer.

    That is sacreBLEU's own choice: `13a`, or `zh`, `ja-mecab` and `ko-mecab`. Where the
    extra packages of the last two (`pip install sacrebleu[ja]`) are missing, it is
    `char`: n-grams of characters.
    """
    try:
        return BLEU(trg_lang=target_language)
    except (ImportError, RuntimeError):
        return BLEU(tokenize="char")


def multi_bleu(hypotheses_tokenized, references_tokenized, *, lowercase=False):
    """BLEU over tokens that spaces separate, as `multi-bleu.perl` computes it.

    Without smoothing: the score is 0 where no n-gram of one order matches. Unlike the
    script's `-lc`, `lowercase` also covers letters beyond ASCII.

    Args:
        hypotheses_tokenized: list of str, translations with spaces between tokens.
        references_tokenized: list of str, as many.
        lowercase: compares without case.

    Returns:
        `TokenBleu`.
    """
    _check_lines(
        hypotheses_tokenized,
        references_tokenized,
        names=("hypotheses_tokenized", "references_tokenized"),
    )
    bleu = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
    result = bleu.corpus_score(
        [_UNICODE_SPACE.sub(_NOT_A_SPACE, line) for line in hypotheses_tokenized],
        [[_UNICODE_SPACE.sub(_NOT_A_SPACE, line) for line in references_tokenized]],
    )
    return TokenBleu(
        score=min(result.score, 100.0),  # rounding can exceed 100
        precisions=tuple(result.precisions),
        brevity_penalty=result.bp,
        hypothesis_length=result.sys_len,
        reference_length=result.ref_len,
    )


def _token_row(name, bleu):
    score, how = str(bleu).split(" ", 1)
    return name, score, how


def _plain(bleu):
    return {**bleu._asdict(), "precisions": list(bleu.precisions)}


def _check_lines(hypotheses, references, names=("hypotheses", "references")):
    """sacreBLEU scores a str in place of a list as 0, and ignores surplus references."""
    for name, lines in zip(names, (hypotheses, references), strict=True):
        if not isinstance(lines, (list, tuple)):
            raise TypeError(f"`{name}` must be a list of str. Received: {type(lines).__name__}")
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                raise TypeError(
                    f"`{name}` must hold str only. Received: {type(line).__name__} on line {number}"
                )
    if len(hypotheses) != len(references):
        raise ValueError(
            f"`{names[0]}` and `{names[1]}` must have as many lines. "
            f"Received: {len(hypotheses)} and {len(references)}"
        )
    if not references:
        raise ValueError(f"`{names[0]}` and `{names[1]}` must not be empty. Received: 0 lines")
