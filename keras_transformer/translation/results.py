"""What translating one text gives: its n best translations, and what befell it."""

import itertools
from typing import NamedTuple


class Translation(NamedTuple):
    """One translation of one text.

    Attributes:
        text: str, one line.
        score: float, what it was ranked by: log-probability / length penalty. Of a text that
            was split, the sum over its parts.
        log_prob: float, natural logarithm, end of sentence included.
        pieces: list of str, its sub-words as the target vocabulary writes them.
        ids: list of int, its tokens, with the end of sentence where there is one.
        finished: bool; false for one that was cut off at the limit of its length.
        token_log_probs: list of float, one for each of `ids`; `None` where they were not
            asked for.
        alignment: list of (source piece, target piece), from 0; `None` where it was not
            asked for.
    """

    text: str
    score: float
    log_prob: float
    pieces: list
    ids: list
    finished: bool
    token_log_probs: list | None = None
    alignment: list | None = None


BLANK = Translation("", 0.0, 0.0, [], [], True)


def joined(parts, source_pieces, joint):
    """Makes one translation of those of the parts of a text.

    Args:
        parts: list of `Translation`, all with details or none.
        source_pieces: list of lists of str, the sub-words of each part, by which the
            alignments are moved.
        joint: str between their texts.

    Returns:
        `Translation`.
    """
    details = {}
    if all(one.alignment is not None for one in parts):
        links, source_begin, target_begin = [], 0, 0
        for one, pieces in zip(parts, source_pieces, strict=True):
            links += [(source_begin + source, target_begin + target) for source, target in one.alignment]
            source_begin += len(pieces)
            target_begin += len(one.pieces)
        details = {"token_log_probs": _chained(one.token_log_probs for one in parts), "alignment": links}
    return Translation(
        text=joint.join(one.text for one in parts if one.text),
        score=sum(one.score for one in parts),
        log_prob=sum(one.log_prob for one in parts),
        pieces=_chained(one.pieces for one in parts),
        ids=_chained(one.ids for one in parts),
        finished=all(one.finished for one in parts),
        **details,
    )


def _chained(lists):
    return list(itertools.chain.from_iterable(lists))


class NBest(NamedTuple):
    """The translations of one text.

    Attributes:
        translations: list of `Translation`, best first, at least one. A blank text has a
            blank one; a text that was split has one, made of the best of each part.
        source_pieces: list of str, the sub-words that were translated.
        num_parts: int, parts which were translated one by one: 0 for a blank text, over 1
            for one that was split.
        is_cut: bool, whether the end of the text was left out.
    """

    translations: list
    source_pieces: list
    num_parts: int
    is_cut: bool

    @property
    def best(self):
        """The best `Translation`."""
        return self.translations[0]

    @property
    def flags(self):
        """What befell the text: list of `"blank"`, `"split"`, `"cut"`, `"unfinished"`."""
        flags = {
            "blank": self.num_parts == 0,
            "split": self.num_parts > 1,
            "cut": self.is_cut,
            "unfinished": not self.best.finished,
        }
        return [name for name, holds in flags.items() if holds]
