"""The grid of learning rates and warm-ups: rows have the rates that they name, table and plot all seeds."""

import json
import math

import numpy as np
import pytest
import table3
import table3_records
from plots import sensitivity_curves
from sensitivity_rows import grid, markdown, points

from keras_transformer.config.presets import PRESETS
from keras_transformer.config.settings import override
from keras_transformer.model.optimizer import TransformerSchedule

BASE = PRESETS["multi30k_tiny"]
COMMON = {
    "dataset": "d",
    "source": "en",
    "target": "de",
    "preset": "multi30k_tiny",
    "set": [],
    "checkpoint": "last",
}


def record(row, perplexity, bleu, seed=1, **changes):
    figures = {"parameters": 1234, "perplexity": perplexity, "bleu": bleu, "minutes": 7.4, "signature": "s|v"}
    names = {"row": row.name, "settings": row.settings, "counterpart": "", "grid": "sensitivity"}
    return {**names, "seed": seed, "common": COMMON, **figures, **changes}


def test_both_orders_of_norm_have_the_same_peak_rates_around_the_presets():
    peaks = {}
    for row in grid(BASE):
        config = override(BASE, row.settings)
        training = config.training
        schedule = TransformerSchedule(
            config.model.d_model, training.warmup_steps, scale=training.learning_rate_scale
        )
        largest = np.max(schedule(np.arange(training.max_steps)))
        assert row.name == f"{row.group} peak {largest:.3g} warm-up {training.warmup_steps}"
        assert row.group == ("pre-norm" if config.model.norm_first else "post-norm")
        peaks.setdefault((row.group, training.warmup_steps), []).append(largest)
    wanted = [0.00125, 0.0025, 0.005, 0.01, 0.02]
    assert list(peaks) == [(norm, warmup) for norm in ("post-norm", "pre-norm") for warmup in (250, 2000)]
    for found in peaks.values():
        assert found == pytest.approx(wanted, rel=1e-3)


def test_a_training_that_ends_before_its_peak_is_refused():
    with pytest.raises(ValueError, match="training.max_steps=2000 must be above training.warmup_steps=2000"):
        grid(override(BASE, ["training.max_steps=2000"]))


def test_the_table_has_the_range_of_the_seeds_and_counts_diverged_ones():
    rows = {row.name: row for row in grid(BASE)}
    well, badly = rows["pre-norm peak 0.005 warm-up 250"], rows["post-norm peak 0.02 warm-up 2000"]
    records = [record(well, 8.0, 25.0), record(badly, 300.0, 0.4), record(badly, math.inf, 0.0, seed=2)]
    table = markdown([*records, record(well, 8.5, 24.0, seed=2)]).splitlines()
    assert table[2] == (
        "| post-norm | 2,000 | 0.02 | inf (300.00 to inf) | 0.20 (0.00 to 0.40) | 2 of 2 | 7 |"
    )
    assert table[3] == "| pre-norm | 250 | 0.005 | 8.25 (8.00 to 8.50) | 24.50 (24.00 to 25.00) |  | 7 |"
    assert table[-2].startswith("Diverged: training was stopped because the gradient was not finite")
    assert table[-1] == "BLEU: `s|v`"


def test_the_picture_has_a_line_for_each_norm_and_warm_up_and_crosses_for_diverged_models():
    rows = grid(BASE)
    records = [record(row, 8.0 + number, 20.0 + number) for number, row in enumerate(rows)]
    records[4] |= {"bleu": 0.5}  # post-norm, warm-up 250, largest peak
    records[9] |= {"perplexity": math.inf, "bleu": 0.0}  # post-norm, warm-up 2,000, largest peak
    figure = sensitivity_curves(records)
    perplexity, bleu = figure.axes
    assert (perplexity.get_xscale(), perplexity.get_yscale(), bleu.get_yscale()) == ("log", "log", "linear")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        *(f"{norm}, warm-up {warmup}" for norm in ("post-norm", "pre-norm") for warmup in ("250", "2,000")),
        "diverged",
    ]
    lines = {line.get_label(): line.get_ydata() for line in perplexity.lines}
    assert list(lines["pre-norm, warm-up 250"]) == [18, 19, 20, 21, 22]
    crosses = [line for line in perplexity.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [tuple(line.get_xydata()[0]) for line in crosses] == [
        (pytest.approx(0.02, rel=1e-3), 12.0),
        (pytest.approx(0.02, rel=1e-3), 1.0),  # of the height: it has no perplexity
    ]
    assert crosses[1].get_transform() == perplexity.get_xaxis_transform()
    assert "diverged" not in [
        text.get_text() for text in sensitivity_curves(records[5:9]).legends[0].get_texts()
    ]


def test_records_of_two_grids_in_one_folder_are_kept_apart(tmp_path):
    row = grid(BASE)[0]
    lines = [
        record(row, None, 0.0),
        record(row, 5.0, 20.0, grid="table3"),
        record(row, 5.0, 20.0),
    ]
    del lines[2]["grid"]  # as `table3.py` wrote them before it had several grids
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = table3_records.read_grid([tmp_path], "sensitivity")
    assert found == {**lines[0], "perplexity": math.inf}
    first = table3_records.read_grid([tmp_path], "table3")
    assert first == [lines[1], {**lines[2], "grid": "table3"}]


@pytest.mark.very_slow
def test_the_grid_is_trained_measured_resumed_and_drawn_with_what_diverges(tmp_path, capfd, monkeypatch):
    """Slow: trains three models of a few steps in processes of their own."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)  # of the tests; a user has none
    sets = [
        "training.max_steps=4",
        "training.warmup_steps=2",
        "data.vocab_size=400",
        "data.batch_tokens=2048",
    ]
    sets += ["model.d_model=16", "model.d_ff=24", "training.max_nonfinite_steps=2"]
    flags = ["cldr/en-de", "--grid", "sensitivity", "--seeds", "1"]
    flags += [part for text in sets for part in ("--set", text)]
    names = [row.name for row in grid(override(BASE, sets)) if "warm-up 2" in row.name][::9]
    grown = [*flags, "--out", str(tmp_path / "grid"), "--rows", *names]
    assert table3.main(grown) == 0
    captured = capfd.readouterr()
    assert "2 of 2 models to train" in captured.out
    assert captured.err == ""  # no start-up lines of TensorFlow
    found = points(table3_records.read_grid([tmp_path / "grid"], "sensitivity"))
    assert [point.norm for point in found] == ["post-norm", "pre-norm"]
    assert all(1 < point.perplexities[0] < math.inf for point in found)
    assert table3.main([*grown, "--plot", str(tmp_path / "plot.png")]) == 0
    assert "0 of 2 models to train" in capfd.readouterr().out
    assert (tmp_path / "plot.png").stat().st_size > 10_000

    infinite = [*flags, "--set", "training.learning_rate_scale=1e30", "--out", str(tmp_path / "infinite")]
    name = grid(override(BASE, [*sets, "training.learning_rate_scale=1e30"]))[0].name
    assert table3.main([*infinite, "--rows", name]) == 0
    out = capfd.readouterr().out
    assert f"{name}, seed 1: diverged" in out
    assert "| inf | 0.00 | 1 of 1 |" in out
    (line,) = (tmp_path / "infinite" / "records.jsonl").read_text().splitlines()
    assert json.loads(line)["perplexity"] is None
    assert json.loads(line)["parameters"] > 1000
