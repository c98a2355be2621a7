"""The models of a server: their names, versions and states, and loading newer versions."""

import asyncio
import dataclasses
import enum
import gc
import logging
import pathlib
import re
from typing import Any

from keras_transformer.checkpoints.pretrained import pretrained_folder, pretrained_models
from keras_transformer.export.versions import versions as version_numbers
from keras_transformer.serving.engines import kind_of, load_engine
from keras_transformer.serving.errors import NotFoundError, UnavailableError

logger = logging.getLogger(__name__)


class State(enum.StrEnum):
    """States of a version, as in TensorFlow Serving."""

    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    UNLOADING = "UNLOADING"
    END = "END"


@dataclasses.dataclass(eq=False, slots=True)
class Version:
    """A version of a model.

    Attributes:
        number: int; 1 for a model without versions.
        path: `pathlib.Path` of its folder.
        state: `State`.
        engine: `Engine` while it is available or unloading.
        error: str, why it could not be loaded.
        num_requests: int, requests that use it now.
        stamp: tuple, changes with the folder.
    """

    number: int
    path: pathlib.Path
    state: State = State.START
    engine: Any = None
    error: str = ""
    num_requests: int = 0
    stamp: tuple = ()


class Model:
    """A model by name; its newest version that could be loaded answers.

    Args:
        name: str.
        path: folder of a model, or of numbered versions.
    """

    def __init__(self, name, path):
        self.name, self.path = name, pathlib.Path(path)
        self.versions = {}

    @property
    def is_versioned(self):
        """Whether the folder has numbered versions."""
        return _is_versioned(self.path)

    @property
    def newest(self):
        """The newest available `Version`; `None` without one."""
        available = [version for version in self.versions.values() if version.state == State.AVAILABLE]
        return max(available, key=lambda version: version.number, default=None)

    def folders(self):
        """Returns dict, version number -> folder on the disk, the newest first."""
        return _folders(self.path) or {1: self.path}


class Models:
    """All models of a server.

    Args:
        paths: dict, name -> folder, in the order in which the explorer lists them.
        checkpoint, engine, search, precision, workers: as in `load_engine`.
        load: function, with the arguments of `load_engine`, which returns an `Engine`.
    """

    def __init__(
        self, paths, *, checkpoint="final", engine="tensorflow", search=None, precision=None, workers=1,
        load=load_engine,
    ):  # fmt: skip
        self._models = {name: Model(name, path) for name, path in paths.items()}
        self._options = {
            "checkpoint": checkpoint, "engine": engine, "search": search, "precision": precision,
            "workers": workers,
        }  # fmt: skip
        self._load = load

    def __iter__(self):
        return iter(self._models.values())

    def __getitem__(self, name):
        """Returns a `Model`.

        Raises:
            NotFoundError: no such model; the message lists all.
        """
        if name not in self._models:
            raise NotFoundError(f"Model {name[:100]!r} not found. Models here: {', '.join(self._models)}")
        return self._models[name]

    @property
    def is_ready(self):
        """Whether every model has an available version."""
        return all(model.newest for model in self)

    def version(self, name, number=None):
        """Returns an available `Version`.

        Args:
            name: str, of the model.
            number: int; `None` for the newest.

        Raises:
            NotFoundError: no such model or version.
            UnavailableError: it is not loaded yet, or no longer.
        """
        model = self[name]
        version = model.newest if number is None else model.versions.get(number)
        if number is not None and (version is None or version.state == State.END):
            reason = f": {version.error}" if version and version.error else ""
            raise NotFoundError(
                f"Model {name!r} has no version {number} here. It has {_listed(model)}{reason}"
            )
        if version is None or version.engine is None:
            raise UnavailableError(f"Model {name!r} is not loaded yet. Try again soon", retry_after=2)
        return version

    def load(self):
        """Loads all models; blocks. Of a model with versions, the newest that can be loaded.

        Raises:
            ValueError: a model, or each of its versions, cannot be loaded.
            OSError: a file cannot be read.
        """
        for model in self:
            errors = []
            for number, path in model.folders().items():
                try:
                    self._load_version(model, number, path)
                    break
                except Exception as error:  # noqa: BLE001 - an older version may be good
                    errors.append(error)
            if not model.newest:
                raise errors[0]
            for number, fault in zip(model.versions, errors, strict=False):
                _report(model, number, fault)

    async def load_newer(self):
        """Loads versions that are newer than those available, and unloads the older ones.

        The newer version is loaded and has translated a text before it gets the first request. A version
        that cannot be loaded is reported once; the newest that can be loaded answers.
        """
        for model in self:
            if not model.is_versioned:
                continue
            try:
                folders = model.folders()
            except OSError:
                continue  # the folder is being replaced
            for number in [number for number, version in model.versions.items() if version.error]:
                if number not in folders:
                    del model.versions[number]
            for number, path in folders.items():
                newest, known = model.newest, model.versions.get(number)
                if newest and number <= newest.number:
                    break
                if known and not (known.error and known.stamp != _stamp(path)):
                    continue  # a version that failed is tried again once its folder has changed
                logger.info("%s: loading version %d", model.name, number)
                try:
                    await asyncio.to_thread(self._load_version, model, number, path)
                except Exception as error:  # noqa: BLE001 - an older version may be good, or be available
                    _report(model, number, error)
                    continue
                logger.info("%s: version %d answers from now on", model.name, number)
                for version in model.versions.values():
                    if version.state == State.AVAILABLE and version.number < number:
                        version.state = State.UNLOADING
                break
        self.unload()

    def unload(self):
        """Frees older versions whose last request has been answered."""
        ended = [
            version
            for model in self
            for version in model.versions.values()
            if version.state == State.UNLOADING and not version.num_requests
        ]
        for version in ended:
            version.state, version.engine = State.END, None
        if ended and gc.get_freeze_count():
            freeze_objects()

    def _load_version(self, model, number, path):
        version = Version(number, path, State.LOADING, stamp=_stamp(path))
        model.versions[number] = version
        try:
            version.engine = self._load(path, **self._options)
        except BaseException as error:
            version.state, version.error = State.END, str(error) or type(error).__name__
            raise
        version.state = State.AVAILABLE


def freeze_objects():
    """Collects garbage, then excludes every object there is from later collections.

    TensorFlow and the models are hundreds of thousands of objects. Every few hundred requests, a full
    collection would search them all, and all requests would wait for a quarter of a second.
    """
    gc.unfreeze()
    for _ in range(2):  # what a collected model alone referred to is garbage after the first
        gc.collect()
    gc.freeze()


def named_paths(arguments):
    """Returns dict, name -> folder, of the models on the command line.

    Args:
        arguments: list of str, `FOLDER` or `NAME=FOLDER`; a folder may also be the name of a model that comes
            with the package. Without a name, it is that of the folder.

    Raises:
        ValueError: a folder has no model, a name is not allowed, or two models have the same name.
    """
    paths = {}
    for argument in arguments:
        name, has_name, folder = argument.partition("=")
        if not has_name or pathlib.Path(argument).exists():
            name, folder = "", argument
        elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise ValueError(
                f"{argument}: the name before = must be letters, digits, dots, _ and -, and begin with a "
                "letter or digit"
            )
        if not folder:
            raise ValueError(f"{argument!r}: MODEL is empty. Give a folder")
        path = pathlib.Path(folder)
        if not path.exists() and folder in pretrained_models():
            path = pretrained_folder(folder)
        check_model(path)
        name = name or re.sub(r"[^A-Za-z0-9_.-]", "-", path.resolve().name).lstrip("-._") or "model"
        if name in paths:
            raise ValueError(f"two models are called {name!r}. Name one of them: OTHER={folder}")
        paths[name] = path
    return paths


def check_model(path):
    """Returns the folder of a model, or of its newest version that has one; loads nothing.

    Raises:
        ValueError: the folder has neither a model nor versions of one.
    """
    if not path.is_dir():
        fault = "is a file, not a folder" if path.exists() else "no such folder"
        raise ValueError(
            f"{path}: {fault}. Give a run folder, an exported model, or a model that comes with the "
            f"package: {', '.join(pretrained_models())}"
        )
    errors = []
    for folder in _folders(path).values() or [path]:
        try:
            kind_of(folder)
        except ValueError as error:
            errors.append(error)
        else:
            return folder
    raise errors[0]


def _is_versioned(path):
    return bool(version_numbers(path)) and not any(
        (path / name).exists() for name in ("config.json", "saved_model.pb", "keras_transformer.json")
    )


def _folders(path):
    """Returns dict, version number -> its folder, whose name may begin with zeros; the newest first."""
    if not _is_versioned(path):
        return {}
    numbers = version_numbers(path)
    names = {int(folder.name): folder for folder in path.iterdir() if re.fullmatch("[0-9]+", folder.name)}
    return {number: names[number] for number in reversed(numbers) if number in names}


def _report(model, number, error):
    logger.error("%s: version %d cannot be loaded: %s", model.name, number, error)


def _stamp(path):
    """Returns a tuple that changes if a folder is replaced, or a file in it or in its folders is."""
    try:
        files = [path, *sorted(path.rglob("*"))]
        return tuple((str(file), file.stat().st_ino, file.stat().st_mtime_ns) for file in files)
    except OSError:  # it is being replaced
        return ()


def _listed(model):
    numbers = sorted(version.number for version in model.versions.values() if version.engine)
    return f"version {', '.join(map(str, numbers))}" if numbers else "none"
