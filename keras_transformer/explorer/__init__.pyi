from keras_transformer.explorer.checks import InvalidRequestError as InvalidRequestError
from keras_transformer.explorer.explorer import Explorer as Explorer
from keras_transformer.explorer.page import Exploration as Exploration
from keras_transformer.explorer.page import explore as explore
from keras_transformer.explorer.page import standalone_page as standalone_page

__all__ = [
    "Exploration",
    "Explorer",
    "InvalidRequestError",
    "explore",
    "standalone_page",
]
