"""Exports trained models: SavedModel for TensorFlow Serving, CTranslate2, Keras files."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "saved_model": ("export_saved_model",),
        "versions": ("load_exported",),
    },
)
