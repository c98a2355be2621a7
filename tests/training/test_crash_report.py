"""The crash report: what broke is found where the test broke it; the folder is whole or absent."""

import json
import re

import numpy as np
import pytest

from keras_transformer.config.settings import Config, DeviceConfig, override, replace
from keras_transformer.training import crash_report as crash
from keras_transformer.training.crash_report import advice, write_crash_dump

LENGTHS = ((3, 5, 2), (4, 2, 7))  # 10 and 13 tokens
RECORDS = [{"kind": "train", "step": step, "loss": float(step)} for step in range(1, 31)]


@pytest.fixture(scope="module")
def config(tiny):
    return tiny.config(
        model={"num_encoder_layers": 2, "num_decoder_layers": 2, "residual_dropout": 0.3},
        warmup_steps=7,
        learning_rate_scale=3.0,
    )


@pytest.fixture(scope="module")
def new(tiny, config):
    """A model, and its state while it is whole."""
    model = tiny.model(config)
    return model, tiny.state_of(model)


@pytest.fixture
def model(tiny, new):
    model, state = new
    tiny.restore(model, state)
    return model


@pytest.fixture
def dump(tiny, config, model, tmp_path):
    """Writes a dump and reads the report; the folder is `dump.run.path / "crash"`."""

    def dump(batch=tiny.batch(1, *LENGTHS), devices=DeviceConfig(), records=RECORDS, step=9):
        run.config = replace(config, devices=devices)
        folder = write_crash_dump(run, model, step, batch, [2, 17], records)
        assert folder == run.path / "crash" / f"step-{step}"

        def refuse(text):
            raise AssertionError(f"{text} is no JSON")

        return json.loads((folder / "report.json").read_text(encoding="utf-8"), parse_constant=refuse)

    run = dump.run = tiny.Run(tmp_path / "run", config)
    return dump


def break_weight(model, path, value=np.nan):
    (weight,) = [weight for weight in model.weights if weight.path.endswith(path)]
    broken = weight.numpy()
    broken.flat[0] = value
    weight.assign(broken)
    return weight


@pytest.mark.slow
def test_the_report_names_step_rate_batch_and_the_last_records(dump):
    report = dump()
    assert report["step"] == 9
    assert report["learning_rate"] == pytest.approx(3 * 12**-0.5 * 9**-0.5, rel=1e-6)
    assert report["warmup_steps"] == 7
    assert report["batch"] == {
        "plan_key": [2, 17],
        "sentences": 3,
        "source_tokens": 10,
        "target_tokens": 13,
        "source_len": 5,
        "target_len": 7,
    }
    assert report["history"] == RECORDS[10:]
    assert report["advice"] == advice(dump.run.config, 9)


def test_the_batch_is_read_back_without_pickle(tiny, dump):
    (source_ids, target_ids), labels = batch = tiny.batch(1, *LENGTHS)
    dump(batch)
    with np.load(dump.run.path / "crash" / "step-9" / "batch.npz", allow_pickle=False) as found:
        assert sorted(found) == ["labels", "source_ids", "target_ids"]
        for name, array in (("source_ids", source_ids), ("target_ids", target_ids), ("labels", labels)):
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == np.int32


def test_a_sound_model_has_nothing_that_is_not_finite(tiny, dump, model):
    report = dump()
    assert report["weights_not_finite"] == []
    assert report["gradients_not_finite"] == []
    (inputs, labels) = tiny.batch(1, *LENGTHS)
    assert report["loss"] == pytest.approx(float(model.loss(labels, model(inputs))), rel=1e-6)


@pytest.mark.parametrize("layer", ["encoder_1", "decoder_0"])
def test_a_weight_that_is_broken_is_named(dump, model, layer):
    path = next(w.path for w in model.weights if layer in w.path and w.path.endswith("kernel"))
    weight = break_weight(model, path)
    report = dump()
    assert report["weights_not_finite"] == [weight.path]
    assert report["loss"] == "nan"
    assert weight.path in report["gradients_not_finite"]


def test_an_overflow_of_finite_weights_is_found_in_the_gradients(dump, model):
    # The source does not hold token 20: only the product with the shared matrix overflows.
    embeddings = model.target_embedding.embeddings
    values = embeddings.numpy()
    values[20] = 3e38
    embeddings.assign(values)
    source_ids = np.array([[5, 6, 2]], "int32")
    report = dump(((source_ids, np.array([[1, 7]], "int32")), np.array([[7, 2]], "int32")))
    assert report["weights_not_finite"] == []
    assert embeddings.path in report["gradients_not_finite"]


@pytest.mark.slow
def test_examining_in_parts_finds_the_same(tiny, dump, model):
    # Rows of 30 positions: one at a time within 40 tokens.
    devices, batch = DeviceConfig(micro_batch_tokens=40), tiny.batch(1, (30, 5, 2), (4, 2, 7))
    whole, parts = dump(batch), dump(batch, devices)
    assert parts.pop("loss") == pytest.approx(whole.pop("loss"), rel=1e-6)
    assert parts == whole
    break_weight(model, "decoder_1/self_attention/query/kernel")
    whole, parts = dump(batch), dump(batch, devices)
    assert parts == whole
    assert parts["gradients_not_finite"]


@pytest.mark.slow
def test_micro_batches_are_put_under_each_other(tiny, dump):
    whole = dump()
    (source_ids, target_ids), labels = tiny.batch(1, *LENGTHS)
    source_ids, target_ids, labels = (array[:, None] for array in (source_ids, target_ids, labels))
    assert dump(((source_ids, target_ids), labels)) == whole


@pytest.mark.slow
def test_weights_metrics_and_seeds_stay_as_they_are(tiny, dump, model):
    values, sums = tiny.state_of(model)
    dump()
    after, sums_after = tiny.state_of(model)
    for one, other in zip(values, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sums_after == sums


def test_a_batch_that_does_not_fit_leaves_the_rest_of_the_report(dump, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise crash.tf.errors.ResourceExhaustedError(None, None, "OOM")

    monkeypatch.setattr("keras_transformer.model.loss.LabelSmoothedCrossEntropy.statistics", out_of_memory)
    report = dump()
    assert "memory" in report["not_examined"]
    assert report["batch"]["sentences"] == 3
    assert (dump.run.path / "crash" / "step-9" / "batch.npz").exists()


@pytest.mark.slow
def test_a_dump_of_the_same_step_replaces_the_old_one(dump):
    dump()
    (dump.run.path / "crash" / "step-9" / "old").write_text("old")
    assert dump(records=RECORDS[:1])["history"] == RECORDS[:1]
    dump(step=10)
    assert sorted(path.name for path in (dump.run.path / "crash").iterdir()) == ["step-10", "step-9"]
    assert sorted(path.name for path in (dump.run.path / "crash" / "step-9").iterdir()) == [
        "batch.npz",
        "report.json",
    ]


def test_a_dump_that_fails_leaves_nothing(dump, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(crash.json, "dumps", full)
    with pytest.raises(OSError, match="No space left"):
        dump()
    assert list((dump.run.path / "crash").iterdir()) == []


def test_numbers_that_are_not_finite_are_text_in_the_report(dump):
    report = dump(records=[{"kind": "train", "loss": float("inf"), "all": [float("nan"), 1.0]}])
    assert report["history"] == [{"kind": "train", "loss": "inf", "all": ["nan", 1.0]}]


def test_a_worker_that_does_not_write_leaves_no_dump(tiny, config, model, tmp_path):
    run = tiny.Run(tmp_path / "run", config, writes=False)
    assert write_crash_dump(run, model, 9, tiny.batch(1, *LENGTHS), None, []) is None
    assert list(run.path.iterdir()) == []


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_advice_names_the_settings_and_milder_ones(precision):
    config = override(Config(), [f"training.precision={precision}"])
    text = advice(config, 1000)
    assert "\n" not in text
    rate = 512**-0.5 * 1000 * 4000**-1.5
    for part in (f"learning rate {rate:.2e} at step 1,000", "warm-up 4,000 steps", "25,000 tokens a side"):
        assert part in text
    milder = override(config, re.findall(r"--set ([^\s)]+)", text))
    assert milder.training.learning_rate_scale == 0.5
    assert milder.training.warmup_steps == 8000
    assert milder.data.batch_tokens == 50_000
    assert milder.training.precision in ("float32", "mixed_bfloat16")
