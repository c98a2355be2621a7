from keras_transformer.model.decoding import DecoderState as DecoderState
from keras_transformer.model.decoding import ModelStep as ModelStep
from keras_transformer.model.keras_hub import layer_from_keras_hub as layer_from_keras_hub
from keras_transformer.model.keras_hub import layer_to_keras_hub as layer_to_keras_hub
from keras_transformer.model.loss import LabelSmoothedCrossEntropy as LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity as Perplexity
from keras_transformer.model.metrics import StepCounters as StepCounters
from keras_transformer.model.metrics import TokenAccuracy as TokenAccuracy
from keras_transformer.model.optimizer import Adam as Adam
from keras_transformer.model.optimizer import TransformerSchedule as TransformerSchedule
from keras_transformer.model.transformer import Encoded as Encoded
from keras_transformer.model.transformer import Transformer as Transformer
from keras_transformer.model.transformer import TransformerOutput as TransformerOutput

__all__ = [
    "Adam",
    "DecoderState",
    "Encoded",
    "LabelSmoothedCrossEntropy",
    "ModelStep",
    "Perplexity",
    "StepCounters",
    "TokenAccuracy",
    "Transformer",
    "TransformerOutput",
    "TransformerSchedule",
    "layer_from_keras_hub",
    "layer_to_keras_hub",
]
