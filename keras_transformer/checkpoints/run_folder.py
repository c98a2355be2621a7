"""One run folder: all that a run reads, writes and leaves behind.

Its files::

    config.json        every setting
    tokenizer.model    the vocabulary; or one for each side: tokenizer.source.model and
                       tokenizer.target.model
    corpus/            raw text as it was prepared: ids, and the other splits; made again where it is missing
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
import pathlib
import sys

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.averaging import Averages, keep_best
from keras_transformer.checkpoints.history import HISTORY, History
from keras_transformer.checkpoints.new_folder import CONFIG, LOCK, check_unused, leftover_files
from keras_transformer.checkpoints.weights import NamedWeights
from keras_transformer.config import settings as configs
from keras_transformer.files import (
    from_checked_json,
    process_lock,
    to_checked_json,
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
_CONFIG_REMEDY = (
    "Put it back from a copy. Settings are not changed by hand but with --set NAME=VALUE of the training "
    "command, and --allow-config-change NAME where it asks for that"
)


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
        averages: `Averages`.

    Raises:
        ValueError: no such folder, or it holds no run.
    """

    def __init__(self, path, *, writes=True):
        self.path = pathlib.Path(path)
        self.writes = writes
        self._warned = set()
        self._named = NamedWeights(self)
        self.averages = Averages(self)
        self._history = History(self.path / HISTORY, writes=writes, warn=self._warn_once)
        file = self.path / CONFIG
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ValueError(
                f"{self.path}: not a run folder ({CONFIG}: {error.strerror}). "
                "Name the --run-dir of a training run"
            ) from error
        try:
            self.config = configs.from_dict(from_checked_json(content, remedy=_CONFIG_REMEDY))
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
        with tensor_files.storage_errors(path / CONFIG):
            path.mkdir(parents=True, exist_ok=True)
            with contextlib.nullcontext() if locked else process_lock(path / LOCK):
                check_unused(path)
                for left in leftover_files(path) - {path / LOCK}:
                    left.unlink()
                save_tokenizers(path, tokenizers)
                write_text(path / _SUMS, _sums(tokenizers))
                # Last: a folder with a configuration has its vocabularies, too.
                write_text(path / CONFIG, to_checked_json(dataclasses.asdict(config)))
        return cls(path)

    def write_config(self, config):
        """Replaces the settings of the run, with their checksum, where they are others.

        Args:
            config: `Config`.

        Raises:
            StorageError: there is no room or no permission.
        """
        file, text = self.path / CONFIG, to_checked_json(dataclasses.asdict(config))
        if self.writes and file.read_text(encoding="utf-8") != text:
            with tensor_files.storage_errors(file):
                write_text(file, text)
        self.config = config

    @contextlib.contextmanager
    def lock(self):
        """Holds the folder for this process, which trains; also a killed one lets go of it.

        Raises:
            ValueError: another process holds it.
        """
        with process_lock(self.path / LOCK) if self.writes else contextlib.nullcontext():
            yield

    @property
    def has_trained(self):
        """Whether there is anything of training in it."""
        return (self.path / "checkpoints").exists() or (self.path / HISTORY).exists()

    def discard_untrained(self):
        """Removes settings and vocabulary of a run that never trained. Called under `lock`."""
        if self.has_trained:
            raise ValueError(f"{self.path}: this run has trained")
        # First: a folder with a configuration has all else, too.
        (self.path / CONFIG).unlink()
        for path in leftover_files(self.path) - {self.path / LOCK}:
            path.unlink()

    def clean(self):
        """Removes what a killed process left half written. Called under `lock`."""
        if not self.writes:
            return
        from keras_transformer.checkpoints.training_state import listed_steps

        checkpoints = self.path / "checkpoints"
        tensor_files.clean(checkpoints, kept=[f"step-{step}" for step in listed_steps(checkpoints) or ()])
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

    def load_model(self, *, checkpoint="final"):
        """Returns the `Transformer` of the run.

        Args:
            checkpoint: name of the weights, as `load_weights` takes it.

        Raises:
            ValueError: there are no such weights, or they are damaged or not of this model.
        """
        from keras_transformer.model.transformer import Transformer

        prefix, part = self._named.find(checkpoint)
        model = Transformer(self.config.model)
        self._named.assign(model, prefix, part)
        return model

    def load_weights(self, model, checkpoint="final"):
        """Puts weights of this run into a model.

        Args:
            model: a `Transformer` of the run's sizes.
            checkpoint: `"final"`, what training delivered at its end: the best of the next three;
                `"averaged"`, the mean that it made; `"last"` or `"ema"`, the weights or their
                moving average in the newest checkpoint; `"best"`, those of the best validation;
                `"last-N"` or `"best-K"`, an average; `"step-N"`, a checkpoint.

        Raises:
            ValueError: there are no such weights, or they are damaged or not of this model.
        """
        self._named.assign(model, *self._named.find(checkpoint))

    def check_weights(self, name):
        """Raises `ValueError`, with the names that there are, where there are no such weights."""
        self._named.find(name)

    def weights_names(self):
        """Returns the list of all names that `load_weights` finds weights for."""
        return self._named.names(("final", "averaged", "best", "last", "ema"))

    def checkpoints(self, model, optimizer):
        """Returns the `Checkpoints` of a model in training."""
        from keras_transformer.checkpoints.training_state import Checkpoints

        return Checkpoints(self, model, optimizer)

    def keep_best(self, model):
        """Keeps the weights of a model if they are among the best, as `averaging.keep_best` says."""
        keep_best(self, model)

    def average(self, **numbers):
        """Writes an average; the arguments, the value and the errors are those of `Averages.make`."""
        return self.averages.make(**numbers)

    def append_history(self, record):
        """Adds one line of JSON to `history.jsonl`.

        Raises:
            StorageError: there is no room; no part of the line is left behind.
        """
        self._history.append(record)

    def rewind_history(self, step):
        """Drops the records of steps after `step`: a run that continues makes them again.

        Damaged lines go to `history.damaged`, behind those that are there.
        """
        self._history.rewind(step)

    def read_history(self):
        """Returns the records of `history.jsonl`, oldest first.

        Lines that are damaged are left out, and said on standard error: without them a run can
        go on, and with them its best weights might be others.
        """
        return self._history.read()

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
        with tensor_files.storage_errors(path):
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
        self._warn_once(f"{path}: damaged, or changed since it was written")
        return None

    def translations_path(self, split):
        """Returns the path of the translations of a split."""
        return self.path / f"translations.{split}.{self.config.data.target}"

    def _warn_once(self, text):
        if text not in self._warned:
            self._warned.add(text)
            print(text, file=sys.stderr, flush=True)


def _sums(tokenizers):
    named = zip(tokenizers, vocabulary_files(tokenizers.shared), strict=False)
    return "".join(f"{tokenizer.sha256}  {name}\n" for tokenizer, name in named)
