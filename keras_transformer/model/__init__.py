"""The paper's model, ready for `model.fit`: layers, loss, metrics, schedule and training step.

`Transformer` (section 3) is a Keras model that trains by target tokens, not by batches. All but the
training step runs on any Keras backend.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "decoding": ("DecoderState", "ModelStep"),
        "loss": ("LabelSmoothedCrossEntropy",),
        "metrics": ("Perplexity", "TokenAccuracy"),
        "optimizer": ("TransformerSchedule",),
        "transformer": ("Encoded", "Transformer", "TransformerOutput"),
    },
)
