"""A run folder with saved states, and copies of it to break."""

import shutil

import pytest
from tiny_runs import STEPS, TEXTS, Training

from keras_transformer.config import Config, DataConfig, ModelConfig, TrainingConfig
from keras_transformer.data.tokenizer import SubwordTokenizer
from keras_transformer.training.run_folder import RunFolder


@pytest.fixture(scope="session")
def tokenizer():
    return SubwordTokenizer.train(TEXTS * 3, vocab_size=300)


@pytest.fixture(scope="session")
def config(tokenizer):
    return Config(
        model=ModelConfig(
            source_vocab_size=tokenizer.vocab_size,
            target_vocab_size=tokenizer.vocab_size,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=8,
            d_ff=12,
            num_heads=2,
        ),
        data=DataConfig(vocab_size=300, max_length=30, batch_tokens=400),
        training=TrainingConfig(keep_checkpoints=3, average_last=2),
    )


@pytest.fixture(scope="session")
def saved(config, tokenizer, tmp_path_factory):
    """A run folder with four saves, of which three are kept."""
    path = tmp_path_factory.mktemp("saved") / "run"
    run = RunFolder.create(path, config, tokenizer)
    training = Training(run)
    for step in STEPS:
        training.save(step, seconds=10.0 * step)
        run.append_history({"kind": "train", "step": step})
    run.average(last=2)
    return path


@pytest.fixture
def run(saved, tmp_path):
    """A copy that a test may break; a run folder may be moved."""
    return RunFolder(shutil.copytree(saved, tmp_path / "copy"))


@pytest.fixture
def new_run(config, tokenizer, tmp_path):
    """The folder of a run that never trained."""
    return RunFolder.create(tmp_path / "new", config, tokenizer)
