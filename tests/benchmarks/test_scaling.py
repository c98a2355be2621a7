"""The benchmark of scaling: counts by hand against a model's weights, and fits whose answer is known."""

import json

import keras
import numpy as np
import pytest
import scaling
import training_memory
from plots import scaling_curves
from step_costs import CostModel, Point, fit, multiply_adds, non_negative

from keras_transformer.config.settings import Config, override
from keras_transformer.model.transformer import Transformer

TOKENS = 1024
KNOWN = CostModel(0.05, {"layers": 2e-11, "attention": 7e-11, "softmax matrix": 3e-11}, TOKENS)
POINTS = {
    "length": [Point(length=length) for length in (16, 32, 64, 128, 256, 512)],
    "vocabulary": [Point(vocabulary=size) for size in (4000, 8000, 64000)],
    "layers": [Point(layers=layers) for layers in (1, 3, 12)],
}


def measured(pace):
    return {axis: [(point, pace[axis] * KNOWN(point)) for point in points] for axis, points in POINTS.items()}


@pytest.mark.slow
def test_multiply_adds_are_three_times_the_weights_for_each_token():
    point = Point(vocabulary=50, layers=2)
    model = Transformer(override(Config(), scaling.settings_of(point)).model)
    model((np.ones((1, 1), "int32"), np.ones((1, 1), "int32")))
    matrices = [weight.shape for weight in model.trainable_variables if len(weight.shape) == 2]
    layers, _, softmax = multiply_adds(point, TOKENS)
    assert softmax == 3 * TOKENS * 50 * 256
    assert layers + softmax == 3 * TOKENS * sum(rows * columns for rows, columns in matrices)
    keras.backend.clear_session()


def test_multiply_adds_of_attention_grow_with_the_length():
    # Two sentences of 16: encoder, decoder and cross-attention; Q K^T and the product with V.
    assert multiply_adds(Point(length=16, layers=1), 32)[1] == 3 * 2 * 3 * 2 * 16 * 16 * 256


@pytest.mark.parametrize("pace", [(1.0, 1.0, 1.0), (1.25, 0.8, 1.0)])
def test_a_fit_finds_the_costs_and_the_pace_they_were_made_of(pace):
    pace = dict(zip(POINTS, pace, strict=True))
    model, found = fit(measured(pace), TOKENS)
    assert found == pytest.approx(pace, rel=1e-4)
    assert model.rest == pytest.approx(KNOWN.rest, rel=1e-3)
    assert model.seconds == pytest.approx(KNOWN.seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("axis", "parts"), [("length", ["attention"]), ("vocabulary", ["softmax matrix"]), ("layers", ["layers"])]
)
def test_a_fit_of_one_axis_names_only_what_grows_along_it(axis, parts):
    model, pace = fit({axis: measured(dict.fromkeys(POINTS, 1.0))[axis]}, TOKENS)
    assert list(model.seconds) == parts
    assert pace == {axis: 1.0}
    assert [model(point) for point in POINTS[axis]] == pytest.approx([KNOWN(point) for point in POINTS[axis]])


def test_non_negative_least_squares_are_those_of_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(3)
    for _ in range(20):
        terms, wanted = rng.normal(size=(7, 4)), rng.normal(size=7)
        np.testing.assert_allclose(non_negative(terms, wanted), optimize.nnls(terms, wanted)[0], atol=1e-9)


def records():
    """Two rounds of each point, the second slower; sentences of 512 take half as long again."""
    yield {"kind": "settings", "tokens": TOKENS, "threads": 2, "caches": {"L2": "512K"}}
    for axis, points in POINTS.items():
        for point in points:
            for slower in (1.0, 1.02):
                seconds = KNOWN(point) * slower * (1.5 if point.length == 512 else 1)
                times = [seconds, seconds, 9 * seconds]
                yield {"kind": "steps", "axis": axis, **point._asdict(), "times": times, "peak_mib": 1234}
        yield {"kind": "peak", "times": [0.2, 0.1]}


def test_a_report_gives_medians_of_rounds_and_marks_kinks(tmp_path, capsys):
    file, picture = tmp_path / "records.jsonl", tmp_path / "picture.svg"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records()))
    assert scaling.main(["--show", str(file), "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert f"{2 * 2048**3 / 0.1 / 1e9:.0f} GFLOP/s" in out
    (kink,) = (line for line in out.splitlines() if "KINK" in line and line.split()[0] == "512")
    assert f" {1.01 * 1.5 * KNOWN(Point(length=512)):.4f} " in kink
    assert "1,234  KINK: logits 31 MiB, weights of one attention 8 MiB" in kink
    assert picture.stat().st_size


def test_panels_hold_the_speed_of_every_round():
    panels = scaling.report(list(records()))
    panel = panels["vocabulary (tokens)"]
    assert panel["values"] == [4000, 8000, 64000]
    expected = [[TOKENS / KNOWN(point), TOKENS / KNOWN(point) / 1.02] for point in POINTS["vocabulary"]]
    np.testing.assert_allclose(panel["speeds"], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "2000"], "--tokens must be a multiple of every length. Received: 2000, "),
        (["--layers", "3", "0"], "--layers must be at least 1. Received: 0"),
        (["--show", "a", "--records", "b"], "--show reads records and --records writes them"),
        (["--show", "no/such"], "no/such: no such file"),
        (["--picture", "a.doc"], "--picture must end with .png, .pdf or .svg. Received: a.doc"),
        (["--records", "no/such/a"], "no/such/a: its folder does not exist"),
    ],
)
def test_bad_arguments_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        scaling.parse_args(arguments)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "32x"], "--batches must be like 32x32, sentences x tokens. Received: '32x'"),
        (["--compare", "model.droput=0"], "model has no setting 'droput'"),
        (["--rounds", "0"], "--rounds must be at least 1. Received: 0"),
    ],
)
def test_bad_arguments_of_the_benchmark_of_memory_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        training_memory.parse_args(arguments)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_lines_of_memory_compare_each_model_with_the_first(monkeypatch, capsys):
    class Worker:
        def __init__(self, settings, *, rows, length, threads):
            assert (rows, length) == (4, 512)
            self.factor = 1 + ("model.norm_first=true" in settings)

        def wait(self):
            return {"built_mib": 1000}

        def measure(self, seconds):
            return {"times": [0.5 * self.factor] * 3, "peak_mib": 1000 + 700 * self.factor}

        def end(self):
            pass

    monkeypatch.setattr(training_memory, "StepWorker", Worker)
    assert training_memory.main(["--batches", "4x512", "--compare", "model.norm_first=true"]) == 0
    first, second = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert first == ["4x512", "1,000", "1,700", "700", "1.00", "0.500", "1.00", "as", "it", "is"]
    assert second == ["4x512", "1,000", "2,400", "1,400", "2.00", "1.000", "2.00", "model.norm_first=true"]


PANELS = {
    "length (tokens)": {"values": [16, 64], "speeds": [[90.0, 100.0, 80.0], [50.0, 55.0, 60.0]],
                        "curve": ([16, 32, 64], [91.0, 80.0, 55.0])},
    "layers": {"values": [1, 12], "speeds": [[200.0], [20.0]], "curve": ([1, 12], [199.0, 21.0])},
}  # fmt: skip


def test_a_panel_shows_medians_ranges_and_the_curve():
    figure = scaling_curves(PANELS, unit="tokens a second", title="a step")
    left, right = figure.get_axes()
    curve, points = (np.stack(line.get_data(), 1).tolist() for line in left.get_lines()[:2])
    assert curve == [[16, 91], [32, 80], [64, 55]]
    assert points == [[16, 90], [64, 55]]
    ranges = [segment[:, 1].tolist() for segment in left.collections[0].get_segments()]
    np.testing.assert_allclose(ranges, [[80, 100], [50, 60]])
    assert [left.get_xlabel(), right.get_xlabel()] == list(PANELS)
    assert left.get_ylabel() == "tokens a second"
    assert left.get_ylim() == right.get_ylim()
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["1", "12"]
    assert figure.get_suptitle() == "a step"
    figure.draw_without_rendering()


def test_panels_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="at least one entry. Received: none"):
        scaling_curves({})
    with pytest.raises(ValueError, match="as many as `values`. Received: 2, 1 in 'layers'"):
        scaling_curves({"layers": {**PANELS["layers"], "values": [1]}})


@pytest.mark.parametrize("line", ["[1]", "{}", "nothing", ""])
def test_records_of_something_else_are_refused(tmp_path, capsys, line):
    path = tmp_path / "records.jsonl"
    path.write_text(line)
    assert scaling.main(["--show", str(path)]) == 2
    assert capsys.readouterr().err == f"scaling.py: {path}: no records of --records\n"


def test_records_of_an_interrupted_run_are_read_up_to_their_last_whole_line(tmp_path, capsys):
    path, lines = tmp_path / "records.jsonl", [json.dumps(record) for record in records()]
    path.write_text("\n".join([*lines, '{"kind": "ste']))
    assert scaling.main(["--show", str(path)]) == 0
    path.write_text(f"{lines[0]}\n{lines[1]}\n")
    assert scaling.main(["--show", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"scaling.py: {path}: its run ended before the first axis. Run it again\n"
    )


def test_tokens_need_not_be_a_multiple_of_lengths_that_are_not_measured():
    assert scaling.parse_args(["--tokens", "256", "--axes", "layers"]).tokens == 256


def test_records_are_not_overwritten(tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    path.write_text("kept")
    with pytest.raises(SystemExit, match="2"):
        scaling.main(["--records", str(path)])
    assert "is there already" in capsys.readouterr().err
    assert path.read_text() == "kept"
