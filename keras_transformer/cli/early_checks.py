"""Checks of runs, corpora and files before TensorFlow is imported, which takes seconds."""

import os
import pathlib

from keras_transformer.config import programs


def open_runs(paths, checkpoint=None):
    """Opens run folders and checks that they have the weights to load.

    Args:
        paths: list of str.
        checkpoint: name of the weights, as in `RunFolder.load_weights`. `"ema"` is not checked: reading
            whether a checkpoint has a moving average needs TensorFlow.

    Returns:
        list of `RunFolder`.

    Raises:
        ValueError: a path is not a run folder, or the run has no weights of this name.
    """
    from keras_transformer.checkpoints.run_folder import RunFolder

    runs = [RunFolder(path) for path in paths]
    for run in runs:
        if checkpoint not in (None, "ema"):
            run.check_weights(checkpoint)
    return runs


def check_task(runs, *, parses):
    """Raises `ValueError` if a run translates where a parser is needed, or the reverse.

    Args:
        runs: list of `RunFolder`.
        parses: whether the runs must be trained on trees.
    """
    for run in runs:
        if run.config.data.parses != parses:
            task, program = ("translates", "translate") if parses else ("parses", "parse")
            raise ValueError(f"{run.path}: this run {task}. Use {programs.command(program)} {run.path}")


def check_files_exist(*paths):
    """Raises `ValueError` if a file is missing. Does not open files, as a pipe can be opened only once.

    Raises:
        ValueError: the message names the file.
    """
    for path in paths:
        if not os.path.exists(path):
            raise ValueError(f"{path}: no such file. Check the path")


def is_local(dataset):
    """Whether a dataset, given by its name, can be read without TensorFlow Datasets."""
    return dataset.startswith("cldr/") or os.path.exists(dataset)


def check_run(config, run_dir, *, allowed=(), resume_from=None):
    """Checks settings, corpus and run folder of a training run, as far as possible without TensorFlow.

    Args:
        config: `Config`.
        run_dir: path of a new or an existing run folder.
        allowed: names of settings that may differ from those of a resumed run.
        resume_from: step of a checkpoint, or `None`.

    Raises:
        ValueError: the settings, the corpus or the folder cannot be used.
    """
    from keras_transformer.batches.training_data import check_training_data
    from keras_transformer.checkpoints.new_folder import check_unused
    from keras_transformer.checkpoints.pretrained import pretrained_models
    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.checkpoints.tensor_files import check_step
    from keras_transformer.training.resume import check_setting_names

    # With several workers, `train` checks after all have connected: until then, a worker that ends leaves the
    # others waiting.
    if os.environ.get("TF_CONFIG"):
        return
    check_setting_names(allowed, config)
    is_new = True
    if (pathlib.Path(run_dir) / "config.json").exists():
        is_new = not RunFolder(run_dir).has_trained
        check_step(pathlib.Path(run_dir) / "checkpoints", resume_from)
    else:
        check_unused(run_dir)
        if str(run_dir) in pretrained_models():
            raise ValueError(
                f"--run-dir {run_dir}: the name of a model that comes with the package. Choose another; "
                f"--init-from {run_dir} starts from that model"
            )
        if resume_from is not None:
            raise ValueError(f"--resume-from {resume_from}: {run_dir} has no run to resume. Check --run-dir")
    check_training_data(config)
    if config.training.init_from and is_new:  # a run that has trained has its own weights
        open_runs([config.training.init_from], config.training.init_checkpoint)
