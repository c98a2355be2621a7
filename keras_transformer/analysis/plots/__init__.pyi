from keras_transformer.analysis.plots.architecture import attention_diagrams as attention_diagrams
from keras_transformer.analysis.plots.architecture import model_diagram as model_diagram
from keras_transformer.analysis.plots.attention import ablation_bars as ablation_bars
from keras_transformer.analysis.plots.attention import attention_lines as attention_lines
from keras_transformer.analysis.plots.attention import attention_map as attention_map
from keras_transformer.analysis.plots.attention import attention_mass_bars as attention_mass_bars
from keras_transformer.analysis.plots.attention import head_grid as head_grid
from keras_transformer.analysis.plots.equations import boolean_maps as boolean_maps
from keras_transformer.analysis.plots.equations import cost_curves as cost_curves
from keras_transformer.analysis.plots.equations import fitted_exponent as fitted_exponent
from keras_transformer.analysis.plots.equations import path_curves as path_curves
from keras_transformer.analysis.plots.equations import position_heat_maps as position_heat_maps
from keras_transformer.analysis.plots.equations import schedule_curves as schedule_curves
from keras_transformer.analysis.plots.equations import score_curves as score_curves
from keras_transformer.analysis.plots.equations import similarity_curves as similarity_curves
from keras_transformer.analysis.plots.equations import smoothing_curves as smoothing_curves
from keras_transformer.analysis.plots.equations import wavelength_curves as wavelength_curves
from keras_transformer.analysis.plots.runs import diversity_curves as diversity_curves
from keras_transformer.analysis.plots.runs import fit_curves as fit_curves
from keras_transformer.analysis.plots.runs import length_histogram as length_histogram
from keras_transformer.analysis.plots.runs import loss_and_similarity as loss_and_similarity
from keras_transformer.analysis.plots.runs import search_curves as search_curves
from keras_transformer.analysis.plots.runs import speed_bars as speed_bars
from keras_transformer.analysis.plots.runs import training_curves as training_curves
from keras_transformer.analysis.plots.trees import label_bars as label_bars
from keras_transformer.analysis.plots.trees import tree_diagrams as tree_diagrams

__all__ = [
    "ablation_bars",
    "attention_diagrams",
    "attention_lines",
    "attention_map",
    "attention_mass_bars",
    "boolean_maps",
    "cost_curves",
    "diversity_curves",
    "fit_curves",
    "fitted_exponent",
    "head_grid",
    "label_bars",
    "length_histogram",
    "loss_and_similarity",
    "model_diagram",
    "path_curves",
    "position_heat_maps",
    "schedule_curves",
    "score_curves",
    "search_curves",
    "similarity_curves",
    "smoothing_curves",
    "speed_bars",
    "training_curves",
    "tree_diagrams",
    "wavelength_curves",
]
