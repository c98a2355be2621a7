"""This package's search.

Variants: `split`, the batch shared out among threads, as `translate.py` does; `bfloat16`, the weights.
"""

from concurrent.futures import ThreadPoolExecutor

import keras
import tensorflow as tf

from keras_transformer.translation.ensemble import search_ids
from peers.models_ours import SEARCH, build, gpu_memory, shared_out
from peers.timing import THREADS, parse_job, time_decoding


def main():
    """Runs this peer."""
    job = parse_job(("split", "bfloat16"))
    parts = THREADS if "split" in job.words else 1
    tf.config.threading.set_intra_op_parallelism_threads(THREADS // parts)
    keras.utils.set_random_seed(0)
    model = build(job.size, "bfloat16" if "bfloat16" in job.words else "float32")

    def search(source_ids):
        found = search_ids(model, source_ids, SEARCH)
        return found.ids[:, 0], found.lengths[:, 0]

    specification = [tf.TensorSpec((None, None), tf.int32)]
    search = tf.function(search, input_signature=specification, autograph=False)
    pool = ThreadPoolExecutor(parts)

    def translate_part(source_ids):
        ids, lengths = search(tf.constant(source_ids))
        return [row[:length] for row, length in zip(ids.numpy().tolist(), lengths.numpy(), strict=True)]

    def translate(source_ids):
        return sum(pool.map(translate_part, shared_out(source_ids, parts)), [])

    libraries = ["keras", "tensorflow"]
    time_decoding(job, translate, parameters=model.count_params, libraries=libraries, gpu_memory=gpu_memory)


if __name__ == "__main__":
    main()
