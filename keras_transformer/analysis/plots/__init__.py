"""Pictures; each function returns a matplotlib figure, readable in print and with any colour vision."""

from keras_transformer.analysis.plots.attention import (
    ablation_bars,
    attention_lines,
    attention_map,
    head_grid,
    job_shares,
)
from keras_transformer.analysis.plots.complexity import cost_curves, fitted_exponent, path_curves
from keras_transformer.analysis.plots.equations import (
    boolean_maps,
    position_heat_maps,
    schedule_curves,
    score_curves,
    smoothing_curves,
    wavelength_curves,
)
from keras_transformer.analysis.plots.search import diversity_curves, search_curves, speed_bars
from keras_transformer.analysis.plots.training import fit_curves, length_histogram, training_curves

__all__ = [
    "ablation_bars",
    "attention_lines",
    "attention_map",
    "boolean_maps",
    "cost_curves",
    "diversity_curves",
    "fit_curves",
    "fitted_exponent",
    "head_grid",
    "job_shares",
    "length_histogram",
    "path_curves",
    "position_heat_maps",
    "schedule_curves",
    "score_curves",
    "search_curves",
    "smoothing_curves",
    "speed_bars",
    "training_curves",
    "wavelength_curves",
]
