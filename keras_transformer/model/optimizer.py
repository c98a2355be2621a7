"""Adam whose update is one pass over memory."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Keras' own Adam (section 5.3), with TensorFlow's operation for the whole update of a weight.

    Formula, settings, state and saved form are Keras':
    weight -= rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * momentum / (sqrt(velocity) + epsilon).
    Keras takes some ten operations for it, each of which reads and writes all of a weight.
    AMSGrad and weights that are not float32 take Keras' way.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates one weight on one device."""
        if self.amsgrad or variable.dtype != tf.float32:
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        # Under a strategy `variable` is one replica's, and so must be the others.
        weight, momentum, velocity = map(_own, (variable, self._momentums[index], self._velocities[index]))
        step = tf.cast(self.iterations.value + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=momentum.handle,
            v=velocity.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=tf.cast(learning_rate, tf.float32),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.convert_to_tensor(gradient, tf.float32),
        )


def _own(variable):
    """Returns the `tf.Variable` of this replica behind a variable of Keras or of a strategy."""
    return variable.value if isinstance(variable, keras.Variable) else variable
