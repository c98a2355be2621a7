"""Exports trained models: SavedModel for TensorFlow Serving, CTranslate2, Keras files."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ctranslate2": ("CTranslate2Translator", "export_ctranslate2"),
        "engines": ("EngineChoice", "choose_engine", "load_translator"),
        "keras_files": ("export_keras", "load_keras"),
        "saved_model": ("Exported", "export_saved_model"),
        "serving": ("ServingSettings", "curl_command", "docker_command"),
        "versions": ("load_exported",),
    },
)
