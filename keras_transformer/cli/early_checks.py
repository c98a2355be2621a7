"""What is refused before TensorFlow is imported, which takes seconds: runs, corpora, files."""

import os
import pathlib


def open_runs(paths, checkpoint=None):
    """Returns the `RunFolder`s of some paths.

    Args:
        paths: list of str.
        checkpoint: weights that each must have, as `RunFolder.load_weights` names them. `"ema"` is checked
            later: only TensorFlow can read whether a checkpoint has a moving average.

    Raises:
        ValueError: one is no run, or it has no such weights.
    """
    from keras_transformer.checkpoints.run_folder import RunFolder

    runs = [RunFolder(path) for path in paths]
    for run in runs:
        if checkpoint not in (None, "ema"):
            run.check_weights(checkpoint)
    return runs


def check_files_exist(*paths):
    """Refuses files that are not there; it opens none, for a pipe can be opened once.

    Raises:
        ValueError: the message names the file.
    """
    for path in paths:
        if not os.path.exists(path):
            raise ValueError(f"{path}: no such file. Check the path")


def is_local(dataset):
    """Whether a dataset needs nothing of TensorFlow Datasets, by its name."""
    return dataset.startswith("cldr/") or os.path.exists(dataset)


def check_run(config, run_dir, *, allowed=(), resume_from=None):
    """Refuses a training run for what can be known without TensorFlow.

    Args:
        config: `Config`.
        run_dir: path of the run folder, perhaps of an earlier run.
        allowed: names of settings that a run which continues may change.
        resume_from: step of a checkpoint, or `None`.

    Raises:
        ValueError: settings, corpus or folder are refused.
    """
    from keras_transformer.batches.training_data import check_training_data
    from keras_transformer.checkpoints.new_folder import check_unused
    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.training.resume import check_setting_names

    # A worker that ends before all workers have met leaves the others waiting: `train` refuses after that.
    if os.environ.get("TF_CONFIG"):
        return
    check_setting_names(allowed, config)
    if (pathlib.Path(run_dir) / "config.json").exists():
        RunFolder(run_dir)
    else:
        check_unused(run_dir)
        if resume_from is not None:
            raise ValueError(f"--resume-from {resume_from}: {run_dir} holds no run that could go on")
    check_training_data(config)
    if config.training.init_from:
        open_runs([config.training.init_from], config.training.init_checkpoint)
