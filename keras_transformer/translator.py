"""Text in, text out: tokenizer, model and search together."""

import logging

import numpy as np
import tensorflow as tf

from keras_transformer.config import SearchConfig, replace
from keras_transformer.data.vocabulary import as_tokenizers, check_vocabularies
from keras_transformer.decoding import search_ids
from keras_transformer.training.run_folder import RunFolder

logger = logging.getLogger(__name__)


class Translator:
    """Translates sentences with one model.

    Args:
        model: a `Transformer`.
        tokenizers: a tokenizer of the model's vocabulary, or `Tokenizers`: the
            source's encodes, the target's decodes.
        search: `SearchConfig`, the defaults of `translate`.

    Raises:
        ValueError: the vocabularies are not as large as the model's, have other
            special ids, or are two where the model shares one matrix.
    """

    def __init__(self, model, tokenizers, search=None):
        tokenizers = as_tokenizers(tokenizers)
        check_vocabularies(tokenizers, model.config, special=model.special)
        self.model = model
        self.tokenizers = tokenizers
        self.search = SearchConfig() if search is None else search
        self._compiled = {}

    @classmethod
    def load(cls, run_dir, *, weights="averaged"):
        """Loads the model of a run folder.

        Args:
            run_dir: folder that `train_wmt.py` wrote.
            weights: name of weights, as `RunFolder.load_weights` takes it.

        Raises:
            ValueError: not a run folder, or it holds no such weights.
        """
        run = RunFolder(run_dir)
        return cls(run.load_model(weights=weights), run.load_tokenizers(), run.config.search)

    def translate(self, texts, **search):
        """Translates sentences.

        Args:
            texts: list of str, one sentence each.
            **search: fields of `SearchConfig` to change, such as `beam_size=1`.

        Returns:
            list of str, as many and in the same order. A blank text gives `""`.
        """
        if isinstance(texts, str):
            raise TypeError("`texts` must be a list of str. Received: one str")
        config = replace(self.search, **search) if search else self.search
        rows = self.tokenizers.source.encode(texts)
        limit = self._max_source_length(config)
        too_long = sum(len(row) >= limit for row in rows)
        if too_long:
            logger.warning("cut %d sentences at %d tokens", too_long, limit - 1)
        rows = [row[: limit - 1] for row in rows]

        translations = [""] * len(texts)
        for numbers in _batches(rows, config.batch_tokens):
            found = self._search(config, [rows[number] for number in numbers])
            decoded = self.tokenizers.target.decode(found)
            for number, text in zip(numbers, decoded, strict=True):
                # A byte token or a code point may spell a newline; a translation is one line.
                translations[number] = text.replace("\n", " ")
        return translations

    def _search(self, config, rows):
        """Returns the ids of the best hypotheses, int32, shape `(batch, length)`."""
        if config not in self._compiled:
            self._compiled[config] = self._compile(config)
        special = self.tokenizers.source.special
        source_ids = np.full((len(rows), max(map(len, rows)) + 1), special.pad, np.int32)
        for i, row in enumerate(rows):
            source_ids[i, : len(row)] = row
            source_ids[i, len(row)] = special.eos
        return self._compiled[config](source_ids).numpy()

    def _compile(self, config):
        """Makes the whole search one graph for any number and length of sentences."""
        signature = [tf.TensorSpec((None, None), tf.int32)]
        return tf.function(
            lambda source_ids: search_ids(self.model, source_ids, config).ids[:, 0],
            input_signature=signature,
            autograph=False,  # the loop is `ops.while_loop`; a lambda makes AutoGraph complain
        )

    def _max_source_length(self, config):
        limit = config.max_source_length
        if self.model.config.positions == "learned":
            limit = min(limit, self.model.config.max_positions)
        return limit


def _batches(rows, batch_tokens):
    """Groups the numbers of non-blank rows: alike in length, within the budget."""
    numbers = sorted((i for i, row in enumerate(rows) if row), key=lambda i: len(rows[i]))
    batches = []
    for number in numbers:
        length = len(rows[number]) + 1
        if not batches or (len(batches[-1]) + 1) * length > batch_tokens:
            batches.append([])
        batches[-1].append(number)
    # The longest first: memory runs short at once or not at all.
    return batches[::-1]
