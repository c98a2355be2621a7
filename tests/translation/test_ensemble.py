"""Search with real models: caches against whole passes, batches that shrink, ensembles."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import ModelConfig, SearchConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.translation.ensemble import max_target_lengths, search_ids
from keras_transformer.translation.rules import Rules
from keras_transformer.translation.search import Hypotheses, Step, beam_search

VOCAB = 31
LENGTHS = (9, 3, 7, 2, 5, 11)
SPECIAL = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}


def make_model(seed=0, *, end=3.0, **changes):
    """Random weights; `end` is the bias of eos, so that sentences end at different positions."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 12, "d_ff": 17, "num_heads": 3}
    sizes |= {
        "source_vocab_size": VOCAB,
        "target_vocab_size": VOCAB,
        "output_bias": True,
        "tie_embeddings": "none",
    }
    model = Transformer(ModelConfig(**{**sizes, **changes}))
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 0.8, weight.shape))
    bias = rng.normal(0, 0.3, VOCAB)[: model.config.target_vocab_size]
    bias[2] = end
    model.output_bias.assign(bias)
    return model


def sources(lengths=LENGTHS):
    rng = np.random.default_rng(5)
    ids = np.zeros((len(lengths), max(lengths)), np.int32)
    for row, length in zip(ids, lengths, strict=True):
        row[: length - 1] = rng.integers(4, VOCAB, length - 1)
        row[length - 1] = 2
    return ids


def in_graph(models, config):
    """Compiled for any number and length of sentences, as the translator does."""
    n_best = config.n_best if config.sampling else 0
    spec = [
        tf.TensorSpec((None, None), tf.int32),
        tf.TensorSpec((None, None), tf.int32),
        tf.TensorSpec((None, n_best, None), tf.float32),
    ]
    graph = tf.function(
        lambda ids, prefix_ids, uniforms: search_ids(
            models, ids, config, prefix_ids=prefix_ids, uniforms=uniforms if config.sampling else None
        ),
        input_signature=spec,
        autograph=False,
    )

    def search(ids, prefix_ids=None, uniforms=None):
        nothing = np.zeros((len(ids), 0), np.int32) if prefix_ids is None else prefix_ids
        return to_numpy(
            graph(ids, nothing, np.zeros((len(ids), n_best, 0)) if uniforms is None else uniforms)
        )

    return search


def to_numpy(found):
    return Hypotheses(*(np.asarray(x) for x in found))


def uncached(model, ids, config):
    """Beam search whose every step runs the whole decoder over the whole prefix."""
    encoded = model.encode(np.repeat(ids, config.beam_size, axis=0))
    limits = max_target_lengths([model], ids, config)

    def step(last_ids, position, prefix):
        prefix = tf.concat([prefix, last_ids[:, None]], axis=1)
        # Keras warns of a softmax over one position: padding follows.
        padded = tf.pad(prefix, [[0, 0], [0, int(position == 0)]])
        return Step(model.decode(padded, encoded)[:, prefix.shape[1] - 1], prefix)

    rules = Rules(2, 0, forbidden_ids=(0, 1, 3), alpha=config.alpha, penalty=config.length_penalty)
    state = np.zeros((len(ids) * config.beam_size, 0), np.int32)
    return to_numpy(
        beam_search(
            step, state, np.ones(len(ids)), rules, beam_size=config.beam_size, n_best=config.n_best,
            max_lengths=limits, max_length=int(max(limits)),
        )
    )  # fmt: skip


def check_same(found, wanted, *, rtol=1e-5):
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.lengths, wanted.lengths)
    np.testing.assert_array_equal(found.finished, wanted.finished)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=rtol)
    np.testing.assert_allclose(found.log_probs, wanted.log_probs, rtol=rtol)


KINDS = [
    {},
    {"norm_first": True, "tie_embeddings": "decoder"},
    {"positions": "learned", "max_positions": 13, "key_dim": 5, "value_dim": 7},
]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.very_slow), 4])
def test_cached_search_is_the_search_without_a_cache(kind, beam_size):
    model = make_model(3, **kind)
    config = SearchConfig(beam_size=beam_size, n_best=beam_size, max_length_offset=7)
    wanted = uncached(model, sources(), config)
    assert len(set(wanted.lengths[:, 0])) > 2
    check_same(to_numpy(search_ids(model, sources(), config)), wanted)  # caches of a fixed size
    check_same(in_graph(model, config)(sources()), wanted)  # caches that grow, batches that shrink


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"beam_size": 1},
        {"beam_size": 4, "n_best": 3},
        {"beam_size": 3, "no_repeat_ngram": 2, "min_length": 4, "length_penalty": "average"},
        {"sampling": True, "n_best": 3, "top_p": 0.9},
    ],
    ids=str,
)
def test_neighbours_order_and_batch_change_nothing(settings):
    model = make_model(4)
    config = SearchConfig(max_length_offset=7, **settings)
    ids = sources()
    inputs = {"prefix_ids": np.array([[5, 0], [0, 0], [7, 9], [0, 0], [4, 0], [0, 0]], np.int32)}
    if config.sampling:
        inputs["uniforms"] = np.random.default_rng(1).random((6, 3, 18)).astype(np.float32)
    search = in_graph(model, config)
    together = search(ids, **inputs)
    order = [4, 0, 5, 2, 1, 3]
    shuffled = search(ids[order], **{name: x[order] for name, x in inputs.items()})
    check_same(shuffled, Hypotheses(*(x[order] for x in together)))
    for row, length in enumerate(LENGTHS):
        one = {name: x[row : row + 1] for name, x in inputs.items()}
        alone = search(ids[row : row + 1, :length], **one)
        width = alone.ids.shape[2]
        same = Hypotheses(*(x[row : row + 1] for x in together))
        check_same(alone, same._replace(ids=same.ids[..., :width]), rtol=1e-4)
        assert not same.ids[..., width:].any()


@pytest.mark.slow
def test_sentences_that_are_done_leave_the_batch():
    sizes = []

    class Watched(Transformer):
        def step(self, ids, position, state, **how):
            tf.py_function(
                lambda x, k: sizes.append((len(x), int(k))), [ids, tf.shape(state[0][0].key)[2]], []
            )
            return super().step(ids, position, state, **how)

    model = make_model(3)
    watched = Watched(model.config)
    watched.set_weights(model.get_weights())
    found = in_graph(watched, SearchConfig(beam_size=1, max_length_offset=7))(sources())
    lengths = sorted(found.lengths[:, 0])
    assert len(set(lengths)) > 2
    assert len(sizes) == lengths[-1]
    for position, (rows, slots) in enumerate(sizes):
        needed = sum(length > position for length in lengths)
        assert needed <= rows <= needed / 0.75 + 1e-9
        assert slots == position  # no room for what is not there yet
    assert sizes[-1][0] < len(LENGTHS)


@pytest.mark.very_slow
def test_an_ensemble_of_two_equal_models_is_the_model():
    first, second = make_model(3), make_model(3)
    config = SearchConfig(beam_size=4, n_best=4, max_length_offset=7)
    check_same(in_graph([first, second], config)(sources()), in_graph(first, config)(sources()))


@pytest.mark.slow
def test_the_scores_of_an_ensemble_are_the_mean_log_probabilities():
    models = [make_model(3), make_model(4, norm_first=True)]
    config = SearchConfig(beam_size=3, n_best=3, max_length_offset=7, alpha=0.0)
    found = in_graph(models, config)(sources())
    alone = [in_graph(model, config)(sources()) for model in models]
    assert all((found.ids[:, 0].shape != x.ids[:, 0].shape) or (found.ids != x.ids).any() for x in alone)
    for row, place in np.ndindex(found.lengths.shape):
        tokens = found.ids[row, place, : found.lengths[row, place]]
        inputs = np.array([[1, *tokens[:-1], 0]])
        each = [
            keras.ops.log_softmax(model((sources()[row : row + 1], inputs)))[0].numpy() for model in models
        ]
        wanted = np.mean([x[np.arange(len(tokens)), tokens].sum() for x in each])
        np.testing.assert_allclose(found.log_probs[row, place], wanted, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"max_length_offset": 50}, [59, 53, 52]),
        ({"max_length_offset": 4, "max_length_ratio": 1.5}, [17, 8, 7]),  # floor(13.5), floor(4.5), 3
        ({"max_length_offset": 5, "max_length_ratio": 0.0}, [5, 5, 5]),
        ({"max_length_offset": 50, "max_length": 53}, [53, 53, 52]),
        ({"max_length_offset": 2**24, "max_length_ratio": 1000.0, "max_length": 2**24}, [2**24] * 3),
    ],
)
def test_limits_of_length_by_hand(settings, wanted):
    ids = sources((9, 3, 2))
    found = max_target_lengths([make_model()], ids, SearchConfig(**settings))
    assert np.asarray(found).tolist() == wanted


@pytest.mark.parametrize(
    "settings",
    [{"max_length_offset": 2**31 - 1}, {"max_length_ratio": 1e9}, {"max_length": 2**31 - 1}],
    ids=str,
)
def test_limits_do_not_overflow(settings):
    """An exported model takes any int32 as an input."""
    usual = {"max_length_offset": 50, "max_length_ratio": 1.0, "max_length": 1024}
    config = types.SimpleNamespace(**usual | settings)
    found = np.asarray(max_target_lengths([make_model()], sources((9, 3, 2)), config)).tolist()
    assert found == ([59, 53, 52] if "max_length" in settings else [1024] * 3)


def test_limits_leave_room_after_a_prefix_and_end_with_the_positions():
    ids = sources((9, 3, 2))
    prefix_ids = np.array([[4] * 11, [5] * 3 + [0] * 8, [0] * 11])
    config = SearchConfig(max_length_offset=1)
    model = make_model(positions="learned", max_positions=11)
    assert np.asarray(max_target_lengths([make_model()], ids, config, prefix_ids)).tolist() == [12, 4, 3]
    assert np.asarray(max_target_lengths([model], ids, config, prefix_ids)).tolist() == [11, 4, 3]


@pytest.mark.slow
def test_a_model_that_never_ends_stops_at_its_limit_and_says_so():
    config = SearchConfig(beam_size=3, n_best=2, max_length_offset=4)
    found = in_graph(make_model(end=-1e4), config)(sources())
    assert found.lengths.tolist() == [[length + 4] * 2 for length in LENGTHS]
    assert not found.finished.any()
    assert np.isfinite(found.scores).all()


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_no_sentence_gives_no_hypothesis(beam_size):
    config = SearchConfig(beam_size=beam_size, max_length_offset=4)
    found = in_graph(make_model(), config)(np.zeros((0, 5), np.int32))
    assert found.ids.shape[:2] == (0, 1)


def test_sampling_without_random_numbers_is_refused():
    with pytest.raises(ValueError, match="`uniforms` is required"):
        search_ids(make_model(), sources(), SearchConfig(sampling=True))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "search", [{"beam_size": 1}, {"beam_size": 3}, {"sampling": True, "n_best": 2}], ids=str
)
def test_special_tokens_other_than_the_end_are_never_found(search):
    model = make_model()
    bias = np.zeros(VOCAB)
    bias[[SPECIAL["pad"], SPECIAL["bos"], SPECIAL["unk"]]] = 40.0  # all but certain at every position
    model.output_bias.assign(bias)
    config = SearchConfig(max_length_offset=3, **search)
    uniforms = np.random.default_rng(0).random((len(LENGTHS), 2, 20)) if "sampling" in search else None
    found = to_numpy(search_ids(model, sources(), config, uniforms=uniforms))
    within = np.arange(found.ids.shape[2]) < found.lengths[..., None]
    assert within.sum() > len(LENGTHS)
    assert not np.isin(found.ids[within], [SPECIAL["pad"], SPECIAL["bos"], SPECIAL["unk"]]).any()
