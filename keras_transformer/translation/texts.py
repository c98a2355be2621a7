"""Text side of translation, shared by all translators: texts to rows of ids, rows to translations.

`long_texts` splits or cuts a text that is longer than the model accepts.
`TextTranslator` is the base class of `Translator` and `CTranslate2Translator`. Nothing here imports Keras
or TensorFlow.
"""

import itertools
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.text.lines import to_one_line
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.translation.long_texts import encode_texts, sentence_separator
from keras_transformer.translation.phrase_texts import check_phrases, encode_phrases

logger = logging.getLogger(__name__)


def check_precision(precision):
    """Checks the precision in which a translator holds its weights.

    Raises:
        ValueError: it is neither `None` nor one of `"float32"` and `"bfloat16"`.
    """
    if precision not in (None, "float32", "bfloat16"):
        raise ValueError(f"`precision` must be one of float32, bfloat16. Received: {precision!r}")


class Translation(NamedTuple):
    """One translation of one text.

    Attributes:
        text: str, one line.
        score: float, log-probability / length penalty, by which it was ranked unless it has a `utility`. The
            score of a split text is the sum over its parts.
        log_prob: float, natural logarithm, with the end of sentence.
        pieces: list of str, its sub-words as in the target vocabulary.
        ids: list of int, its tokens, with the end of sentence if it has one.
        finished: bool, False if it was cut off at its length limit.
        token_log_probs: list of float, one per entry of `ids`; `None` unless requested.
        alignment: list of (source piece, target piece), counted from 0; `None` unless requested.
        utility: float, from 0 to 100, its mean utility in minimum Bayes risk decoding, by which it was
            ranked; of a split text the mean over its parts. `None` in other searches.
    """

    text: str
    score: float
    log_prob: float
    pieces: list
    ids: list
    finished: bool
    token_log_probs: list | None = None
    alignment: list | None = None
    utility: float | None = None


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
    utilities = [part.utility for part in parts if part.utility is not None]
    if utilities:
        details["utility"] = sum(utilities) / len(utilities)
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
    index: int  # type: ignore[assignment]  # of the part in its text
    num_words: int = 0  # of the text; only for parsing with `search.tree_grammar`
    phrases: tuple = ()  # of lists of int, tokens of phrases that the translation must contain


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

    def __init__(self, tokenizers: Tokenizers, search: SearchConfig, target_language: str) -> None:
        self.tokenizers = tokenizers
        self.search = search
        self._separator = sentence_separator(target_language)

    def translate(
        self,
        texts: list[str],
        prefixes: list[str] | None = None,
        constraints: list[list[str]] | None = None,
        **search: Any,
    ) -> list[str]:
        """Translates sentences.

        Args:
            texts: list of str, one sentence each.
            prefixes, constraints: as in `n_best`.
            **search: fields of `SearchConfig` to override, such as `beam_size=1`.

        Returns:
            list of str, one per text in the same order; `""` for a blank text.
        """
        results = self.n_best(texts, prefixes, constraints, **search)
        limit = self.max_source_length(self._config(search)) - 1
        for flag in ("cut", "split"):
            if number := sum(flag in result.flags for result in results):
                logger.warning("%s %d sentences at %d tokens", flag, number, limit)
        return [result.best.text for result in results]

    def n_best(
        self,
        texts: list[str],
        prefixes: list[str] | None = None,
        constraints: list[list[str]] | None = None,
        *,
        first_number: int = 0,
        details: bool = False,
        **search: Any,
    ) -> list[NBest]:
        """Translates sentences and returns n-best lists with scores and flags.

        A text over the limit is translated in parts if `search.long_lines` is `"split"`. It
        has one translation, the best ones of its parts joined, because combinations of the
        parts' n-best lists were never ranked against each other. A prefix applies to the first part.

        Args:
            texts: list of str.
            prefixes: list of str, one per text, that its translation must start with; `""` for none.
            constraints: list of lists of str, one per text: phrases that each of its translations must
                contain, in any order, as the target's tokenizer normalises them.
            first_number: int, number of the first text in the whole stream. Sampling is keyed
                by text numbers, so samples depend neither on batches nor on chunks.
            details: bool, also fills `token_log_probs` and `alignment`, by forced decoding.
            **search: as in `translate`.

        Returns:
            list of `NBest`, one per text in the same order.

        Raises:
            ValueError: an invalid setting, or texts and prefixes or constraints differ in number.
            PhrasesError: a `ValueError`; a phrase is blank, has a character that the vocabulary lacks,
                belongs to a blank text or one that would be split, or has too many tokens.
        """
        for name, given in (("texts", texts), ("prefixes", prefixes), ("constraints", constraints)):
            if isinstance(given, (str, bytes)):
                raise TypeError(f"`{name}` must be a list of str. Received: one {type(given).__name__}")
        for name, given in (("prefixes", prefixes), ("constraints", constraints)):
            if given is not None and len(given) != len(texts):
                raise ValueError(
                    f"`{name}` and `texts` must have the same length. "
                    f"Received: {len(given)} {name}, {len(texts)} texts"
                )
        config = self._config(search)
        if constraints is not None and config.tree_grammar:
            raise ValueError("`constraints` cannot be combined with `tree_grammar`. Leave out one of them")
        phrases = [[]] * len(texts)
        if constraints is not None:
            phrases = encode_phrases(constraints, self.tokenizers.target)
        limit = self.max_source_length(config) - 1
        encode = self.tokenizers.source.encode
        encoded = encode_texts(texts, encode, limit=limit, long_lines=config.long_lines)
        prefix_rows = [[]] * len(texts) if prefixes is None else self.tokenizers.target.encode(prefixes)
        counts = [len(text.split(" ")) if config.tree_grammar else 0 for text in texts]  # of words
        check_phrases(
            phrases, encoded, prefix_rows, limit=limit, max_length=self.max_target_length(config)
        )  # fmt: skip
        rows = zip(encoded, prefix_rows, counts, phrases, strict=True)
        parts = [
            Part(row, [] if index else prefix, number, index, count, tuple(required))
            for number, (text, prefix, count, required) in enumerate(rows, first_number)
            for index, row in enumerate(text.rows)
        ]
        translations = iter(self._translate_parts(parts, config, details))
        blank = BLANK._replace(token_log_probs=[], alignment=[]) if details else BLANK
        if config.mbr:
            blank = blank._replace(utility=100.0)
        return [self._join([next(translations) for _ in text.rows] or [[blank]], text) for text in encoded]

    if TYPE_CHECKING:  # what each subclass implements

        def max_source_length(self, config: SearchConfig) -> int: ...
        def _translate_parts(self, parts: list[Part], config: SearchConfig, details: bool) -> Any: ...

    def max_target_length(self, config: SearchConfig) -> int:
        """Returns the maximum number of target tokens with the end of sentence, for a `SearchConfig`."""
        return config.max_length

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
