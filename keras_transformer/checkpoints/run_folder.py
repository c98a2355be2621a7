"""One run folder: all that a run reads, writes and leaves behind.

Its files::

    config.json        every setting
    tokenizer.model    the vocabulary; or one for each side: tokenizer.source.model and
                       tokenizer.target.model
    corpus.sha256      SHA-256 of the training ids, so that a run continues on the same text
    tokenizer.sha256   SHA-256 of the vocabulary files, as `sha256sum --check` reads it
    checkpoints/       the newest training states: weights, optimizer, seeds, step
    best/              the weights of the best validations
    averaged/          means of weights: last-N, best-K
    final/             the weights that training delivered, for translation
    history.jsonl      one line per logged interval and per validation
    tensorboard/       the same for TensorBoard
    translations.*     what the end of training printed, in full
    lock               held by the process that trains

TensorFlow is imported by what needs it, not with this module: a program refuses a folder that is no run
before it waits for that.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shlex
import sys

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.averaging import BestWeights, choose_states, ranked_steps
from keras_transformer.checkpoints.final import FINAL
from keras_transformer.config import programs
from keras_transformer.config import settings as configs
from keras_transformer.files import (
    only_process,
    sealed,
    sealed_line,
    temporary_beside,
    unsealed,
    unsealed_line,
    write_atomically,
    write_text,
)
from keras_transformer.tokenizers.tokenizer_pair import (
    as_tokenizers,
    check_vocabularies,
    load_tokenizers,
    save_tokenizers,
    vocabulary_files,
)

_SUMS = "tokenizer.sha256"
_HISTORY = "history.jsonl"
_LOCK = "lock"
_CONFIG = "config.json"
_CONFIG_REMEDY = (
    "Put it back from a copy. Settings are not changed by hand but with --set NAME=VALUE of the training "
    "command, and --allow-config-change NAME where it asks for that"
)
# What is there before the configuration is.
_VOCABULARY = ("tokenizer.model", "tokenizer.*.model", "tokenizer.sha256", "corpus.sha256")


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
        self._told = set()
        file = self.path / _CONFIG
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ValueError(
                f"{self.path}: not a run folder ({_CONFIG}: {error.strerror}). "
                "Name the --run-dir of a training run"
            ) from error
        try:
            self.config = configs.from_dict(unsealed(content, remedy=_CONFIG_REMEDY))
        except ValueError as error:
            raise ValueError(f"{file}: damaged, or of another version: {error}") from error

    @classmethod
    def create(cls, path, config, tokenizers, *, locked=False):
        """Makes the folder of a new run.

        Args:
            path: a folder that does not exist, is empty, or holds no more than what a first
                start leaves that was killed.
            config: `Config`, with the vocabulary sizes of the tokenizers.
            tokenizers: a tokenizer, or `Tokenizers`.
            locked: whether this process holds the folder already.

        Raises:
            ValueError: the folder holds something else, the vocabularies are not those of the
                model, or another process works in it.
            StorageError: there is no room or no permission.
        """
        tokenizers = as_tokenizers(tokenizers)
        check_vocabularies(tokenizers, config.model)
        path = pathlib.Path(path)
        check_unused(path)
        with tensor_files.storing(path / _CONFIG):
            path.mkdir(parents=True, exist_ok=True)
            with contextlib.nullcontext() if locked else only_process(path / _LOCK):
                check_unused(path)
                for left in _unfinished(path) - {path / _LOCK}:
                    left.unlink()
                save_tokenizers(path, tokenizers)
                write_text(path / _SUMS, _sums(tokenizers))
                # Last: a folder with a configuration has its vocabularies, too.
                write_text(path / _CONFIG, sealed(dataclasses.asdict(config)))
        return cls(path)

    def write_config(self, config):
        """Replaces the settings of the run, with their checksum, where they are others.

        Args:
            config: `Config`.

        Raises:
            StorageError: there is no room or no permission.
        """
        file, text = self.path / _CONFIG, sealed(dataclasses.asdict(config))
        if self.writes and file.read_text(encoding="utf-8") != text:
            with tensor_files.storing(file):
                write_text(file, text)
        self.config = config

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
        (self.path / _CONFIG).unlink()
        for path in _unfinished(self.path) - {self.path / _LOCK}:
            path.unlink()

    def clean(self):
        """Removes what a killed process left half written. Called under `lock`."""
        if not self.writes:
            return
        from keras_transformer.checkpoints.training_state import clean_checkpoints

        clean_checkpoints(self.path / "checkpoints")
        for folder in ("best", "averaged", "final", "crash", "."):
            tensor_files.clean(self.path / folder)
        for path in self.path.glob(".tokenizer.*"):  # of earlier versions, which gave them no ending
            path.unlink()

    def load_tokenizers(self):
        """Returns the `Tokenizers` of the run: the same one twice where it is shared.

        Raises:
            ValueError: they are missing, damaged, or not those of the model.
        """
        try:
            tokenizers = load_tokenizers(self.path)
        except ValueError as error:
            raise ValueError(f"{error}. Put it back from a copy") from error
        try:
            check_vocabularies(tokenizers, self.config.model)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        sums = self.path / _SUMS
        if sums.exists() and sums.read_bytes() != _sums(tokenizers).encode():
            raise ValueError(
                f"{self.path}: the vocabulary is not the one that this run began with, or {_SUMS} is "
                "damaged. Put it back from a copy"
            )
        return tokenizers

    def load_model(self, *, weights="final"):
        """Returns the `Transformer` of the run.

        Args:
            weights: as `load_weights` takes it.

        Raises:
            ValueError: there are no such weights, or they are damaged or not of this model.
        """
        from keras_transformer.model.transformer import Transformer

        prefix, part = self._weights(weights)
        model = Transformer(self.config.model)
        self._assign(model, prefix, part)
        return model

    def load_weights(self, model, weights="final"):
        """Puts weights of this run into a model.

        Args:
            model: a `Transformer` of the run's sizes.
            weights: `"final"`, what training delivered at its end: the best of the next three;
                `"averaged"`, the mean that it made; `"last"` or `"ema"`, the weights or their
                moving average in the newest checkpoint; `"best"`, those of the best validation;
                `"last-N"` or `"best-K"`, an average; `"step-N"`, a checkpoint.

        Raises:
            ValueError: there are no such weights, or they are damaged or not of this model.
        """
        self._assign(model, *self._weights(weights))

    def check_weights(self, name):
        """Raises `ValueError`, with the names that there are, where there are no such weights."""
        self._weights(name)

    def weights_names(self):
        """Returns the list of all names that `load_weights` finds weights for."""
        return self._names(("final", "averaged", "best", "last", "ema"))

    def _names(self, kinds):
        averages = sorted(path.stem for path in (self.path / "averaged").glob("*-*.index"))
        steps = {
            step for folder in ("checkpoints", "best") for step in tensor_files.steps_in(self.path / folder)
        }
        names = [
            *kinds,
            *(name for name in averages if name.startswith(("last-", "best-"))),
            *(f"step-{step}" for step in sorted(steps)),
        ]
        return [name for name in names if self._find(name)]

    def checkpoints(self, model, optimizer):
        """Returns the `Checkpoints` of a model in training."""
        from keras_transformer.checkpoints.training_state import Checkpoints

        return Checkpoints(
            self.path / "checkpoints",
            model,
            optimizer,
            self.config.training.keep_checkpoints,
            every_steps=self.config.training.checkpoint_every_steps,
            writes=self.writes,
            trained=any(record.get("kind") == "train" for record in self.read_history()),
        )

    def best(self, model):
        """Returns the `BestWeights` of a model in training."""
        return BestWeights(self, model)

    def choose_states(self, last, **options):
        """Returns the `Chosen` states of an average of the newest ones.

        Args:
            last: number of newest checkpoints.
            **options: `warmed_up` and `forced`, as `averaging.choose_states` takes them.
        """
        from keras_transformer.checkpoints.training_state import listed_steps, scheduled_steps

        folder, training = self.path / "checkpoints", self.config.training
        return choose_states(
            tensor_files.steps_in(folder),
            scheduled_steps(folder, training.checkpoint_every_steps),
            last,
            training,
            listed=listed_steps(folder),
            **options,
        )

    def average_at_end(self):
        """Writes the mean that training makes at its end, as `last-N` of `training.average_last`.

        It is of states that were saved on schedule, at the end of the warm-up or later. Where
        there is none, an earlier mean of this name is removed. Damaged states are left out.

        Returns:
            `Chosen`; its `missing` names damaged states, too.

        Raises:
            ValueError: all of them are damaged.
            StorageError: there is no room.
        """
        from keras_transformer.checkpoints.averaging import write_average

        last = self.config.training.average_last
        chosen, target = self.choose_states(last, warmed_up=True), self.path / "averaged" / f"last-{last}"
        if not chosen.steps:
            with tensor_files.storing(target):
                tensor_files.delete(target)
            return chosen
        prefixes, damaged = [self.path / "checkpoints" / f"step-{step}" for step in chosen.steps], []
        with _put_back():
            write_average(prefixes, target, damaged=damaged)
        lost = [step for step, prefix in zip(chosen.steps, prefixes, strict=True) if prefix in damaged]
        return chosen._replace(
            steps=[step for step in chosen.steps if step not in lost], missing=sorted(chosen.missing + lost)
        )

    def average(self, *, last=None, best=None, forced=False):
        """Writes the mean of several checkpoints' weights, as `last-N` or `best-K`.

        The state of before the first step is never part of it.

        Args:
            last: number of newest checkpoints.
            best: number of best validations; one of both is given.
            forced: takes also those of the newest checkpoints that were not saved on schedule.

        Returns:
            list of int, the steps averaged, ascending; fewer than asked for where there are
            not so many.

        Raises:
            ValueError: there is nothing to average, or a checkpoint is damaged.
            StorageError: there is no room.
        """
        folder, steps = self.steps_to_average(last=last, best=best, forced=forced)
        if self.writes:
            from keras_transformer.checkpoints.averaging import write_average

            name = f"best-{best}" if last is None else f"last-{last}"
            with _put_back():
                write_average([folder / f"step-{step}" for step in steps], self.path / "averaged" / name)
        return steps

    def steps_to_average(self, *, last=None, best=None, forced=False):
        """Returns (folder, steps) of the checkpoints that `average` takes; the arguments are the same.

        Raises:
            ValueError: there is nothing to average.
        """
        if (last is None) == (best is None) or (best if last is None else last) < 1:
            raise ValueError(
                f"`last` or `best` must be given, at least 1. Received: last={last}, best={best}"
            )
        folder = self.path / ("checkpoints" if best is None else "best")
        if best is None:
            steps = [step for step in tensor_files.steps_in(folder) if step][-last:]
            some = bool(steps)
            if steps and not forced:  # only TensorFlow can read which were
                steps = self.choose_states(last).steps
            if some and not steps:
                raise ValueError(
                    f"{folder}: no checkpoint to average was saved on schedule. "
                    "--off-schedule averages others"
                )
        else:
            steps = sorted(self._best_steps()[:best])
        if not steps:
            raise ValueError(f"{folder}: no checkpoint to average")
        return folder, steps

    def append_history(self, record):
        """Adds one line of JSON to `history.jsonl`.

        Raises:
            StorageError: there is no room; no part of the line is left behind.
        """
        if not self.writes:
            return
        path = self.path / _HISTORY
        line = sealed_line(record)
        with tensor_files.storing(path), path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                while line:  # after a part, the next write says what is wrong
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(before)
                raise

    def rewind_history(self, step):
        """Drops the records of steps after `step`: a run that continues makes them again.

        Damaged lines go to `history.damaged`, behind those that are there.
        """
        if not self.writes:
            return
        path = self.path / _HISTORY
        records, damaged = self._read_lines()
        content = b"".join(sealed_line(each) for each in records if each.get("step", 0) <= step)
        # A record that a crash cut short goes, too.
        if not path.exists() or path.read_bytes() == content:
            return
        with tensor_files.storing(path):
            if damaged:
                aside = path.with_suffix(".damaged")
                before = aside.read_bytes() if aside.exists() else b""
                new = b"".join(line + b"\n" for line in damaged.values())
                if not before.endswith(new):  # it may have been killed before the next writing
                    write_atomically(aside, before + new)
            write_atomically(path, content)

    def read_history(self):
        """Returns the records of `history.jsonl`, oldest first.

        Lines that are damaged are left out, and said on standard error: without them a run can
        go on, and with them its best weights might be others.
        """
        return self._read_lines()[0]

    def write_translations(self, split, step, translations, scores):
        """Writes what the model makes of a split, and its scores into the history.

        Args:
            split: name of the split.
            step: int, the step that the run ended at.
            translations: list of str.
            scores: dict, name -> number.

        Raises:
            StorageError: there is no room or no permission.
        """
        path = self.translations_path(split)
        content = "".join(f"{text}\n" for text in translations).encode()
        with tensor_files.storing(path):
            write_atomically(path, content)
        digest = hashlib.sha256(content).hexdigest()
        self.append_history({"kind": "test", "split": split, "step": step, **scores, "sha256": digest})

    def read_translations(self, split, step):
        """Returns the list of str that `write_translations` wrote.

        `None` where there are none of that step, or of weights that were delivered before others, or
        they were changed since, which is said.
        """
        path = self.translations_path(split)
        records = []
        for record in self.read_history():
            if record.get("step") == step and record.get("kind") == "final":
                records.clear()  # what is delivered anew may be of other weights
            if (record.get("kind"), record.get("split"), record.get("step")) == ("test", split, step):
                records.append(record)
        if not records or not path.exists():
            return None
        content = path.read_bytes()
        # Records of earlier versions have no checksum.
        if records[-1].get("sha256") in (None, hashlib.sha256(content).hexdigest()):
            with contextlib.suppress(UnicodeDecodeError):
                return content.decode("utf-8").split("\n")[:-1]
        self._tell_once(f"{path}: damaged, or changed since it was written")
        return None

    def translations_path(self, split):
        """Returns the path of the translations of a split."""
        return self.path / f"translations.{split}.{self.config.data.target}"

    def _read_lines(self):
        """Returns the records of the history, and {number: line} of what is none."""
        path = self.path / _HISTORY
        if not path.exists():
            return [], {}
        *lines, rest = path.read_bytes().split(b"\n")
        records, damaged = [], {}
        for number, line in enumerate(lines, start=1):
            try:
                records.append(unsealed_line(line))
            except ValueError as error:
                damaged[number] = line
                self._tell_once(f"{path}: line {number} is damaged ({error}) and left out")
        # What follows the last newline is a record that a crash cut short, or has a damaged newline.
        for line in (rest, rest[:-1]):
            with contextlib.suppress(ValueError):
                records.append(unsealed_line(line))
                break
        return records, damaged

    def _tell_once(self, text):
        if text not in self._told:
            self._told.add(text)
            print(text, file=sys.stderr, flush=True)

    def _best_steps(self):
        """Steps of validations whose weights are kept, the best first."""
        there = tensor_files.steps_in(self.path / "best")
        ranked = ranked_steps(self.read_history(), self.config.training.best_by)
        return [step for step in ranked if step in there]

    def _weights(self, name):
        """Returns (prefix, part) of weights, or says which there are."""
        found = self._find(name)
        if found is None:
            # Only TensorFlow can look for a moving average, and takes seconds to be imported.
            averages = ("ema",) if self.config.training.ema_decay else ()
            names = self._names(("final", "averaged", "best", "last", *averages))
            there = ", ".join(f"`{each}`" for each in names) or "no checkpoint"
            raise ValueError(f"{self.path}: no {name!r} weights. There is {there}{self._how_to_get(name)}")
        return found

    def _assign(self, model, prefix, part):
        try:
            _assign_weights(model, prefix, part)
        except tensor_files.DamagedError as error:
            raise tensor_files.DamagedError(f"{error}. {self._remedy(prefix)}") from error

    def _remedy(self, prefix):
        """Returns one sentence about damaged weights."""
        folder, (kind, _, number) = prefix.parent.name, prefix.name.partition("-")
        if folder == "averaged" and kind in ("last", "best"):
            return f"{_average_command(self.path, kind, number)} makes it anew"
        names = self._names(("averaged", "best", "last"))
        others = [name for name in names if self._find(name)[0] != prefix]
        named = f"name others: --weights {' or '.join(others)}" if others else "put it back from a copy"
        if folder == "final":
            return f"The {programs.name('train')} command of this run, given again, makes it anew; or {named}"
        return f"{named[0].upper()}{named[1:]}"

    def _how_to_get(self, name):
        kind, _, number = name.partition("-")
        if name in ("final", "averaged"):
            return f"; training writes `{name}` at its end. Until then: --weights last"
        if name == "ema":
            return "; a moving average is kept where training.ema_decay is above 0"
        if kind in ("last", "best") and number.isdecimal():
            return f". Make it: {_average_command(self.path, kind, number)}"
        return ""

    def _find(self, name):
        """Returns (prefix, part of its tree), or `None`."""
        kind, _, number = name.partition("-")
        prefixes = []
        if name in ("final", "averaged"):
            # The last is of earlier versions, which kept one average and delivered it.
            names = f"last-{self.config.training.average_last}", "ckpt-1"
            prefixes = [self.path / "averaged" / each for each in names]
            if name == "final":
                prefixes.insert(0, self.path / FINAL)
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
    """Refuses a folder in which no new run can begin.

    What a first start leaves that was killed is no hindrance: `RunFolder.create` removes it.

    Args:
        path: of nothing, or of a folder.

    Raises:
        ValueError: it holds something else, or cannot be made or written in; nothing is changed.
    """
    path = pathlib.Path(path)
    if os.path.exists(path) and (
        not path.is_dir() or set(path.iterdir()) - _unfinished(path) - _probes(path)
    ):
        raise ValueError(f"{path}: exists and is not a run folder. Choose another --run-dir")
    try:
        _try_to_make(path)
    except OSError as error:
        nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
        raise ValueError(
            f"{path}: cannot write in {nearest} ({error.strerror}). Choose another --run-dir"
        ) from error


def _unfinished(path):
    """The files of a run folder that is being made, before it has its configuration.

    The lock is the first of them: a vocabulary in a folder without it is somebody else's.
    """
    lock = path / _LOCK
    if not lock.is_file():
        return set()
    patterns = (*_VOCABULARY, ".tokenizer.*", f".{_CONFIG}.*.tmp", ".*.sha256.*.tmp")
    return {lock, *(file for pattern in patterns for file in path.glob(pattern) if file.is_file())}


def _probes(path):
    """Empty folders that a process left which was killed in `_try_to_make`."""
    return {probe for probe in path.glob(".probe.*.tmp") if probe.is_dir() and not any(probe.iterdir())}


def _try_to_make(path):
    """Makes a folder, and one within, and removes what it has made. It is the only sure way to know."""
    missing = [folder for folder in (path, *path.absolute().parents) if not os.path.exists(folder)]
    probe = temporary_beside(path / "probe")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.mkdir()
    finally:
        for folder in (probe, *_probes(path), *missing):
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _put_back():
    try:
        yield
    except tensor_files.DamagedError as error:
        raise tensor_files.DamagedError(f"{error}. Put it back from a copy, or average fewer") from error


def _average_command(path, kind, number):
    return f"{programs.command('average')} {shlex.quote(str(path))} --{kind} {number}"


def _assign_weights(model, prefix, part):
    values = tensor_files.read(prefix, "weights")
    if part != "weights":  # the moving average has the trainable ones only
        values.update(tensor_files.read(prefix, part))
    tensor_files.assign(tensor_files.by_path(model.weights), values, prefix)


def _sums(tokenizers):
    named = zip(tokenizers, vocabulary_files(tokenizers.shared), strict=False)
    return "".join(f"{tokenizer.sha256}  {name}\n" for tokenizer, name in named)
