from keras_transformer.export.ctranslate2 import CTranslate2Translator as CTranslate2Translator
from keras_transformer.export.ctranslate2 import export_ctranslate2 as export_ctranslate2
from keras_transformer.export.engines import EngineChoice as EngineChoice
from keras_transformer.export.engines import choose_engine as choose_engine
from keras_transformer.export.engines import load_translator as load_translator
from keras_transformer.export.keras_files import export_keras as export_keras
from keras_transformer.export.keras_files import load_keras as load_keras
from keras_transformer.export.saved_model import Exported as Exported
from keras_transformer.export.saved_model import export_saved_model as export_saved_model
from keras_transformer.export.serving import ServingSettings as ServingSettings
from keras_transformer.export.serving import curl_command as curl_command
from keras_transformer.export.serving import docker_command as docker_command
from keras_transformer.export.versions import load_exported as load_exported

__all__ = [
    "CTranslate2Translator",
    "EngineChoice",
    "Exported",
    "ServingSettings",
    "choose_engine",
    "curl_command",
    "docker_command",
    "export_ctranslate2",
    "export_keras",
    "export_saved_model",
    "load_exported",
    "load_keras",
    "load_translator",
]
