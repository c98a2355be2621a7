"""One run folder: all that a run reads, writes and leaves behind.

Its files::

    config.json        every setting
    tokenizer.model    the vocabulary; or one for each side: tokenizer.source.model and
                       tokenizer.target.model
    corpus.sha256      SHA-256 of the training ids, so that a run continues on the same text
    tokenizer.sha256   SHA-256 of the vocabulary files, as `sha256sum --check` reads it
    checkpoints/       the newest training states: weights, optimizer, seeds, step
    best/              the weights of the best validations
    averaged/          means of weights, for translation: last-N, best-K
    alignment.json     which attention aligns best, as measured at the end of training
    history.jsonl      one line per logged interval and per validation
    tensorboard/       the same for TensorBoard
    translations.*     what the end of training printed, in full
    lock               held by the process that trains
"""

import contextlib
import json
import os
import pathlib

from keras_transformer import config as configs
from keras_transformer.alignment import choice_from_json, choice_to_json, fallback_choice
from keras_transformer.data.vocabulary import (
    as_tokenizers,
    check_vocabularies,
    load_tokenizers,
    save_tokenizers,
    vocabulary_files,
)
from keras_transformer.files import only_process, write_text
from keras_transformer.model import Transformer
from keras_transformer.training import tensor_files
from keras_transformer.training.averaging import write_average
from keras_transformer.training.best import BestWeights, ranked_steps
from keras_transformer.training.checkpoints import Checkpoints, clean_checkpoints

_SUMS = "tokenizer.sha256"
_HISTORY = "history.jsonl"
_ALIGNMENT = "alignment.json"
_LOCK = "lock"


class RunFolder:
    """The files of one run.

    Args:
        path: an existing run folder.
        writes: `False` on the workers of a cluster that are not its chief: nothing is
            written then, whatever is called.

    Attributes:
        path: `pathlib.Path`.
        config: `Config` of the run.
        writes: as given.

    Raises:
        ValueError: no such folder, or it holds no run.
    """

    def __init__(self, path, *, writes=True):
        self.path = pathlib.Path(path)
        self.writes = writes
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
            raise ValueError(
                f"{self.path / 'config.json'}: damaged, or of another version: {error}. "
                "Put it back from a copy"
            ) from error

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

    @contextlib.contextmanager
    def lock(self):
        """Holds the folder for this process, which trains; also a killed one lets go of it.

        Raises:
            ValueError: another process holds it.
        """
        with only_process(self.path / _LOCK) if self.writes else contextlib.nullcontext():
            yield

    @property
    def has_trained(self):
        """Whether there is anything of training in it."""
        return (self.path / "checkpoints").exists() or (self.path / _HISTORY).exists()

    def forget(self):
        """Removes settings and vocabulary of a run that never trained. Called under `lock`."""
        if self.has_trained:
            raise ValueError(f"{self.path}: this run has trained")
        # First: a folder with a configuration has all else, too.
        (self.path / "config.json").unlink()
        for pattern in ("tokenizer.*", "*.sha256"):
            for path in self.path.glob(pattern):
                path.unlink()

    def clean(self):
        """Removes what a killed process left half written. Called under `lock`."""
        if not self.writes:
            return
        clean_checkpoints(self.path / "checkpoints")
        for folder in ("best", "averaged", "."):
            tensor_files.clean(self.path / folder)

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
            weights: as `load_weights` takes it.

        Raises:
            ValueError: there are no such weights, or they are damaged or not of this model.
        """
        prefix, part = self._weights(weights)
        model = Transformer(self.config.model)
        _assign_weights(model, prefix, part)
        return model

    def load_weights(self, model, weights="averaged"):
        """Puts weights of this run into a model.

        Args:
            model: a `Transformer` of the run's sizes.
            weights: `"averaged"`, what training wrote at its end; `"last"` or `"ema"`, the
                weights or their moving average in the newest checkpoint; `"best"`, those of the
                best validation; `"last-N"` or `"best-K"`, an average; `"step-N"`, a checkpoint.

        Raises:
            ValueError: there are no such weights, or they are damaged or not of this model.
        """
        _assign_weights(model, *self._weights(weights))

    def check_weights(self, name):
        """Raises `ValueError`, with the names that there are, where there are no such weights."""
        self._weights(name)

    def weights_names(self):
        """Returns the list of all names that `load_weights` finds weights for."""
        averages = sorted(path.stem for path in (self.path / "averaged").glob("*-*.index"))
        steps = {
            step for folder in ("checkpoints", "best") for step in tensor_files.steps_in(self.path / folder)
        }
        names = [
            *("averaged", "best", "last", "ema"),
            *(name for name in averages if name.startswith(("last-", "best-"))),
            *(f"step-{step}" for step in sorted(steps)),
        ]
        return [name for name in names if self._find(name)]

    def checkpoints(self, model, optimizer):
        """Returns the `Checkpoints` of a model in training."""
        return Checkpoints(
            self.path / "checkpoints",
            model,
            optimizer,
            self.config.training.keep_checkpoints,
            writes=self.writes,
            trained=any(record.get("kind") == "train" for record in self.read_history()),
        )

    def best(self, model):
        """Returns the `BestWeights` of a model in training."""
        return BestWeights(self, model)

    def average(self, *, last=None, best=None):
        """Writes the mean of several checkpoints' weights, as `last-N` or `best-K`.

        The state of before the first step counts only where there is no other.

        Args:
            last: number of newest checkpoints.
            best: number of best validations; one of both is given.

        Returns:
            list of int, the steps averaged, ascending; fewer than asked for where there are
            not so many.

        Raises:
            ValueError: there is nothing to average, or a checkpoint is damaged.
            StorageError: there is no room.
        """
        if (last is None) == (best is None) or (best if last is None else last) < 1:
            raise ValueError(
                f"`last` or `best` must be given, at least 1. Received: last={last}, best={best}"
            )
        folder = self.path / ("checkpoints" if best is None else "best")
        if best is None:
            steps = tensor_files.steps_in(folder)
            steps = [step for step in steps if step or len(steps) == 1][-last:]
        else:
            steps = sorted(self._best_steps()[:best])
        if not steps:
            raise ValueError(f"{folder}: no checkpoint to average")
        if self.writes:
            name = f"best-{best}" if last is None else f"last-{last}"
            write_average([folder / f"step-{step}" for step in steps], self.path / "averaged" / name)
        return steps

    def alignment(self):
        """Returns the `AlignmentChoice` of the run.

        It is what `save_alignment` wrote, or `fallback_choice` in a run that ended
        before, or was made by an earlier version.

        Raises:
            ValueError: `alignment.json` is damaged.
        """
        path, num_layers = self.path / _ALIGNMENT, self.config.model.num_decoder_layers
        if not path.exists():
            return fallback_choice(num_layers)
        try:
            return choice_from_json(path.read_text(encoding="utf-8"), num_layers)
        except ValueError as error:
            raise ValueError(f"{path}: damaged: {error}. Remove it, or put it back from a copy") from error

    def save_alignment(self, counts):
        """Writes what `LinkCounts` say, and the choice that follows from them."""
        if self.writes:
            write_text(self.path / _ALIGNMENT, choice_to_json(counts))

    def append_history(self, record):
        """Adds one line of JSON to `history.jsonl`.

        Raises:
            StorageError: there is no room; no part of the line is left behind.
        """
        if not self.writes:
            return
        path = self.path / _HISTORY
        line = (json.dumps(record) + "\n").encode()
        with tensor_files.storing(path), path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            if file.write(line) != len(line):
                file.truncate(before)
                raise OSError("no space left")

    def rewind_history(self, step):
        """Drops the records of steps after `step`: a run that continues makes them again."""
        if not self.writes:
            return
        kept = [record for record in self.read_history() if record.get("step", 0) <= step]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        path = self.path / _HISTORY
        # A record that a crash cut short goes, too.
        if not path.exists() or path.read_text(encoding="utf-8") == text:
            return
        with tensor_files.storing(path):
            write_text(path, text)

    def read_history(self):
        """Returns the records of `history.jsonl`, oldest first.

        Raises:
            ValueError: a line is not JSON.
        """
        path = self.path / _HISTORY
        if not path.exists():
            return []
        # What follows the last newline is a record that a crash cut short.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}: line {number} is damaged ({error}). Remove the line") from error
        return records

    def _best_steps(self):
        """Steps of validations whose weights are kept, the best first."""
        there = tensor_files.steps_in(self.path / "best")
        ranked = ranked_steps(self.read_history(), self.config.training.best_by)
        return [step for step in ranked if step in there]

    def _weights(self, name):
        """Returns (prefix, part) of weights, or says which there are."""
        found = self._find(name)
        if found is None:
            names = self.weights_names()
            there = ", ".join(f"`{each}`" for each in names) or "no checkpoint"
            raise ValueError(f"{self.path}: no {name!r} weights. There is {there}{self._how_to_get(name)}")
        return found

    def _how_to_get(self, name):
        kind, _, number = name.partition("-")
        if name == "averaged":
            return "; training writes `averaged` at its end. Until then: --weights last"
        if name == "ema":
            return "; a moving average is kept where training.ema_decay is above 0"
        if kind in ("last", "best") and number.isdecimal():
            return f". Make it: python pipelines/average_checkpoints.py {self.path} --{kind} {number}"
        return ""

    def _find(self, name):
        """Returns (prefix, part of its tree), or `None`."""
        kind, _, number = name.partition("-")
        prefixes = []
        if name == "averaged":
            # The second is of earlier versions, which kept one average.
            names = f"last-{self.config.training.average_last}", "ckpt-1"
            prefixes = [self.path / "averaged" / each for each in names]
        elif name in ("last", "ema"):
            folder = self.path / "checkpoints"
            prefixes = [folder / f"step-{step}" for step in tensor_files.steps_in(folder)[-1:]]
        elif name == "best":
            prefixes = [self.path / "best" / f"step-{step}" for step in self._best_steps()[:1]]
        elif number.isdecimal() and kind in ("last", "best"):
            prefixes = [self.path / "averaged" / name]
        elif number.isdecimal() and kind == "step":
            prefixes = [self.path / folder / name for folder in ("checkpoints", "best")]
        prefix = next((prefix for prefix in prefixes if tensor_files.exists(prefix)), None)
        if prefix is None:
            return None
        if name != "ema":
            return prefix, "weights"
        held = tensor_files.names_of(prefix)
        return (prefix, "ema") if any(each.startswith("ema/") for each in held) else None


def check_unused(path):
    """Raises `ValueError` if `path` is not an empty folder and no new one can be made there."""
    path = pathlib.Path(path)
    if path.exists() and (not path.is_dir() or any(file.name != _LOCK for file in path.iterdir())):
        raise ValueError(f"{path}: exists and is not a run folder. Choose another --run-dir")
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(f"{path}: cannot write in {nearest}. Choose another --run-dir")


def _assign_weights(model, prefix, part):
    values = tensor_files.read(prefix, "weights")
    if part != "weights":  # the moving average has the trainable ones only
        values.update(tensor_files.read(prefix, part))
    tensor_files.assign(tensor_files.by_path(model.weights), values, prefix)


def _sums(tokenizers):
    named = zip(tokenizers, vocabulary_files(tokenizers.shared), strict=False)
    return "".join(f"{tokenizer.sha256}  {name}\n" for tokenizer, name in named)
