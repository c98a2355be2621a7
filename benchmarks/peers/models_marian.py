"""Hugging Face's MarianMTModel (post-norm, ReLU, all embeddings tied)."""

from transformers import MarianConfig, MarianMTModel

from peers.work import DROPOUT, MAX_POSITIONS


def build(size):
    """Returns a `MarianMTModel` of a `Size`, with PyTorch's fused attention."""
    config = MarianConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        max_position_embeddings=MAX_POSITIONS,
        encoder_layers=size.num_layers,
        decoder_layers=size.num_layers,
        encoder_attention_heads=size.num_heads,
        decoder_attention_heads=size.num_heads,
        encoder_ffn_dim=size.d_ff,
        decoder_ffn_dim=size.d_ff,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        init_std=size.d_model**-0.5,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
    )
    return MarianMTModel(config)
