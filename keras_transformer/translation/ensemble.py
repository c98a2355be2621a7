"""Search with one or several models: their caches, limits of length, forbidden tokens."""

import functools

import keras
from keras import ops

from keras_transformer.translation.rules import Rules
from keras_transformer.translation.search import Step, beam_search, greedy_search, sample


class Ensemble:
    """One or several models as the functions that a search calls; the state holds the state of each.

    The log-probability of a token is the mean of the models' log-probabilities, which is
    not normalised again.

    Args:
        models: list of `Transformer`, of one target vocabulary.
        grows: the caches grow with each position, see `Transformer.step`.
    """

    def __init__(self, models, *, grows):
        self.models = models
        self.grows = grows
        self._kernels = [None] * len(models)

    def start(self, source_ids, *, max_length, hypotheses):
        """Encodes the sources and makes the caches.

        Returns:
            list of `DecoderState`, one a model.
        """
        self._kernels = [model.step_kernel(num_hypotheses=hypotheses) for model in self.models]
        if self.grows:
            max_length = 0 * ops.shape(source_ids)[1]  # not a constant: a loop would not let it grow
        return [
            model.start(model.encode(source_ids), max_length=max_length, num_hypotheses=hypotheses)
            for model in self.models
        ]

    def step(self, ids, position, states):
        """See `search`."""
        steps = [
            model.step(ids, position, state, grows=self.grows, kernel=kernel)
            for model, state, kernel in zip(self.models, states, self._kernels, strict=True)
        ]
        states = [step.state for step in steps]
        if len(steps) == 1:
            return Step(steps[0].logits, states)
        log_probs = [ops.log_softmax(ops.cast(step.logits, "float32"), axis=-1) for step in steps]
        return Step(sum(log_probs) / len(steps), states, normalized=True)

    def reorder(self, states, parents):
        """See `search`."""
        return [model.reorder(state, parents) for model, state in zip(self.models, states, strict=True)]

    def select_sentences(self, states, sentences):
        """See `search`."""
        return [
            model.select_sentences(state, sentences) for model, state in zip(self.models, states, strict=True)
        ]


def search_ids(models, source_ids, config, *, prefix_ids=None, uniforms=None):
    """Searches translations of encoded sentences.

    A translation has at most as many tokens as its source and `config.max_length_offset`
    more (section 6.1), end of sentence included on both sides; `config.max_length_ratio` and
    `config.max_length` change that.

    Inside a graph for any number and length of sentences, sentences that are done leave the
    batch, and the caches are no longer than what was decoded.

    Args:
        models: a `Transformer`, or a list of them (an ensemble) with the same special ids and
            the same vocabularies.
        source_ids: int, shape `(batch, source_len)`, ending with eos, padded.
        config: `SearchConfig`.
        prefix_ids: int32, shape `(batch, prefix_len)`, tokens with which each translation
            begins, padded at the end, without bos and eos; or `None`. There is room for one
            token more than these at least.
        uniforms: float32, shape `(batch, config.n_best, length)`, random numbers of at least 0
            and below 1, for sampling, see `search.sample`; at least as long as the longest
            translation can get.

    Returns:
        `Hypotheses` with `config.n_best` hypotheses a sentence.

    Raises:
        ValueError: sampling without `uniforms`, or settings that `Rules` refuses.
    """
    models = list(models) if isinstance(models, (list, tuple)) else [models]
    if config.sampling and uniforms is None:
        raise ValueError("`uniforms` are needed where `config.sampling` is on. Received: None")
    special = models[0].special
    max_lengths = max_target_lengths(models, source_ids, config, prefix_ids)
    max_length = ops.maximum(ops.max(max_lengths), 1)  # of no sentence, too
    hypotheses = config.n_best if config.sampling else config.beam_size
    decoder = Ensemble(models, grows=_is_dynamic(source_ids))
    state = decoder.start(source_ids, max_length=max_length, hypotheses=hypotheses)
    rules = Rules(
        eos_id=special.eos,
        pad_id=special.pad,
        forbidden_ids=(special.pad, special.bos, special.unk),
        min_length=config.min_length,
        no_repeat_ngram=config.no_repeat_ngram,
        alpha=config.alpha,
        penalty=config.length_penalty,
    )
    first_ids = ops.zeros_like(max_lengths) + special.bos
    if config.sampling:
        settings = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        search = functools.partial(sample, uniforms=uniforms, **settings)
    elif config.beam_size == 1:
        search = greedy_search
    else:
        settings = {"beam_size": config.beam_size, "n_best": config.n_best}
        settings["early_stop"] = config.early_stop
        search = functools.partial(beam_search, **settings)
    return search(
        decoder.step, state, first_ids, rules,
        max_lengths=max_lengths, max_length=max_length, prefix_ids=prefix_ids,
        reorder=decoder.reorder, select_sentences=decoder.select_sentences,
    )  # fmt: skip


def max_target_lengths(models, source_ids, config, prefix_ids=None):
    """The most tokens that each translation may have, end of sentence included.

    Returns:
        int32, shape `(batch,)`.
    """
    pad = models[0].special.pad
    lengths = ops.sum(ops.cast(source_ids != pad, "int32"), axis=1)
    scaled = ops.cast(ops.floor(ops.cast(lengths, "float32") * config.max_length_ratio), "int32")
    limits = ops.minimum(scaled + config.max_length_offset, config.max_length)
    if prefix_ids is not None:
        prefix_lengths = ops.sum(ops.cast(prefix_ids != pad, "int32"), axis=1)
        limits = ops.maximum(limits, prefix_lengths + 1)
    for model in models:
        if model.config.positions == "learned":
            limits = ops.minimum(limits, model.config.max_positions)
    return limits


def _is_dynamic(source_ids):
    """Whether a graph is made for any number and length of sentences."""
    if keras.backend.backend() != "tensorflow":
        return False
    return source_ids.shape[0] is None and source_ids.shape[1] is None
