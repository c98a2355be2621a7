"""Text that went through a wrong encoding: U+FFFD, and UTF-8 that was encoded twice.

UTF-8 read as Windows-1252 or Latin-1 and written as UTF-8 again turns `ä` into `Ã¤` and
`’` into `â€™`. Such text is found by undoing that: its characters, as bytes of Windows-1252 or
Latin-1, are UTF-8 for something that a text may hold. The same bytes stand in sound
text now and then (`CAFÉ…`, `voilà »` with a no-break space, `Spaß“`), so what comes out must
also be likely in its place; `is_damaged` says when.
"""

import functools
import re
from typing import NamedTuple

import regex

LEADS = "".join(map(chr, range(0xC2, 0xF5)))  # as bytes, these begin a character of UTF-8


def _bytes_of_characters():
    characters = {chr(byte): byte for byte in range(0x80, 0x100)}
    for byte in range(0x80, 0xA0):
        # Five bytes have no character in Windows-1252; programs pass them on as Latin-1 does.
        characters[bytes([byte]).decode("cp1252", errors="ignore") or chr(byte)] = byte
    return characters


_BYTES = _bytes_of_characters()
# As bytes, these continue a character.
CONTINUATIONS = "".join(character for character, byte in _BYTES.items() if byte < 0xC0)
# Of these, the ones that may follow an accented letter in sound text.
_MAY_FOLLOW = frozenset("\u00a0\u00ad«»…–—‘’‚“”„‹›•†‡™")
_CHARACTER = re.compile(
    f"[Â-ß][{re.escape(CONTINUATIONS)}]"
    f"|[à-ï][{re.escape(CONTINUATIONS)}]{{2}}"
    f"|[ð-ô][{re.escape(CONTINUATIONS)}]{{3}}"
)
# Latin letters of living languages: Latin-1, Extended-A, and those of Vietnamese, Romanian,
# Azerbaijani, Hausa, Ewe, Lingala, Hawaiian and others. Not all of Latin: `É®` would be one.
_LATIN = re.compile(
    "[\u00c0-\u017f\u0192\u01a0\u01a1\u01af\u01b0\u01dd\u0218-\u021b\u0253\u0254\u0256\u0257\u0259\u025b\u0263"
    "\u02bb\u02bc\u1e00-\u1eff]"
)
# Signs that stand between the letters of any language: Latin-1's, punctuation, symbols, emoji.
_SIGN = re.compile("[\u00a0-\u00bf\u2000-\u2bff\u3000-\u303f\ufe0f\ufeff\uff00-\uff0f\U0001f000-\U0001faff]")


class _Run(NamedTuple):
    """Neighbouring characters of a text that are UTF-8 encoded twice."""

    text: str  # as found
    decoded: str  # as it was meant
    before: str  # the character before it, or ""
    after: str  # the character after it, or ""


def is_damaged(text, scripts):
    """Tells whether a text holds U+FFFD or UTF-8 that was encoded twice.

    A run of neighbouring characters that decode counts as damage in two cases:

    - It holds a character that never follows an accented letter, such as the `¤` of `Ã¤`, or
      begins with a capital after a small letter (`NoÃ«l`); and it decodes to a letter of the
      expected scripts, a Latin or Greek letter, a common sign, or two characters and more.
    - Nothing in the text beyond ASCII is left outside such runs, this one decodes to letters
      of the expected scripts and common signs only, and it does not end a word in capitals,
      as in `AMANHÃ…`.

    Args:
        text: str.
        scripts: frozenset of the scripts of the text's language, as of
            `scripts.expected_scripts`; empty where the language is not known.
    """
    if "\ufffd" in text:
        return True
    runs = _runs(text)
    if not runs:
        return False
    if any(_is_certain(run, scripts) for run in runs):
        return True
    num_explained = sum(len(_beyond_ascii(run.text)) for run in runs)
    return num_explained == len(_beyond_ascii(text)) and any(_is_likely(run, scripts) for run in runs)


def _runs(text):
    runs, end = [], -1
    for match in _CHARACTER.finditer(text):
        try:
            decoded = bytes(_BYTES[character] for character in match.group()).decode("utf-8")
        except UnicodeDecodeError:
            continue
        found, before = match.group(), text[max(match.start() - 1, 0) : match.start()]
        if match.start() == end:
            last = runs.pop()
            found, decoded, before = last.text + found, last.decoded + decoded, last.before
        runs.append(_Run(found, decoded, before, text[match.end() : match.end() + 1]))
        end = match.end()
    return runs


def _is_certain(run, scripts):
    inside_word = run.before.islower() and run.text[0].isupper()
    if not inside_word and all(c in _MAY_FOLLOW or c in LEADS for c in run.text):
        return False
    # Greek letters are signs in every language.
    return len(run.decoded) > 1 or _may_stand_in(run.decoded, scripts | {"Latn", "Grek"})


def _is_likely(run, scripts):
    ends_capitals = run.before.isupper() and not run.after.islower()
    return not ends_capitals and all(_may_stand_in(character, scripts) for character in run.decoded)


def _may_stand_in(character, scripts):
    if _SIGN.fullmatch(character):
        return True
    if "Latn" in scripts and _LATIN.fullmatch(character):
        return True
    others = frozenset(scripts - {"Latn"})
    return bool(others) and _letter_or_mark(others).fullmatch(character) is not None


@functools.lru_cache(maxsize=8)
def _letter_or_mark(scripts):
    either = "".join(rf"\p{{scx={script}}}" for script in sorted(scripts))
    return regex.compile(rf"[[\p{{L}}\p{{M}}]&&[{either}]]", regex.V1)


def _beyond_ascii(text):
    return [character for character in text if character > "\x7f"]
