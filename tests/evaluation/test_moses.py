"""Moses' and the paper's treatment of text, against hand-written cases and Perl itself."""

import collections
import shutil
import subprocess

import pytest

from keras_transformer.evaluation.bleu import (
    detokenize,
    hide_unicode_spaces,
    multi_bleu,
    replace_unicode_punctuation,
    split_compounds,
    tokenize,
)

AT = "##AT##-##AT##"
# Perl's s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g, worked out by hand.
COMPOUNDS = [
    ("rich-text format", f"rich {AT} text format"),
    ("state-of-the-art", f"state {AT} of {AT} the {AT} art"),
    ("Nord-Süd-Dialog , Ost-West", f"Nord {AT} Süd {AT} Dialog , Ost {AT} West"),
    # At the ends of a word nothing stands on the other side.
    ("Vor- und Nachteile", "Vor- und Nachteile"),
    ("-ung", "-ung"),
    ("a - b", "a - b"),
    ("-", "-"),
    ("", ""),
    ("Groß- und Klein-Schreibung -", f"Groß- und Klein {AT} Schreibung -"),
    # Numbers and marks are \S as well as letters.
    ("1990-1995", f"1990 {AT} 1995"),
    ("3-2 , -5 , 10-", f"3 {AT} 2 , -5 , 10-"),
    ("(-)", f"( {AT} )"),
    ("„Ost“-West", f"„Ost“ {AT} West"),
    # Matches do not overlap: the letter between two hyphens is used up by the first.
    ("a-b-c", f"a {AT} b-c"),
    ("a-b-c-d", f"a {AT} b-c {AT} d"),
    ("1-2-3-4-5", f"1 {AT} 2-3 {AT} 4-5"),
    ("ab-c-de", f"ab {AT} c-de"),
    ("ab-cd-ef", f"ab {AT} cd {AT} ef"),
    # Of several hyphens in a row, the second may be the other side of the first.
    ("a--b", f"a {AT} -b"),
    ("--", "--"),
    ("---", f"- {AT} -"),
    ("----", f"- {AT} --"),
    ("-----", f"- {AT} ---"),
    ("a -- b", "a -- b"),
    ("a---b", f"a {AT} --b"),
    # An already split compound.
    (f"a {AT} b", f"a ##AT## {AT} ##AT## b"),
    # Other dashes are letters to the rule; white space beyond ASCII is none to Perl's bytes.
    ("1990–1995", "1990–1995"),
    ("a\u00a0-b", f"a\u00a0 {AT} b"),
    ("a-\u3000b", f"a {AT} \u3000b"),
    ("a\t-b", "a\t-b"),
]


@pytest.mark.parametrize(("line", "expected"), COMPOUNDS)
def test_compounds_are_split_as_the_rule_says(line, expected):
    assert split_compounds([line]) == [expected]


def test_compounds_are_split_as_perl_splits_them():
    perl = shutil.which("perl")
    if not perl:
        pytest.skip("needs perl, which is not here")
    script = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    lines = [line for line, _ in COMPOUNDS]
    data = "".join(f"{line}\n" for line in lines).encode()
    out = subprocess.run([perl, "-ple", script], input=data, capture_output=True, check=True).stdout
    assert out.decode().split("\n")[:-1] == split_compounds(lines)


def test_perl_splits_at_no_space_beyond_ascii():
    line = "a\u00a0b \u3000 c\x85d\te"
    assert hide_unicode_spaces([line])[0].split() == ["a\U000f00a0b", "\U000f3000", "c\U000f0085d", "e"]
    # Two different spaces are two different tokens.
    assert multi_bleu(["a \u00a0 b \u3000"], ["a \u3000 b \u3000"]).precisions[0] == pytest.approx(75)


def test_unicode_punctuation_becomes_ascii_as_moses_script_has_it():
    text = "“Ja”，sagte er … ’s ist１９％！（Ende）"
    assert replace_unicode_punctuation([text]) == ['"Ja",sagte er ... \'s ist19%!(Ende)']
    # German quotes and dashes are not in the script.
    assert replace_unicode_punctuation(["„Ja“ – nein"]) == ['„Ja" – nein']


def test_tokens_are_moses_and_not_escaped():
    assert tokenize(['Brot & Butter, z.B. "heute".'], "de") == ['Brot & Butter , z.B. " heute " .']
    assert tokenize(["It's a dog's life."], "en") == ["It 's a dog 's life ."]
    assert tokenize([""], "de") == [""]


def test_detokenizing_joins_and_unescapes():
    tokens = ["It &apos;s &quot; fine &quot; , A &amp; B ( state @-@ of @-@ the @-@ art ) .", "", "it &#39;s"]
    assert detokenize(tokens, "en") == ['It\'s "fine", A & B (state-of-the-art).', "", "it's"]


def best_counts(references, n):
    """Of each n-gram, the most that any one reference has: an n-gram is a tuple of str."""
    best = collections.Counter()
    for reference in references:
        best |= collections.Counter(zip(*[reference[i:] for i in range(n)], strict=False))
    return best


def test_multi_bleu_against_perls_formula_with_several_references():
    hypotheses = ["a a b c d", "x y z w v u", "k l m"]
    references = [["a b c d", "x y z q v", "k l m n"], ["a a c d e f", "x y w v u t s", "k l"]]
    found = multi_bleu(hypotheses, references)
    matches, totals = [0] * 4, [0] * 4
    for i, line in enumerate(hypotheses):
        tokens = line.split()
        sides = [lines[i].split() for lines in references]
        for n in range(1, 5):
            ours = collections.Counter(zip(*[tokens[j:] for j in range(n)], strict=False))
            matches[n - 1] += (ours & best_counts(sides, n)).total()
            totals[n - 1] += ours.total()
    # By hand: 1-grams 5 + 6 + 3 of 14; 2-grams "aa ab bc cd", "xy yz wv vu", "kl lm" of 4 + 5 + 2.
    assert matches[:2] == [14, 10]
    assert totals == [14, 11, 8, 5]
    assert found.precisions == pytest.approx([100 * m / t for m, t in zip(matches, totals, strict=True)])
    assert found.hypothesis_length == 14
    # Line 1: 5 tokens, 4 or 6, the shorter. Line 2: 6, 5 or 7, the shorter. Line 3: 3, 4 or 2, the shorter.
    assert found.reference_length == 4 + 5 + 2
