"""Adam whose update is one pass over memory."""

import keras
import tensorflow as tf

from keras_transformer.model.kernels.adam import adam_update


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Keras' own Adam (section 5.3), whose update of a weight is a kernel.

    Formula, settings, state and saved form are Keras'. AMSGrad and weights that are not float32 take
    Keras' way.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates one weight on one device."""
        if self.amsgrad or variable.dtype != tf.float32:
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        # Under a strategy `variable` is one replica's, and so must be the others.
        variables = map(_own, (variable, self._momentums[index], self._velocities[index]))
        adam_update(
            *variables,
            tf.convert_to_tensor(gradient, tf.float32),
            rate=tf.cast(learning_rate, tf.float32),
            step=tf.cast(self.iterations.value + 1, tf.float32),
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )


def _own(variable):
    """Returns the `tf.Variable` of this replica behind a variable of Keras or of a strategy."""
    return variable.value if isinstance(variable, keras.Variable) else variable
