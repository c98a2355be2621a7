"""What every translator does before and after its search: texts to rows of ids, and rows to translations.

A text that is longer than the model takes is split where it harms least, or cut. `TextTranslator` is the
base of `Translator` and of `CTranslate2Translator`. Nothing here imports Keras or TensorFlow.
"""

import itertools
import logging
from typing import NamedTuple

import regex

from keras_transformer.config.settings import replace
from keras_transformer.text.languages import expected_scripts
from keras_transformer.text.lines import one_line

logger = logging.getLogger(__name__)

# Ends of sentences and clauses of scripts that put no space after them.
_NO_SPACE_AFTER = frozenset("。！？｡．、，；：､")
_SENTENCE_END = regex.compile(r"(?<![\p{STerm}…])[\p{STerm}…]++[\p{Pe}\p{Pf}\"'»”]*+")
_CLAUSE_END = regex.compile(
    r"[,;:\u060c\u061b\u3001\uff0c\uff1b\uff1a\uff64\u2013\u2014][\p{Pe}\p{Pf}\"'»”]*+"
)
_CHARACTER = regex.compile(r"\X")
_SPACES = regex.compile(r"[ \t\u3000]+")
_ABBREVIATION = regex.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|[0-9]{1,2}|\p{Lu})|\p{L}\.\s?\p{L})\.$")
# A sentence of fewer bytes is joined to the next: often it is the rest of an abbreviation.
_SHORT = 25
_NEIGHBOURHOOD = 64
_WITHOUT_SPACES = frozenset({"Hani", "Hira", "Kana", "Hans", "Hant", "Jpan"})


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


class NBest(NamedTuple):
    """Results of translating one text.

    Attributes:
        translations: list of `Translation`, best first, at least one. A blank text has a
            blank one; a text that was split has one, made of the best of each part.
        source_pieces: list of str, the sub-words that were translated.
        num_parts: int, parts that were translated one by one: 0 for a blank text, over 1
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
        """List of those of `"blank"`, `"split"`, `"cut"`, `"unfinished"` that hold."""
        flags = {
            "blank": self.num_parts == 0,
            "split": self.num_parts > 1,
            "cut": self.is_cut,
            "unfinished": not self.best.finished,
        }
        return [name for name, holds in flags.items() if holds]


def join_parts(parts, source_pieces, separator):
    """Makes one translation of those of the parts of a text.

    Args:
        parts: list of `Translation`, all with details or none.
        source_pieces: list of lists of str, the sub-words of each part, by whose number the
            alignments are moved.
        separator: str between their texts.

    Returns:
        `Translation`.
    """
    details = {}
    if all(part.alignment is not None for part in parts):
        links, source_begin, target_begin = [], 0, 0
        for part, pieces in zip(parts, source_pieces, strict=True):
            links += [(source_begin + source, target_begin + target) for source, target in part.alignment]
            source_begin += len(pieces)
            target_begin += len(part.pieces)
        details = {"token_log_probs": _concatenated(parts, "token_log_probs"), "alignment": links}
    return Translation(
        text=separator.join(part.text for part in parts if part.text),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        pieces=_concatenated(parts, "pieces"),
        ids=_concatenated(parts, "ids"),
        finished=all(part.finished for part in parts),
        **details,
    )


def _concatenated(parts, field):
    return list(itertools.chain.from_iterable(getattr(part, field) for part in parts))


class EncodedText(NamedTuple):
    """One text as the model takes it.

    Attributes:
        rows: list of lists of int, the ids of each of its parts, without end of sentence;
            none for a blank text.
        is_cut: bool, whether its end was left out.
    """

    rows: list
    is_cut: bool


def encode_texts(texts, encode, *, limit, long_lines):
    """Encodes texts; those over the limit are split or cut.

    A text is split at all its ends of sentences. A sentence that is still too long is
    halved until its parts fit: at the mark of a clause about its middle, or else at the
    space that is nearest to the middle, or else between two characters. The time is
    proportional to the length, but for a logarithm.

    Args:
        texts: list of str.
        encode: function, list of str -> list of lists of int.
        limit: most tokens of a row, at least 1.
        long_lines: `"split"` or `"cut"`.

    Returns:
        list of `EncodedText`, one for each text.
    """

    def fitted(text, row):
        if len(row) <= limit:
            return EncodedText([row] if row else [], False)
        if long_lines == "cut":
            return EncodedText([row[:limit]], True)
        return EncodedText(*_fit(sentences(_SPACES.sub(" ", text)), encode, limit))

    return [fitted(text, row) for text, row in zip(texts, encode(texts), strict=True)]


def sentences(text):
    """Splits a text at the ends of its sentences.

    An end is a full stop or the like, as Unicode's `Sentence_Terminal` says, with closing
    quotes and brackets; after it come a space and no lower-case letter, or anything where
    a script writes no spaces. Initials, numbers of up to two digits and a few titles are
    no ends; and what is very short stays with what follows.

    Returns:
        list of str, without spaces at their ends; joined by spaces they are the text again,
        but for its runs of spaces and where no space stood.
    """
    found, begin = [], 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if _ends_here(text, match) and len(text[begin:end].strip().encode()) >= _SHORT:
            found.append(text[begin:end])
            begin = end
    found.append(text[begin:])
    return [one.strip() for one in found if one.strip()]


def sentence_separator(language):
    """Returns what goes between sentences of a language: nothing for Chinese and Japanese.

    Args:
        language: its code; an unknown one is taken to write spaces.
    """
    try:
        scripts = expected_scripts(language)
    except ValueError:
        return " "
    return "" if scripts <= _WITHOUT_SPACES else " "


def _ends_here(text, match):
    if _NO_SPACE_AFTER.intersection(match[0]):
        return True
    following = text[match.end() : match.end() + 2]
    if not following[:1].isspace() or following[1:].islower():
        return False
    before = text[max(0, match.end() - 8) : match.end()]
    return not _ABBREVIATION.search(before)


def _fit(parts, encode, limit):
    """Returns the rows of parts of a text, halved until they fit, and whether a character was cut."""
    rows, is_cut = [], False
    for part, row in zip(parts, encode(parts), strict=True):
        if len(row) <= limit:
            rows += [row] if row else []
        elif len(part) == 1:  # one character of more bytes than fit
            rows.append(row[:limit])
            is_cut = True
        else:
            more, cut = _fit([half for half in _halves(part) if half], encode, limit)
            rows += more
            is_cut |= cut
    return rows, is_cut


def _halves(text):
    """Cuts a text of at least two characters in two, near its middle."""
    middle, quarter = len(text) // 2, len(text) // 4
    clauses = [
        match.end()
        for match in _CLAUSE_END.finditer(text, quarter, len(text) - quarter)
        if match[0][0] in _NO_SPACE_AFTER or text[match.end() : match.end() + 1].isspace()
    ]
    spaces = [at for at in (text.rfind(" ", 0, middle), text.find(" ", middle)) if at > 0]
    # A character with its marks may be as long as its text: only those round the middle are looked at.
    around = max(0, middle - _NEIGHBOURHOOD), min(len(text), middle + _NEIGHBOURHOOD)
    characters = [match.end() for match in _CHARACTER.finditer(text, *around)][:-1]
    end = min(clauses or spaces or characters or [middle], key=lambda end: abs(end - middle))
    return text[:end].strip(), text[end:].strip()


def batches_by_length(lengths, fits):
    """Groups rows of similar length.

    Args:
        lengths: list of tuples of int, the lengths of each row; the first one orders most.
        fits: function, number of rows in a batch and the largest of each of their lengths -> bool.

    Returns:
        list of lists of numbers of rows, the longest first: memory runs short at once or not at all.
    """
    batches, longest = [], ()
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        grown = tuple(map(max, longest, lengths[number]))
        if not batches or not fits(len(batches[-1]) + 1, *grown):
            batches.append([])
            grown = lengths[number]
        batches[-1].append(number)
        longest = grown
    return batches[::-1]


class Part(NamedTuple):
    """One row to be searched: a text, or a part of one."""

    row: list  # of int, without end of sentence
    prefix: list  # of int, tokens with which the translation begins
    number: int  # of the text in its stream
    index: int  # of the part in its text


class TextTranslator:
    """Translates texts by a search of rows, which a subclass has.

    The subclass defines `_max_source_length(config)` and `_translate_parts(parts, config, details)`,
    which returns for each `Part` a list of `Translation`, best first.

    Args:
        tokenizers: `Tokenizers`: the source's encodes, the target's decodes.
        search: `SearchConfig`, the defaults of `translate`.
        target_language: its code; decides what goes between the parts of a long line.
    """

    def __init__(self, tokenizers, search, target_language):
        self.tokenizers = tokenizers
        self.search = search
        self._separator = sentence_separator(target_language)

    def translate(self, texts, prefixes=None, **search):
        """Translates sentences.

        Args:
            texts: list of str, one sentence each.
            prefixes: as of `n_best`.
            **search: fields of `SearchConfig` to change, such as `beam_size=1`.

        Returns:
            list of str, one for each text in the same order. A blank text gives `""`.
        """
        found = self.n_best(texts, prefixes, **search)
        limit = self._max_source_length(self._config(search)) - 1
        for flag in ("cut", "split"):
            if number := sum(flag in one.flags for one in found):
                logger.warning("%s %d sentences at %d tokens", flag, number, limit)
        return [one.best.text for one in found]

    def n_best(self, texts, prefixes=None, *, first_number=0, details=False, **search):
        """Translates sentences, and returns all that is known of the translations.

        A text over the limit is translated in parts, `search.long_lines` permitting. It has
        one translation, the best ones of its parts joined: the alternatives of the parts
        would combine to any number, none of which was ranked against another. A prefix
        begins the first part.

        Args:
            texts: list of str.
            prefixes: list of str, one for each text: what its translation must begin with; `""` for
                nothing.
            first_number: int, number of the first text in all of its stream, by which
                sampling draws: then a text's samples depend neither on its batch nor on
                the chunk that it comes in.
            details: also fills `token_log_probs` and `alignment`, by one more pass.
            **search: as of `translate`.

        Returns:
            list of `NBest`, one for each text in the same order.

        Raises:
            ValueError: a setting that is refused, or another number of prefixes than of texts.
        """
        for name, given in (("texts", texts), ("prefixes", prefixes)):
            if isinstance(given, (str, bytes)):
                raise TypeError(f"`{name}` must be a list of str. Received: one {type(given).__name__}")
        if prefixes is not None and len(prefixes) != len(texts):
            raise ValueError(
                "`prefixes` must be as many as `texts`. "
                f"Received: {len(prefixes)} prefixes, {len(texts)} texts"
            )
        config = self._config(search)
        limit = self._max_source_length(config) - 1
        encode = self.tokenizers.source.encode
        encoded = encode_texts(texts, encode, limit=limit, long_lines=config.long_lines)
        prefix_rows = [[]] * len(texts) if prefixes is None else self.tokenizers.target.encode(prefixes)
        parts = [
            Part(row, [] if index else prefix, number, index)
            for number, (text, prefix) in enumerate(zip(encoded, prefix_rows, strict=True), first_number)
            for index, row in enumerate(text.rows)
        ]
        found = iter(self._translate_parts(parts, config, details))
        blank = BLANK._replace(token_log_probs=[], alignment=[]) if details else BLANK
        return [self._joined([next(found) for _ in text.rows] or [[blank]], text) for text in encoded]

    def _config(self, search):
        return replace(self.search, **search) if search else self.search

    def _translations(self, rows, scores, log_probs, finished):
        """Returns the `Translation`s of rows of target ids."""
        texts = self.tokenizers.target.decode(rows)
        return [
            Translation(
                text=one_line(text),  # a byte token or a code point may spell a newline
                score=float(score),
                log_prob=float(log_prob),
                pieces=self._pieces(self.tokenizers.target, row),
                ids=row,
                finished=bool(ended),
            )
            for row, text, score, log_prob, ended in zip(
                rows, texts, scores, log_probs, finished, strict=True
            )
        ]

    def _joined(self, parts, encoded):
        """Returns the `NBest` of one text, given the translations of its parts."""
        source_pieces = [self._pieces(self.tokenizers.source, row) for row in encoded.rows]
        best = parts[0]
        if len(parts) > 1:
            best = [join_parts([ones[0] for ones in parts], source_pieces, self._separator)]
        return NBest(best, list(itertools.chain(*source_pieces)), len(encoded.rows), encoded.is_cut)

    @staticmethod
    def _pieces(tokenizer, ids):
        return [tokenizer.entries[one][1] for one in ids if one != tokenizer.special.eos]
