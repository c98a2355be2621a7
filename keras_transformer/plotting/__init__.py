"""Pictures; each function returns a matplotlib figure, readable in print and with any colour vision."""

from keras_transformer.plotting.attention import attention_map
from keras_transformer.plotting.complexity import cost_curves, fitted_exponent, path_curves
from keras_transformer.plotting.corpus import length_histogram
from keras_transformer.plotting.equations import (
    boolean_maps,
    position_heat_maps,
    schedule_curves,
    score_curves,
    smoothing_curves,
    wavelength_curves,
)
from keras_transformer.plotting.training import training_curves

__all__ = [
    "attention_map",
    "boolean_maps",
    "cost_curves",
    "fitted_exponent",
    "length_histogram",
    "path_curves",
    "position_heat_maps",
    "schedule_curves",
    "score_curves",
    "smoothing_curves",
    "training_curves",
    "wavelength_curves",
]
