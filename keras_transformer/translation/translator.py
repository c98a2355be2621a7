"""Text in, text out: tokenizer, one model or several, and search together."""

import concurrent.futures
import dataclasses
import itertools
import logging
import os
import threading

import numpy as np
import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.sections import MAX_NUMBERS_IN_SEARCH
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.text.lines import one_line
from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, check_vocabularies
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.forced_decoding import DetailsPass, pad_rows
from keras_transformer.translation.long_lines import encode_texts, joint
from keras_transformer.translation.results import BLANK, NBest, Translation, joined

logger = logging.getLogger(__name__)


class Translator:
    """Translates sentences with one model, or with several together.

    Args:
        models: a `Transformer`, or a list of such, whose log-probabilities are averaged.
        tokenizers: a tokenizer of the models' vocabulary, or `Tokenizers`: the
            source's encodes, the target's decodes.
        search: `SearchConfig`, the defaults of `translate`.
        target_language: its code; says what goes between the parts of a long line.
        choices: list of `AlignmentChoice`, one for each model; `None` for
            `alignment.default_choice`.
        threads: number of batches that are searched at the same time. On CPUs it pays to
            have as many as cores, each of which then works on a batch of its own, once
            `tf.config.threading.set_intra_op_parallelism_threads(1)` was called.

    Raises:
        ValueError: the vocabularies are not as large as a model's, have other
            special ids, or are two where a model shares one matrix.
    """

    def __init__(self, models, tokenizers, search=None, *, target_language="", choices=None, threads=1):
        self.models = list(models) if isinstance(models, (list, tuple)) else [models]
        if not self.models:
            raise ValueError("`models` must hold at least one model. Received: none")
        self.tokenizers = as_tokenizers(tokenizers)
        for model in self.models:
            check_vocabularies(self.tokenizers, model.config, special=model.special)
        self.search = SearchConfig() if search is None else search
        self._joint = joint(target_language)
        self._details = DetailsPass(self.models, choices, batch_tokens=self.search.batch_tokens)
        if threads < 1:
            raise ValueError(f"`threads` must be at least 1. Received: {threads}")
        self._threads = threads
        self._compiled = {}
        self._compiling = threading.Lock()

    @classmethod
    def load(cls, run_dirs, *, weights="final", threads=1):
        """Loads the model of a run folder, or those of several.

        Args:
            run_dirs: folder of a training run, or a list of such; their search
                settings are those of the first.
            weights: name of weights, as `RunFolder.load_weights` takes it.
            threads: as of `Translator`.

        Raises:
            ValueError: not a run folder, or it holds no such weights; or several have not
                the same vocabularies.
        """
        run_dirs = [run_dirs] if isinstance(run_dirs, (str, os.PathLike)) else list(run_dirs)
        runs = [RunFolder(run_dir) for run_dir in run_dirs]
        if not runs:
            raise ValueError("`run_dirs` must name at least one run folder. Received: none")
        tokenizers = runs[0].load_tokenizers()
        for run in runs[1:]:
            for side, first, other in zip(tokenizers._fields, tokenizers, run.load_tokenizers(), strict=True):
                if first.sha256 != other.sha256 or first.special != other.special:
                    raise ValueError(
                        f"{run.path}: its {side} vocabulary is not that of {runs[0].path}. "
                        "Models that translate together need the same vocabularies: train them with one"
                    )
        models = [run.load_model(weights=weights) for run in runs]
        config = runs[0].config
        return cls(
            models,
            tokenizers,
            config.search,
            target_language=config.data.target,
            threads=threads,
        )

    def translate(self, texts, prefixes=None, **search):
        """Translates sentences.

        Args:
            texts: list of str, one sentence each.
            prefixes: list of str, as many: what each translation must begin with; `""` for
                nothing.
            **search: fields of `SearchConfig` to change, such as `beam_size=1`.

        Returns:
            list of str, as many and in the same order. A blank text gives `""`.
        """
        found = self.n_best(texts, prefixes, **search)
        limit = self._max_source_length(self._config(search)) - 1
        for flag, number in (
            ("cut", sum(one.is_cut for one in found)),
            ("split", sum(one.num_parts > 1 for one in found)),
        ):
            if number:
                logger.warning("%s %d sentences at %d tokens", flag, number, limit)
        return [one.best.text for one in found]

    def n_best(self, texts, prefixes=None, *, first_number=0, details=False, **search):
        """Translates sentences, and tells all that is known of the translations.

        A text over the limit is translated in parts, `search.long_lines` permitting. It has
        one translation, the best ones of its parts joined: the alternatives of the parts
        would combine to any number, none of which was ranked against another. A prefix
        begins the first part.

        Args:
            texts: list of str.
            prefixes: as of `translate`.
            first_number: int, number of the first text in all of its stream, by which
                sampling draws: then a text's samples depend neither on its batch nor on
                the chunk that it comes in.
            details: also fills `token_log_probs` and `alignment`, by one more pass.
            **search: as of `translate`.

        Returns:
            list of `NBest`, as many and in the same order.

        Raises:
            ValueError: a setting that is refused, or not as many prefixes as texts.
        """
        for name, given in (("texts", texts), ("prefixes", prefixes)):
            if isinstance(given, (str, bytes)):
                raise TypeError(f"`{name}` must be a list of str. Received: one {type(given).__name__}")
        config = self._config(search)
        if prefixes is not None and len(prefixes) != len(texts):
            raise ValueError(
                "`prefixes` must be as many as `texts`. "
                f"Received: {len(prefixes)} prefixes, {len(texts)} texts"
            )
        encoded = encode_texts(
            texts,
            self.tokenizers.source.encode,
            limit=self._max_source_length(config) - 1,
            long_lines=config.long_lines,
        )
        prefix_rows = None if prefixes is None else self.tokenizers.target.encode(prefixes)
        parts = [
            _Part(
                row,
                prefix=prefix_rows[number] if prefix_rows is not None and index == 0 else [],
                number=first_number + number,
                index=index,
            )
            for number, one in enumerate(encoded)
            for index, row in enumerate(one.rows)
        ]
        found = self._translate_parts(parts, config)
        if details:
            found = self._with_details(parts, found)
        found = iter(found)
        blank = BLANK._replace(token_log_probs=[], alignment=[]) if details else BLANK
        return [
            self._joined([next(found) for _ in one.rows], one) if one.rows else NBest([blank], [], 0, False)
            for one in encoded
        ]

    def _config(self, search):
        return replace(self.search, **search) if search else self.search

    def _translate_parts(self, parts, config):
        """Returns for each part the list of its `Translation`s."""
        translations = [None] * len(parts)
        batches = _batches(parts, config.batch_tokens, self._numbers_of_a_row(config), self._threads)

        def translate(numbers):
            return self._translate_batch([parts[number] for number in numbers], config)

        for numbers, found in zip(batches, self._map(translate, batches), strict=True):
            for number, ones in zip(numbers, found, strict=True):
                translations[number] = ones
        return translations

    def _map(self, function, batches):
        """`map(function, batches)`, of several batches at a time."""
        if min(self._threads, len(batches)) < 2:
            yield from map(function, batches)
            return
        pool = concurrent.futures.ThreadPoolExecutor(self._threads)
        try:
            yield from pool.map(function, batches)
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt waits for those begun, not for all

    def _translate_batch(self, parts, config):
        special = self.tokenizers.source.special
        source_ids = pad_rows([[*part.row, special.eos] for part in parts], special.pad)
        arguments = {}
        if any(part.prefix for part in parts):
            arguments["prefix_ids"] = pad_rows([part.prefix for part in parts], special.pad)
        if config.sampling:
            arguments["uniforms"] = _uniforms(parts, config)
        found = [values.numpy() for values in self._search(config, arguments)(source_ids, **arguments)]
        return self._from_arrays(*found)

    def _from_arrays(self, ids, scores, log_probs, lengths, finished):
        """Lists of `Translation`s of the arrays of `Hypotheses`."""
        exists = np.isfinite(scores)
        exists[:, 0] = True  # whatever happened, a sentence has a translation
        places = list(zip(*np.nonzero(exists), strict=True))
        rows = [ids[place][: lengths[place]].tolist() for place in places]
        texts = self.tokenizers.target.decode(rows)
        translations = [[] for _ in ids]
        for place, row, text in zip(places, rows, texts, strict=True):
            translations[place[0]].append(
                Translation(
                    # A byte token or a code point may spell a newline.
                    text=one_line(text),
                    score=float(scores[place]),
                    log_prob=float(log_probs[place]),
                    pieces=self._pieces(self.tokenizers.target, row),
                    ids=row,
                    finished=bool(finished[place]),
                )
            )
        return translations

    def _with_details(self, parts, found):
        """Adds to each `Translation` the log-probabilities of its tokens, and its alignment."""
        pairs = [(part, one) for part, ones in zip(parts, found, strict=True) for one in ones]
        eos = self.tokenizers.source.special.eos
        details = iter(
            self._details(
                [[*part.row, eos] for part, _ in pairs],
                [one.ids for _, one in pairs],
                [self._pieces(self.tokenizers.source, part.row) for part, _ in pairs],
                [one.pieces for _, one in pairs],
            )
        )
        return [[one._replace(**next(details)._asdict()) for one in ones] for ones in found]

    def _joined(self, parts, encoded):
        """The `NBest` of one text, of the translations of its parts."""
        source_pieces = [self._pieces(self.tokenizers.source, row) for row in encoded.rows]
        if len(parts) == 1:
            return NBest(parts[0], source_pieces[0], 1, encoded.is_cut)
        whole = joined([translations[0] for translations in parts], source_pieces, self._joint)
        return NBest([whole], list(itertools.chain.from_iterable(source_pieces)), len(parts), encoded.is_cut)

    @staticmethod
    def _pieces(tokenizer, ids):
        return [tokenizer.entries[one][1] for one in ids if one != tokenizer.special.eos]

    def _search(self, config, arguments):
        """Returns the whole search as one graph for any number and length of sentences."""
        # What the graph does not depend on must not make another.
        config = replace(config, seed=1, long_lines="split", batch_tokens=1, max_source_length=2)
        key = (config, *arguments)
        with self._compiling:
            if key not in self._compiled:
                self._compiled[key] = self._compile(config, arguments)
        return self._compiled[key]

    def _compile(self, config, arguments):
        specs = {
            "prefix_ids": tf.TensorSpec((None, None), tf.int32),
            "uniforms": tf.TensorSpec((None, config.n_best, None), tf.float32),
        }

        def search(source_ids, **arguments):
            return tuple(search_ids(self.models, source_ids, config, **arguments))

        # The loop is `ops.while_loop`: nothing is left to AutoGraph.
        return tf.function(search, autograph=False).get_concrete_function(
            tf.TensorSpec((None, None), tf.int32, name="source_ids"),
            **{name: specs[name] for name in arguments},
        )

    def _max_source_length(self, config):
        limits = [model.config.max_positions for model in self.models if model.config.positions == "learned"]
        return min([config.max_source_length, *limits])

    def _numbers_of_a_row(self, config):
        """Returns a function: source length -> numbers that searching one sentence holds at once."""

        def count(source_length):
            return sum(model.config.numbers_in_search(source_length, config) for model in self.models)

        return count


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """One row of a batch: a text, or a part of one."""

    row: list  # of int, without end of sentence
    prefix: list  # of int
    number: int  # of the text in its stream
    index: int  # of the part in its text


def _batches(parts, batch_tokens, numbers_of_a_row, threads):
    """Groups the numbers of parts: alike in length, within the budgets of tokens and memory.

    The budget of memory is for all batches that are searched at the same time. Few parts
    are shared out evenly among them.
    """
    lengths = [len(part.row) + 1 for part in parts]
    longest = max(lengths, default=1)
    batch_tokens = min(batch_tokens, -(-sum(lengths) // (threads * longest)) * longest)
    batches = []
    for number in sorted(range(len(parts)), key=lambda i: len(parts[i].row)):
        length = len(parts[number].row) + 1
        size = len(batches[-1]) + 1 if batches else 0
        memory = size * numbers_of_a_row(length) * threads
        if not batches or size * length > batch_tokens or memory > MAX_NUMBERS_IN_SEARCH:
            batches.append([])
        batches[-1].append(number)
    # The longest first: memory runs short at once or not at all.
    return batches[::-1]


def _uniforms(parts, config):
    """Random numbers, float32, shape `(batch, n_best, max_length)`.

    Each sample has a stream of its own, named by the seed, the numbers of the text and the
    part, and its own number: it depends neither on the batch nor on `n_best`.
    """
    longest = max(len(part.row) + 1 for part in parts)
    length = min(int(longest * config.length_factor) + config.extra_length + 1, config.max_length)
    length = max(length, *(len(part.prefix) + 1 for part in parts))
    uniforms = np.empty((len(parts), config.n_best, length), np.float32)
    for i, part in enumerate(parts):
        for k in range(config.n_best):
            philox = np.random.Philox(key=[config.seed, part.number], counter=[0, 0, part.index, k])
            uniforms[i, k] = np.random.Generator(philox).random(length, np.float32)
    return uniforms
