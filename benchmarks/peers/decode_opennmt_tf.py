"""OpenNMT-tf's own beam search, as a graph."""

import tensorflow as tf

from peers.models_opennmt_tf import build, features, num_parameters
from peers.timing import parse_job, time_decoding
from peers.work import ALPHA, BEAM_SIZE, OUTPUT_LENGTH


def main():
    """Runs this peer."""
    job = parse_job()
    tf.random.set_seed(0)
    model = build(
        job.size,
        beam_width=BEAM_SIZE,
        length_penalty=ALPHA,
        minimum_decoding_length=OUTPUT_LENGTH,
        maximum_decoding_length=OUTPUT_LENGTH,
        num_hypotheses=1,
    )
    infer = tf.function(model.infer)

    def translate(source_ids):
        return infer(features(source_ids))["tokens"].numpy()[:, 0].tolist()

    libraries = ["OpenNMT-tf", "tensorflow-cpu"]
    time_decoding(job, translate, parameters=lambda: num_parameters(model), libraries=libraries)


if __name__ == "__main__":
    main()
