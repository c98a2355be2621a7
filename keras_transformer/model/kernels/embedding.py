"""The matrix that embeddings and output share (section 3.4)."""

from keras import ops

from keras_transformer.model.kernels.switch import kernel


@kernel
def copies(matrix, number):
    """A matrix for several uses, whose gradients are added up.

    Args:
        matrix: float, shape `(vocab_size, d_model)`.
        number: of uses; the gradient of the first is as large as the matrix, the others look up rows.

    Returns:
        List of tensors, all equal to `matrix`.
    """
    return [ops.copy(matrix) for _ in range(number)]


@copies.fast_form
def _copies(matrix, number):
    """Adds the rows of all lookups to the gradient of the first use in one pass.

    TensorFlow makes of every lookup a gradient as large as the matrix, and adds those.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def forward(matrix):
        def gradient(total, *others):
            for each in others:
                if not isinstance(each, tf.IndexedSlices):  # of a lookup that was not made, or in a loop
                    total += each
            slices = [each for each in others if isinstance(each, tf.IndexedSlices)]
            if not slices:
                return total
            ids = tf.concat([tf.reshape(each.indices, (-1,)) for each in slices], axis=0)
            rows = [tf.reshape(each.values, (-1, matrix.shape[-1])) for each in slices]
            return tf.tensor_scatter_nd_add(total, ids[:, None], tf.concat(rows, axis=0))

        return [tf.identity(matrix) for _ in range(number)], gradient

    return forward(tf.convert_to_tensor(matrix))
