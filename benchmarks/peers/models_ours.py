"""This package's `Transformer` (the paper's: post-norm, one matrix for both sides and the output)."""

from keras_transformer.config.settings import ModelConfig, SearchConfig
from keras_transformer.model.transformer import Transformer
from peers.work import ALPHA, BEAM_SIZE, DROPOUT, OUTPUT_LENGTH

# An end of sentence is the last token, which `min_length` does not count.
SEARCH = SearchConfig(
    beam_size=BEAM_SIZE,
    alpha=ALPHA,
    min_length=OUTPUT_LENGTH - 1,
    max_length=OUTPUT_LENGTH,
    max_length_ratio=0.0,
    max_length_offset=OUTPUT_LENGTH,
)


def build(size, dtype="float32"):
    """Makes a model.

    Args:
        size: `Size`.
        dtype: Keras dtype policy.

    Returns:
        `Transformer`.
    """
    config = ModelConfig(
        source_vocab_size=size.vocab_size,
        target_vocab_size=size.vocab_size,
        d_model=size.d_model,
        num_heads=size.num_heads,
        d_ff=size.d_ff,
        num_encoder_layers=size.num_layers,
        num_decoder_layers=size.num_layers,
        residual_dropout=DROPOUT,
        embedding_dropout=DROPOUT,
        attention_dropout=DROPOUT,
    )
    return Transformer(config, dtype=dtype)


def gpu_memory():
    """Returns int, the peak of the first GPU's memory in bytes, of TensorFlow's tensors."""
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def shared_out(rows, parts):
    """Cuts rows into at most so many parts of about one size."""
    each = -(-len(rows) // parts)
    return [rows[begin : begin + each] for begin in range(0, len(rows), each)]
