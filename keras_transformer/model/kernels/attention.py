"""Scores and weights of equation 1 (section 3.2.1)."""

from keras import ops

from keras_transformer.model.kernels.switch import kernel


@kernel
def scaled_scores(query, key, training=None):
    """Q K^T / sqrt(d_k).

    Args:
        query: float, shape `(..., target_len, key_dim)`.
        key: float, shape `(..., source_len, key_dim)`.
        training: whether there will be a gradient.

    Returns:
        float32 whatever the inputs, as the softmax of a half type loses mass; shape
        `(..., target_len, source_len)`.
    """
    # Scaled first: a product can exceed the largest float16, 65,504.
    scores = ops.matmul(query / key.shape[-1] ** 0.5, ops.swapaxes(key, -1, -2))
    return ops.cast(scores, "float32")


@scaled_scores.fast_form
def _scaled_scores(query, key, training=None):
    """Transposes nothing, nor does the gradient."""
    import tensorflow as tf

    scale = 1.0 / key.shape[-1] ** 0.5
    # Queries are smaller than scores. But without a gradient TensorFlow computes product, scale and mask as
    # one operation.
    scales_query = training or query.dtype == "float16"
    scores = tf.matmul(query * scale if scales_query else query, key, transpose_b=True)
    scores = ops.cast(scores, "float32")
    return scores if scales_query else scores * scale


@kernel
def masked_softmax(scores, mask=None, no_empty_rows=False):
    """Softmax of the visible scores of each row; 0 for hidden ones, and where a row shows nothing.

    Args:
        scores: float32, shape `(batch, num_heads, target_len, source_len)`.
        mask: bool, broadcastable to `(batch, target_len, source_len)`; True is visible, `None` shows all.
        no_empty_rows: every query attends to at least one key, so the check is skipped.

    Returns:
        float32, shape as `scores`.
    """
    if mask is None:
        return _softmax(scores)
    mask = ops.expand_dims(mask, 1)  # one mask for all heads
    return ops.where(mask, _softmax(ops.where(mask, scores, -1e9)), 0.0)


@masked_softmax.fast_form
def _masked_softmax(scores, mask=None, no_empty_rows=False):
    """Adds the mask, which is smaller than the scores, and is 0 for each hidden score by itself."""
    if mask is None:
        return _softmax(scores)
    mask = ops.expand_dims(mask, 1)
    # exp(-1e9) is exactly 0 beside any score that can occur.
    weights = _softmax(scores + (ops.cast(mask, "float32") - 1.0) * 1e9)
    if not no_empty_rows:
        weights = weights * ops.cast(ops.any(mask, axis=-1, keepdims=True), "float32")
    return weights


def _softmax(scores):
    """Softmax over source positions; Keras warns where there is one, at the first cached step."""
    if scores.shape[-1] == 1:
        return ops.ones_like(scores)
    return ops.softmax(scores, axis=-1)
