"""An exported SavedModel, loaded by TensorFlow alone (variant: `split`, a request for each thread)."""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from peers.apart import write_apart
from peers.timing import THREADS, parse_job, time_decoding


def write(size, folder, parameters):
    """Writes `translate_ids` of a model with random weights, as `export_model.py` does.

    In a process of its own, so that its memory is not counted and nothing of it is loaded.

    Args:
        size: `Size`.
        folder: str.
        parameters: shared integer that is given their number.
    """
    import keras
    import tensorflow as tf

    from keras_transformer.checkpoints.tensor_files import by_path
    from keras_transformer.export.graphs import ServedModel, ids_signature
    from keras_transformer.export.serving import ServingSettings
    from peers.models_ours import SEARCH, build

    keras.utils.set_random_seed(0)
    model = build(size)
    served = ServedModel(model, ServingSettings(search=SEARCH))
    signature = ids_signature(served).get_concrete_function()
    module = tf.Module()
    module.weights = dict(sorted(by_path(model.weights).items()))
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, folder, signatures={"translate_ids": signature}, options=options)
    parameters.value = model.count_params()


def main():
    """Runs this peer."""
    job = parse_job(("split",))
    parts = THREADS if "split" in job.words else 1
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_apart(write, job.size, folder)
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(THREADS // parts)
        model = tf.saved_model.load(folder)
    translate_ids = model.signatures["translate_ids"]
    pool = ThreadPoolExecutor(parts)

    def translate_part(source_ids):
        found = translate_ids(ids=tf.constant(source_ids))
        ids, lengths = found["ids"].numpy().tolist(), found["length"].numpy()
        return [row[:length] for row, length in zip(ids, lengths, strict=True)]

    def translate(source_ids):
        each = -(-len(source_ids) // parts)
        begins = range(0, len(source_ids), each)
        return sum(pool.map(translate_part, (source_ids[i : i + each] for i in begins)), [])

    time_decoding(job, translate, parameters=lambda: parameters, libraries=["tensorflow"])
    if "keras_transformer" in sys.modules:
        raise RuntimeError("The SavedModel was not alone: this package was loaded beside it")


if __name__ == "__main__":
    main()
