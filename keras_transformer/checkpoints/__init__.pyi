from keras_transformer.checkpoints.averaging import write_average as write_average
from keras_transformer.checkpoints.pretrained import pretrained_models as pretrained_models
from keras_transformer.checkpoints.run_folder import RunFolder as RunFolder

__all__ = [
    "RunFolder",
    "pretrained_models",
    "write_average",
]
