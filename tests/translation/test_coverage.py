"""The coverage penalty against beam search on NumPy arrays and exhaustive search, both without caches."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_ensemble import LENGTHS, check_same, in_graph, make_model, sources, to_numpy

from keras_transformer.config.settings import SearchConfig
from keras_transformer.translation.ensemble import Ensemble, search_ids
from keras_transformer.translation.phrases import Phrases
from keras_transformer.translation.rules import Rules, coverage_score
from keras_transformer.translation.search import Hypotheses

PAD, BOS, EOS, UNK = 0, 1, 2, 3


def test_the_score_of_a_coverage_is_equation_14_by_hand():
    attention = np.array([[0.5, 0.25, 3.0, 1.0], [1.0, 7.0, 1.0, 1.0], [0.125, 1.0, 0.5, 0.9]], "float32")
    found = keras.ops.convert_to_numpy(coverage_score(attention))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, [np.log(0.125), 0.0, np.log(0.05625)], rtol=1e-6)


def test_a_source_token_without_attention_has_a_finite_score():
    found = keras.ops.convert_to_numpy(coverage_score(np.array([[0.0, 2.0], [1e-42, 1.0]], "float32")))
    np.testing.assert_allclose(found, [-126 * np.log(2)] * 2, rtol=1e-6)


def test_the_score_is_log_probability_over_length_penalty_plus_beta_times_coverage():
    rules = Rules(EOS, PAD, alpha=1.0, coverage_penalty=0.5)
    found = rules.score(np.float32([-6.0, -np.inf]), np.int32([7, 7]), np.float32([-0.5, -0.25]))
    np.testing.assert_allclose(found, [-6.0 / 2 - 0.25, -np.inf])


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_penalty_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="`coverage_penalty` must be finite and at least 0"):
        Rules(EOS, PAD, coverage_penalty=value).check()


class Oracle:
    """Models without caches, for one sentence: log-probabilities and attention of whole prefixes."""

    def __init__(self, models, config):
        self.models, self.source, self.config = models, None, config
        spec = [tf.TensorSpec((None, None), tf.int32)] * 2
        self._attend = [
            tf.function(
                lambda *ids, model=model: self._decode(model, ids), input_signature=spec, autograph=False
            )
            for model in models
        ]

    @staticmethod
    def _decode(model, ids):
        layer = max(model.config.num_decoder_layers - 2, 0)
        found = model.attend(ids, cross=[layer])
        return found.logits[:, -1], found.cross[layer]

    def of(self, source):
        """The same for another sentence."""
        self.source = source
        return self

    def evaluate(self, prefixes):
        """Of prefixes of one length: the next token's log-probabilities, and the coverage after it."""
        inputs = np.array([[BOS, *prefix] for prefix in prefixes], np.int32)
        log_probs, coverage = [], []
        for attend in self._attend:
            found = attend(np.tile(self.source, (len(prefixes), 1)), inputs)
            logits, attention = (np.asarray(x, "float64") for x in found)
            log_probs.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
            coverage.append(attention.mean(axis=1).sum(axis=1))
        return np.mean(log_probs, axis=0), np.log(np.minimum(np.mean(coverage, axis=0), 1)).sum(axis=1)

    def score(self, log_prob, length, coverage):
        config = self.config
        penalty = {"gnmt": (5 + length) / 6, "average": length, "none": 1.0}[config.length_penalty]
        return log_prob / penalty**config.alpha + config.coverage_penalty * coverage

    def beam_search(self, limit):
        """[(score, tokens, finished)], best first. It goes on to the limit, or `early_stop`."""
        size = self.config.beam_size
        alive, ended = [(0.0, ())], []
        for n in range(limit):
            log_probs, coverage = self.evaluate([tokens for _, tokens in alive])
            candidates = sorted(
                (
                    (total + log_probs[i, token], (*tokens, token), coverage[i])
                    for i, (total, tokens) in enumerate(alive)
                    for token in range(log_probs.shape[1])
                    if token not in (PAD, BOS, UNK)
                ),
                key=lambda candidate: -candidate[0],
            )[: 2 * size if size > 1 else 1]
            counted = candidates[:size] if self.config.early_stop else candidates
            ended += [(self.score(x, n + 1, c), t, True) for x, t, c in counted if t[-1] == EOS]
            going = [candidate for candidate in candidates if candidate[1][-1] != EOS][:size]
            if not going or (self.config.early_stop and len(ended) >= size):
                return sorted(ended, reverse=True)[:size]
            alive = [(total, tokens) for total, tokens, _ in going]
        cut_off = [(self.score(x, limit, c), t, False) for x, t, c in going]
        return (sorted(ended, reverse=True)[:size] + sorted(cut_off, reverse=True))[:size]

    def enumerate_all(self, limit):
        """The same list, of every hypothesis that there is."""
        words = [token for token in range(self.models[0].config.target_vocab_size) if token > UNK]
        ended, cut_off = [], []
        totals = {(): 0.0}
        for n in range(limit):
            prefixes = list(itertools.product(words, repeat=n))
            log_probs, coverage = self.evaluate(prefixes)
            for i, tokens in enumerate(prefixes):
                total = totals[tokens] + log_probs[i]
                ended.append((self.score(total[EOS], n + 1, coverage[i]), (*tokens, EOS), True))
                for word in words:
                    totals[*tokens, word] = total[word]
                    if n == limit - 1:
                        score = self.score(total[word], limit, coverage[i])
                        cut_off.append((score, (*tokens, word), False))
        return sorted(ended, reverse=True) + sorted(cut_off, reverse=True)


def check_list(found, row, expected, rtol=1e-4):
    n_best = found.scores.shape[1]
    tokens = [tuple(ids[:length]) for ids, length in zip(found.ids[row], found.lengths[row], strict=True)]
    assert tokens == [t for _, t, _ in expected[:n_best]]
    assert found.finished[row].tolist() == [f for *_, f in expected[:n_best]]
    np.testing.assert_allclose(found.scores[row], [s for s, *_ in expected[:n_best]], rtol=rtol)


def limits_of(config):
    return [length + config.max_length_offset for length in LENGTHS]


def source_of(row, lengths=LENGTHS):
    """A sentence without its padding."""
    return sources(lengths)[row, : lengths[row]]


def ending_model(**changes):
    """Sentences end at once without a penalty, later with a large one."""
    return make_model(8, end=6.0, **changes)


SETTINGS = [
    {"coverage_penalty": 0.5},
    {"coverage_penalty": 3.0, "early_stop": True},
    {"coverage_penalty": 0.7, "length_penalty": "average", "alpha": 1.0, "early_stop": True},
    {"coverage_penalty": 1.3, "length_penalty": "none"},
]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("layers", "settings"),
    [
        (1, SETTINGS[0]),
        *(pytest.param(3, each, marks=pytest.mark.very_slow) for each in SETTINGS[:2]),
        *((3, each) for each in SETTINGS[2:]),
    ],
    ids=str,
)
def test_beam_search_is_that_on_numpy_arrays(layers, settings):
    # With one layer, its attention counts; else that of the last but one.
    model = ending_model(num_decoder_layers=layers)
    config = SearchConfig(beam_size=3, n_best=3, max_length_offset=4, **settings)
    found = in_graph(model, config)(sources())
    fixed = to_numpy(search_ids(model, sources(), config))
    check_same(fixed, found)
    oracle = Oracle([model], config)
    for row, limit in enumerate(limits_of(config)):
        check_list(found, row, oracle.of(source_of(row)).beam_search(limit))


@pytest.mark.slow
def test_the_penalty_changes_which_translations_win():
    model = ending_model()
    ids = {
        beta: in_graph(model, SearchConfig(beam_size=3, max_length_offset=4, coverage_penalty=beta))(
            sources()
        ).ids[:, 0]
        for beta in (0.0, 3.0)
    }
    width = min(x.shape[1] for x in ids.values())
    assert sum((ids[0.0][:, :width] != ids[3.0][:, :width]).any(axis=1)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("beta", [pytest.param(0.3, marks=pytest.mark.very_slow), 5.0])
def test_a_beam_that_holds_everything_lists_every_hypothesis(beta):
    model = make_model(7, target_vocab_size=7)
    config = SearchConfig(
        beam_size=40, n_best=40, max_length_offset=3, max_length_ratio=0.0, coverage_penalty=beta
    )
    lengths = (5, 2, 3)
    found = in_graph(model, config)(sources(lengths))
    for row in range(len(lengths)):
        every = Oracle([model], config).of(source_of(row, lengths)).enumerate_all(3)
        assert len(every) == 1 + 3 + 9 + 27 == 40
        check_list(found, row, every)


@pytest.mark.slow
def test_the_attention_of_an_ensemble_is_the_mean_of_its_models():
    # The alignments of the second come from the first of its two layers, those of the first from its second.
    models = [make_model(3, num_decoder_layers=3), make_model(4, norm_first=True, num_heads=2)]
    config = SearchConfig(beam_size=3, n_best=3, max_length_offset=4, coverage_penalty=1.0)
    found = in_graph(models, config)(sources())
    oracle = Oracle(models, config)
    for row, limit in enumerate(limits_of(config)):
        check_list(found, row, oracle.of(source_of(row)).beam_search(limit))


@pytest.mark.slow
def test_neighbours_and_padding_change_nothing():
    model = ending_model()
    config = SearchConfig(beam_size=3, n_best=3, max_length_offset=4, coverage_penalty=2.0)
    search = in_graph(model, config)
    together = search(sources())
    order = [4, 0, 5, 2, 1, 3]
    check_same(search(sources()[order]), Hypotheses(*(x[order] for x in together)))
    wide = search(np.pad(sources(), ((0, 0), (0, 5))))
    check_same(wide, together)
    for row, length in enumerate(LENGTHS):
        alone = search(sources()[row : row + 1, :length])
        same = Hypotheses(*(x[row : row + 1] for x in together))
        check_same(alone, same._replace(ids=same.ids[..., : alone.ids.shape[2]]), rtol=1e-4)


@pytest.mark.slow
def test_greedy_search_and_samples_have_the_score_and_keep_their_tokens():
    model = ending_model()
    settings = {"max_length_offset": 4, "length_penalty": "average", "alpha": 0.7}
    greedy = {"beam_size": 1}
    samples = {"sampling": True, "n_best": 3}
    uniforms = np.random.default_rng(0).random((len(LENGTHS), 3, 20)).astype(np.float32)
    for kind, inputs in ((greedy, {}), (samples, {"uniforms": uniforms})):
        plain = in_graph(model, SearchConfig(**settings, **kind))(sources(), **inputs)
        config = SearchConfig(coverage_penalty=1.5, **settings, **kind)
        found = in_graph(model, config)(sources(), **inputs)
        check_same(found._replace(scores=plain.scores), plain)
        oracle = Oracle([model], config)
        for row, place in np.ndindex(found.lengths.shape):
            length = found.lengths[row, place]
            _, coverage = oracle.of(source_of(row)).evaluate([found.ids[row, place, : length - 1]])
            score = oracle.score(found.log_probs[row, place], length, coverage[0])
            np.testing.assert_allclose(found.scores[row, place], score, rtol=1e-4)


@pytest.mark.slow
def test_required_phrases_and_prefixes_keep_the_score():
    model = ending_model()
    config = SearchConfig(beam_size=4, n_best=2, max_length_offset=4, coverage_penalty=0.9)
    phrases = Phrases(np.array([[[7, 8], [9, 0]]] * len(LENGTHS)), vocab_size=31, eos_id=EOS, pad_id=PAD)
    prefixes = np.array([[5]] * len(LENGTHS), np.int32)
    found = to_numpy(search_ids(model, sources(), config, constraint=phrases, prefix_ids=prefixes))
    oracle = Oracle([model], config)
    for row, place in np.ndindex(found.lengths.shape):
        length = found.lengths[row, place]
        tokens = found.ids[row, place, :length].tolist()
        assert tokens[0] == 5
        assert 9 in tokens
        _, coverage = oracle.of(source_of(row)).evaluate([tokens[:-1]])
        score = oracle.score(found.log_probs[row, place], length, coverage[0])
        np.testing.assert_allclose(found.scores[row, place], score, rtol=1e-4)


@pytest.mark.slow
def test_without_the_penalty_nothing_is_accumulated():
    decoder = Ensemble([make_model(3)], grows=False)
    (state,) = decoder.start(sources(), max_length=5, num_hypotheses=2)
    assert state.coverage == ()
    step = decoder.step(np.full(2 * len(LENGTHS), BOS, np.int32), 0, [state])
    assert step.coverage is None
    assert step.state[0].coverage == ()
    covering = Ensemble([make_model(3)], grows=False, covers=True)
    (state,) = covering.start(sources(), max_length=5, num_hypotheses=2)
    assert state.coverage.shape == (len(LENGTHS), 2, max(LENGTHS))
