from keras_transformer.config.cores import usable_cores as usable_cores
from keras_transformer.config.extras import MissingExtraError as MissingExtraError
from keras_transformer.config.fields import section as section
from keras_transformer.config.fields import setting as setting
from keras_transformer.config.presets import PRESETS as PRESETS
from keras_transformer.config.presets import auto as auto
from keras_transformer.config.presets import preset as preset
from keras_transformer.config.presets import with_vocab_size as with_vocab_size
from keras_transformer.config.programs import NotFiniteError as NotFiniteError
from keras_transformer.config.programs import OutOfMemoryError as OutOfMemoryError
from keras_transformer.config.programs import StoppedError as StoppedError
from keras_transformer.config.programs import StorageError as StorageError
from keras_transformer.config.programs import TrainingError as TrainingError
from keras_transformer.config.programs import WorkerLostError as WorkerLostError
from keras_transformer.config.sections import CleaningConfig as CleaningConfig
from keras_transformer.config.sections import DataConfig as DataConfig
from keras_transformer.config.sections import ModelConfig as ModelConfig
from keras_transformer.config.sections import SearchConfig as SearchConfig
from keras_transformer.config.settings import Config as Config
from keras_transformer.config.settings import SpecialIds as SpecialIds
from keras_transformer.config.settings import describe_settings as describe_settings
from keras_transformer.config.settings import differences as differences
from keras_transformer.config.settings import from_dict as from_dict
from keras_transformer.config.settings import from_json as from_json
from keras_transformer.config.settings import override as override
from keras_transformer.config.settings import replace as replace
from keras_transformer.config.settings import to_json as to_json
from keras_transformer.config.training import DeviceConfig as DeviceConfig
from keras_transformer.config.training import TrainingConfig as TrainingConfig

__all__ = [
    "CleaningConfig",
    "Config",
    "DataConfig",
    "DeviceConfig",
    "MissingExtraError",
    "ModelConfig",
    "NotFiniteError",
    "OutOfMemoryError",
    "PRESETS",
    "SearchConfig",
    "SpecialIds",
    "StoppedError",
    "StorageError",
    "TrainingConfig",
    "TrainingError",
    "WorkerLostError",
    "auto",
    "describe_settings",
    "differences",
    "from_dict",
    "from_json",
    "override",
    "preset",
    "replace",
    "section",
    "setting",
    "to_json",
    "usable_cores",
    "with_vocab_size",
]
