"""This package in training on JAX: `compile` and `fit` of Keras (variant: `bfloat16`, a mixed policy)."""

from peers.models_ours_jax import LIBRARIES, build, gpu_memory  # isort: skip  (before Keras)

import keras

import keras_transformer as kt
from peers.timing import parse_job, time_training
from peers.work import BETA_1, BETA_2, EPSILON, LEARNING_RATE, SMOOTHING, training_batch


def main():
    """Runs this peer."""
    job = parse_job(("bfloat16",))
    keras.utils.set_random_seed(0)
    model = build(job.size, "mixed_bfloat16" if "bfloat16" in job.words else "float32")
    adam = keras.optimizers.Adam(LEARNING_RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON)
    model.compile(adam, kt.LabelSmoothedCrossEntropy(SMOOTHING))
    source, target, labels = training_batch(job.size)

    def batches():
        while True:
            yield (source, target), labels

    data = batches()

    def run(steps):
        return model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0).history["loss"][-1]

    time_training(job, run, parameters=model.count_params, libraries=LIBRARIES, gpu_memory=gpu_memory)


if __name__ == "__main__":
    main()
