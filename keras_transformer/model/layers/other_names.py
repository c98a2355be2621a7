"""Names that keras-hub's and Keras' layers give to arguments of ours.

A name is accepted where it means the same; passing both names is an error. A name that means something
else, or a little more, is refused with one line that says what to use instead, unless it is `None`.
"""

import functools
import inspect

# By the class that has the constructor: {other name: our name}.
CONSTRUCTOR = {
    "TransformerLayer": {"intermediate_dim": "d_ff", "normalize_first": "norm_first"},
    "PositionalEmbedding": {"vocabulary_size": "vocab_size", "embedding_dim": "d_model"},
}
# By the class that is called: {other name: our name}.
CALL = {
    "EncoderLayer": {"padding_mask": "mask"},
    "DecoderLayer": {
        "decoder_sequence": "inputs",
        "encoder_sequence": "encoder_output",
        "decoder_padding_mask": "inputs_mask",
        "encoder_padding_mask": "encoder_output_mask",
        "encoder_attention_mask": "cross_attention_mask",
    },
    "PositionalEmbedding": {"start_index": "first_position"},
}
_WEIGHTS = "the initial weights follow from `attention_init` and `depth_scale`; assign others after `build`"
_CACHE = "`step` decodes with caches"
# {other name: what to use instead}.
REFUSED_IN_CONSTRUCTOR = {
    "TransformerLayer": {
        "dropout": "pass `residual_dropout` and `attention_dropout`, keras-hub's `dropout` is both",
        "kernel_initializer": _WEIGHTS,
        "bias_initializer": _WEIGHTS,
    },
    "PositionalEmbedding": {"sequence_length": "pass `max_positions` and positions='learned'"},
}
REFUSED_IN_CALL = {
    "EncoderLayer": {"return_attention_scores": "`attend` returns output and weights"},
    "DecoderLayer": {
        "decoder_attention_mask": "pass `self_attention_mask`, which replaces the causal mask: "
        "decoder_attention_mask & causal_mask(length)",
        "use_causal_mask": "the mask is causal unless `self_attention_mask` replaces it",
        "self_attention_cache": _CACHE,
        "self_attention_cache_update_index": _CACHE,
        "cross_attention_cache": _CACHE,
        "cross_attention_cache_update_index": _CACHE,
    },
    "MultiHeadAttention": {"use_causal_mask": "pass attention_mask=causal_mask(length)"},
}


def accepts_other_names(init):
    """Decorator of a constructor: keyword arguments may have the names of `CONSTRUCTOR`."""

    @functools.wraps(init)
    def init_with_own_names(self, *args, **kwargs):
        init(self, *args, **_own_names(self, init, kwargs, *_of_constructor(type(self))))

    init_with_own_names.__signature__ = inspect.signature(init)  # Keras reads it
    return init_with_own_names


def own_names_of_call(layer, arguments):
    """Returns the keyword arguments of a call, a dict, with our names in place of those of `CALL`.

    Raises:
        TypeError: a name is refused, or both names of an argument are passed.
    """
    return _own_names(layer, layer.call, arguments, *_of_call(type(layer)))


@functools.cache
def _of_constructor(kind):
    return _merged(kind, CONSTRUCTOR), _merged(kind, REFUSED_IN_CONSTRUCTOR)


@functools.cache
def _of_call(kind):
    return _merged(kind, CALL), _merged(kind, REFUSED_IN_CALL)


def _merged(kind, table):
    """Returns the entries of a class and of its base classes."""
    return {key: value for base in kind.__mro__ for key, value in table.get(base.__name__, {}).items()}


def _own_names(layer, function, arguments, same, refused):
    if arguments.keys().isdisjoint({*same, *refused}):
        return arguments
    kept = inspect.signature(function).parameters  # a subclass may have an argument with such a name
    renamed = {}
    for name, value in arguments.items():
        if name in refused and name not in kept:
            if value is None:
                continue
            raise TypeError(f"{type(layer).__name__} has no argument `{name}`: {refused[name]}")
        own = name if name in kept else same.get(name, name)
        if own in renamed or (own != name and own in arguments):
            raise TypeError(
                f"{type(layer).__name__}: `{own}` has a second name. Received both: {[*arguments]}"
            )
        renamed[own] = value
    return renamed
