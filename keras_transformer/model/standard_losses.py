"""Keras' losses, by name or object, as losses of tokens (TensorFlow)."""

import keras
import tensorflow as tf

from keras_transformer.model.loss import LabelSmoothedCrossEntropy, token_statistics

_FROM_LOGITS = (
    "The model gives logits, not probabilities: use "
    "keras.{}.SparseCategoricalCrossentropy(from_logits=True), "
    'or the name "sparse_categorical_crossentropy"'
)


class TokenWiseLoss(LabelSmoothedCrossEntropy):
    """Another loss, of which every real token counts alike.

    Args:
        loss: function of labels and logits that gives one number for each token, or a
            `keras.losses.Loss` whose `call` does.
        pad_id: label that counts for nothing.
    """

    def __init__(self, loss, *, pad_id):
        is_object = isinstance(loss, keras.losses.Loss)
        how = {"reduction": loss.reduction} if is_object else {}
        super().__init__(0.0, pad_id=pad_id, name=_name(loss), **how)
        self.each = loss.call if is_object else loss
        self.given_dtype = loss.dtype if is_object else keras.config.floatx()

    def of_tokens(self, labels, logits):
        """Returns the loss of every token, padding included; as Keras, gives floats."""
        return self.each(tf.cast(labels, self.given_dtype), tf.cast(logits, self.given_dtype))

    def statistics(self, y_true, y_pred):
        """Returns the `TokenStatistics` of a batch; all but `loss` are those of the logits."""
        found = token_statistics(y_true, y_pred, pad_id=self.pad_id)
        loss = tf.cast(self.of_tokens(y_true, y_pred), "float32")
        return found._replace(loss=tf.where(found.weight > 0, loss, 0.0))


def token_loss(loss, *, pad_id, vocab_size):
    """Returns the loss of `compile` as one that has `statistics`.

    Args:
        loss: `LabelSmoothedCrossEntropy`; name, function or object of Keras' or one's own; `None` for
            the paper's.
        pad_id: label that counts for nothing.
        vocab_size: of the logits.

    Returns:
        `LabelSmoothedCrossEntropy`, or `TokenWiseLoss`.

    Raises:
        ValueError: it takes no logits, or gives something else than a number for each token.
    """
    if loss is None:
        return LabelSmoothedCrossEntropy(pad_id=pad_id)
    if isinstance(loss, LabelSmoothedCrossEntropy) and not _changes_call_alone(loss):
        return loss
    name = "sparse_categorical_crossentropy" if loss in ("crossentropy", "ce") else loss
    try:
        found = keras.losses.get(name)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`loss` must be a LabelSmoothedCrossEntropy, or a name, function or object of a loss as Keras "
            f"has them. Received: {loss!r}"
        ) from error
    if found is keras.losses.sparse_categorical_crossentropy:
        return LabelSmoothedCrossEntropy(0.0, pad_id=pad_id, name="sparse_categorical_crossentropy")
    if type(found) is keras.losses.SparseCategoricalCrossentropy:
        return _cross_entropy(found, pad_id, by_name=isinstance(loss, str))
    if not callable(found):
        raise ValueError(f"`loss` must be callable. Received: {loss!r}")
    known = keras.losses.Loss.__call__, LabelSmoothedCrossEntropy.__call__
    if isinstance(found, keras.losses.Loss) and type(found).__call__ not in known:
        raise ValueError(
            f"`loss`: {type(found).__name__} changes `__call__`, which the token-weighted step does not use. "
            "Change `call`, which gives the loss of every token"
        )
    made = TokenWiseLoss(found, pad_id=pad_id)
    shape, reason = _shape_given(made.of_tokens, vocab_size)
    if not shape:
        raise ValueError(
            "`loss` must give one number for each token, shape (batch, length), for labels of that shape "
            f"and logits of shape (batch, length, vocab_size). Received: {_name(found)}, which {reason}"
        )
    return made


def refuse_probabilities(found, argument):
    """Refuses a `SparseCategoricalCrossentropy`, loss or metric, that takes no logits.

    Args:
        found: the object.
        argument: of `compile`, that it was given as.

    Raises:
        ValueError: with what to use.
    """
    if not found.from_logits:
        module = "losses" if isinstance(found, keras.losses.Loss) else "metrics"
        raise ValueError(f"`{argument}`: from_logits=False. {_FROM_LOGITS.format(module)}")


def _cross_entropy(found, pad_id, by_name):
    if not by_name:
        refuse_probabilities(found, "loss")
    if found.ignore_class not in (None, pad_id):
        raise ValueError(
            f"`loss`: ignore_class={found.ignore_class}, but padding, which is left out in any case, has the "
            f"id {pad_id}. Leave it away, or give such labels a `sample_weight` of 0"
        )
    return LabelSmoothedCrossEntropy(0.0, pad_id=pad_id, name=found.name, reduction=found.reduction)


def _changes_call_alone(loss):
    base = LabelSmoothedCrossEntropy
    return _overrides(loss, base, "call") and not _overrides(loss, base, "statistics")


def _overrides(found, base, name):
    return getattr(type(found), name) is not getattr(base, name)


def _shape_given(function, vocab_size):
    """Returns whether a function gives one number a token, and else what it does, as text."""
    # Sizes that differ, and so do not broadcast by chance.
    rows, length = 3, 5 if vocab_size != 5 else 7
    specs = tf.TensorSpec((rows, length), tf.int32), tf.TensorSpec((rows, length, vocab_size), tf.float32)
    try:
        shape = tf.function(function, autograph=False).get_concrete_function(*specs).output_shapes
    except Exception as error:
        return False, f"fails: {str(error).strip().splitlines()[0]}"
    if getattr(shape, "rank", None) == 2 and shape.is_compatible_with((rows, length)):
        return True, ""
    return False, f"gives shape {tuple(shape)} for labels of {(rows, length)}"


def _name(loss):
    return getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__)
