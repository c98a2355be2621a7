"""Label-smoothed cross-entropy of every token (section 5.4), from logits or from what is projected to them.

A vocabulary of 32,000 makes logits, and their gradient, the largest arrays of a training step.
"""

from keras import ops

from keras_transformer.model.kernels.switch import kernel
from keras_transformer.model.kernels.tensor_ops import take_along


@kernel
def token_losses(labels, logits, p_label, p_other):
    """Cross-entropy of each token with a target that gives `p_label` to the label, `p_other` to each other.

    Args:
        labels: int32, shape `(tokens,)`.
        logits: float32, shape `(tokens, vocab_size)`.
        p_label: float; with those of all others it sums to 1.
        p_other: float.

    Returns:
        Three float32 arrays, shape `(tokens,)`: that cross-entropy; the one without smoothing,
        -log p(label); and 1 where the label has the largest logit. The gradient is wanted of
        the first only.
    """
    log_total = ops.logsumexp(logits, axis=-1)
    label_logit = take_along(logits, labels[:, None])[:, 0]
    loss = log_total - (p_label - p_other) * label_logit - p_other * ops.sum(logits, axis=-1)
    correct = ops.cast(label_logit >= ops.max(logits, axis=-1), "float32")
    return loss, log_total - label_logit, correct


@token_losses.fast_form
def _token_losses(labels, logits, p_label, p_other):
    """Writes down the gradient, softmax - target: one array as large as the logits, not four."""
    import tensorflow as tf

    @tf.custom_gradient
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
    """`token_losses` of the logits that hidden vectors have.

    Args:
        labels: int32, shape `(tokens,)`.
        hidden: float32 or bfloat16, shape `(tokens, d_model)`; the product is computed in its type, all
            else in float32.
        matrix: float32, shape `(vocab_size, d_model)`.
        bias: float32, shape `(vocab_size,)`, or `None`.
        p_label: as `token_losses` takes it.
        p_other: the same.
        transposed: `matrix` has shape `(d_model, vocab_size)`.

    Returns:
        As `token_losses`.
    """
    matrix = ops.cast(matrix, hidden.dtype)
    logits = ops.matmul(hidden, matrix if transposed else ops.transpose(matrix))
    logits = ops.cast(logits, "float32")
    return token_losses.plain(labels, logits if bias is None else logits + bias, p_label, p_other)


@projected_losses.fast_form
def _projected_losses(labels, hidden, matrix, bias, p_label, p_other, *, transposed=False):
    """Makes no gradient of the logits.

    With P the softmax of the logits H E^T, u the gradient from above of every token's loss, and v and w what
    the target gives to the label and to each other token, let Q be P less v - w at the labels. The gradients

        of H: u (Q E - w 1 E)    and    of E: (Q - w 1)^T (u H)

    multiply or change nothing as large as P, which the forward pass made, by w or u.
    """
    import tensorflow as tf

    rest = p_label - p_other
    vocab_size = matrix.shape[1 if transposed else 0]
    has_bias = bias is not None

    @tf.custom_gradient
    def forward(hidden, matrix, bias):
        cast_matrix = tf.cast(matrix, hidden.dtype)
        logits = tf.cast(tf.matmul(hidden, cast_matrix, transpose_b=not transposed), tf.float32)
        if has_bias:
            logits = tf.nn.bias_add(logits, bias)
        label_logit = tf.gather(logits, labels, batch_dims=1)
        largest = tf.reduce_max(logits, axis=-1)
        total_logits = 0.0
        if p_other:
            # The sum of a row of logits is its hidden vector times the sum of all embeddings.
            ones = tf.ones(vocab_size)
            matrix_sum = tf.linalg.matvec(matrix, ones, transpose_a=not transposed)
            total_logits = tf.linalg.matvec(tf.cast(hidden, tf.float32), matrix_sum)
            total_logits += tf.reduce_sum(bias) if has_bias else 0.0
        probabilities = tf.nn.softmax(logits)
        # The largest probability, unlike that of the label, is never too small for its logarithm.
        log_total = largest - tf.math.log(tf.reduce_max(probabilities, axis=-1))
        loss = log_total - rest * label_logit - p_other * total_logits
        correct = tf.cast(label_logit >= largest, tf.float32)

        def gradient(upstream, *_):
            products = tf.cast(probabilities, hidden.dtype)
            # Taken off the results, the label spares a copy of the probabilities. Not where those are
            # rounded: of a token that is nearly certain little is left, and all of it counts.
            late = hidden.dtype == tf.float32 and not transposed
            if not late:
                at_labels = tf.stack([tf.range(tf.size(labels)), labels], axis=-1)
                left = tf.gather(probabilities, labels, batch_dims=1) - rest
                products = tf.tensor_scatter_nd_update(products, at_labels, tf.cast(left, hidden.dtype))

            grad_hidden = tf.cast(tf.matmul(products, cast_matrix, transpose_b=transposed), tf.float32)
            scaled = upstream[:, None] * tf.cast(hidden, tf.float32)
            factor = tf.cast(scaled, hidden.dtype)
            operands = (factor, products) if transposed else (products, factor)
            grad_matrix = tf.cast(tf.matmul(*operands, transpose_a=True), tf.float32)
            grad_bias = None
            if has_bias:
                grad_bias = tf.linalg.matvec(tf.cast(products, tf.float32), upstream, transpose_a=True)
            if p_other:
                grad_hidden -= p_other * matrix_sum
                everywhere = p_other * tf.reduce_sum(scaled, axis=0)
                grad_matrix -= everywhere[:, None] if transposed else everywhere
                if has_bias:
                    grad_bias -= p_other * tf.reduce_sum(upstream)
            if late:
                rows = labels[:, None]
                grad_hidden -= rest * tf.gather(matrix, labels)
                grad_matrix = tf.tensor_scatter_nd_sub(grad_matrix, rows, rest * scaled)
                if has_bias:
                    grad_bias = tf.tensor_scatter_nd_sub(grad_bias, rows, rest * upstream)
            grad_hidden *= upstream[:, None]
            return tf.cast(grad_hidden, hidden.dtype), grad_matrix, grad_bias

        return (loss, log_total - label_logit, correct), gradient

    bias = tf.convert_to_tensor(bias) if has_bias else tf.zeros(())
    return forward(hidden, tf.convert_to_tensor(matrix), bias)
