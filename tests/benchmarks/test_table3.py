"""Table 3: the rows are the paper's, and the table says of the records what they say."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import table3
import table3_records
from plots import table3_differences
from table3_rows import BASE, PAPER, agreement, grid, markdown, summaries

from keras_transformer.config.presets import PRESETS
from keras_transformer.config.settings import differences, override

COMMON = {"dataset": "d", "source": "en", "target": "de", "preset": "p", "set": [], "checkpoint": "last"}


def record(row, seed, perplexity, bleu, counterpart=BASE, **changes):
    figures = {"parameters": 1234, "perplexity": perplexity, "bleu": bleu, "minutes": 7.4, "signature": "s|v"}
    names = {"row": row, "seed": seed, "counterpart": counterpart, "common": COMMON, "settings": []}
    return {**names, **figures, **changes}


BASES = [record(BASE, 1, 5.0, 25.0), record(BASE, 2, 5.2, 24.6)]


def test_the_grid_of_base_has_the_presets_of_the_papers_rows():
    configs = [override(PRESETS["base"], row.settings) for row in grid(PRESETS["base"], "base")[1:]]
    presets = [config for name, config in PRESETS.items() if name.startswith("table3_")]
    assert len(configs) == len(presets) == 18
    for config, preset in zip(configs, presets, strict=True):
        changes = [change for change in differences(preset, config) if change[0] != "model.value_dim"]
        assert changes == []
        assert config.model.d_value == preset.model.d_value


def test_every_row_of_the_paper_has_its_figures():
    assert {row.counterpart for row in grid(PRESETS["base"], "base")} == PAPER.keys()


def test_the_grid_of_a_small_model_has_the_papers_factors():
    rows = {row.name: row for row in grid(PRESETS["multi30k_tiny"])}
    assert list(rows) == [
        BASE,
        *("heads 1", "heads 2", "heads 8", "heads 16", "d_k 8", "d_k 16", "layers 2", "layers 6"),
        *("d_model 64", "d_model 256", "d_ff 128", "d_ff 512", "dropout 0.0", "dropout 0.1"),
        *("label smoothing 0.0", "label smoothing 0.2", "positions learned"),
    ]
    base = PRESETS["multi30k_tiny"]
    for row in rows.values():
        override(base, row.settings)  # all can be built
    # h * d_k stays, and d_v where only d_k changes.
    assert override(base, rows["heads 16"].settings).model.d_key == 8
    narrow = override(base, rows["d_k 8"].settings).model
    assert (narrow.d_key, narrow.d_value) == (8, 32)
    assert rows["dropout 0.1"].counterpart not in PAPER  # the paper has 0.0, 0.1 and 0.2


def test_what_cannot_be_or_equals_the_base_row_is_left_out():
    changes = ["model.num_heads=1", "model.residual_dropout=0.0", "training.label_smoothing=0.2"]
    changes += ["model.positions=learned", "model.d_model=6", "model.d_ff=8", "model.num_encoder_layers=1"]
    names = [row.name for row in grid(override(PRESETS["multi30k_tiny"], changes))]
    assert "heads 4" not in names  # 6 is no multiple of 4
    assert [name for name in names if name.startswith("heads")] == ["heads 2"]
    assert not {"dropout 0.0", "label smoothing 0.2", "positions learned", "layers 0", "heads 0"} & set(names)


@pytest.mark.parametrize(
    ("bleus", "wanted"),
    [
        ((22.0, 23.0), "agrees"),  # the paper's fewest heads are 0.9 worse
        ((26.0, 27.0), "differs"),
        ((24.9, 30.0), "within seeds"),
    ],
)
def test_signs_are_compared_only_where_seeds_are_apart(bleus, wanted):
    rows = [record("heads 1", seed, 5.1, bleu, "heads, fewest") for seed, bleu in enumerate(bleus)]
    base, row = summaries([*BASES, *rows])
    assert agreement(row, base, key="bleu") == wanted
    assert agreement(base, base, key="bleu") == ""
    more = summaries([*BASES, record("heads 8", 1, 1.0, 99.0, "heads, more")])[1]
    assert agreement(more, base, key="bleu") == ""  # the paper has no difference
    assert agreement(more, base, key="perplexity") == "agrees"


def test_the_table_has_means_ranges_and_the_papers_figures():
    heads = record("heads 1", 1, 6.0, 22.0, "heads, fewest")
    table = markdown([heads, *BASES, record("dropout 0.1", 1, 4.0, 26.0, "dropout less")]).splitlines()
    ranges = "5.100 (5.000 to 5.200) | 24.80 (24.60 to 25.00)"
    assert table[2] == f"| base | 2 | 1,234 | {ranges} | 7 | 4.92 | 25.8 |  |"
    assert table[3] == "| heads 1 | 1 | 1,234 | 6.000 | 22.00 | 7 | 5.29 | 24.9 | agrees |"
    assert table[4] == "| dropout 0.1 | 1 | 1,234 | 4.000 | 26.00 | 7 |  |  |  |"
    assert table[-2].startswith("Sign of both: the row differs from the base row as the paper's does")
    assert table[-1] == "BLEU: `s|v`"


def test_a_model_measured_twice_counts_once():
    again = summaries([*BASES, record(BASE, 2, 5.4, 24.0)])
    assert again[0].bleus == [25.0, 24.0]


def test_records_of_different_corpora_are_not_put_in_one_table():
    other = record("heads 1", 1, 5.0, 25.0, common={**COMMON, "preset": "q"})
    with pytest.raises(ValueError, match="some records have --preset q, not p: show"):
        markdown([*BASES, other])
    with pytest.raises(ValueError, match="there are no records yet"):
        markdown([])


def test_the_picture_has_a_dot_for_each_seed_and_a_ring_for_the_paper():
    rows = [record("heads 1", seed, 5.5, bleu, "heads, fewest") for seed, bleu in ((1, 23.8), (2, 22.8))]
    figure = table3_differences([*BASES, *rows])
    bleu = figure.axes[0]
    assert [label.get_text() for label in bleu.get_yticklabels()] == ["heads 1"]
    dots, rings = (line.get_xdata() for line in bleu.lines if line.get_marker() == "o")
    assert list(dots) == pytest.approx([23.8 - 24.8, 22.8 - 24.8])
    assert list(rings) == pytest.approx([24.9 - 25.8])
    with pytest.raises(ValueError, match="needs the base row and another row"):
        table3_differences(BASES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["d"], "give DATASET and --out DIR, or --show OUT"),
        (["d", "--out", "o", "--rows", "heads 3"], "--rows 'heads 3': choose from base, 'heads 1', "),
        (["d", "--out", "o", "--rows", "(F)"], "; or from the groups '(A)', '(B)', '(C)', '(D)', '(E)'"),
        (["d", "--out", "o", "--seeds", "1", "1"], "--seeds must be different and at least 0"),
        (["d", "--out", "o", "--jobs", "9999"], ", the cores of this process. Received: 9999"),
        (["d", "--out", "o", "--checkpoint", "newest"], "--checkpoint newest: give last, best, averaged, "),
        (["d", "--out", "o", "--plot", "p.xyz"], "--plot p.xyz: the name must end in .png, .svg or .pdf"),
        (["d", "--out", "o", "--plot", "none/p.png"], "--plot none/p.png: cannot be written there"),
        (["nowhere", "--out", "o"], "nowhere"),
        (["--show", "o", "--rows", "base"], "--show takes only --grid and --plot beside it"),
        (["--show", "o", "--seeds", "1"], "--show takes only --grid and --plot beside it"),
        (["d", "--out", "o", "--preset", "tinny"], "There is no preset 'tinny'. Did you mean 'tiny'"),
        (["d", "--out", "o", "--set", "model.x=1"], "model has no setting 'x'"),
        (["d", "--out", __file__], "test_table3.py: a file. Name a folder"),
        (["--show", "nothing.jsonl"], "nothing.jsonl: no such file or directory"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = table3.main(arguments)
    except SystemExit as error:
        code = error.code
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_only_complete_records_are_read_and_a_cut_off_line_is_replaced(tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    for own in BASES:
        table3_records.append(path, own)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])  # killed while it wrote the second record
    (found,) = table3_records.read_all([tmp_path])
    assert found == {"grid": "table3", **BASES[0]}
    assert capsys.readouterr().err == f"{path}, line 2: skipped, because it is cut off\n"
    table3_records.append(path, BASES[1])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", r"line 2: not JSON \(JSONDecodeError\). Remove the line; the command that made it"),
        (b"\xff\xfe", r"line 2: not JSON \(UnicodeDecodeError\). Remove the line"),
        (b"[1]", "line 2: not a record of a model. Remove the line"),
        (b'{"row": "base"}', "line 2: not a record of a model, 'counterpart' has no value. Remove"),
        (json.dumps(record(BASE, 3, "x", 25.0)).encode(), "line 2: .*'perplexity' has 'x'"),
        (json.dumps(record(BASE, 3, float("nan"), 25.0)).encode(), "line 2: .*'perplexity' has nan"),
        (json.dumps(record(BASE, 3, 5.0, None)).encode(), "line 2: .*'bleu' has None"),
        (
            json.dumps(record(BASE, 3, 5.0, 25.0, common={})).encode(),
            "line 2: 'common' must have dataset, source",
        ),
    ],
)
def test_a_line_that_is_no_record_is_named(line, message, tmp_path):
    path = tmp_path / "damaged.jsonl"
    table3_records.append(path, BASES[0])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError, match=f"damaged.jsonl, {message}"):
        table3_records.read_all([path])


def test_records_of_another_grid_are_named(tmp_path):
    table3_records.append(tmp_path / "records.jsonl", {**BASES[0], "grid": "departures"})
    with pytest.raises(
        ValueError, match="no records of --grid table3, only of others: give --grid departures"
    ):
        table3_records.read_grid([tmp_path], "table3")


@pytest.mark.slow
def test_a_folder_with_models_of_other_settings_is_refused_before_training(tmp_path, capsys):
    flags = ["d", "--preset", "tiny", "--out", str(tmp_path), "--set", "training.max_steps=22"]
    common = {**COMMON, "preset": "tiny", "set": ["training.max_steps=20"]}
    table3_records.append(tmp_path / "records.jsonl", record(BASE, 1, 5.0, 25.0, common=common))
    assert table3.main(flags) == 2
    assert capsys.readouterr().err == (
        f"table3.py: --out {tmp_path}: has models with --set training.max_steps=20, not "
        "training.max_steps=22. Give another folder, or the same settings\n"
    )
    # The same model of another grid would have the same run folder.
    assert table3.main([*flags, "--grid", "departures"]) == 2
    assert "has models with --set training.max_steps=20" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["records.jsonl"]
    # Other models of another grid, and other weights of the same models, are no obstacle. The dataset is.
    same = [*flags[:-1], "training.max_steps=20", "--checkpoint", "best"]
    for given in ([*flags, "--grid", "departures", "--rows", "rotary"], same):
        assert table3.main(given) == 2
        assert "prepare_wmt.py: d: no such folder" in capsys.readouterr().err


def test_ctrl_c_during_preparation_ends_it(tmp_path):
    out, program = tmp_path / "out", table3.__file__
    process = subprocess.Popen(
        [sys.executable, program, "cldr/en-de", "--out", out], stderr=subprocess.PIPE, text=True
    )
    mine = f"prepare_wmt.py cldr/en-de {out / 'corpus'}"
    for _ in range(600):
        if found := _processes(mine):
            break
        time.sleep(0.05)
    assert len(found) == 1
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == "table3.py: stopped. Run the same command again to resume\n"
    assert process.returncode == 130
    assert _processes(mine) == []
    assert not (out / "corpus" / "manifest.json").exists()


def _processes(text):
    """Returns the numbers of the processes whose command line has a text."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text in (folder / "cmdline").read_text().replace("\0", " "):
                found.append(folder.name)
    return found


@pytest.mark.very_slow
def test_a_grid_is_trained_measured_and_resumed(tmp_path, capsys):
    """Slow: trains two models of three steps in processes of their own."""
    sets = ["training.max_steps=3", "data.vocab_size=400", "data.batch_tokens=2048", "model.d_model=16"]
    flags = ["cldr/en-de", "--out", str(tmp_path / "grid"), "--seeds", "1", "--rows", BASE, "heads 1"]
    flags += [part for text in [*sets, "model.d_ff=24"] for part in ("--set", text)]
    assert table3.main([*flags, "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 models to train" in out
    records = [json.loads(line) for line in (tmp_path / "grid" / "records.jsonl").read_text().splitlines()]
    assert [record["row"] for record in records] == [BASE, "heads 1"]
    assert all(record["steps"] == 3 and record["perplexity"] > 1 for record in records)
    # With d_v and d_k of all heads together, the number of weights does not depend on the heads.
    assert records[0]["parameters"] == records[1]["parameters"]
    assert table3.main([*flags, "--plot", str(tmp_path / "plot.png")]) == 0
    out = capsys.readouterr().out
    assert "0 of 2 models to train" in out
    assert re.search(r"\| heads 1 \| 1 \| [\d,]+ \| ", out)
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_rows_are_in_the_order_of_the_papers_table_whichever_ended_first():
    rows = [("positions", "learned positions"), ("dropout 0.1", "dropout less"), ("other", "none")]
    rows += [("heads 1", "heads, fewest"), (BASE, BASE), ("dropout 0", "dropout 0"), ("last", "none too")]
    records = [record(row, 1, 5.0, 25.0, counterpart) for row, counterpart in rows]
    found = [summary.row for summary in summaries(records)]
    assert found == [BASE, "heads 1", "dropout 0", "dropout 0.1", "positions", "other", "last"]
