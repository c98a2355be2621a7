"""Kernels for the scores and the weights of scaled dot-product attention (equation 1)."""

from keras import ops

from keras_transformer.model.kernels.switch import kernel


@kernel
def scaled_scores(query, key, training=None):
    """Computes Q K^T / sqrt(d_k).

    Args:
        query: float, shape `(..., target_len, key_dim)`.
        key: float, shape `(..., source_len, key_dim)`.
        training: whether gradients are needed; the fast form then orders its operations differently.

    Returns:
        float32, shape `(..., target_len, source_len)`. Always float32, because a softmax in half precision
        does not sum to 1.
    """
    # Scales the query, not the product, which can exceed the largest float16, 65,504.
    scores = ops.matmul(query / key.shape[-1] ** 0.5, ops.swapaxes(key, -1, -2))
    return ops.cast(scores, "float32")


@scaled_scores.fast_form
def _scaled_scores(query, key, training=None):
    """Fast form of `scaled_scores`: neither the product nor its gradient copies a transposed array."""
    import tensorflow as tf

    scale = 1.0 / key.shape[-1] ** 0.5
    # Scaling the query is cheaper in training: it is smaller than the scores. Without a gradient, scaling the
    # scores is free: TensorFlow fuses product, scale and mask into one operation.
    scales_query = training or query.dtype == "float16"
    scores = tf.matmul(query * scale if scales_query else query, key, transpose_b=True)
    scores = ops.cast(scores, "float32")
    return scores if scales_query else scores * scale


@kernel
def masked_softmax(scores, mask=None, no_empty_rows=False):
    """Computes the softmax over the visible scores of each row; hidden keys get weight 0.

    A row without a visible key is all 0.

    Args:
        scores: float32, shape `(batch, num_heads, target_len, source_len)`.
        mask: bool, broadcastable to `(batch, target_len, source_len)`; True means visible. `None` makes all
            keys visible.
        no_empty_rows: the mask shows every query at least one key, so empty rows need no check.

    Returns:
        float32, same shape as `scores`.
    """
    if mask is None:
        return _softmax(scores)
    mask = ops.expand_dims(mask, 1)  # the same for all heads
    return ops.where(mask, _softmax(ops.where(mask, scores, -1e9)), 0.0)


@masked_softmax.fast_form
def _masked_softmax(scores, mask=None, no_empty_rows=False):
    """Fast form of `masked_softmax`: adds -1e9 to hidden scores, so their weights are exactly 0.

    Faster because the mask is smaller than the scores, and no second pass sets hidden weights to 0.
    """
    if mask is None:
        return _softmax(scores)
    mask = ops.expand_dims(mask, 1)
    # exp(-1e9 - largest score) underflows to exactly 0.
    weights = _softmax(scores + (ops.cast(mask, "float32") - 1.0) * 1e9)
    if not no_empty_rows:
        weights = weights * ops.cast(ops.any(mask, axis=-1, keepdims=True), "float32")
    return weights


def _softmax(scores):
    """Softmax over source positions; avoids Keras' warning if there is only one (first cached step)."""
    if scores.shape[-1] == 1:
        return ops.ones_like(scores)
    return ops.softmax(scores, axis=-1)
