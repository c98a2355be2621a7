"""Every setting of a model, its data, its training and its search: frozen dataclasses, standard library only.

`Config` holds one section per part; `preset(name)` gives the paper's models and smaller ones;
`override` applies `section.field=value` texts; `describe_settings` prints what each setting means.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "overrides": ("describe_settings",),
        "presets": (
            "PRESETS",
            "auto",
            "preset",
            "with_vocab_size",
        ),
        "settings": (
            "BEST_BY",
            "BYTES_IN_TRAINING",
            "CROSS_DEVICE_OPS",
            "CleaningConfig",
            "Config",
            "DataConfig",
            "DeviceConfig",
            "LENGTH_PENALTIES",
            "LONG_LINES",
            "MAX_BEAM_SIZE",
            "MODEL_TYPES",
            "ModelConfig",
            "PADDINGS",
            "POSITIONS",
            "PRECISIONS",
            "SHARING",
            "SMOOTHING_FORMULAS",
            "STOP_RULES",
            "STRATEGIES",
            "SearchConfig",
            "SpecialIds",
            "TrainingConfig",
            "differences",
            "from_dict",
            "from_json",
            "override",
            "replace",
            "to_json",
        ),
    },
)
