"""Plots as matplotlib figures, readable in black-and-white print and with any colour vision."""

from keras_transformer import lazy_names
from keras_transformer.config.extras import needs

with needs("plots", "A plot"):
    import matplotlib  # noqa: F401 - here, because every module of this folder needs it

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "architecture": ("attention_diagrams", "model_diagram"),
        "attention": (
            "ablation_bars",
            "attention_lines",
            "attention_map",
            "head_grid",
            "attention_mass_bars",
        ),
        "equations": (
            "boolean_maps",
            "cost_curves",
            "fitted_exponent",
            "path_curves",
            "position_heat_maps",
            "schedule_curves",
            "score_curves",
            "similarity_curves",
            "smoothing_curves",
            "wavelength_curves",
        ),
        "runs": (
            "diversity_curves",
            "fit_curves",
            "length_histogram",
            "loss_and_similarity",
            "search_curves",
            "speed_bars",
            "training_curves",
        ),
        "trees": ("label_bars", "tree_diagrams"),
    },
)
