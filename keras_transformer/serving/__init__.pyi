from keras_transformer.serving.app import Server as Server
from keras_transformer.serving.app import create_app as create_app
from keras_transformer.serving.errors import NotFoundError as NotFoundError
from keras_transformer.serving.errors import RequestError as RequestError
from keras_transformer.serving.errors import UnavailableError as UnavailableError
from keras_transformer.serving.models import Models as Models
from keras_transformer.serving.models import named_paths as named_paths
from keras_transformer.serving.settings import ServerConfig as ServerConfig

__all__ = [
    "Models",
    "NotFoundError",
    "RequestError",
    "Server",
    "ServerConfig",
    "UnavailableError",
    "create_app",
    "named_paths",
]
