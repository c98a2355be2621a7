"""This package in training: `compile_model` and `model.fit`, as `train_wmt.py` does.

Variants: `static`, batches whose shape the graph knows; `xla`; `bfloat16`, a mixed policy; `one_tower`, each
batch as a whole.
"""

from keras_transformer.cli.process import import_quietly

import_quietly("keras_transformer.training.fit")  # as train_wmt.py does: without packages it does not need

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_transformer.config.settings import DeviceConfig, TrainingConfig  # noqa: E402
from keras_transformer.training.devices import choose_devices  # noqa: E402
from keras_transformer.training.fit import compile_model  # noqa: E402
from peers.models_ours import build, gpu_memory  # noqa: E402
from peers.timing import parse_job, time_training  # noqa: E402
from peers.work import BETA_1, BETA_2, EPSILON, SMOOTHING, training_batch  # noqa: E402


def repeated(batch, *, static):
    """One batch for ever.

    Args:
        batch: `(source, target, labels)`, int32, shape `(batch, length)`.
        static: whether the graph knows their shape; the pipeline's own batches have many.

    Returns:
        `tf.data.Dataset`.
    """
    source, target, labels = batch
    if static:
        data = tf.data.Dataset.from_tensors(((source, target), labels)).repeat()
    else:
        ids = tf.TensorSpec((None, None), tf.int32)

        def batches():
            while True:
                yield (source, target), labels

        data = tf.data.Dataset.from_generator(batches, output_signature=((ids, ids), ids)).prefetch(2)
    options = tf.data.Options()
    options.autotune.enabled = False  # else the end of a fit may wait for the tuner to wake
    return data.with_options(options)


def main():
    """Runs this peer."""
    job = parse_job(("static", "xla", "bfloat16", "one_tower"))
    towers = 1 if "one_tower" in job.words else 0
    devices = choose_devices(DeviceConfig(xla="xla" in job.words, cpu_towers=towers))
    keras.utils.set_random_seed(0)
    precision = "mixed_bfloat16" if "bfloat16" in job.words else "float32"
    training = TrainingConfig(
        label_smoothing=SMOOTHING,
        adam_beta_1=BETA_1,
        adam_beta_2=BETA_2,
        adam_epsilon=EPSILON,
        precision=precision,
    )
    model = build(job.size, dtype=training.precision)
    compile_model(model, training, xla="xla" in job.words, towers=devices.towers)
    data = repeated(training_batch(job.size), static="static" in job.words)

    def run(steps):
        return model.fit(data, steps_per_epoch=steps, verbose=0).history["loss"][-1]

    libraries = ["keras", "tensorflow"]
    time_training(job, run, parameters=model.count_params, libraries=libraries, gpu_memory=gpu_memory)


if __name__ == "__main__":
    main()
