"""KerasHub's BeamSampler over cached TransformerDecoders, as its own models use it (variant: `xla`).

It has no length penalty; where all translations have one length, none changes the order.
"""

import keras
import keras_hub
import tensorflow as tf
from keras import ops

from peers.models_kerashub import Translator
from peers.timing import parse_job, time_decoding
from peers.work import BEAM_SIZE, OUTPUT_LENGTH

BOS_ID = 2


def make_search(model, size, *, xla):
    """Returns a function of int32, shape `(batch, length)`, that gives translations' ids."""
    sampler = keras_hub.samplers.BeamSampler(num_beams=BEAM_SIZE)
    d_head = size.d_model // size.num_heads

    def decode(ids, encoded, visible, caches, index, cross_caches, cross_index):
        hidden = model.embedded(ids, start=index)
        caches, cross_caches = list(caches), list(cross_caches)
        for number, layer in enumerate(model.decoder_layers):
            hidden, caches[number], cross_caches[number] = layer(
                hidden,
                encoded,
                encoder_padding_mask=visible,
                self_attention_cache=caches[number],
                self_attention_cache_update_index=index,
                cross_attention_cache=cross_caches[number],
                cross_attention_cache_update_index=cross_index,
            )
        return model.embedding(hidden, reverse=True)[:, 0], tuple(caches), tuple(cross_caches)

    def empty(batch, length):
        shape = (batch, 2, length, size.num_heads, d_head)
        return tuple(ops.zeros(shape) for _ in model.decoder_layers)

    @tf.function(jit_compile=xla)
    def search(source):
        batch = source.shape[0]
        encoded, visible = model.encode(source)
        first, rest = ops.full((batch, 1), BOS_ID, "int32"), ops.zeros((batch, OUTPUT_LENGTH), "int32")
        prompt = ops.concatenate([first, rest], axis=1)
        caches, cross_caches = empty(batch, OUTPUT_LENGTH + 1), empty(batch, size.length)
        _, caches, cross_caches = decode(first, encoded, visible, caches, 0, cross_caches, 0)
        encoded, visible = ops.repeat(encoded, BEAM_SIZE, axis=0), ops.repeat(visible, BEAM_SIZE, axis=0)
        cross_caches = tuple(ops.repeat(cache, BEAM_SIZE, axis=0) for cache in cross_caches)

        def next_token(prompt, caches, index):
            last = ops.slice(prompt, [0, index - 1], [batch * BEAM_SIZE, 1])
            logits, caches, _ = decode(last, encoded, visible, caches, index - 1, cross_caches, None)
            return logits, None, caches

        return sampler(next_token, prompt, cache=caches, index=1)[:, 1:]

    return search


def main():
    """Runs this peer."""
    job = parse_job(("xla",))
    keras.utils.set_random_seed(0)
    model = Translator(job.size)
    model([ops.ones((1, 4), "int32"), ops.ones((1, 4), "int32")])
    search = make_search(model, job.size, xla="xla" in job.words)

    def translate(source_ids):
        return search(tf.constant(source_ids)).numpy().tolist()

    libraries = ["keras-hub", "keras", "tensorflow"]
    time_decoding(job, translate, parameters=model.count_params, libraries=libraries)


if __name__ == "__main__":
    main()
