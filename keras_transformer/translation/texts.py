"""Text side of translation, shared by all translators: texts to rows of ids, rows to translations.

A text that is longer than the model accepts is split at ends of sentences or clauses, or cut.
`TextTranslator` is the base class of `Translator` and `CTranslate2Translator`. Nothing here imports Keras
or TensorFlow.
"""

import itertools
import logging
from typing import NamedTuple

import regex

from keras_transformer.config.settings import replace
from keras_transformer.text.languages import expected_scripts
from keras_transformer.text.lines import to_one_line

logger = logging.getLogger(__name__)

# Punctuation of scripts that write no space after it.
_NO_SPACE_AFTER = frozenset("。！？｡．、，；：､")
_SENTENCE_END = regex.compile(r"(?<![\p{STerm}…])[\p{STerm}…]++[\p{Pe}\p{Pf}\"'»”]*+")
_CLAUSE_END = regex.compile(
    r"[,;:\u060c\u061b\u3001\uff0c\uff1b\uff1a\uff64\u2013\u2014][\p{Pe}\p{Pf}\"'»”]*+"
)
_CHARACTER = regex.compile(r"\X")
_SPACES = regex.compile(r"[ \t\u3000]+")
_ABBREVIATION = regex.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|[0-9]{1,2}|\p{Lu})|\p{L}\.\s?\p{L})\.$")
# A sentence of fewer bytes is joined to the next one: often it is the end of an abbreviation.
_MIN_SENTENCE_BYTES = 25
# Distance from the middle of a text within which it may be split between two characters.
_SPLIT_WINDOW = 64
_WITHOUT_SPACES = frozenset({"Hani", "Hira", "Kana", "Hans", "Hant", "Jpan"})


class Translation(NamedTuple):
    """One translation of one text.

    Attributes:
        text: str, one line.
        score: float, log-probability / length penalty, by which it was ranked. The score of a
            split text is the sum over its parts.
        log_prob: float, natural logarithm, with the end of sentence.
        pieces: list of str, its sub-words as in the target vocabulary.
        ids: list of int, its tokens, with the end of sentence if it has one.
        finished: bool, False if it was cut off at its length limit.
        token_log_probs: list of float, one per entry of `ids`; `None` unless requested.
        alignment: list of (source piece, target piece), counted from 0; `None` unless requested.
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
    """Results of translating one text: n-best translations and flags.

    Attributes:
        translations: list of `Translation`, best first, at least one. A blank text has one blank
            translation. A split text has one, the best translations of its parts joined.
        source_pieces: list of str, the sub-words that were translated.
        num_parts: int, number of parts that were translated: 0 for a blank text, more than 1
            for a split one.
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
    def num_tokens(self):
        """Number of tokens of the best translation."""
        return len(self.best.ids)

    @property
    def flags(self):
        """List of str, a subset of `"blank"`, `"split"`, `"cut"`, `"unfinished"`."""
        flags = {
            "blank": self.num_parts == 0,
            "split": self.num_parts > 1,
            "cut": self.is_cut,
            "unfinished": not self.best.finished,
        }
        return [name for name, is_set in flags.items() if is_set]


def join_parts(parts, source_pieces, separator):
    """Joins the translations of the parts of a text.

    Args:
        parts: list of `Translation`, all with details or all without.
        source_pieces: list of lists of str, the sub-words of each part; the alignments are shifted
            by their number.
        separator: str between the texts of the parts.

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
        details = {"token_log_probs": _concatenate(parts, "token_log_probs"), "alignment": links}
    return Translation(
        text=separator.join(part.text for part in parts if part.text),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        pieces=_concatenate(parts, "pieces"),
        ids=_concatenate(parts, "ids"),
        finished=all(part.finished for part in parts),
        **details,
    )


def _concatenate(parts, field):
    return list(itertools.chain.from_iterable(getattr(part, field) for part in parts))


class EncodedText(NamedTuple):
    """One text as rows of ids, each short enough for the model.

    Attributes:
        rows: list of lists of int, ids of each part, without end of sentence; empty for a
            blank text.
        is_cut: bool, whether the end of the text was left out.
    """

    rows: list
    is_cut: bool


def encode_texts(texts, encode, *, limit, long_lines):
    """Encodes texts and splits or cuts those over the limit.

    A text is split into sentences. A sentence that is still too long is halved
    until its parts fit: at the end of a clause near its middle, else at the space nearest to
    the middle, else between two characters. The time is O(n log n).

    Args:
        texts: list of str.
        encode: function, list of str -> list of lists of int.
        limit: int, maximum number of tokens of a row, at least 1.
        long_lines: `"split"` or `"cut"`.

    Returns:
        list of `EncodedText`, one per text.
    """

    def fit(text, row):
        if len(row) <= limit:
            return EncodedText([row] if row else [], False)
        if long_lines == "cut":
            return EncodedText([row[:limit]], True)
        return EncodedText(*_encode_parts(sentences(_SPACES.sub(" ", text)), encode, limit))

    return [fit(text, row) for text, row in zip(texts, encode(texts), strict=True)]


def sentences(text):
    """Splits a text into sentences.

    A sentence ends with a character of Unicode's class `Sentence_Terminal`, such as a full
    stop, and any closing quotes and brackets after it. A space that is not followed by a
    lower-case letter must come next, except in scripts that write no spaces. The full stop of
    an initial, a number of up to two digits or a title (`Dr.`) ends no sentence. A very short
    sentence is joined to the next one.

    Returns:
        list of str, stripped. `" ".join(...)` restores the text, except for runs of spaces and
        for scripts without spaces.
    """
    parts, begin = [], 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if _ends_here(text, match) and len(text[begin:end].strip().encode()) >= _MIN_SENTENCE_BYTES:
            parts.append(text[begin:end])
            begin = end
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def sentence_separator(language):
    """Returns the separator of sentences in a language: a space, or "" for Chinese and Japanese.

    Args:
        language: str, its code. Unknown languages get a space.
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


def _encode_parts(parts, encode, limit):
    """Encodes parts and halves those over the limit; returns the rows and whether a character was cut."""
    rows, is_cut = [], False
    for part, row in zip(parts, encode(parts), strict=True):
        if len(row) <= limit:
            rows += [row] if row else []
        elif len(part) == 1:  # one character with more tokens than the limit
            rows.append(row[:limit])
            is_cut = True
        else:
            more, cut = _encode_parts([half for half in _halves(part) if half], encode, limit)
            rows += more
            is_cut |= cut
    return rows, is_cut


def _halves(text):
    """Splits a text of at least two characters into two, near its middle."""
    middle, quarter = len(text) // 2, len(text) // 4
    clauses = [
        match.end()
        for match in _CLAUSE_END.finditer(text, quarter, len(text) - quarter)
        if match[0][0] in _NO_SPACE_AFTER or text[match.end() : match.end() + 1].isspace()
    ]
    spaces = [index for index in (text.rfind(" ", 0, middle), text.find(" ", middle)) if index > 0]
    # Only near the middle: a character with combining marks may be as long as the text.
    window = max(0, middle - _SPLIT_WINDOW), min(len(text), middle + _SPLIT_WINDOW)
    characters = [match.end() for match in _CHARACTER.finditer(text, *window)][:-1]
    end = min(clauses or spaces or characters or [middle], key=lambda end: abs(end - middle))
    return text[:end].strip(), text[end:].strip()


def batches_by_length(lengths, fits):
    """Groups rows of similar length into batches.

    Args:
        lengths: list of tuples of int, the lengths of each row (e.g. target and source). Rows
            are sorted by them, the first length first.
        fits: function, `(num_rows, *longest)` -> bool: whether a batch of `num_rows` rows with
            these maximum lengths is allowed.

    Returns:
        list of lists of row indices, longest rows first: if memory is too small, the first batch fails.
    """
    batches, longest = [], ()
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        new_longest = tuple(map(max, longest, lengths[index]))
        if not batches or not fits(len(batches[-1]) + 1, *new_longest):
            batches.append([])
            new_longest = lengths[index]
        batches[-1].append(index)
        longest = new_longest
    return batches[::-1]


class Part(NamedTuple):
    """One row to translate: a text or a part of one."""

    row: list  # of int, without end of sentence
    prefix: list  # of int, tokens that the translation starts with
    number: int  # of the text, counted over the whole stream
    index: int  # of the part in its text
    num_words: int = 0  # of the text; only for parsing with `search.tree_grammar`


class TextTranslator:
    """Base class of translators: translates texts; a subclass translates rows of ids.

    The subclass defines `max_source_length(config)` and `_translate_parts(parts, config, details)`,
    which returns a list of `Translation` for each `Part`, best first.

    Args:
        tokenizers: `Tokenizers`: the source's encodes, the target's decodes.
        search: `SearchConfig`, the defaults of `translate`.
        target_language: str, its code. It decides whether the translated parts of a long line
            are joined by spaces.
    """

    def __init__(self, tokenizers, search, target_language):
        self.tokenizers = tokenizers
        self.search = search
        self._separator = sentence_separator(target_language)

    def translate(self, texts, prefixes=None, **search):
        """Translates sentences.

        Args:
            texts: list of str, one sentence each.
            prefixes: as in `n_best`.
            **search: fields of `SearchConfig` to override, such as `beam_size=1`.

        Returns:
            list of str, one per text in the same order; `""` for a blank text.
        """
        results = self.n_best(texts, prefixes, **search)
        limit = self.max_source_length(self._config(search)) - 1
        for flag in ("cut", "split"):
            if number := sum(flag in result.flags for result in results):
                logger.warning("%s %d sentences at %d tokens", flag, number, limit)
        return [result.best.text for result in results]

    def n_best(self, texts, prefixes=None, *, first_number=0, details=False, **search):
        """Translates sentences and returns n-best lists with scores and flags.

        A text over the limit is translated in parts if `search.long_lines` is `"split"`. It
        has one translation, the best ones of its parts joined, because combinations of the
        parts' n-best lists were never ranked against each other. A prefix applies to the first part.

        Args:
            texts: list of str.
            prefixes: list of str, one per text, that its translation must start with; `""` for none.
            first_number: int, number of the first text in the whole stream. Sampling is keyed
                by text numbers, so samples depend neither on batches nor on chunks.
            details: bool, also fills `token_log_probs` and `alignment`, by forced decoding.
            **search: as in `translate`.

        Returns:
            list of `NBest`, one per text in the same order.

        Raises:
            ValueError: an invalid setting, or texts and prefixes differ in number.
        """
        for name, given in (("texts", texts), ("prefixes", prefixes)):
            if isinstance(given, (str, bytes)):
                raise TypeError(f"`{name}` must be a list of str. Received: one {type(given).__name__}")
        if prefixes is not None and len(prefixes) != len(texts):
            raise ValueError(
                "`prefixes` and `texts` must have the same length. "
                f"Received: {len(prefixes)} prefixes, {len(texts)} texts"
            )
        config = self._config(search)
        limit = self.max_source_length(config) - 1
        encode = self.tokenizers.source.encode
        encoded = encode_texts(texts, encode, limit=limit, long_lines=config.long_lines)
        prefix_rows = [[]] * len(texts) if prefixes is None else self.tokenizers.target.encode(prefixes)
        counts = [len(text.split(" ")) if config.tree_grammar else 0 for text in texts]  # of words
        given = zip(encoded, prefix_rows, counts, strict=True)
        parts = [
            Part(row, [] if index else prefix, number, index, count)
            for number, (text, prefix, count) in enumerate(given, first_number)
            for index, row in enumerate(text.rows)
        ]
        translations = iter(self._translate_parts(parts, config, details))
        blank = BLANK._replace(token_log_probs=[], alignment=[]) if details else BLANK
        return [self._join([next(translations) for _ in text.rows] or [[blank]], text) for text in encoded]

    def _config(self, search):
        return replace(self.search, **search) if search else self.search

    def _translations(self, rows, scores, log_probs, finished):
        """Returns a list of `Translation`, one per row of target ids."""
        texts = self.tokenizers.target.decode(rows)
        return [
            Translation(
                text=to_one_line(text),  # byte tokens may decode to a newline
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

    def _join(self, parts, encoded):
        """Returns the `NBest` of an `EncodedText`, given the n-best lists of its parts."""
        source_pieces = [self._pieces(self.tokenizers.source, row) for row in encoded.rows]
        best = parts[0]
        if len(parts) > 1:
            best = [join_parts([n_best[0] for n_best in parts], source_pieces, self._separator)]
        return NBest(best, list(itertools.chain(*source_pieces)), len(encoded.rows), encoded.is_cut)

    @staticmethod
    def _pieces(tokenizer, ids):
        return [tokenizer.entries[token][1] for token in ids if token != tokenizer.special.eos]
