"""The same text from TensorFlow Datasets, Hugging Face and a generator trains the same model."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import Config, override
from keras_transformer.text.datasets import load_split
from keras_transformer.text.folders import write_corpus
from keras_transformer.training.run import train

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = {"train": 300, "validation": 20, "test": 10}
STEPS = 100
SETTINGS = (
    "model.num_encoder_layers=1 model.num_decoder_layers=1 model.d_model=16 model.d_ff=24 model.num_heads=2 "
    "data.vocab_size=320 data.max_length=40 data.batch_tokens=640 training.warmup_steps=40 "
    f"training.max_steps={STEPS} training.log_every_steps=1 training.validate_every_steps={STEPS} "
    "training.validation_sentences=4 training.checkpoint_every_steps=50 search.max_length_offset=4"
).split()


def write_text(folder):
    folder.mkdir()
    rng = np.random.default_rng(1)
    words = (("dog", "Hund"), ("man", "Mann"), ("sees", "sieht"), ("tree", "Baum"), ("two", "zwei"))
    for split, size in SIZES.items():
        rows = [rng.integers(0, len(words), rng.integers(2, 9)) for _ in range(size)]
        for side, language in enumerate(("en", "de")):
            text = "".join(" ".join(words[i][side] for i in row) + f" {len(row)}.\n" for row in rows)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.very_slow
def test_the_same_text_from_three_sources_gives_the_same_losses(tmp_path):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    writer = [sys.executable, "tests/text/write_wmt14.py", tmp_path / "tfds", write_text(tmp_path / "text")]
    subprocess.run(writer, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    # TensorFlow Datasets shuffles what it stores; the others get its order.
    stored = {
        split: list(
            zip(
                *load_split("wmt14_translate/de-en", split, "en", "de", data_dir=tmp_path / "tfds"),
                strict=True,
            )
        )
        for split in SIZES
    }
    rows = {split: [{"translation": {"en": a, "de": b}} for a, b in pairs] for split, pairs in stored.items()}
    splits = {split: datasets.Dataset.from_list(row) for split, row in rows.items()}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    write_corpus(tmp_path / "written", "en", "de", **{split: iter(pairs) for split, pairs in stored.items()})
    histories, hashes = {}, set()
    for name in ("wmt14_translate/de-en", f"hf:{tmp_path}/saved", str(tmp_path / "written")):
        given = [f"data.dataset={name}", f"data.data_dir={tmp_path / 'tfds'}"]
        run_dir = tmp_path / f"run{len(histories)}"
        train(override(Config(), [*SETTINGS, *given]), run_dir)
        records = RunFolder(run_dir).read_history()
        histories[name] = [record["loss"] for record in records if record["kind"] == "train"]
        hashes.add((run_dir / "tokenizer.model").read_bytes())
    first, *others = histories.values()
    print(*(f"{name}: {losses[0]} ... {losses[-1]}" for name, losses in histories.items()), sep="\n")
    assert len(first) == STEPS
    assert first[-1] < first[0]
    assert others == [first, first]
    assert len(hashes) == 1
