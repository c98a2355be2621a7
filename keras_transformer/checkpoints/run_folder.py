"""The run folder: all files of one training run.

Its files::

    config.json        every setting
    tokenizer.model    the vocabulary; or one for each side: tokenizer.source.model and
                       tokenizer.target.model
    corpus/            the prepared text: training ids and the other splits; prepared again if missing
    corpus.sha256      SHA-256 of the training ids, to resume on the same text only
    tokenizer.sha256   SHA-256 of the vocabulary files, in the format of `sha256sum --check`
    checkpoints/       the newest training states: weights, optimizer, seeds, step
    best/              the weights of the best validations
    averaged/          averaged weights: last-N, best-K
    final/             the final weights, for translation
    history.jsonl      one line per logged interval and per validation
    tensorboard/       the same as TensorBoard events
    ctranslate2/       weights converted for `--engine ctranslate2`; made again if missing
    translations.*     translations of the test set by the final weights
    lock               locked by the process that trains

This module does not import TensorFlow, so that programs can reject a wrong folder quickly.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.averaging import Averages, keep_best
from keras_transformer.checkpoints.history import HISTORY, History
from keras_transformer.checkpoints.new_folder import CONFIG, LOCK, check_unused, leftover_files
from keras_transformer.checkpoints.pretrained import pretrained_models, resolve
from keras_transformer.checkpoints.weights import NamedWeights
from keras_transformer.config import programs
from keras_transformer.config import settings as configs
from keras_transformer.config.types import PathLike
from keras_transformer.files import (
    from_checked_json,
    process_lock,
    to_checked_json,
    write_atomically,
    write_text,
)
from keras_transformer.tokenizers.base import Tokenizer
from keras_transformer.tokenizers.tokenizer_pair import (
    Tokenizers,
    as_tokenizers,
    check_vocabularies,
    load_tokenizers,
    save_tokenizers,
    vocabulary_files,
)

if TYPE_CHECKING:  # programs check a run before they import TensorFlow
    from keras_transformer.checkpoints.training_state import Checkpoints
    from keras_transformer.model.transformer import Transformer

logger = logging.getLogger(__name__)

_SUMS = "tokenizer.sha256"
_CTRANSLATE2_MODEL = "model.bin"  # in a CTranslate2 export, whose config.json is another
_CONFIG_REMEDY = (
    "Restore it from a copy. To change settings, do not edit the file: use --set NAME=VALUE of the training "
    "command, and --allow-config-change NAME where it asks for that"
)


class RunFolder:
    """The files of one run.

    Args:
        path: an existing run folder, or the name of a model that comes with the package.
        writes: `False` on workers other than the chief, where no method writes.

    Attributes:
        path: `pathlib.Path`.
        config: `Config` of the run.
        writes: as given.
        averages: `Averages`.

    Raises:
        ValueError: the folder does not exist or is not a run folder.
    """

    def __init__(self, path: PathLike, *, writes: bool = True) -> None:
        self.path = resolve(path)
        self.writes = writes
        self._warned = set()
        self._named = NamedWeights(self)
        self.averages = Averages(self)
        self._history = History(self.path / HISTORY, writes=writes, warn=self._warn_once)
        file = self.path / CONFIG
        if (self.path / _CTRANSLATE2_MODEL).is_file():
            raise ValueError(
                f"{self.path}: a CTranslate2 export, not a run folder. Translate with it by "
                f"{programs.command('translate-ctranslate2')} {self.path}, or name the run it was made from"
            )
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ValueError(
                f"{self.path}: not a run folder ({CONFIG}: {error.strerror}). Name the --run-dir of a "
                f"training run, or a model that comes with the package: {', '.join(pretrained_models())}"
            ) from error
        try:
            self.config = configs.from_dict(from_checked_json(content, remedy=_CONFIG_REMEDY))
        except ValueError as error:
            raise ValueError(f"{file}: damaged, or from another version: {error}") from error

    @classmethod
    def create(
        cls,
        path: PathLike,
        config: configs.Config,
        tokenizers: Tokenizer | Tokenizers,
        *,
        locked: bool = False,
    ) -> "RunFolder":
        """Creates the folder of a new run.

        Args:
            path: a folder that does not exist, is empty, or has only files of a start that was killed.
            config: `Config` with the vocabulary sizes of the tokenizers.
            tokenizers: a tokenizer, or `Tokenizers`.
            locked: whether this process already holds the lock.

        Raises:
            ValueError: the folder has other files, the vocabulary sizes are not those of the model,
                or another process holds the lock.
            StorageError: the disk is full or not writable.
        """
        tokenizers = as_tokenizers(tokenizers)
        check_vocabularies(tokenizers, config.model)
        path = pathlib.Path(path)
        check_unused(path)
        with tensor_files.storage_errors(path / CONFIG):
            path.mkdir(parents=True, exist_ok=True)
            with contextlib.nullcontext() if locked else process_lock(path / LOCK):
                check_unused(path)
                for file in leftover_files(path) - {path / LOCK}:
                    file.unlink()
                save_tokenizers(path, tokenizers)
                write_text(path / _SUMS, _sums(tokenizers))
                # Written last: a folder with a configuration is complete.
                write_text(path / CONFIG, to_checked_json(dataclasses.asdict(config)))
        return cls(path)

    def write_config(self, config: configs.Config) -> None:
        """Replaces the settings of the run; writes `config.json` only if they have changed.

        Args:
            config: `Config`.

        Raises:
            StorageError: the disk is full or not writable.
        """
        file, text = self.path / CONFIG, to_checked_json(dataclasses.asdict(config))
        if self.writes and file.read_text(encoding="utf-8") != text:
            with tensor_files.storage_errors(file):
                write_text(file, text)
        self.config = config

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Context manager that locks the folder for training; a killed process releases the lock, too.

        Raises:
            ValueError: another process holds the lock.
        """
        with process_lock(self.path / LOCK) if self.writes else contextlib.nullcontext():
            yield

    @property
    def has_trained(self) -> bool:
        """Whether training has begun in this folder."""
        return (self.path / "checkpoints").exists() or (self.path / HISTORY).exists()

    def discard_untrained(self) -> None:
        """Removes the settings and vocabulary of a run that never trained. Call it under `lock`."""
        if self.has_trained:
            raise ValueError(f"{self.path}: this run was trained already")
        # Removed first: a folder with a configuration is complete.
        (self.path / CONFIG).unlink()
        for path in leftover_files(self.path) - {self.path / LOCK}:
            path.unlink()

    def clean(self) -> None:
        """Removes partial files of a killed process. Call it under `lock`."""
        if not self.writes:
            return
        from keras_transformer.checkpoints.training_state import listed_steps

        checkpoints = self.path / "checkpoints"
        tensor_files.clean(checkpoints, kept=[f"step-{step}" for step in listed_steps(checkpoints) or ()])
        for folder in ("best", "averaged", "final", "crash"):
            tensor_files.clean(self.path / folder)
        # Other files in the run folder itself may be the user's. `.tokenizer.*` are of earlier versions.
        for path in {file for pattern in (".*.tmp", ".tokenizer.*") for file in self.path.glob(pattern)}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def load_tokenizers(self) -> Tokenizers:
        """Returns the `Tokenizers` of the run; with a shared vocabulary both are the same object.

        Raises:
            ValueError: they are missing, damaged, or do not fit the model.
        """
        try:
            tokenizers = load_tokenizers(self.path)
        except ValueError as error:
            raise ValueError(f"{error}. Restore it from a copy") from error
        try:
            check_vocabularies(tokenizers, self.config.model)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        sums = self.path / _SUMS
        if sums.exists() and sums.read_bytes() != _sums(tokenizers).encode():
            raise ValueError(
                f"{self.path}: the vocabulary differs from the one this run started with, or {_SUMS} is "
                "damaged. Restore it from a copy"
            )
        return tokenizers

    def load_model(self, *, checkpoint: str = "final", precision: str | None = None) -> "Transformer":
        """Returns the `Transformer` of the run.

        Args:
            checkpoint: name of the weights, as in `load_weights`.
            precision: Keras' name of a dtype policy; `None` for the global one.

        Raises:
            ValueError: no weights have this name, or they are damaged or of another model.
        """
        from keras_transformer.model.transformer import Transformer

        prefix, part = self._named.find(checkpoint)
        model = Transformer(self.config.model, dtype=precision)
        self._named.assign(model, prefix, part)
        return model

    def load_weights(self, model: "Transformer", checkpoint: str = "final") -> None:
        """Loads weights of this run into a model.

        Args:
            model: a `Transformer` of the run's sizes.
            checkpoint: name of the weights:
                `"averaged"`: the average of checkpoints made at the end of training;
                `"last"`: the newest checkpoint;
                `"best"`: the weights with the best validation;
                `"final"`: of these three, those that validated best at the end of training;
                `"ema"`: the exponential moving average in the newest checkpoint;
                `"last-N"`, `"best-K"`: another average;
                `"step-N"`: the checkpoint of step N.

        Raises:
            ValueError: no weights have this name, or they are damaged or of another model.
        """
        self._named.assign(model, *self._named.find(checkpoint))

    def check_weights(self, name: str) -> None:
        """Raises `ValueError`, which lists the available names, if no weights have this name."""
        self._named.find(name)

    def weights_sha256(self, name: str) -> str:
        """Returns a SHA-256 that identifies the weights of this name, without reading them.

        Raises:
            ValueError: no weights have this name.
        """
        prefix, part = self._named.find(name)
        return hashlib.sha256(f"{tensor_files.sha256(prefix)} {part}".encode()).hexdigest()

    def weights_names(self) -> list[str]:
        """Returns the list of all names that `load_weights` accepts."""
        return self._named.names(("final", "averaged", "best", "last", "ema"))

    def fingerprint(self, checkpoint: str = "final") -> str:
        """Returns the hexadecimal SHA-256 of model settings, vocabulary and weights.

        Args:
            checkpoint: name of the weights, as in `load_weights`.

        Raises:
            ValueError: no weights have this name, or the vocabulary is damaged.
        """
        prefix, part = self._named.find(checkpoint)
        known = [dataclasses.asdict(self.config.model), _sums(self.load_tokenizers()), part]
        digest = hashlib.sha256(json.dumps(known).encode())
        for path in sorted(prefix.parent.glob(f"{prefix.name}.*")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def checkpoints(self, model: "Transformer", optimizer: Any) -> "Checkpoints":
        """Returns the `Checkpoints` that save and restore a model in training."""
        from keras_transformer.checkpoints.training_state import Checkpoints

        return Checkpoints(self, model, optimizer)

    def keep_best(self, model: "Transformer") -> None:
        """Saves the weights if their validation is among the best; see `averaging.keep_best`."""
        keep_best(self, model)

    def average(self, **numbers: int | None) -> list[int]:
        """Averages checkpoints; see `Averages.make` for arguments, result and errors."""
        return self.averages.make(**numbers)

    def append_history(self, record: dict[str, Any]) -> None:
        """Appends one record to `history.jsonl`.

        Raises:
            StorageError: the disk is full or not writable; no part of the line remains.
        """
        self._history.append(record)

    def rewind_history(self, step: int) -> None:
        """Drops the records after `step`, which a resumed run will write again.

        Damaged lines are moved to the end of `history.damaged`.
        """
        self._history.rewind(step)

    def read_history(self) -> list[dict[str, Any]]:
        """Returns the records of `history.jsonl`, oldest first.

        Damaged lines are skipped with a warning, as a run can continue without them.
        """
        return self._history.read()

    def write_translations(
        self, split: str, step: int, translations: list[str], scores: dict[str, float]
    ) -> None:
        """Writes the translations of a split, and their scores to the history.

        Args:
            split: name of the split.
            step: int, the last step of the run.
            translations: list of str.
            scores: dict from name to number.

        Raises:
            StorageError: the disk is full or not writable.
        """
        path = self.translations_path(split)
        content = "".join(f"{text}\n" for text in translations).encode()
        with tensor_files.storage_errors(path):
            write_atomically(path, content)
        record = {"kind": "test", "split": split, "step": step, **scores, "search": self._search()}
        self.append_history({**record, "sha256": hashlib.sha256(content).hexdigest()})

    def read_translations(self, split: str, step: int) -> list[str] | None:
        """Returns the translations that `write_translations` wrote for a step, a list of str, or `None`.

        `None` also if the final weights were written again afterwards, if the run has other search settings
        now, or if the file has been changed, which prints a warning.
        """
        path, search = self.translations_path(split), self._search()
        records = []
        for record in self.read_history():
            if record.get("step") == step and record.get("kind") == "final":
                records.clear()  # the final weights may have changed
            if (record.get("kind"), record.get("split"), record.get("step")) == ("test", split, step):
                records.append(record)
        if not records or not path.exists() or records[-1].get("search", search) != search:
            return None
        content = path.read_bytes()
        # Records of earlier versions have no checksum.
        if records[-1].get("sha256") in (None, hashlib.sha256(content).hexdigest()):
            with contextlib.suppress(UnicodeDecodeError):
                return content.decode("utf-8").split("\n")[:-1]
        self._warn_once(f"{path}: damaged, or changed since it was written")
        return None

    def translations_path(self, split: str) -> pathlib.Path:
        """Returns the path of the translations of a split."""
        return self.path / f"translations.{split}.{self.config.data.target}"

    def _search(self):
        return dataclasses.asdict(self.config.search)

    def _warn_once(self, text):
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def _sums(tokenizers):
    named = zip(tokenizers, vocabulary_files(tokenizers.shared), strict=False)
    return "".join(f"{tokenizer.sha256}  {name}\n" for tokenizer, name in named)
