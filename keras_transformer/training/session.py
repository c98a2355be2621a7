"""Opens the data and the run folder of a training run; checks both before anything is written."""

import dataclasses
import logging
import os
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.batches.dataset import TokenBatches, training_batches, validation_batches
from keras_transformer.batches.prepared import is_prepared
from keras_transformer.batches.training_data import TrainingData, load_training_data
from keras_transformer.checkpoints.new_folder import CONFIG, CORPUS, lock_folder
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.tensor_files import storage_errors
from keras_transformer.config import settings as configs
from keras_transformer.config.presets import with_vocab_size
from keras_transformer.config.sections import BYTES_IN_TRAINING
from keras_transformer.files import write_text
from keras_transformer.training.before_training import depth_note, learning_rate_note, warmup_note
from keras_transformer.training.fine_tuning import check_initial_weights
from keras_transformer.training.resume import (
    CORPUS_SUM,
    apply_config_changes,
    check_config_changes,
    recorded_sha256,
    with_initial_settings,
)

logger = logging.getLogger(__name__)


class Session(NamedTuple):
    """Run folder, corpus and batches of one training run.

    Attributes:
        run: `RunFolder`.
        corpus: `TrainingData`.
        batches: `TokenBatches` to train on.
        validation: `TokenBatches` of the validation split.
    """

    run: RunFolder
    corpus: TrainingData
    batches: TokenBatches
    validation: TokenBatches


def open_session(config, run_dir, devices, allowed, stack):
    """Loads the data and creates or opens the run folder. Other workers wait until the chief has done so.

    Args:
        config: `Config`.
        run_dir: `pathlib.Path`.
        devices: `Devices`.
        allowed: names of settings that may differ from those of a resumed run.
        stack: `contextlib.ExitStack` that releases the lock of the folder.

    Returns:
        `Session`.

    Raises:
        ValueError: the data, the folder or the settings cannot be used.
    """
    _check_memory(config)
    earlier = None
    if not devices.is_chief:
        devices.gather(0)  # wait until the chief has created the folder
        earlier = RunFolder(run_dir, writes=False)
    else:
        if (run_dir / CONFIG).exists():
            earlier = RunFolder(run_dir)
        stack.enter_context(lock_folder(run_dir))
        if earlier:
            earlier.clean()
            if not earlier.has_trained:
                # It ended before its first step, so its settings need not be kept: they may have been wrong.
                earlier.discard_untrained()
                earlier = None
    if earlier:
        config = with_initial_settings(config, earlier)
    tokenizers = earlier.load_tokenizers() if earlier else _initial_tokenizers(config)
    if earlier and not is_prepared(config.data.dataset):  # before reading the text, which takes long
        check_config_changes(earlier, with_vocab_size(config, *tokenizers.sizes), allowed)
    recorded = earlier and recorded_sha256(earlier)
    corpus = load_training_data(
        config, run_dir / CORPUS, tokenizers, recorded=recorded, writes=devices.is_chief
    )
    config = with_vocab_size(configs.replace(config, data=corpus.data), *corpus.tokenizers.sizes)
    if not earlier and config.training.init_from:
        source = RunFolder(config.training.init_from)
        check_initial_weights(source, config.model, config.training.init_checkpoint)
    batches = training_batches(config.data, corpus, seed=config.training.seed)
    validation, num_long = validation_batches(config.data, corpus)
    # All other checks have passed: change or create the folder.
    if earlier:
        run_config = earlier.config
        apply_config_changes(earlier, config, sha256=corpus.sha256, allowed=allowed)
        if not devices.is_chief:
            # All workers use the chief's settings, except for local paths and devices.
            paths = {name: getattr(config.data, name) for name in ("data_dir", "manual_dir")}
            data = dataclasses.replace(run_config.data, **paths)
            earlier.config = dataclasses.replace(run_config, data=data, devices=config.devices)
    run = earlier or RunFolder.create(run_dir, config, corpus.tokenizers, locked=True)
    if devices.is_chief:
        if not earlier:
            with storage_errors(run.path / CORPUS_SUM):
                write_text(run.path / CORPUS_SUM, f"{corpus.sha256}\n")
        _log_notes(run.config, corpus, num_long)
        devices.gather(0)
    return Session(run, corpus, batches, validation)


def _check_memory(config):
    """Raises `ValueError` if the weights cannot fit into main memory; skipped if there are GPUs."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = BYTES_IN_TRAINING * config.model.num_weights
    if needed > memory and not tf.config.list_physical_devices("GPU"):
        raise ValueError(
            f"A model of {config.model.num_weights:,} weights needs {needed / 1e9:,.0f} GB to train, this "
            f"machine has {memory / 1e9:,.0f} GB. Choose another --preset, or lower model.d_model"
        )


def _initial_tokenizers(config):
    """Returns the `Tokenizers` of the run in `init_from` if its vocabulary is to be used, else `None`."""
    training = config.training
    if not training.init_from or not training.init_vocabulary or is_prepared(config.data.dataset):
        return None
    return RunFolder(training.init_from).load_tokenizers()


def _log_notes(config, corpus, num_long):
    """Logs notes on the corpus and on risky settings as warnings."""
    notes = list(corpus.notes)
    if num_long:
        notes.append(f"validation: left out {num_long:,} pairs longer than {config.data.max_length} tokens")
    notes += [note for note in (learning_rate_note(config), warmup_note(config), depth_note(config)) if note]
    for note in notes:
        logger.warning(note)
