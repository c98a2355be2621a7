from keras_transformer.model.layers.attention import Attention as Attention
from keras_transformer.model.layers.attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.model.layers.attention import scaled_dot_product_attention as scaled_dot_product_attention
from keras_transformer.model.layers.basics import Dropout as Dropout
from keras_transformer.model.layers.basics import LayerNormalization as LayerNormalization
from keras_transformer.model.layers.basics import Projection as Projection
from keras_transformer.model.layers.decoder import DecoderLayer as DecoderLayer
from keras_transformer.model.layers.embedding import PositionalEmbedding as PositionalEmbedding
from keras_transformer.model.layers.embedding import sinusoids as sinusoids
from keras_transformer.model.layers.encoder import EncoderLayer as EncoderLayer
from keras_transformer.model.layers.feed_forward import FeedForward as FeedForward
from keras_transformer.model.layers.gated_feed_forward import GatedFeedForward as GatedFeedForward
from keras_transformer.model.layers.masks import causal_mask as causal_mask
from keras_transformer.model.layers.masks import padding_mask as padding_mask
from keras_transformer.model.layers.query_key_norm import QueryKeyNorm as QueryKeyNorm
from keras_transformer.model.layers.relative_attention import RelativeAttention as RelativeAttention
from keras_transformer.model.layers.residual import Residual as Residual
from keras_transformer.model.layers.rms_norm import RMSNormalization as RMSNormalization
from keras_transformer.model.layers.rotary_attention import RotaryAttention as RotaryAttention

__all__ = [
    "Attention",
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "FeedForward",
    "GatedFeedForward",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "Projection",
    "QueryKeyNorm",
    "RMSNormalization",
    "RelativeAttention",
    "Residual",
    "RotaryAttention",
    "causal_mask",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoids",
]
