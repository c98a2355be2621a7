from keras_transformer.analysis.complexity import best_seconds as best_seconds
from keras_transformer.analysis.complexity import convolutional as convolutional
from keras_transformer.analysis.complexity import products as products
from keras_transformer.analysis.complexity import reach as reach
from keras_transformer.analysis.complexity import recurrent as recurrent
from keras_transformer.analysis.complexity import restricted_self_attention as restricted_self_attention
from keras_transformer.analysis.complexity import self_attention as self_attention
from keras_transformer.analysis.heads import AttentionMaps as AttentionMaps
from keras_transformer.analysis.heads import AttentionMass as AttentionMass
from keras_transformer.analysis.heads import Head as Head
from keras_transformer.analysis.heads import all_heads as all_heads
from keras_transformer.analysis.heads import attention_maps as attention_maps
from keras_transformer.analysis.heads import attention_mass as attention_mass
from keras_transformer.analysis.heads import link_pattern as link_pattern
from keras_transformer.analysis.heads import offset_pattern as offset_pattern
from keras_transformer.analysis.heads import place_pattern as place_pattern
from keras_transformer.analysis.heads import relative_entropy as relative_entropy
from keras_transformer.analysis.heads import repeat_pattern as repeat_pattern
from keras_transformer.analysis.heads import sure_links as sure_links
from keras_transformer.analysis.heads import token_similarity as token_similarity
from keras_transformer.analysis.heads import without_heads as without_heads
from keras_transformer.analysis.trees import closings as closings
from keras_transformer.analysis.trees import opening_pattern as opening_pattern
from keras_transformer.analysis.trees import word_pattern as word_pattern

__all__ = [
    "AttentionMaps",
    "AttentionMass",
    "Head",
    "all_heads",
    "attention_maps",
    "attention_mass",
    "best_seconds",
    "closings",
    "convolutional",
    "link_pattern",
    "offset_pattern",
    "opening_pattern",
    "place_pattern",
    "products",
    "reach",
    "recurrent",
    "relative_entropy",
    "repeat_pattern",
    "restricted_self_attention",
    "self_attention",
    "sure_links",
    "token_similarity",
    "without_heads",
    "word_pattern",
]
