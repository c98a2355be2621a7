"""The model side on another backend: JAX, without TensorFlow on the machine."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt

ROOT = pathlib.Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="JAX is not installed (extra `test`)"
)

WITHOUT_TENSORFLOW = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text", "tf_keras"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

import jax
import keras
import numpy as np
import keras_transformer as kt

assert keras.backend.backend() == "jax"
keras.utils.set_random_seed(1)
VOCAB = 13

def make_model(**changes):
    return kt.Transformer(kt.ModelConfig(
        source_vocab_size=VOCAB, target_vocab_size=VOCAB, num_encoder_layers=1,
        num_decoder_layers=1, d_model=8, d_ff=12, num_heads=2, **changes))

rng = np.random.default_rng(0)
source = rng.integers(4, VOCAB, (6, 5)).astype("int32")
labels = np.concatenate([source[:, ::-1], np.full((6, 1), 2)], axis=1).astype("int32")
source[0, 3:], labels[0, 3:] = 0, 0
target = np.concatenate([np.ones((6, 1)), labels[:, :-1]], axis=1).astype("int32")
"""


# Keras asks its variables for arrays in a way that NumPy 2 has deprecated.
KERAS_WITH_NUMPY = "ignore:__array__ implementation:DeprecationWarning"
WITH_TENSORFLOW = """
import os
import keras
import numpy as np
import keras_transformer as kt

texts = [" ".join("abcdefg"[(3 * i + j) % 7] for j in range(1 + i % 5)) for i in range(200)]
tokenizer = kt.WordPieceTokenizer.train(texts, vocab_size=29)
"""


def run(code, head=WITHOUT_TENSORFLOW):
    # On a GPU: JAX_PLATFORMS=cuda JAX_DEFAULT_MATMUL_PRECISION=highest pytest --noconftest tests/test_jax.py
    environment = {"JAX_PLATFORMS": "cpu", **os.environ, "KERAS_BACKEND": "jax"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", KERAS_WITH_NUMPY, "-c", head + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_model_trains_without_tensorflow():
    run("""
model = make_model()
model.compile(
    keras.optimizers.Adam(kt.TransformerSchedule(8, 10), beta_2=0.98, epsilon=1e-9),
    kt.LabelSmoothedCrossEntropy(0.1),
    metrics=[kt.TokenAccuracy(), kt.Perplexity()],
)
fitted = model.fit((source, target), labels, batch_size=6, epochs=60, verbose=0).history
assert set(fitted) == {"loss", "token_accuracy", "perplexity"}
assert np.all(np.isfinite(fitted["loss"]))
assert fitted["loss"][-1] < 0.75 * fitted["loss"][0], fitted["loss"]
for weight in model.weights:
    assert np.all(np.isfinite(np.asarray(weight)))
# A metric against NumPy.
outputs = model((source, target))
perplexity = kt.Perplexity()
perplexity.update_state(labels, outputs)
logits = np.asarray(outputs, "float64")
log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
of_label = np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
np.testing.assert_allclose(
    float(perplexity.result()), np.exp(-of_label[labels != 0].mean()), rtol=1e-5)
assert "tensorflow" not in sys.modules
""")


@pytest.mark.slow
def test_adam_of_this_package_is_that_of_keras():
    run("""
from keras_transformer.model.optimizer import Adam

weights = []
for cls in (Adam, keras.optimizers.Adam):
    keras.utils.set_random_seed(1)
    model = make_model(residual_dropout=0.0, embedding_dropout=0.0)
    model.compile(cls(0.01, epsilon=1e-9), kt.LabelSmoothedCrossEntropy(0.1))
    model.fit((source, target), labels, batch_size=6, epochs=2, verbose=0)
    weights.append([np.asarray(weight) for weight in model.weights])
for one, other in zip(*weights, strict=True):
    np.testing.assert_array_equal(one, other)
""")


def test_the_gradient_of_the_loss_is_softmax_minus_what_is_wanted():
    run("""
logits = rng.normal(size=(6, 6, VOCAB)).astype("float32")
for smoothing, formula in ((0.0, "t2t"), (0.1, "t2t"), (0.1, "uniform")):
    loss = kt.LabelSmoothedCrossEntropy(smoothing, formula=formula)
    found = np.asarray(jax.grad(lambda x: loss(labels, x))(logits))
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    others = smoothing / (VOCAB - 1 if formula == "t2t" else VOCAB)
    wanted = np.full(logits.shape, others)
    label = 1 - others * (VOCAB - 1)
    np.put_along_axis(wanted, labels[..., None], label, -1)
    real = (labels != 0)[..., None]
    np.testing.assert_allclose(found, (softmax - wanted) * real / real.sum(), atol=1e-6)
""")


@pytest.mark.very_slow
def test_search_takes_the_steps_of_full_forward_passes():
    run("""
from keras_transformer.translation.rules import Rules
from keras_transformer.translation.search import Step

model = make_model(residual_dropout=0.0, embedding_dropout=0.0)
for weight in model.trainable_weights:
    weight.assign(rng.normal(0, 0.7, weight.shape))
encoded = model.encode(source)

def search(beam_size):
    start = model.start(encoded, max_length=4, num_hypotheses=beam_size)

    def step(ids, position, state):
        return Step(*model.step(ids, position, state))

    settings = dict(max_lengths=np.full(6, 4, "int32"), max_length=4, reorder=model.reorder)
    rules = Rules(eos_id=2, pad_id=0, forbidden_ids=(0, 1, 3), alpha=0.0)
    first = np.ones(6, "int32")
    if beam_size == 1:
        return kt.greedy_search(step, start, first, rules, **settings)
    return kt.beam_search(step, start, first, rules, beam_size=beam_size, **settings)

def log_probs_of(prefixes):
    logits = np.asarray(model((source, prefixes)), "float64")
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

prefixes = np.concatenate([np.ones((6, 1)), np.zeros((6, 4))], axis=1).astype("int32")
done = np.zeros(6, bool)
for position in range(4):
    allowed = log_probs_of(prefixes)[:, position]
    allowed[:, [0, 1, 3]] = -np.inf
    prefixes[:, position + 1] = np.where(done, 0, allowed.argmax(-1))
    done |= prefixes[:, position + 1] == 2
np.testing.assert_array_equal(np.asarray(search(1).ids)[:, 0], prefixes[:, 1:])

found = search(3)
ids = np.asarray(found.ids)[:, 0]
log_probs = log_probs_of(np.concatenate([np.ones((6, 1)), ids[:, :-1]], axis=1).astype("int32"))
scores = (np.take_along_axis(log_probs, ids[..., None], -1)[..., 0] * (ids != 0)).sum(-1)
np.testing.assert_allclose(np.asarray(found.scores)[:, 0], scores, rtol=1e-4)
""")


COMPILED_SEARCH = """
from keras_transformer.config import SearchConfig
from keras_transformer.translation.ensemble import search_ids

model = make_model(residual_dropout=0.0, embedding_dropout=0.0)
config = SearchConfig(beam_size=3, n_best=2, max_length_ratio=1.2, max_length_offset=2)
weights = [rng.normal(0, 0.7, weight.shape).astype("float32") for weight in model.weights]

def search(weights, source, prefix=None):
    with keras.StatelessScope(state_mapping=zip(model.weights, weights, strict=True)):
        return search_ids(model, source, config, prefix_ids=prefix)
"""


@pytest.mark.very_slow
def test_a_compiled_search_finds_what_the_uncompiled_one_finds():
    run(
        COMPILED_SEARCH
        + """
compiled, found = jax.jit(search), []
prefix = np.array([[5, 7], [6, 0], [0, 0], [0, 0], [0, 0], [9, 4]], "int32")
source[:, 4] = 0  # no source is as long as the array: the limit by shape is above all limits
for arguments in ((weights, source), (weights[::-1][::-1], source, prefix), (weights, source[:2])):
    plain, fast = search(*arguments), compiled(*arguments)
    width = plain.ids.shape[-1]
    assert width <= fast.ids.shape[-1] <= width + 3
    np.testing.assert_array_equal(np.asarray(fast.ids)[..., :width], plain.ids)
    assert not np.asarray(fast.ids)[..., width:].any()
    for name in ("scores", "log_probs"):
        np.testing.assert_allclose(getattr(fast, name), getattr(plain, name), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(fast.lengths, plain.lengths)
    found.append(np.asarray(plain.ids))
for row, words in enumerate(prefix):
    words = words[words != 0]
    assert (found[1][row][:, : len(words)] == words).all()
# Weights are arguments: others give other translations, without a new compilation.
others = [-weight for weight in weights]
assert (np.asarray(compiled(others, source).ids) != np.asarray(compiled(weights, source).ids)).any()
assert compiled._cache_size() == 3
"""
    )


@pytest.mark.very_slow
def test_attention_of_layers_is_given_out_in_a_compiled_function():
    run("""
gated = {"norm": "rms", "activation": "geglu"}
for changes in ({}, {"positions": "relative", "qk_norm": True}, {"positions": "rotary", **gated}):
    model = make_model(**changes)
    attend = jax.jit(lambda *inputs: model.attend(inputs, cross=(0,), decoder=(0,), encoder=(0,)))
    attended = attend(source, target)
    logits = jax.jit(lambda *inputs: model(inputs, training=False))(source, target)
    np.testing.assert_allclose(attended.logits, logits, atol=1e-6)
    for weights in (attended.cross[0], attended.decoder[0], attended.encoder[0]):
        np.testing.assert_allclose(np.asarray(weights).sum(-1), 1, atol=1e-5)
    assert np.all(np.asarray(attended.cross[0])[0, ..., 3:] == 0)
    # Cached steps in a compiled function, whose position is not known when it is compiled.
    state, step = model.start(model.encode(source), max_length=6), jax.jit(model.step)
    for position in range(6):
        found, state = step(target[:, position], position, state)
        np.testing.assert_allclose(found, logits[:, position], atol=1e-5)
""")


@pytest.mark.very_slow
def test_constrained_search_runs_on_jax():
    run("""
from keras_transformer.config import SearchConfig
from keras_transformer.translation.constraints import Constraint
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.tree_grammar import TreeGrammar

opening, closing = (np.where(np.arange(VOCAB) == token, 0, -1) for token in (5, 6))
words = np.arange(VOCAB) == 7
model = make_model()
for beam_size in (1, 3):
    config = SearchConfig(beam_size=beam_size, max_length_offset=6)
    grammar = TreeGrammar(opening, closing, words, eos_id=2, num_words=[3, 5, 1, 2, 5, 4])
    found = search_ids([model], source, config, constraint=grammar)
    for row, number in zip(np.asarray(found.ids)[:, 0].tolist(), (3, 5, 1, 2, 5, 4)):
        row = row[: row.index(2)]
        depths = np.cumsum([{5: 1, 6: -1, 7: 0}[token] for token in row])
        assert row.count(7) == number and depths[-1] == 0 and min(depths[:-1]) == 1


class Once(Constraint):
    # Token 9 must occur before eos.
    def start(self, limits, n):
        return keras.ops.repeat(limits, n) < 0

    def advance(self, state, ids):
        return state | (ids == 9)

    def allowed(self, state, position):
        return (keras.ops.arange(VOCAB)[None] != 2) | state[:, None]

    def wanted(self, state):
        return (keras.ops.arange(VOCAB)[None] == 9) & ~state[:, None]

    def progress(self, state):
        return keras.ops.cast(state, "int32")

config = SearchConfig(beam_size=4, n_best=4, max_length_offset=6)
found = search_ids([model], source, config, constraint=Once())
has_token = (np.asarray(found.ids) == 9).any(axis=2)
assert has_token.any(axis=1).all()
assert has_token[np.asarray(found.finished)].all()
""")


@pytest.mark.very_slow
def test_a_model_trained_on_jax_translates_on_tensorflow(tmp_path):
    out = run(
        f"""
pairs = kt.encode_pairs(texts, [text[::-1] for text in texts], tokenizer)
planner = kt.EpochPlanner(*pairs.lengths, batch_tokens=128, seed=1, padding="fixed", max_shapes=2)
model = kt.Transformer(kt.ModelConfig(
    source_vocab_size=29, target_vocab_size=29, num_encoder_layers=1, num_decoder_layers=1,
    d_model=16, d_ff=24, num_heads=2))
adam = keras.optimizers.Adam(kt.TransformerSchedule(16, 50), 0.9, 0.98, epsilon=1e-9)
model.compile(adam, kt.LabelSmoothedCrossEntropy(0.1), metrics=[kt.TokenAccuracy()])
fitted = model.fit(kt.token_batches(pairs, planner, epochs=20), shuffle=False, verbose=0).history
assert fitted["token_accuracy"][-1] > 0.3, fitted
source = np.array([row[:3] for row in tokenizer.encode(["a b c", "d e f"])], "int32")
np.savez("{tmp_path}/seen.npz", source=source, logits=np.asarray(model((source, source))))
model.save("{tmp_path}/model.keras")
tokenizer.save("{tmp_path}/tokenizer.model")
for use in (lambda: kt.Translator(model, tokenizer), lambda: kt.train(kt.preset("demo"), "{tmp_path}/run")):
    try:
        use()
    except ValueError as error:
        print(error)
assert not os.path.exists("{tmp_path}/run")
""",
        WITH_TENSORFLOW,
    )
    advice = "Save the model with `model.save(...)` and load it in a process with KERAS_BACKEND=tensorflow"
    assert out.splitlines() == [
        f"{what} needs Keras' TensorFlow backend. Received: KERAS_BACKEND=jax. {advice}"
        for what in ("translating and scoring of texts", "`train`")
    ]
    model = keras.saving.load_model(tmp_path / "model.keras")
    seen = np.load(tmp_path / "seen.npz")
    np.testing.assert_allclose(model((seen["source"], seen["source"])), seen["logits"], atol=1e-4)
    translator = kt.Translator(model, kt.WordPieceTokenizer.load(tmp_path / "tokenizer.model"))
    assert all(translator.translate(["a b c", "d e f"]))


@pytest.mark.slow
def test_what_keras_would_compute_over_padding_is_refused():
    run("""
model = make_model()

from keras_transformer.model.metrics import StepCounters

def refused(message, **how):
    try:
        model.compile("sgd", **how)
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(how)

loss = kt.LabelSmoothedCrossEntropy()
refused("`loss` must be a LabelSmoothedCrossEntropy", loss="sparse_categorical_crossentropy")
refused("`loss` must be", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
refused("pad_id=3, but the model 0", loss=kt.LabelSmoothedCrossEntropy(pad_id=3))
refused("metrics must be TokenAccuracy", metrics=["accuracy"])
refused("metrics must be TokenAccuracy", metrics=[StepCounters()])
refused("pad_id=3, but the model 0", metrics=[kt.TokenAccuracy(pad_id=3)])
model.compile(metrics=[kt.TokenAccuracy()], run_eagerly=True)
for train in (model.fit, model.train_on_batch):
    try:
        train((source, target), labels, class_weight={1: 2.0})
    except ValueError as error:
        assert "`class_weight` is not supported" in str(error)
    else:
        raise AssertionError
stop = keras.callbacks.EarlyStopping("token_accuracy")
model.fit((source, target), labels, batch_size=6, verbose=0, callbacks=[stop])
assert bool(stop.monitor_op(2.0, 1.0))
expected = float(loss(labels, model((source, target))))
found = model.evaluate((source, target), labels, batch_size=6, verbose=0)[0]
np.testing.assert_allclose(found, expected, rtol=1e-5)
""")
