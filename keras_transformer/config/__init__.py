"""All settings of model, data, training and search, as frozen dataclasses; standard library only.

Each setting is defined once, as `setting(default, meaning, range)` in `sections` or `training`. Range
checks, docstrings, `--help` and `--print-config` are generated from that definition. `Config` has one section
per part of a run.
`preset(name)` returns the paper's models and smaller ones; `override` applies `section.field=value` texts;
`describe_settings` lists all settings with their meanings.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cores": ("usable_cores",),
        "extras": ("MissingExtraError",),
        "fields": ("section", "setting"),
        "presets": ("PRESETS", "auto", "preset", "with_vocab_size"),
        "programs": (
            "NotFiniteError",
            "OutOfMemoryError",
            "StoppedError",
            "StorageError",
            "TrainingError",
            "WorkerLostError",
        ),
        "sections": ("CleaningConfig", "DataConfig", "ModelConfig", "SearchConfig"),
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
        "training": ("DeviceConfig", "TrainingConfig"),
    },
)
