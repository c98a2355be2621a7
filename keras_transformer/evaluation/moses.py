"""Text as the Perl scripts of Moses and of the paper's evaluation leave it, without Perl.

All take and return lists of str, one for every line.
"""

import re

import sacremoses

# Perl works on bytes here: of all white space, only ASCII's is white space to it.
_COMPOUND = re.compile(r"(\S)-(\S)", re.ASCII)
_SPACE_BEYOND_ASCII = re.compile(r"[^\S \t\n\r\f\v]")
_PRIVATE_PLANE = 0xF0000


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
