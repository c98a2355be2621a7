"""Every setting of a model, its data, its training and its search: frozen dataclasses, standard library only.

Each setting is said once, as `setting(default, meaning, range)` in `sections`: checks,
docstrings and lists are made from that line. `Config` holds one section per part; `preset(name)` gives the
paper's models and smaller ones; `override` applies `section.field=value` texts; `describe_settings` lists
all settings with their meanings.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fields": ("section", "setting"),
        "presets": ("PRESETS", "auto", "preset", "with_vocab_size"),
        "sections": (
            "CleaningConfig",
            "DataConfig",
            "DeviceConfig",
            "ModelConfig",
            "SearchConfig",
            "TrainingConfig",
        ),
        "settings": (
            "Config",
            "SpecialIds",
            "describe_settings",
            "differences",
            "from_dict",
            "from_json",
            "override",
            "replace",
            "to_json",
        ),
    },
)
