"""The model of the paper, ready for `model.fit`: layers, loss, metrics, schedule and training step.

`Transformer` (section 3) is a Keras model. Its training loss is a mean over the target tokens of an update,
not over sentences or batches. Everything except the training step runs on any Keras backend.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "decoding": ("DecoderState", "ModelStep"),
        "keras_hub": ("layer_from_keras_hub", "layer_to_keras_hub"),
        "loss": ("LabelSmoothedCrossEntropy",),
        "metrics": ("Perplexity", "StepCounters", "TokenAccuracy"),
        "optimizer": ("Adam", "TransformerSchedule"),
        "transformer": ("Encoded", "Transformer", "TransformerOutput"),
    },
)
