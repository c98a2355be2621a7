"""Pictures; each function returns a matplotlib figure, readable in print and with any colour vision."""

from keras_transformer.plotting.attention import attention_map
from keras_transformer.plotting.corpus import length_histogram
from keras_transformer.plotting.training import training_curves

__all__ = ["attention_map", "length_histogram", "training_curves"]
