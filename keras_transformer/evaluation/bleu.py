"""Scores of translations: sacreBLEU, and BLEU on tokens as the paper reports it.

The two BLEU figures differ by design and must not be compared with each other. sacreBLEU
tokenizes the references itself and is comparable between papers by its signature; BLEU
on Moses tokens is what `multi-bleu.perl` printed for the papers of 2017.

What is scored is always the text that a search wrote. Tokens that a model predicts while
it is shown the reference (teacher forcing) are no translation, and nothing here scores them.
"""

import re
from typing import NamedTuple

import sacremoses
from sacrebleu.metrics import BLEU, CHRF

# Perl works on bytes: only ASCII's white space is white space to it.
_COMPOUND = re.compile(r"(\S)-(\S)", re.ASCII)
_SPACE_BEYOND_ASCII = re.compile(r"[^\S \t\n\r\f\v]")
_PRIVATE_PLANE = 0xF0000


class TokenBleu(NamedTuple):
    """BLEU over given tokens, as `multi-bleu.perl` computes it."""

    score: float  # percent
    precisions: tuple  # of float, percent, for n-grams of 1 to 4 tokens
    brevity_penalty: float  # at most 1
    hypothesis_length: int  # in tokens, over all lines
    reference_length: int  # in tokens, over all lines; of several, the closest of each line

    @property
    def details(self):
        """Precisions, brevity penalty and lengths as text."""
        lengths = f"{self.hypothesis_length:,} : {self.reference_length:,} tokens"
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        return f"{precisions} (BP {self.brevity_penalty:.3f}, {lengths})"

    def to_dict(self):
        """Returns plain values for JSON."""
        return {**self._asdict(), "precisions": list(self.precisions)}


_TOKENIZED = ("tokenized_bleu", "tokenized_bleu_lowercase")


class Scores(NamedTuple):
    """Scores of one set of translations; all but the counts are percent."""

    num_lines: int
    bleu: float  # sacreBLEU, cased, detokenised
    bleu_signature: str
    chrf: float  # chrF2
    chrf_signature: str
    tokenized_bleu: TokenBleu  # cased
    tokenized_bleu_lowercase: TokenBleu
    exact_match: float  # lines equal to their reference, or to one of several

    def to_dict(self):
        """Returns the scores as plain values for JSON."""
        tokenized = {name: getattr(self, name).to_dict() for name in _TOKENIZED}
        return {**self._asdict(), **tokenized}

    def format(self):
        """Returns a table of a few lines, each figure with how it was computed."""
        cased, lower = self.tokenized_bleu, self.tokenized_bleu_lowercase
        rows = (
            ("BLEU", f"{self.bleu:.2f}", self.bleu_signature),
            ("chrF", f"{self.chrf:.2f}", self.chrf_signature),
            ("tokenized BLEU", f"{cased.score:.2f}", cased.details),
            ("  lower case", f"{lower.score:.2f}", lower.details),
            ("exact match", f"{self.exact_match:.2f}", f"of {self.num_lines} lines"),
        )
        return "\n".join(f"{name:<15}{score:>6}  {how}" for name, score, how in rows)

    def __str__(self):
        return self.format()


def corpus_scores(hypotheses, references, *, target_language):
    """Scores translations by the quick measures; `report.compare` has all of them.

    Args:
        hypotheses: list of str, detokenised translations. An empty line is a bad
            translation, and counts.
        references: list of str, the untouched references, as many; or a list of such
            lists, where there are several references.
        target_language: such as `"de"`; chooses the rules of the Moses tokenizer and
            sacreBLEU's tokenizer, see `bleu_scorer`.

    Returns:
        `Scores`.

    Raises:
        ValueError: the counts of lines differ, there are none, or no language is given.
        TypeError: something is no list of str.
    """
    references = check_lines(hypotheses, references)
    if not isinstance(target_language, str) or not target_language:
        raise ValueError(f"`target_language` must be a code such as 'de'. Received: {target_language!r}")
    bleu = bleu_scorer(target_language)
    chrf = CHRF()
    tokens = tokenize(hypotheses, target_language)
    reference_tokens = [tokenize(lines, target_language) for lines in references]
    return Scores(
        num_lines=len(hypotheses),
        bleu=min(bleu.corpus_score(hypotheses, references).score, 100.0),
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(hypotheses, references).score,
        chrf_signature=str(chrf.get_signature()),
        tokenized_bleu=multi_bleu(tokens, reference_tokens),
        tokenized_bleu_lowercase=multi_bleu(tokens, reference_tokens, lowercase=True),
        exact_match=exact_match(hypotheses, references),
    )


def bleu_scorer(target_language=None, **settings):
    """Returns the `sacrebleu.BLEU` of a language; its signature names the tokenizer.

    That is sacreBLEU's own choice: `13a`, or `zh`, `ja-mecab` and `ko-mecab`. Where the
    extra packages of the last two (`pip install sacrebleu[ja]`) are missing, it is
    `char`: n-grams of characters. Without a language it is `13a`.

    Args:
        target_language: such as `"de"`.
        **settings: of `sacrebleu.BLEU`, such as `lowercase=True`.
    """
    try:
        return BLEU(trg_lang=target_language or "", **settings)
    except (ImportError, RuntimeError):
        return BLEU(tokenize="char", **settings)


def token_scorer(*, lowercase=False):
    """Returns the `sacrebleu.BLEU` that counts as `multi-bleu.perl`; see `multi_bleu`.

    Its lines must have gone through `hide_unicode_spaces`.
    """
    return BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)


def multi_bleu(hypotheses_tokenized, references_tokenized, *, lowercase=False):
    """BLEU over tokens that spaces separate, as `multi-bleu.perl` computes it.

    Without smoothing: the score is 0 where no n-gram of one order matches. Of several
    references, an n-gram counts as often as in the one that has it most often, and the
    length that is closest to the hypothesis', or the shorter of two as close, is that of
    the line. Unlike the script's `-lc`, `lowercase` also covers letters beyond ASCII.

    Args:
        hypotheses_tokenized: list of str, translations with spaces between tokens.
        references_tokenized: list of str, as many; or a list of such lists.
        lowercase: compares without case.

    Returns:
        `TokenBleu`.
    """
    references = check_lines(hypotheses_tokenized, references_tokenized)
    result = token_scorer(lowercase=lowercase).corpus_score(
        hide_unicode_spaces(hypotheses_tokenized), [hide_unicode_spaces(lines) for lines in references]
    )
    return token_bleu(result)


def token_bleu(result):
    """Returns sacreBLEU's `BLEUScore` as `TokenBleu`."""
    return TokenBleu(
        score=min(result.score, 100.0),  # rounding can exceed 100
        precisions=tuple(result.precisions),
        brevity_penalty=result.bp,
        hypothesis_length=result.sys_len,
        reference_length=result.ref_len,
    )


def exact_match(hypotheses, references):
    """Percentage of lines that equal one of their references, but for spaces round them.

    Args:
        hypotheses: list of str.
        references: list of lists of str, as many each.
    """
    of_lines = zip(*references, strict=True)
    equal = [line.strip() in map(str.strip, texts) for line, texts in zip(hypotheses, of_lines, strict=True)]
    return 100 * sum(equal) / len(equal)


def check_lines(hypotheses, references):
    """Refuses what sacreBLEU scores without a word: a str for a list, surplus references.

    Args:
        hypotheses: list of str.
        references: list of str, or list of such lists.

    Returns:
        The references as a list of lists of str.

    Raises:
        ValueError: the counts of lines differ, or there are none.
        TypeError: something is no list of str.
    """
    lists = (list, tuple)
    several = isinstance(references, lists) and references and isinstance(references[0], lists)
    names = [f"references[{number}]" for number in range(len(references))] if several else ["references"]
    references = list(references) if several else [references]
    texts = {"hypotheses": hypotheses, **dict(zip(names, references, strict=True))}
    for name, lines in texts.items():
        if not isinstance(lines, lists):
            raise TypeError(f"`{name}` must be a list of str. Received: {type(lines).__name__}")
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                kind = type(line).__name__
                raise TypeError(f"`{name}` must hold str only. Received: {kind} on line {number}")
        if len(lines) != len(hypotheses) or not lines:
            raise ValueError(
                f"`hypotheses` and `{name}` must have the same number of lines, at least one. "
                f"Received: {len(hypotheses)} and {len(lines)}"
            )
    return references


def tokenize(lines, language):
    """Tokenizes as `tokenizer.perl -no-escape -l LANGUAGE` does.

    Args:
        lines: list of str, raw text.
        language: such as `"de"`; of one that Moses does not know, the rules are English.

    Returns:
        list of str, a space between tokens.
    """
    moses = sacremoses.MosesTokenizer(lang=language)
    return [" ".join(moses.tokenize(line, escape=False)) for line in lines]


def detokenize(lines, language):
    """Joins tokens and unescapes (`&apos;`, `@-@`) as `detokenizer.perl -l LANGUAGE` does.

    Also undoes `&#39;`, which Moses does not write but other tools do.

    Args:
        lines: list of str, a space between tokens.
        language: such as `"de"`.

    Returns:
        list of str, raw text.
    """
    moses = sacremoses.MosesDetokenizer(lang=language)
    return [moses.detokenize(line.replace("&#39;", "'").split()) for line in lines]


def replace_unicode_punctuation(lines):
    """Writes quotes, dots and full-width marks in ASCII, as `replace-unicode-punctuation.perl`.

    Unlike the script, which turns a full-width 1 into a quote, it becomes 1.
    """
    replace = sacremoses.MosesPunctNormalizer().replace_unicode_punct
    return [replace(line) for line in lines]


def split_compounds(lines):
    """Splits words at hyphens: Perl's `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g`.

    As in Perl, matches do not overlap: of `a-b-c` only the first hyphen is split, as the
    one letter between the two belongs to the first match; of `ab-cd-ef` both are.
    """
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]


def hide_unicode_spaces(lines):
    """Replaces white space beyond ASCII by private characters, each by its own.

    Perl's `split` does not split at it, Python's `str.split` does.
    """
    return [
        _SPACE_BEYOND_ASCII.sub(lambda found: chr(_PRIVATE_PLANE + ord(found[0])), line) for line in lines
    ]
