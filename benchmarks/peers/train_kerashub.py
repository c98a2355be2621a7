"""KerasHub's layers under `model.fit`, with XLA as Keras itself chooses (variant: `no_xla`)."""

import keras
import tensorflow as tf

from peers.models_kerashub import Translator, smoothed_cross_entropy
from peers.timing import parse_job, time_training
from peers.work import BETA_1, BETA_2, EPSILON, LEARNING_RATE, training_batch


def main():
    """Runs this peer."""
    job = parse_job(("no_xla",))
    keras.utils.set_random_seed(0)
    model = Translator(job.size)
    model.compile(
        optimizer=keras.optimizers.Adam(LEARNING_RATE, BETA_1, BETA_2, EPSILON),
        loss=smoothed_cross_entropy,
        jit_compile=False if "no_xla" in job.words else "auto",
    )
    source, target, labels = training_batch(job.size)
    data = tf.data.Dataset.from_tensors(((source, target), labels)).repeat()
    options = tf.data.Options()
    options.autotune.enabled = False  # else the end of a fit may wait for the tuner to wake
    data = data.with_options(options)

    def run(steps):
        return model.fit(data, steps_per_epoch=steps, verbose=0).history["loss"][-1]

    libraries = ["keras-hub", "keras", "tensorflow"]
    time_training(job, run, parameters=model.count_params, libraries=libraries)


if __name__ == "__main__":
    main()
