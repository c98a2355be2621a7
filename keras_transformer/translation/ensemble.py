"""Decodes token ids with one model or an ensemble: caches, length limits, forbidden tokens."""

import functools

import keras
import numpy as np
from keras import ops

from keras_transformer.model.decoding import NO_KERNELS
from keras_transformer.translation.alignment import default_alignment_choice
from keras_transformer.translation.constraints import Constrained
from keras_transformer.translation.rules import Rules, coverage_score, has_coverage
from keras_transformer.translation.search import Step, beam_search, greedy_search, sample


class Ensemble:
    """Models that decode together: the functions that `search` calls. Its state is a list, one entry a model.

    The log-probability of a token is the mean of the models' log-probabilities, not
    renormalized. So is the attention for a coverage penalty. That of a model is the mean over heads of the
    cross-attention in the layer of its alignments, see `alignment.default_alignment_choice`.

    Args:
        models: list of `Transformer`, with the same target vocabulary.
        grows: bool, the caches grow with each position, see `Transformer.step`.
        covers: bool, each `Step` has a `coverage`.
    """

    def __init__(self, models, *, grows, covers=False):
        self.models = models
        self.grows = grows
        self.covers = covers
        self._kernels = [NO_KERNELS] * len(models)

    def start(self, source_ids, *, max_length, num_hypotheses):
        """Encodes the sources and creates the caches.

        Args:
            source_ids: int, shape `(batch, source_len)`.
            max_length: int or int32 scalar, number of positions of the caches; not used if they grow.
            num_hypotheses: int, of each sentence.

        Returns:
            list of `DecoderState`, one per model.
        """
        sizes = {"num_hypotheses": num_hypotheses, "num_sentences": ops.shape(source_ids)[0]}
        self._kernels = [model.step_kernels(**sizes) for model in self.models]
        if self.grows:
            max_length = 0 * ops.shape(source_ids)[1]  # a tensor: constant sizes cannot grow in a loop
        return [
            model.start(
                model.encode(source_ids),
                max_length=max_length,
                num_hypotheses=num_hypotheses,
                **({"covers": True} if self.covers else {}),
            )
            for model in self.models
        ]

    def step(self, ids, position, states):
        """Decodes one position, see `search`."""
        outputs = [
            model.step(ids, position, state, grows=self.grows, kernels=kernels, **self._coverage_layer(model))
            for model, state, kernels in zip(self.models, states, self._kernels, strict=True)
        ]
        states = [output.state for output in outputs]
        coverage = None
        if self.covers:
            attention = sum(state.coverage for state in states) / len(states)
            coverage = ops.reshape(coverage_score(attention), (-1,))
        if len(outputs) == 1:
            return Step(outputs[0].logits, states, coverage=coverage)
        log_probs = [ops.log_softmax(ops.cast(output.logits, "float32"), axis=-1) for output in outputs]
        return Step(sum(log_probs) / len(outputs), states, normalized=True, coverage=coverage)

    def _coverage_layer(self, model):
        # A subclass may override `step` without this argument.
        layer = default_alignment_choice(model.config.num_decoder_layers).layer
        return {"coverage_layer": layer} if self.covers else {}

    def reorder(self, states, parents):
        """Moves hypotheses to other slots, see `search`."""
        return [model.reorder(state, parents) for model, state in zip(self.models, states, strict=True)]

    def select_sentences(self, states, sentences):
        """Keeps some sentences of the batch, see `search`."""
        return [
            model.select_sentences(state, sentences) for model, state in zip(self.models, states, strict=True)
        ]


def search_ids(
    models, source_ids, config, *, prefix_ids=None, uniforms=None, constraint=None, forbidden_ids=()
):  # fmt: skip
    """Translates batches of source ids by greedy search, beam search or sampling.

    A translation is at most `config.max_length_offset` tokens longer than its source
    (section 6.1), both counted with eos. `config.max_length_ratio` and `config.max_length`
    change this limit.

    In a graph for any batch size and length, finished sentences are removed from the batch
    and the caches are no longer than the decoded part. In a function compiled by JAX, the caches and the
    returned `ids` have the size of the limit of a source as long as the padded one.

    Args:
        models: a `Transformer`, or a list of them (an ensemble) with the same vocabularies and
            special ids.
        source_ids: int, shape `(batch, source_len)`, ending with eos, padded.
        config: `SearchConfig`.
        prefix_ids: int32, shape `(batch, prefix_len)`, tokens that each translation starts with,
            padded at the end, without bos and eos; or `None`. The length limit is at least one
            token more than the prefix.
        uniforms: float32, shape `(batch, config.n_best, length)`, random numbers in [0, 1) for
            sampling, see `search.sample`; `length` is at least the largest length limit.
        constraint: `Constraint` that every hypothesis obeys; or `None`. It may raise the length limits, even
            above `config.max_length`.
        forbidden_ids: iterable of int, tokens that are never produced besides pad, bos and unk: tags.

    Returns:
        `Hypotheses` with `config.n_best` hypotheses per sentence.

    Raises:
        ValueError: sampling without `uniforms`, or settings that `Rules` does not accept.
    """
    models = list(models) if isinstance(models, (list, tuple)) else [models]
    if config.sampling and uniforms is None:
        raise ValueError("`uniforms` is required with `config.sampling`. Received: None")
    special = models[0].special
    max_lengths = max_target_lengths(models, source_ids, config, prefix_ids, constraint)
    max_length = ops.maximum(ops.max(max_lengths), 1)  # 1 for an empty batch
    if _is_traced_by_jax(max_length):
        max_length = _largest_limit(models, source_ids, config, prefix_ids, constraint)
    num_hypotheses = config.n_best if config.sampling else config.beam_size
    covers = has_coverage(config.coverage_penalty)
    decoder = Ensemble(models, grows=_is_dynamic(source_ids), covers=covers)
    state = decoder.start(source_ids, max_length=max_length, num_hypotheses=num_hypotheses)
    if constraint is not None:
        decoder = Constrained(
            constraint, decoder.step, num_hypotheses, divides=num_hypotheses > 1 and not config.sampling,
            reorder=decoder.reorder, select_sentences=decoder.select_sentences,
        )  # fmt: skip
        state = decoder.start(state, max_lengths)
    rules = Rules(
        eos_id=special.eos,
        pad_id=special.pad,
        forbidden_ids=(special.pad, special.bos, special.unk, *forbidden_ids),
        min_length=config.min_length,
        no_repeat_ngram=config.no_repeat_ngram,
        alpha=config.alpha,
        penalty=config.length_penalty,
        coverage_penalty=config.coverage_penalty,
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


def max_target_lengths(models, source_ids, config, prefix_ids=None, constraint=None):
    """Returns the length limit of each translation in tokens, with eos.

    Returns:
        int32, shape `(batch,)`.
    """
    pad = models[0].special.pad
    lengths = ops.sum(ops.cast(source_ids != pad, "int32"), axis=1)
    scaled = ops.floor(ops.cast(lengths, "float32") * config.max_length_ratio)
    # The minimum comes before the cast and the sum, which would overflow int32.
    scaled = ops.cast(ops.minimum(scaled, ops.cast(config.max_length, "float32")), "int32")
    limits = scaled + ops.minimum(config.max_length_offset, config.max_length - scaled)
    prefix_lengths = None
    if prefix_ids is not None:
        prefix_lengths = ops.sum(ops.cast(prefix_ids != pad, "int32"), axis=1)
        limits = ops.maximum(limits, prefix_lengths + 1)
    if constraint is not None:
        prefix_lengths = ops.zeros_like(limits) if prefix_lengths is None else prefix_lengths
        limits = constraint.length_limits(limits, prefix_lengths)
    for model in models:
        if model.config.positions == "learned":
            limits = ops.minimum(limits, model.config.max_positions)
    return limits


def _is_dynamic(source_ids):
    """Whether `source_ids` belong to a graph for any batch size and length."""
    if keras.backend.backend() != "tensorflow":
        return False
    return source_ids.shape[0] is None and source_ids.shape[1] is None


def _is_traced_by_jax(x):
    """Whether a scalar belongs to a function that JAX compiles, and so has no value yet."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return isinstance(x, jax.core.Tracer)


def _largest_limit(models, source_ids, config, prefix_ids, constraint):
    """Returns the largest limit of sources and prefixes of these shapes, int: JAX wants constant sizes."""
    import jax

    def without_padding(ids):
        return None if ids is None else np.full(ids.shape, models[0].special.pad + 1, "int32")

    with jax.ensure_compile_time_eval():
        limits = max_target_lengths(
            models, without_padding(source_ids), config, without_padding(prefix_ids), constraint
        )
        return max(1, int(ops.max(limits)))
