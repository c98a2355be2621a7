"""TensorFlow Model Garden's Seq2SeqTransformer (post-norm, ReLU)."""

from official.nlp.modeling.models import seq2seq_transformer

from peers.work import ALPHA, BEAM_SIZE, DROPOUT, OUTPUT_LENGTH


def build(size):
    """Returns a `Seq2SeqTransformer` of a `Size`."""
    side = {
        "num_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "intermediate_size": size.d_ff,
        "activation": "relu",
        "dropout_rate": DROPOUT,
        "attention_dropout_rate": DROPOUT,
        "intermediate_dropout": 0.0,
        "use_bias": False,
        "norm_first": False,
    }
    return seq2seq_transformer.Seq2SeqTransformer(
        vocab_size=size.vocab_size,
        embedding_width=size.d_model,
        dropout_rate=DROPOUT,
        encoder_layer=seq2seq_transformer.TransformerEncoder(**side),
        decoder_layer=seq2seq_transformer.TransformerDecoder(**side),
        beam_size=BEAM_SIZE,
        alpha=ALPHA,
        decode_max_length=OUTPUT_LENGTH,
        eos_id=-1,  # it knows no least length: an end that never comes
    )
