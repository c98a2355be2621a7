"""This package's search, compiled by JAX (variant: `bfloat16`, the weights)."""

from peers.models_ours_jax import LIBRARIES, SEARCH, build, gpu_memory  # isort: skip  (before Keras)

import jax
import keras
import numpy as np

from keras_transformer.translation.ensemble import search_ids
from peers.timing import parse_job, time_decoding


def main():
    """Runs this peer."""
    job = parse_job(("bfloat16",))
    keras.utils.set_random_seed(0)
    model = build(job.size, "bfloat16" if "bfloat16" in job.words else "float32")
    weights = [weight.value for weight in model.weights]

    @jax.jit
    def search(weights, source_ids):
        # As arguments, because JAX would compile the values of variables as constants.
        with keras.StatelessScope(state_mapping=zip(model.weights, weights, strict=True)):
            found = search_ids(model, source_ids, SEARCH)
        return found.ids[:, 0], found.lengths[:, 0]

    def translate(source_ids):
        ids, lengths = map(np.asarray, search(weights, source_ids))
        return [row[:length] for row, length in zip(ids.tolist(), lengths, strict=True)]

    time_decoding(job, translate, parameters=model.count_params, libraries=LIBRARIES, gpu_memory=gpu_memory)


if __name__ == "__main__":
    main()
