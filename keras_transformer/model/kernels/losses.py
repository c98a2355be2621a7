"""Kernels for the label-smoothed cross-entropy of every token (section 5.4).

`token_losses` starts from logits; `projected_losses` fuses the output projection and the loss. With a
vocabulary of 32,000, the logits and their gradient are the largest arrays of a training step, so the fast
forms make as few arrays of that size as possible.
"""

import itertools

from keras import ops

from keras_transformer.model.kernels.products import weight_gradient
from keras_transformer.model.kernels.switch import custom_gradient, kernel
from keras_transformer.model.kernels.tensor_ops import add_to_rows, on_cpu, owned, set_rows, take_along

# On a CPU, the probabilities of a batch are computed in one part of its tokens after the other. Smaller parts
# stay in the cache; each adds some 25 operations to the graph, which need memory, too.
_MIN_PARTS, _MAX_PARTS, _ENTRIES_PER_PART = 4, 32, 1000


@kernel
def token_losses(labels, logits, p_label, p_other):
    """Computes the label-smoothed cross-entropy of each token, from logits.

    The target distribution is `p_label` for the label and `p_other` for each other token of the vocabulary.

    Args:
        labels: int32, shape `(tokens,)`.
        logits: float32, shape `(tokens, vocab_size)`.
        p_label: float; `p_label + (vocab_size - 1) * p_other` must be 1.
        p_other: float.

    Returns:
        Three float32 arrays, shape `(tokens,)`: the smoothed cross-entropy; the cross-entropy without
        smoothing, -log p(label); and 1 where the label has the largest logit, else 0. Only the first one has
        a gradient in the fast form.
    """
    log_total = ops.logsumexp(logits, axis=-1)
    label_logit = take_along(logits, labels[:, None])[:, 0]
    loss = log_total - (p_label - p_other) * label_logit - p_other * ops.sum(logits, axis=-1)
    correct = ops.cast(label_logit >= ops.max(logits, axis=-1), "float32")
    return loss, log_total - label_logit, correct


@token_losses.fast_form
def _token_losses(labels, logits, p_label, p_other):
    """Fast form of `token_losses`, with a hand-written gradient, softmax - target.

    Faster because the gradient makes one array as large as the logits, not four.
    """
    import tensorflow as tf

    @custom_gradient
    def forward(logits):
        largest = ops.max(logits, axis=-1)
        exponentials = ops.exp(logits - largest[:, None])
        total = ops.sum(exponentials, axis=-1)
        log_total = largest + ops.log(total)
        label_logit = tf.gather(logits, labels, batch_dims=1)
        loss = log_total - (p_label - p_other) * label_logit
        if p_other:
            loss = loss - p_other * ops.sum(logits, axis=-1)
        correct = ops.cast(label_logit >= largest, "float32")

        def gradient(upstream, *_):
            grad_logits = exponentials * (upstream / total)[:, None]
            if p_other:
                grad_logits = grad_logits - (p_other * upstream)[:, None]
            at_labels = tf.stack([tf.range(tf.size(labels)), labels], axis=-1)
            return tf.tensor_scatter_nd_add(grad_logits, at_labels, -(p_label - p_other) * upstream)

        return (loss, log_total - label_logit, correct), gradient

    return forward(logits)


@kernel
def projected_losses(labels, hidden, matrix, bias, p_label, p_other, *, transposed=False):
    """Output projection followed by `token_losses`: logits = hidden @ matrix.T + bias.

    Args:
        labels: int32, shape `(tokens,)`.
        hidden: float32 or bfloat16, shape `(tokens, d_model)`. The product is computed in this dtype, all
            else in float32.
        matrix: float32, shape `(vocab_size, d_model)`.
        bias: float32, shape `(vocab_size,)`, or `None`.
        p_label: see `token_losses`.
        p_other: see `token_losses`.
        transposed: `matrix` has the shape `(d_model, vocab_size)` instead.

    Returns:
        See `token_losses`.
    """
    matrix = ops.cast(matrix, hidden.dtype)
    logits = ops.matmul(hidden, matrix if transposed else ops.transpose(matrix))
    logits = ops.cast(logits, "float32")
    return token_losses.plain(labels, logits if bias is None else logits + bias, p_label, p_other)


@projected_losses.fast_form
def _projected_losses(labels, hidden, matrix, bias, p_label, p_other, *, transposed=False):
    """Fast form of `projected_losses`, with a hand-written gradient that reuses the probabilities.

    Let H be the hidden vectors, E the matrix, p = softmax(H E^T) and q the target distribution, each with one
    row per token; u is the upstream gradient of each token's loss. The gradient of the logits is u (p - q).
    Faster because it is never written to memory as an array as large as p. With r = p, except that
    p_label - p_other is subtracted at the labels, p - q = r - p_other at every token of the vocabulary, so

        gradient of H: u (r E - p_other * sum of the rows of E)
        gradient of E: r^T (u H) - p_other * sum of the rows of u H, at every row

    So only arrays of the size of H or E are multiplied by u and p_other.

    Example: one token, a vocabulary of 3, the label 0 and smoothing 0.1, so p_label = 0.9, p_other = 0.05.

        logits     ( 2,      1,      0    )
        p          ( 0.665,  0.245,  0.090)
        q          ( 0.9,    0.05,   0.05 )    loss = -sum(q * log(p)) = 0.558
        p - q      (-0.235,  0.195,  0.040)    sums to 0; only the label's logit must grow
        r          (-0.185,  0.245,  0.090)    p minus 0.85 at the label; r - 0.05 = p - q
    """
    import tensorflow as tf

    gap = p_label - p_other
    vocab_size = matrix.shape[1 if transposed else 0]
    has_bias = bias is not None

    @custom_gradient
    def forward(hidden, matrix, bias):
        cast_matrix = tf.cast(matrix, hidden.dtype)
        logits = tf.matmul(hidden, cast_matrix, transpose_b=not transposed)
        # In float32, r stays p, and the term of the labels is subtracted from the results, which costs less.
        # In bfloat16, p of a nearly certain token rounds to 1, so p - gap is computed before rounding.
        labels_last = hidden.dtype == tf.float32 and not transposed
        r, log_total, largest, label_logit = _probabilities_in_place(
            logits, labels, bias if has_bias else None, 0.0 if labels_last else gap
        )
        total_logits = 0.0
        if p_other:
            # The sum of a token's logits is its hidden vector times the sum of the rows of the matrix.
            ones = tf.ones(vocab_size)
            matrix_sum = tf.linalg.matvec(matrix, ones, transpose_a=not transposed)
            total_logits = tf.linalg.matvec(tf.cast(hidden, tf.float32), matrix_sum)
            total_logits += tf.reduce_sum(bias) if has_bias else 0.0
        loss = log_total - gap * label_logit - p_other * total_logits
        correct = tf.cast(label_logit >= largest, tf.float32)

        def gradient(upstream, *_):
            grad_hidden = tf.cast(tf.matmul(r, cast_matrix, transpose_b=transposed), tf.float32)
            scaled_hidden = upstream[:, None] * tf.cast(hidden, tf.float32)
            factor = tf.cast(scaled_hidden, hidden.dtype)
            operands = (factor, r) if transposed else (r, factor)
            grad_matrix = tf.cast(weight_gradient(*operands, matrix.shape), tf.float32)
            grad_bias = None
            if has_bias:
                grad_bias = tf.linalg.matvec(tf.cast(r, tf.float32), upstream, transpose_a=True)
            if p_other:
                grad_hidden -= p_other * matrix_sum
                smoothing_term = p_other * tf.reduce_sum(scaled_hidden, axis=0)
                grad_matrix -= smoothing_term[:, None] if transposed else smoothing_term
                if has_bias:
                    grad_bias -= p_other * tf.reduce_sum(upstream)
            if labels_last:
                grad_hidden -= gap * tf.gather(matrix, labels)
                grad_matrix = add_to_rows(grad_matrix, labels, -gap * scaled_hidden)
                if has_bias:
                    grad_bias = tf.tensor_scatter_nd_sub(grad_bias, labels[:, None], gap * upstream)
            grad_hidden *= upstream[:, None]
            return tf.cast(grad_hidden, hidden.dtype), grad_matrix, grad_bias

        return (loss, log_total - label_logit, correct), gradient

    bias = tf.convert_to_tensor(bias) if has_bias else tf.zeros(())
    return forward(hidden, tf.convert_to_tensor(matrix), bias)


def _probabilities_in_place(logits, labels, bias, label_gap):
    """Computes softmax(logits + bias), on a CPU in the memory of the logits.

    There, some rows at a time, so that no second array of that size is needed and the rows stay in the cache.

    Args:
        logits: float32, bfloat16 or float16, shape `(tokens, vocab_size)`.
        labels: int32, shape `(tokens,)`.
        bias: float32, shape `(vocab_size,)`, or `None`.
        label_gap: float, subtracted from the probability of the label before rounding.

    Returns:
        The probabilities, in the dtype of the logits; and three float32 arrays, shape `(tokens,)`: the log of
        the sum of the exponentials of the logits, the largest logit, the logit of the label.
    """
    import tensorflow as tf

    labels, vocab_size = tf.convert_to_tensor(labels), logits.shape[1]
    num_parts = min(max(vocab_size // _ENTRIES_PER_PART, _MIN_PARTS), _MAX_PARTS) if on_cpu() else 1
    bounds = tf.unstack(tf.size(labels) * tf.range(num_parts + 1) // num_parts)
    logits, columns = owned(logits) if on_cpu() else logits, []
    # Unrolled: `owned` protects no memory that `tf.while_loop` writes to.
    for begin, end in itertools.pairwise(bounds):
        part = tf.cast(tf.slice(logits, (begin, 0), (end - begin, vocab_size)), tf.float32)
        if bias is not None:
            part = tf.nn.bias_add(part, bias)
        part_labels = labels[begin:end]
        largest, label_logit = tf.reduce_max(part, axis=-1), tf.gather(part, part_labels, batch_dims=1)
        probabilities = tf.nn.softmax(part)
        # log(sum(exp(logits))) from the largest probability: unlike the label's, it never underflows to 0.
        log_total = largest - tf.math.log(tf.reduce_max(probabilities, axis=-1))
        of_labels = tf.gather(probabilities, part_labels, batch_dims=1) - label_gap
        columns.append((log_total, largest, label_logit))
        # What reads `part` or `probabilities` comes first: they may share the memory that is written now.
        with tf.control_dependencies([*columns[-1], of_labels]):
            if label_gap:  # before the cast: for GPUs, TensorFlow has no such operation in bfloat16
                probabilities = _set_columns(probabilities, part_labels, of_labels)
            probabilities = tf.cast(probabilities, logits.dtype)
            logits = set_rows(logits, tf.range(begin, end), probabilities) if on_cpu() else probabilities
    return logits, *(tf.concat(column, axis=0) for column in zip(*columns, strict=True))


def _set_columns(matrix, columns, values):
    """Sets element `columns[i]` of each row i of a matrix that nothing else uses, on a CPU in place."""
    import tensorflow as tf

    rows = tf.range(tf.size(columns))
    if not on_cpu():
        return tf.tensor_scatter_nd_update(matrix, tf.stack([rows, columns], axis=-1), values)
    flat = set_rows(tf.reshape(matrix, (-1, 1)), rows * matrix.shape[1] + columns, values[:, None])
    return tf.reshape(flat, tf.shape(matrix))
