"""BLEU, chrF2 and exact match: sacreBLEU's scores, and tokenized BLEU as the paper reports it.

The two kinds of BLEU must not be compared with each other. sacreBLEU tokenizes the text itself; its scores
are comparable between papers if their signatures are equal. BLEU on Moses tokens is what `multi-bleu.perl`
printed for papers of 2017.

Score translations found by search only, never tokens predicted under teacher forcing.
"""

import re
from typing import NamedTuple

import sacremoses
from sacrebleu.metrics import BLEU, CHRF

# Perl works on bytes: it treats only ASCII white space as white space.
_COMPOUND = re.compile(r"(\S)-(\S)", re.ASCII)
_SPACE_BEYOND_ASCII = re.compile(r"[^\S \t\n\r\f\v]")
_PRIVATE_PLANE = 0xF0000


class TokenBleu(NamedTuple):
    """BLEU of tokenized text, as computed by `multi-bleu.perl`."""

    score: float  # percent
    precisions: tuple  # of float, percent, for n-grams of 1 to 4 tokens
    brevity_penalty: float  # at most 1
    hypothesis_length: int  # in tokens, over all lines
    reference_length: int  # in tokens, over all lines; with several references, the closest per line

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
    """Scores of one set of translations, in percent."""

    num_lines: int
    bleu: float  # sacreBLEU, cased, detokenized
    bleu_signature: str
    chrf: float  # chrF2
    chrf_signature: str
    tokenized_bleu: TokenBleu  # cased
    tokenized_bleu_lowercase: TokenBleu
    exact_match: float  # share of lines that equal a reference

    def to_dict(self):
        """Returns the scores as plain values for JSON."""
        tokenized = {name: getattr(self, name).to_dict() for name in _TOKENIZED}
        return {**self._asdict(), **tokenized}

    def format(self):
        """Returns a table: each score with its signature or details."""
        cased, lower = self.tokenized_bleu, self.tokenized_bleu_lowercase
        rows = (
            ("BLEU", f"{self.bleu:.2f}", self.bleu_signature),
            ("chrF2", f"{self.chrf:.2f}", self.chrf_signature),
            ("tokenized BLEU", f"{cased.score:.2f}", cased.details),
            ("  lower case", f"{lower.score:.2f}", lower.details),
            ("exact match", f"{self.exact_match:.2f}", f"of {self.num_lines} lines"),
        )
        return "\n".join(f"{name:<15}{score:>6}  {details}" for name, score, details in rows)

    def __str__(self):
        return self.format()


def corpus_scores(
    hypotheses: list[str], references: list[str] | list[list[str]], *, target_language: str
) -> Scores:
    """Computes BLEU, chrF2, tokenized BLEU and exact match; `report.compare` also has TER and tests.

    Args:
        hypotheses: list of str, detokenized translations. Empty lines count as bad translations.
        references: list of str, raw references, one per hypothesis; or a list of such lists for
            several references.
        target_language: language code such as `"de"`, for the Moses tokenizer and for sacreBLEU's
            tokenizer, see `bleu_scorer`.

    Returns:
        `Scores`.

    Raises:
        ValueError: the numbers of lines differ or are 0, or no language is given.
        TypeError: an argument is not a list of str.
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
    """Returns a `sacrebleu.BLEU` with the tokenizer for a language, which its signature names.

    The tokenizer is sacreBLEU's default: `13a`, or `zh`, `ja-mecab` or `ko-mecab` for these languages. If
    the extra packages of the last two are missing (`pip install sacrebleu[ja]`), it is `char`, BLEU on
    characters.

    Args:
        target_language: language code such as `"de"` or `"zh-CN"`, see `without_region`; `None` for `13a`.
        **settings: arguments of `sacrebleu.BLEU`, such as `lowercase=True`.
    """
    try:
        return BLEU(trg_lang=without_region(target_language) or "", **settings)
    except (ImportError, RuntimeError):
        return BLEU(tokenize="char", **settings)


def without_region(language):
    """Returns a language code without script and region: `"zh"` for `"zh-CN"`, `"zh_TW"` and `"zh-Hant"`.

    sacreBLEU and Moses know only such codes and treat any other like English.

    Args:
        language: str, or `None`, which is returned as it is.
    """
    return language and re.split("[-_]", language)[0].lower()


def token_scorer(*, lowercase=False):
    """Returns a `sacrebleu.BLEU` that computes the score of `multi-bleu.perl`; see `multi_bleu`.

    Apply `hide_unicode_spaces` to its input first.
    """
    return BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)


def multi_bleu(hypotheses_tokenized, references_tokenized, *, lowercase=False):
    """Computes BLEU of space-separated tokens as `multi-bleu.perl` does.

    There is no smoothing: the score is 0 if no n-gram of some order matches. With several references, the
    count of an n-gram is clipped to its maximum count in any of them, and the reference length of a line is
    the one closest to the hypothesis, the shorter one if two are equally close. Unlike the script's `-lc`,
    `lowercase` also applies to letters beyond ASCII.

    Args:
        hypotheses_tokenized: list of str, translations with spaces between tokens.
        references_tokenized: list of str, one per hypothesis; or a list of such lists.
        lowercase: whether to ignore case.

    Returns:
        `TokenBleu`.
    """
    references = check_lines(hypotheses_tokenized, references_tokenized)
    result = token_scorer(lowercase=lowercase).corpus_score(
        hide_unicode_spaces(hypotheses_tokenized), [hide_unicode_spaces(lines) for lines in references]
    )
    return token_bleu(result)


def token_bleu(result):
    """Converts sacreBLEU's `BLEUScore` to `TokenBleu`."""
    return TokenBleu(
        score=min(result.score, 100.0),  # rounding can exceed 100
        precisions=tuple(result.precisions),
        brevity_penalty=result.bp,
        hypothesis_length=result.sys_len,
        reference_length=result.ref_len,
    )


def exact_match(hypotheses, references):
    """Returns the percentage of lines that equal one of their references, without surrounding spaces.

    Args:
        hypotheses: list of str.
        references: list of lists of str, each with one line per hypothesis.
    """
    per_line = zip(*references, strict=True)
    equal = [line.strip() in map(str.strip, texts) for line, texts in zip(hypotheses, per_line, strict=True)]
    return 100 * sum(equal) / len(equal)


def check_lines(hypotheses, references):
    """Checks input that sacreBLEU would silently accept: a str instead of a list, different numbers of lines.

    Args:
        hypotheses: list of str.
        references: list of str, or list of such lists.

    Returns:
        The references as a list of lists of str.

    Raises:
        ValueError: the numbers of lines differ or are 0.
        TypeError: an argument is not a list of str.
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
    """Tokenizes as `tokenizer.perl -no-escape -l LANGUAGE` of Moses does.

    Args:
        lines: list of str, raw text.
        language: code such as `"de"` or `"zh-CN"`; for languages unknown to Moses, the English rules apply.

    Returns:
        list of str, tokens separated by spaces.
    """
    moses = sacremoses.MosesTokenizer(lang=without_region(language))
    return [" ".join(moses.tokenize(line, escape=False)) for line in lines]


def detokenize(lines, language):
    """Joins tokens and unescapes (`&apos;`, `@-@`) as `detokenizer.perl -l LANGUAGE` of Moses does.

    Also unescapes `&#39;`, which other tools write.

    Args:
        lines: list of str, tokens separated by spaces.
        language: code such as `"de"`.

    Returns:
        list of str, raw text.
    """
    moses = sacremoses.MosesDetokenizer(lang=without_region(language))
    return [moses.detokenize(line.replace("&#39;", "'").split()) for line in lines]


def replace_unicode_punctuation(lines):
    """Replaces Unicode quotes, dots and full-width marks by ASCII, as `replace-unicode-punctuation.perl`.

    One difference: a full-width 1 becomes 1; the script turns it into a quote.
    """
    replace = sacremoses.MosesPunctNormalizer().replace_unicode_punct
    return [replace(line) for line in lines]


def split_compounds(lines):
    """Splits compounds at hyphens: Perl's `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g`.

    As in Perl, matches do not overlap: `ab-cd-ef` is split at both hyphens, but `a-b-c` only at the first,
    as the letter `b` belongs to the first match.
    """
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]


def hide_unicode_spaces(lines):
    """Replaces each white space character beyond ASCII by its own private-use character.

    Python's `str.split` splits at these characters, but Perl's `split` does not.
    """
    return [
        _SPACE_BEYOND_ASCII.sub(lambda match: chr(_PRIVATE_PLANE + ord(match[0])), line) for line in lines
    ]
