"""The grid of departures: each row has one, gated networks as many weights, and the table has the speeds."""

import math

import pytest
import table3
import table3_records
from departure_rows import grid, markdown
from plots import table3_differences
from table3_rows import BASE

from keras_transformer.config.presets import PRESETS
from keras_transformer.config.settings import differences, override
from keras_transformer.model.transformer import Transformer

CONFIG = PRESETS["multi30k_tiny_pre_norm"]
COMMON = {"dataset": "d", "source": "en", "target": "de", "preset": "p", "set": [], "checkpoint": "last"}


def record(row, seed, perplexity, bleu, minutes, rate):
    figures = {"parameters": 1234, "perplexity": perplexity, "bleu": bleu, "minutes": minutes}
    counterpart = BASE if row == BASE else ""
    names = {"row": row, "seed": seed, "counterpart": counterpart, "common": COMMON, "signature": "s|v"}
    return {**names, **figures, "sentences_per_second": rate, "grid": "departures"}


RECORDS = [
    record("rotary", 1, 4.0, 26.0, 8.0, 100.0),
    record("rotary", 2, 5.0, 27.0, 10.0, 60.0),
    record(BASE, 1, 6.0, 25.0, 4.0, 50.0),
    record(BASE, 2, 6.0, 24.0, 5.0, 120.0),
]


def test_each_row_changes_the_departures_setting_only():
    rows = grid(CONFIG)
    changes = {row.name: [c[0] for c in differences(CONFIG, override(CONFIG, row.settings))] for row in rows}
    assert changes == {
        BASE: [],
        "relative": ["model.positions"],
        "rotary": ["model.positions"],
        "QK-norm": ["model.qk_norm"],
        "RMSNorm": ["model.norm"],
        "SwiGLU": ["model.d_ff", "model.activation"],
        "GEGLU": ["model.d_ff", "model.activation"],
    }


@pytest.mark.slow
def test_gated_networks_have_as_many_weights_as_the_base_row():
    rows = {row.name: row for row in grid(CONFIG)}
    models = [Transformer(override(CONFIG, rows[name].settings).model) for name in (BASE, "SwiGLU", "GEGLU")]
    base, *gated = (model.count_params() for model in models)
    for count in gated:
        assert 0.98 < count / base < 1.02


def test_departures_that_the_base_row_has_are_left_out():
    config = override(CONFIG, ["model.positions=rotary", "model.norm=rms", "model.qk_norm=true"])
    assert [row.name for row in grid(config)] == [BASE, "relative", "SwiGLU", "GEGLU"]


def test_the_table_has_speeds_over_those_of_the_base_rows_of_the_same_seeds():
    lines = markdown(RECORDS).splitlines()
    assert lines[2] == "| base | 2 | 1,234 | 6.000 (6.000 to 6.000) | 24.50 (24.00 to 25.00) | 1.00 | 1.00 |"
    # Training: half as fast with each seed. Search: 2 and 0.5 times.
    assert lines[3] == (
        "| rotary | 2 | 1,234 | 4.500 (4.000 to 5.000) | 26.50 (26.00 to 27.00) | 0.50 | 1.00 |"
    )
    assert lines[-1] == "BLEU: `s|v`"


@pytest.mark.parametrize(
    ("records", "ending"),
    [
        (RECORDS[:2], "|  |  |"),  # no base row
        ([RECORDS[2], record("rotary", 2, 4.0, 26.0, 8.0, 50.0)], "|  |  |"),  # no seed in common
        ([RECORDS[2], record("rotary", 1, math.inf, 0.0, 8.0, None)], "| 0.50 |  |"),  # diverged
    ],
)
def test_a_speed_without_its_measurement_is_blank(records, ending):
    (line,) = (line for line in markdown(records).splitlines() if line.startswith("| rotary"))
    assert line.endswith(ending)


def test_the_picture_has_no_rings_because_the_paper_has_no_such_rows():
    figure = table3_differences(RECORDS)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "range of the base row's seeds",
        "this package, one dot per seed",
    ]
    assert len(figure.axes[0].get_yticklabels()) == 1


@pytest.mark.very_slow
def test_a_grid_is_trained_and_its_search_timed(tmp_path, capsys):
    """Slow: trains two models of three steps in processes of their own."""
    sets = ["training.max_steps=3", "data.vocab_size=400", "data.batch_tokens=2048", "model.d_model=16"]
    flags = ["cldr/en-de", "--grid", "departures", "--seeds", "1", "--out", str(tmp_path / "grid")]
    flags += [part for text in sets for part in ("--set", text)]
    assert table3.main([*flags, "--rows", BASE, "SwiGLU"]) == 0
    assert "2 of 2 models to train" in capsys.readouterr().out
    records = table3_records.read_grid([tmp_path / "grid"], "departures")
    assert [record["row"] for record in records] == [BASE, "SwiGLU"]
    assert all(record["sentences_per_second"] > 1 for record in records)
