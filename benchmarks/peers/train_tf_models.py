"""Model Garden's Seq2SeqTransformer in training, with its translation task's loss (variant: `xla`)."""

import tensorflow as tf
import tf_keras

from peers.models_tf_models import build
from peers.timing import parse_job, time_training
from peers.work import BETA_1, BETA_2, EPSILON, LEARNING_RATE, SMOOTHING, training_batch


def main():
    """Runs this peer."""
    job = parse_job(("xla",))
    tf.random.set_seed(0)
    model = build(job.size)
    # As Model Garden's own optimizers: the whole update of a weight is one operation.
    adam = tf_keras.optimizers.legacy.Adam(LEARNING_RATE, BETA_1, BETA_2, EPSILON)
    source, _, labels = (tf.constant(ids) for ids in training_batch(job.size))

    def loss_of(logits, labels):
        # As in `TranslationTask.build_losses`, which cannot be had without a tokenizer.
        low = SMOOTHING / (job.size.vocab_size - 1)
        soft = tf.one_hot(labels, job.size.vocab_size, on_value=1 - SMOOTHING, off_value=low)
        weights = tf.cast(tf.not_equal(labels, 0), tf.float32)
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=soft, logits=logits)
        return tf.reduce_sum(loss * weights) / tf.reduce_sum(weights)

    @tf.function(jit_compile=True if "xla" in job.words else None)
    def step(source, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(model({"inputs": source, "targets": labels}, training=True), labels)
        variables = model.trainable_variables
        adam.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
        return loss

    model({"inputs": source, "targets": labels}, training=True)

    def run(steps):
        for _ in range(steps):
            loss = step(source, labels)
        return loss

    libraries = ["tf-models-official", "tensorflow-cpu"]
    time_training(job, run, parameters=model.count_params, libraries=libraries)


if __name__ == "__main__":
    main()
