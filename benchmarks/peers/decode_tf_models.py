"""The beam search of Model Garden's Seq2SeqTransformer, as a graph."""

import tensorflow as tf

from peers.models_tf_models import build
from peers.timing import parse_job, time_decoding


def main():
    """Runs this peer."""
    job = parse_job()
    tf.random.set_seed(0)
    model = build(job.size)
    infer = tf.function(lambda ids: model({"inputs": ids}, training=False)["outputs"])

    def translate(source_ids):
        return infer(tf.constant(source_ids)).numpy().tolist()

    libraries = ["tf-models-official", "tensorflow-cpu"]
    time_decoding(job, translate, parameters=model.count_params, libraries=libraries)


if __name__ == "__main__":
    main()
