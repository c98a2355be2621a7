"""The optimizer Adam and the learning rate schedule (section 5.3)."""

from typing import Any

import keras
from keras import ops

from keras_transformer.config.types import Tensor
from keras_transformer.model.kernels.basics import adam_update

PACKAGE = "keras_transformer"


@keras.saving.register_keras_serializable(package=PACKAGE)
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (equation 3).

    In the equation the first step is 1, in Keras it is 0: `schedule(0)` is the rate of the first update.

    Args:
        d_model: width of the model.
        warmup_steps: number of updates with a rising rate; the rate is largest at this step.
        scale: factor on the rate (1 in the paper).
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, *, scale: float = 1.0) -> None:
        super().__init__()
        for name, value in (("d_model", d_model), ("warmup_steps", warmup_steps)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        if not scale > 0:
            raise ValueError(f"`scale` must be above 0. Received: scale={scale}")
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)
        return self.scale * self.d_model**-0.5 * rate

    def get_config(self) -> dict[str, Any]:
        return {"d_model": self.d_model, "warmup_steps": self.warmup_steps, "scale": self.scale}


@keras.saving.register_keras_serializable(package=PACKAGE)
class Adam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` with a faster weight update: one pass over memory (TensorFlow).

    Formula, settings, state and saved format are those of Keras. Keras' own update is used for AMSGrad, for
    weights that are not float32, for sparse gradients and on other backends.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates one weight on one device; see `keras.optimizers.Optimizer`."""
        other_type = keras.backend.standardize_dtype(variable.dtype) != "float32"
        other_backend = keras.backend.backend() != "tensorflow"
        if other_backend or self.amsgrad or other_type or hasattr(gradient, "indices"):
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        # Under a strategy `variable` is that of one replica, and the others must be of the same replica.
        variables = (
            state.value if isinstance(state, keras.Variable) else state
            for state in (variable, self._momentums[index], self._velocities[index])
        )
        adam_update(
            *variables,
            ops.cast(gradient, "float32"),
            rate=ops.cast(learning_rate, "float32"),
            step=ops.cast(self.iterations.value + 1, "float32"),
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )
