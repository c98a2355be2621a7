"""Whether text that should be raw looks tokenised, cut into sub-words, or escaped.

Scores of such text are not those of the text: sacreBLEU counts `&apos;` as three tokens.
"""

import re
from typing import NamedTuple

# Of lines: raw text has a stray " ," now and then.
WARNED_SHARE = 0.01
TOKENIZED_SHARE = 0.5

_TOKENIZED = re.compile(r" [,.](?: |$)| @-@ ")
_KINDS = (
    ("tokenised", _TOKENIZED, "score the text as it was before, or see --detokenize"),
    ("cut into sub-words", re.compile(r"@@(?: |$)|▁"), "join the pieces first (BPE: sed -E 's/@@( |$)//g')"),
    (
        "escaped",
        re.compile(r"&(?:apos|quot|amp|lt|gt|#39|#91|#93|#124);"),
        "unescape it first; --detokenize does",
    ),
)


class Sign(NamedTuple):
    """A sign that text is not raw."""

    kind: str  # such as "tokenised"
    mark: str  # what was found on the first such line
    num_lines: int  # with such a mark
    first_line: int  # from 1
    remedy: str


def find_signs(lines):
    """Returns a list of `Sign`: of each kind that at least 1 % of the lines, list of str, show."""
    signs = []
    for kind, pattern, remedy in _KINDS:
        marked = [
            (number, found[0]) for number, line in enumerate(lines, 1) if (found := pattern.search(line))
        ]
        if marked and len(marked) >= WARNED_SHARE * len(lines):
            first_line, mark = marked[0]
            signs.append(Sign(kind, mark, len(marked), first_line, remedy))
    return signs


def looks_tokenized(lines):
    """Whether at least half of the lines, list of str, have a space before a comma or a last full stop."""
    return sum(map(bool, map(_TOKENIZED.search, lines))) >= TOKENIZED_SHARE * max(len(lines), 1)
