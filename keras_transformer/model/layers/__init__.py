"""The layers of the Transformer (sections 3.1 to 3.5), written with `keras` and `keras.ops` only."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "attention": ("Attention", "MultiHeadAttention", "scaled_dot_product_attention"),
        "basics": ("Dropout", "LayerNormalization", "Projection"),
        "decoder": ("DecoderLayer",),
        "embedding": ("PositionalEmbedding", "sinusoids"),
        "encoder": ("EncoderLayer",),
        "feed_forward": ("FeedForward",),
        "gated_feed_forward": ("GatedFeedForward",),
        "masks": ("causal_mask", "padding_mask"),
        "query_key_norm": ("QueryKeyNorm",),
        "relative_attention": ("RelativeAttention",),
        "residual": ("Residual",),
        "rms_norm": ("RMSNormalization",),
        "rotary_attention": ("RotaryAttention",),
    },
)
