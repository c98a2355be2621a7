"""One run folder: configuration, vocabularies, checkpoints, averaged weights, history.

    config.json        every setting
    tokenizer.model    the vocabulary; or one for each side: tokenizer.source.model and
                       tokenizer.target.model
    corpus.sha256      SHA-256 of the training ids, so that a run continues on the same text
    tokenizer.sha256   their SHA-256, as `sha256sum --check` reads it
    checkpoints/       the newest training states: weights, optimizer, seeds, step
    averaged/          the mean of the newest checkpoints' weights, for translation
    history.jsonl      one line per logged interval and per validation
    tensorboard/       the same for TensorBoard
    translations.*     what the end of training printed, in full

Checkpoints are TensorFlow's: complete or invisible, with a checksum for each tensor.
"""

import json
import os
import pathlib
import re

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import config as configs
from keras_transformer.data.vocabulary import (
    as_tokenizers,
    check_vocabularies,
    load_tokenizers,
    save_tokenizers,
    vocabulary_files,
)
from keras_transformer.model import Transformer

_SUMS = "tokenizer.sha256"


class RunFolder:
    """The files of one run.

    Args:
        path: an existing run folder.

    Raises:
        ValueError: no such folder, or it holds no run.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            text = (self.path / "config.json").read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"{self.path}: not a run folder (config.json: {error.strerror}). "
                "Name the --run-dir of a training run"
            ) from error
        try:
            self.config = configs.from_json(text)
        except ValueError as error:
            raise ValueError(f"{self.path / 'config.json'}: {error}") from error

    @classmethod
    def create(cls, path, config, tokenizers):
        """Makes the folder of a new run.

        Args:
            path: a folder that does not exist or is empty.
            config: `Config`, with the vocabulary sizes of the tokenizers.
            tokenizers: a tokenizer, or `Tokenizers`.

        Raises:
            ValueError: the folder holds something else, or the vocabularies are not
                those of the model.
        """
        tokenizers = as_tokenizers(tokenizers)
        check_vocabularies(tokenizers, config.model)
        path = pathlib.Path(path)
        check_unused(path)
        path.mkdir(parents=True, exist_ok=True)
        save_tokenizers(path, tokenizers)
        write_text(path / _SUMS, _sums(tokenizers))
        # Last: a folder with a configuration has its vocabularies, too.
        write_text(path / "config.json", configs.to_json(config))
        return cls(path)

    def load_tokenizers(self):
        """Returns the `Tokenizers` of the run: the same one twice where it is shared.

        Raises:
            ValueError: they are missing, damaged, or not those of the model.
        """
        tokenizers = load_tokenizers(self.path)
        try:
            check_vocabularies(tokenizers, self.config.model)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        sums = self.path / _SUMS
        if sums.exists() and sums.read_text(encoding="utf-8") != _sums(tokenizers):
            raise ValueError(
                f"{self.path}: the vocabulary is not the one that this run began with (see {_SUMS}). "
                "Put its file back"
            )
        return tokenizers

    def load_model(self, *, weights="averaged"):
        """Returns the `Transformer` of the run.

        Args:
            weights: `"averaged"`, or `"last"` for the newest checkpoint.

        Raises:
            ValueError: there are no such weights, or they are not of this model.
        """
        folders = {"averaged": "averaged", "last": "checkpoints"}
        if weights not in folders:
            raise ValueError(f"`weights` must be one of {list(folders)}. Received: {weights!r}")
        folder = self.path / folders[weights]
        newest = tf.train.latest_checkpoint(folder)
        if newest is None:
            raise ValueError(
                f"{folder}: no {weights} weights yet. Training writes the averaged ones at "
                "its end; until then there is `last`"
            )
        model = Transformer(self.config.model)
        _restore(tf.train.Checkpoint(weights=_by_path(model.weights)), newest, partly=True)
        return model

    def checkpoints(self, model, optimizer):
        """Returns the `Checkpoints` of a model in training."""
        return Checkpoints(self.path / "checkpoints", model, optimizer, self.config.training.keep_checkpoints)

    def average(self, model, last):
        """Writes the mean of the newest checkpoints' weights, and puts it into `model`.

        Args:
            model: a `Transformer` of this run.
            last: number of checkpoints, as far as there are so many.

        Returns:
            list of str, the checkpoints averaged.
        """
        state = tf.train.get_checkpoint_state(self.path / "checkpoints")
        paths = list(state.all_model_checkpoint_paths)[-last:] if state else []
        if not paths:
            raise ValueError(f"{self.path / 'checkpoints'}: no checkpoint to average")
        by_path = _by_path(model.weights)
        totals = {name: np.zeros(weight.shape, np.float64) for name, weight in by_path.items()}
        for path in paths:
            _restore(tf.train.Checkpoint(weights=by_path), path, partly=True)
            for name, weight in by_path.items():
                totals[name] += weight.numpy()
        for name, weight in by_path.items():
            weight.assign((totals[name] / len(paths)).astype(weight.dtype.as_numpy_dtype))
        tf.train.CheckpointManager(
            tf.train.Checkpoint(weights=by_path), self.path / "averaged", max_to_keep=1
        ).save()
        return paths

    def append_history(self, record):
        """Adds one line of JSON to `history.jsonl`."""
        with (self.path / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def rewind_history(self, step):
        """Drops the records of steps after `step`: a run that continues makes them again."""
        kept = [record for record in self.read_history() if record.get("step", 0) <= step]
        write_text(self.path / "history.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    def read_history(self):
        """Returns the records of `history.jsonl`, oldest first."""
        path = self.path / "history.jsonl"
        if not path.exists():
            return []
        # What follows the last newline is a record that a crash cut short.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]


class Checkpoints:
    """Training states of one run: weights, optimizer, seeds and time.

    Args:
        folder: where they are.
        model: a compiled `Transformer`.
        optimizer: its built optimizer; it counts the steps.
        keep: so many newest ones are kept.
    """

    def __init__(self, folder, model, optimizer, keep):
        self.folder = pathlib.Path(folder)
        self.optimizer = optimizer
        self.seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(
            weights=_by_path(model.weights),
            optimizer=_by_path(optimizer.variables, "adam"),
            # Dropout's seed states: without them a resumed run is another run.
            seeds=_seed_states(model),
            seconds=self.seconds,
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, folder, max_to_keep=keep, checkpoint_name="step"
        )

    def restore(self):
        """Restores the newest state.

        Returns:
            int, the step it was saved at; 0 where there is none.

        Raises:
            ValueError: the newest state is damaged or of another model, or there are
                states but not the list of them: starting anew would overwrite them.
        """
        newest = self._manager.latest_checkpoint
        if newest is None:
            lost = sorted(path.stem for path in self.folder.glob("step-*.index"))
            if lost:
                raise ValueError(
                    f"{self.folder}: the file `checkpoint` is missing or damaged, but there "
                    f"is {', '.join(lost)}. Restore it, or choose another --run-dir"
                )
            return 0
        _restore(self._checkpoint, newest)
        return int(self.optimizer.iterations.numpy())

    def save(self, seconds):
        """Writes the present state, unless the newest checkpoint holds it already.

        Args:
            seconds: training time of the run so far.
        """
        step = int(self.optimizer.iterations.numpy())
        newest = self._manager.latest_checkpoint
        if newest is not None and newest.endswith(f"step-{step}"):
            return
        self.seconds.assign(seconds)
        self._manager.save(checkpoint_number=step)


def _sums(tokenizers):
    named = zip(tokenizers, vocabulary_files(tokenizers.shared), strict=False)
    return "".join(f"{tokenizer.sha256}  {name}\n" for tokenizer, name in named)


def check_unused(path):
    """Raises `ValueError` if `path` is not an empty folder and no new one can be made there."""
    path = pathlib.Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path}: exists and is not a run folder. Choose another --run-dir")
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(f"{path}: cannot write in {nearest}. Choose another --run-dir")


def write_text(path, text):
    """Writes a file that is complete when it appears."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _restore(checkpoint, path, *, partly=False):
    """Restores a checkpoint file; `partly` where it holds more than `checkpoint`."""
    try:
        # Every checksum is looked at before anything changes.
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        # Without `expect_partial`, what is left over is listed when Python ends.
        status = checkpoint.restore(path).expect_partial()
        status.assert_existing_objects_matched() if partly else status.assert_consumed()
    except (AssertionError, IndexError, RuntimeError, ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: damaged, or of another model: {reason}") from error


def _by_path(variables, owner=None):
    """{path: tf.Variable}; `owner` stands for the path's first part, as Keras numbers it."""
    found = {}
    for variable in variables:
        name = variable.path
        if owner is not None:
            name = f"{owner}/{name.partition('/')[2]}"
        if name in found:
            raise ValueError(f"Two variables have the path {name!r}.")
        found[name] = variable.value if isinstance(variable, keras.Variable) else variable
    return found


def _seed_states(model):
    """{name: tf.Variable} of dropout's seed states, numbered from 0.

    Keras numbers seed generators through the whole process: the second model of a
    notebook would find none of its own names in a checkpoint of the first.
    """
    numbers = {}
    for variable in model.variables:
        match = re.match(r"seed_generator_?(\d*)/", variable.path)
        if match:
            numbers[int(match[1] or 0)] = variable
    ordered = [numbers[number] for number in sorted(numbers)]
    return {
        f"seed_generator{f'_{i}' if i else ''}/seed_generator_state": variable.value
        for i, variable in enumerate(ordered)
    }
