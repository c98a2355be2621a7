"""Training by Keras' own step, on backends other than TensorFlow."""

import functools
import inspect
from typing import Any, cast

import keras

from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import TokenMean
from keras_transformer.model.optimizer import Adam

_HERE = "on a backend other than TensorFlow"


def _checked(method):
    """Wraps a method of `keras.Model` that trains: `class_weight` is refused, as on TensorFlow."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        arguments = signature.bind(self, *args, **kwargs).arguments
        if arguments.get("class_weight") is not None:
            raise ValueError("`class_weight` is not supported: give a `sample_weight` for each token")
        return method(self, *args, **kwargs)

    return run


class KerasStep:
    """Mix-in of `Transformer` in place of `TokenWeightedStep`.

    It refuses losses and metrics that Keras' step would compute over padding, too.
    """

    fit = _checked(keras.Model.fit)
    train_on_batch = _checked(keras.Model.train_on_batch)

    def compile(self, optimizer: Any = "adam", loss: Any = None, metrics: Any = None, **kwargs: Any) -> None:
        """Configures the model for `fit` and `evaluate`, like `keras.Model.compile`.

        Args:
            optimizer: a Keras optimizer or its name; `"adam"` is the Adam of this package.
            loss: a `LabelSmoothedCrossEntropy`; `None` is one with the smoothing of the paper, 0.1.
            metrics: list of token means, such as `TokenAccuracy()` and `Perplexity()`.
            **kwargs: see `keras.Model.compile`.

        Raises:
            ValueError: another loss or metric, or one with another `pad_id`.
        """
        pad_id = cast(Any, self).special.pad
        loss = LabelSmoothedCrossEntropy(pad_id=pad_id) if loss is None else loss
        if not isinstance(loss, LabelSmoothedCrossEntropy):
            raise ValueError(
                f"{_HERE}, `loss` must be a LabelSmoothedCrossEntropy: Keras would count padding. "
                f"Received: {loss!r}"
            )
        for metric in keras.tree.flatten([metrics, kwargs.get("weighted_metrics")]):
            if metric is not None and not isinstance(metric, TokenMean):
                raise ValueError(
                    f"{_HERE}, metrics must be TokenAccuracy, Perplexity or another TokenMean: Keras would "
                    f"count padding. Received: {metric!r}"
                )
        for item in (loss, *keras.tree.flatten(metrics or [])):
            if item.pad_id != pad_id:
                raise ValueError(f"{item.name!r} has pad_id={item.pad_id}, but the model {pad_id}")
        optimizer = Adam() if optimizer == "adam" else optimizer
        cast(Any, super()).compile(optimizer, loss, metrics=metrics, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        model = cast(Any, self)
        model.optimizer.build(model.trainable_variables)

    def run_layer(self, layer: Any, *inputs: Any, **arguments: Any) -> Any:
        """Calls a layer; only the TensorFlow version can recompute activations."""
        return layer(*inputs, **arguments)
