"""Trained models that come with the package: run folders with `final` weights only, and a model card.

Wherever a run folder is read, the name of such a model may be given, unless a path of that name exists.
"""

import os
import pathlib

_FOLDER = pathlib.Path(__file__).with_name("pretrained")


def pretrained_models():
    """Returns the list of the names of all models that come with the package."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))


def pretrained_folder(name):
    """Returns the `pathlib.Path` of the run folder of a model that comes with the package.

    Raises:
        ValueError: there is no such model; the message lists all.
    """
    if name not in pretrained_models():
        raise ValueError(f"No model {name!r} comes with the package. Available: {_available()}")
    return _FOLDER / name


def comes_with_package(path):
    """Whether a path is the run folder of a model that comes with the package."""
    return pathlib.Path(path).resolve().parent == _FOLDER.resolve()


def resolve(path):
    """Returns a path as `pathlib.Path`; a name of a model that comes with the package becomes its folder."""
    if not os.path.exists(path) and os.fspath(path) in pretrained_models():
        return pretrained_folder(os.fspath(path))
    return pathlib.Path(path)


def _available():
    return ", ".join(pretrained_models()) or "none"
