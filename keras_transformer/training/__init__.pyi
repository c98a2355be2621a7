from keras_transformer.training.devices import mirrored as mirrored
from keras_transformer.training.fit import compile_model as compile_model
from keras_transformer.training.run import Result as Result
from keras_transformer.training.run import train as train

__all__ = [
    "Result",
    "compile_model",
    "mirrored",
    "train",
]
