"""`Parser`: words in, constituency trees out (section 6.3)."""

import re
from typing import NamedTuple

from keras_transformer.config.sections import MAX_LENGTH
from keras_transformer.config.settings import replace
from keras_transformer.text.linearised import delinearise, mend
from keras_transformer.text.trees import Tree, escape_brackets, write_tree
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.translation.translator import Translator

_WORD = re.compile(r"\S+", re.ASCII)  # a no-break space is a character of its word, as in trees


class Parsed(NamedTuple):
    """The tree of one sentence.

    Attributes:
        tree: `Tree` over exactly the words of the sentence; `None` for a sentence without words.
        score: float, log-probability / length penalty of the symbols that search found; 0 if nothing was
            searched.
        mended: tuple of str, names of the rules of `mend` that were needed, none for a well-formed result.
        too_long: bool, the sentence has more tokens than the model accepts, and its tree is flat.
        num_tokens: int, number of symbols that search found, end of sentence included.
    """

    tree: Tree | None
    score: float
    mended: tuple
    too_long: bool
    num_tokens: int

    @property
    def flags(self):
        """List of str, a subset of `"blank"`, `"mended"`, `"too_long"`."""
        flags = {"blank": self.tree is None, "mended": bool(self.mended), "too_long": self.too_long}
        return [name for name, is_set in flags.items() if is_set]

    @property
    def text(self):
        """The tree as one bracketed line; "" for a sentence without words."""
        return "" if self.tree is None else write_tree(self.tree)


class Parser:
    """Parses sentences with one model or an ensemble.

    The search is free as in the paper, and results that are no tree are mended; or, with
    `search.tree_grammar`, it considers only trees over the words of the sentence.

    Args:
        models: a `Transformer`, or a list of them, whose log-probabilities are averaged.
        tokenizers: `Tokenizers` whose target is a `TreeTokenizer`.
        search: `SearchConfig`, the defaults of `parse`.
        threads: int, as in `Translator`.

    Raises:
        ValueError: the target is no tree, or as `Translator`.
    """

    def __init__(self, models, tokenizers, search=None, *, threads=1):
        self._set(Translator(models, tokenizers, search, threads=threads))

    @classmethod
    def load(cls, run_dirs, *, checkpoint="final", threads=1):
        """Loads the model of a run folder, or an ensemble from several; see `Translator.load`."""
        parser = cls.__new__(cls)
        parser._set(Translator.load(run_dirs, checkpoint=checkpoint, threads=threads))
        return parser

    def _set(self, translator):
        if not isinstance(translator.tokenizers.target, TreeTokenizer):
            raise ValueError(
                "This model translates; a parser needs one trained on trees (data.target='trees'). "
                "Use Translator"
            )
        self._translator = translator

    @property
    def models(self):
        """List of the `Transformer`s."""
        return self._translator.models

    @property
    def tokenizers(self):
        """`Tokenizers`; the target is a `TreeTokenizer`."""
        return self._translator.tokenizers

    @property
    def search(self):
        """`SearchConfig`, the defaults of `parse`."""
        return self._translator.search

    def save(self, path, *, config=None):
        """Writes a run folder; see `Translator.save`."""
        return self._translator.save(path, config=config)

    def export(self, path, format="savedmodel", *, config=None, **options):
        """Exports the parser as a SavedModel or a Keras file; see `Translator.export`."""
        return self._translator.export(path, format, config=config, **options)

    def parse(self, sentences, **search):
        """Parses sentences.

        Args:
            sentences: list of str, words separated by spaces, tokenized as in the training trees; or list of
                lists of words. Round brackets become `-LRB-` and `-RRB-`.
            **search: fields of `SearchConfig` to override, such as `tree_grammar=True`.

        Returns:
            list of `Parsed`, one per sentence in the same order.
        """
        if isinstance(sentences, (str, bytes)):
            raise TypeError(f"`sentences` must be a list of str. Received: one {type(sentences).__name__}")
        rows = [_words(sentence) for sentence in sentences]
        texts = [" ".join(words) for words in rows]
        search["n_best"] = 1
        config = replace(self.search, **search)
        if config.mbr:
            raise ValueError("`mbr` compares texts and cannot parse. Received: mbr=True")
        limit = self._translator.max_source_length(config) - 1
        encoded = self._translator.tokenizers.source.encode(texts)
        too_long = [len(row) > limit for row in encoded]
        if config.tree_grammar:  # it needs at least three more positions than words, see `TreeGrammar`
            most = self._translator.max_target_length(replace(config, max_length=MAX_LENGTH)) - 3
            too_long = [long or len(words) > most for long, words in zip(too_long, rows, strict=True)]
        searched = ["" if long else text for long, text in zip(too_long, texts, strict=True)]
        results = iter(self._translator.n_best(searched, **search))
        parsed = []
        for words, long in zip(rows, too_long, strict=True):
            best = next(results).best
            if not words:
                parsed.append(Parsed(None, 0.0, (), False, 0))
                continue
            tree, rules = _to_tree(best.text.split(), words)
            parsed.append(Parsed(tree, best.score, () if long else tuple(rules), long, len(best.ids)))
        return parsed


def _words(sentence):
    if not isinstance(sentence, (str, list, tuple)):
        raise TypeError(f"A sentence must be str or a list of words. Received: {sentence!r}")
    words = _WORD.findall(sentence) if isinstance(sentence, str) else list(sentence)
    for word in words:
        if not isinstance(word, str) or not _WORD.fullmatch(word):
            raise ValueError(f"A word must be text without spaces. Received: {word!r}")
    return [escape_brackets(word) for word in words]


def _to_tree(symbols, words):
    """Returns the tree of symbols over words, and the names of the rules that mended it."""
    try:
        return delinearise(symbols, words), []
    except ValueError:
        return mend(symbols, words)
