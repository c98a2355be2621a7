"""The loss of section 5.4 straight from what the decoder gives, without a gradient of the logits.

A vocabulary of 32,000 makes logits, and their gradient, the largest arrays of a training step.
With P the softmax of the logits H E^T, u the gradient from above of every token's loss, and the wanted
distribution w on all tokens but v on the label (v = 1 - e, w = e / (V - 1) for `"t2t"`), let Q be P less
v - w at the labels. Then the gradients are

    of H: u (Q E - w 1 E)    and    of E: (Q - w 1)^T (u H)

so neither w nor u ever multiplies or changes anything as large as P, which the forward pass made.
"""

import tensorflow as tf

from keras_transformer.model.loss import TokenStatistics, wanted_probabilities


def projected_statistics(
    labels, hidden, matrix, bias=None, *, transposed=False, label_smoothing=0.0, formula="t2t", pad_id=0
):
    """Does what `token_statistics` does to the logits that `hidden` projected by `matrix` would give.

    Args:
        labels: int, shape `(batch, length)`.
        hidden: float32 or bfloat16, shape `(batch, length, d_model)`; products are computed in its
            type, all else in float32.
        matrix: float32, shape `(vocab_size, d_model)`.
        bias: float32, shape `(vocab_size,)`, or `None`.
        transposed: `matrix` has shape `(d_model, vocab_size)`.
        label_smoothing: e, at least 0 and below 1.
        formula: `"t2t"` or `"uniform"`.
        pad_id: label that counts for nothing.

    Returns:
        `TokenStatistics`; only `loss` has a gradient.
    """
    vocab_size = matrix.shape[1 if transposed else 0]
    of_label, of_others = wanted_probabilities(vocab_size, label_smoothing, formula)
    shape = tf.shape(labels)
    flat_labels = tf.cast(tf.reshape(labels, (-1,)), tf.int32)
    # As many as labels, so that no other number is broadcast.
    flat_hidden = tf.reshape(hidden, (tf.size(flat_labels), hidden.shape[-1]))
    has_bias = bias is not None

    @tf.custom_gradient
    def forward(hidden, matrix, bias):
        cast_matrix = tf.cast(matrix, hidden.dtype)
        logits = tf.cast(tf.matmul(hidden, cast_matrix, transpose_b=not transposed), tf.float32)
        if has_bias:
            logits = tf.nn.bias_add(logits, bias)
        label_logit = tf.gather(logits, flat_labels, batch_dims=1)
        largest = tf.reduce_max(logits, axis=-1)
        total_logits = 0.0
        if of_others:
            # The sum of a row of logits is its hidden vector times the sum of all embeddings.
            ones = tf.ones(vocab_size)
            of_all = tf.linalg.matvec(matrix, ones, transpose_a=not transposed)
            total_logits = tf.linalg.matvec(tf.cast(hidden, tf.float32), of_all)
            total_logits += tf.reduce_sum(bias) if has_bias else 0.0
        probabilities = tf.nn.softmax(logits)
        # The largest probability, unlike that of the label, is never too small for its logarithm.
        log_total = largest - tf.math.log(tf.reduce_max(probabilities, axis=-1))
        loss = log_total - (of_label - of_others) * label_logit - of_others * total_logits
        correct = tf.cast(label_logit >= largest, tf.float32)

        def gradient(upstream, *_):
            rest = of_label - of_others
            products = tf.cast(probabilities, hidden.dtype)
            # Taken off the results, the label spares a copy of the probabilities. Not where those are
            # rounded: of a token that is nearly certain little is left, and all of it counts.
            late = hidden.dtype == tf.float32 and not transposed
            if not late:
                at_labels = tf.stack([tf.range(tf.size(flat_labels)), flat_labels], axis=-1)
                left = tf.gather(probabilities, flat_labels, batch_dims=1) - rest
                products = tf.tensor_scatter_nd_update(products, at_labels, tf.cast(left, hidden.dtype))

            of_hidden = tf.cast(tf.matmul(products, cast_matrix, transpose_b=transposed), tf.float32)
            scaled = upstream[:, None] * tf.cast(hidden, tf.float32)
            factor = tf.cast(scaled, hidden.dtype)
            operands = (factor, products) if transposed else (products, factor)
            of_matrix = tf.cast(tf.matmul(*operands, transpose_a=True), tf.float32)
            of_bias = None
            if has_bias:
                of_bias = tf.linalg.matvec(tf.cast(products, tf.float32), upstream, transpose_a=True)
            if of_others:
                of_hidden -= of_others * of_all
                everywhere = of_others * tf.reduce_sum(scaled, axis=0)
                of_matrix -= everywhere[:, None] if transposed else everywhere
                if has_bias:
                    of_bias -= of_others * tf.reduce_sum(upstream)
            if late:
                rows = flat_labels[:, None]
                of_hidden -= rest * tf.gather(matrix, flat_labels)
                of_matrix = tf.tensor_scatter_nd_sub(of_matrix, rows, rest * scaled)
                if has_bias:
                    of_bias = tf.tensor_scatter_nd_sub(of_bias, rows, rest * upstream)
            of_hidden *= upstream[:, None]
            return tf.cast(of_hidden, hidden.dtype), of_matrix, of_bias

        return (loss, log_total - label_logit, correct), gradient

    bias = tf.convert_to_tensor(bias) if has_bias else tf.zeros(())
    loss, cross_entropy, correct = forward(flat_hidden, tf.convert_to_tensor(matrix), bias)
    return TokenStatistics.of(flat_labels, loss, cross_entropy, correct, pad_id=pad_id, shape=shape)
