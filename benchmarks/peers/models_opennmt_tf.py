"""OpenNMT-tf's Transformer (post-norm, all embeddings tied)."""

import pathlib
import tempfile

import opennmt
import tensorflow as tf

from peers.work import DROPOUT, SMOOTHING


def build(size, **settings):
    """Makes a model.

    Args:
        size: `Size`.
        **settings: of OpenNMT-tf's `params`, for its search.

    Returns:
        `opennmt.models.Transformer`.
    """
    # One more, for unknown words, is added by the library.
    words = ["<blank>", "<s>", "</s>", *(f"w{number}" for number in range(size.vocab_size - 4))]
    vocabulary = pathlib.Path(tempfile.mkdtemp()) / "vocabulary.txt"
    vocabulary.write_text("\n".join(words) + "\n", encoding="utf-8")
    model = opennmt.models.Transformer(
        opennmt.inputters.WordEmbedder(embedding_size=size.d_model),
        opennmt.inputters.WordEmbedder(embedding_size=size.d_model),
        num_layers=size.num_layers,
        num_units=size.d_model,
        num_heads=size.num_heads,
        ffn_inner_dim=size.d_ff,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        ffn_dropout=0.0,
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        pre_norm=False,
        output_layer_bias=False,
    )
    files = {"source_vocabulary": str(vocabulary), "target_vocabulary": str(vocabulary)}
    params = {"label_smoothing": SMOOTHING, "average_loss_in_time": True, **settings}
    model.initialize(files, params=params)
    model.build(None)
    return model


def features(ids):
    """Returns what the model takes for int32 ids, shape `(batch, length)`; the trainer counts `tokens`."""
    return {
        "ids": tf.constant(ids),
        "length": tf.fill([ids.shape[0]], ids.shape[1]),
        "tokens": tf.fill(ids.shape, "w"),
    }


def num_parameters(model):
    """Returns int, the number of trainable parameters."""
    return sum(variable.shape.num_elements() for variable in model.trainable_variables)
