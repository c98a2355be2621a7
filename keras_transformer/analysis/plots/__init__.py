"""Pictures; each function returns a matplotlib figure, readable in print and with any colour vision."""

from keras_transformer.analysis.plots.attention import attention_map
from keras_transformer.analysis.plots.complexity import cost_curves, fitted_exponent, path_curves
from keras_transformer.analysis.plots.corpus import length_histogram
from keras_transformer.analysis.plots.equations import (
    boolean_maps,
    position_heat_maps,
    schedule_curves,
    score_curves,
    smoothing_curves,
    wavelength_curves,
)
from keras_transformer.analysis.plots.fit import fit_curves
from keras_transformer.analysis.plots.heads import ablation_bars, attention_lines, head_grid, job_shares
from keras_transformer.analysis.plots.quality import crossing, quality_curves
from keras_transformer.analysis.plots.scaling import scaling_curves
from keras_transformer.analysis.plots.search import diversity_curves, search_curves
from keras_transformer.analysis.plots.speed import compared_bars, speed_bars
from keras_transformer.analysis.plots.training import training_curves

__all__ = [
    "ablation_bars",
    "attention_lines",
    "attention_map",
    "boolean_maps",
    "compared_bars",
    "cost_curves",
    "crossing",
    "diversity_curves",
    "fit_curves",
    "fitted_exponent",
    "head_grid",
    "job_shares",
    "length_histogram",
    "path_curves",
    "position_heat_maps",
    "scaling_curves",
    "quality_curves",
    "schedule_curves",
    "score_curves",
    "search_curves",
    "smoothing_curves",
    "speed_bars",
    "training_curves",
    "wavelength_curves",
]
