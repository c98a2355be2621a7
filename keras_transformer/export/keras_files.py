"""Exports a trained model as `.keras` or `.weights.h5`, and loads such files without trusting them.

The exported folder has `model.keras` or `model.weights.h5`, the vocabularies, `keras_transformer.json` and
a manifest. Keras' safe mode, which rejects anything that could run code, is always on.
"""

import json
import pathlib
import zipfile

import h5py
import keras

from keras_transformer.config.fields import from_values
from keras_transformer.config.settings import ModelConfig
from keras_transformer.export.versions import check_manifest, exported_folder, read_metadata, with_search
from keras_transformer.model.transformer import Transformer

FILES = {"keras": "model.keras", "weights": "model.weights.h5"}

_PARTS = ["config.json", "metadata.json", "model.weights.h5"]
_CLASS = f"{Transformer.__module__.partition('.')[0]}>Transformer"
_MAX_JSON_BYTES = 2**20


def export_keras(run, out, *, checkpoint="final", search=None, weights_only=False):
    """Exports a run in Keras' format, atomically: the folder is complete or does not appear.

    Args:
        run: `RunFolder`.
        out: path of a new or empty folder.
        checkpoint: the weights to export, as in `RunFolder.load_weights`.
        search: dict, search settings that override those of the run.
        weights_only: bool, writes `model.weights.h5`, without the model's configuration, instead of
            `model.keras`.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: `out` is in use, or the weights are missing.
    """
    kind = "weights" if weights_only else "keras"
    config = with_search(run.config, search)
    versions = {"keras": keras.__version__}
    with exported_folder(run, out, kind, config, checkpoint=checkpoint, versions=versions) as (
        folder,
        model,
        _,
    ):
        model.save(folder / FILES["keras"])
        if weights_only:
            # Not `save_weights`: on a full disk HDF5 ends the process.
            with zipfile.ZipFile(folder / FILES["keras"]) as archive:
                archive.extract(FILES["weights"], folder)
            (folder / FILES["keras"]).unlink()
    return pathlib.Path(out)


def load_keras(folder):
    """Loads the model of a folder that `export_keras` wrote.

    Returns:
        `Transformer`.

    Raises:
        ValueError: not such a folder; a file was changed, removed or added; or as
            `load_keras_file` and `load_weights_file`.
    """
    folder = pathlib.Path(folder)
    check_manifest(folder)
    metadata = read_metadata(folder, tuple(FILES))
    path = folder / FILES[metadata["format"]]
    if metadata["format"] == "keras":
        return load_keras_file(path)
    model = Transformer(from_values(ModelConfig, metadata["model"]))
    load_weights_file(model, path)
    return model


def load_keras_file(path):
    """Loads an untrusted `.keras` file, which must contain a `Transformer` and nothing else.

    Args:
        path: path of the file.

    Raises:
        ValueError: the file is damaged, contains another class, or links to other files.
    """
    path = pathlib.Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_archive(path, archive)
            with archive.open("model.weights.h5") as file, h5py.File(file) as weights:
                _check_weights(path, weights)
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a .keras file, or damaged ({error})") from error
    try:
        return keras.saving.load_model(path, compile=False)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"{path}: not a model of this package ({_first_line(error)})") from error


def load_weights_file(model, path):
    """Loads the weights of an untrusted `.weights.h5` file into a model.

    Args:
        model: a `Transformer`.
        path: path of the file.

    Raises:
        ValueError: the file is damaged, links to other files, or belongs to another model.
    """
    path = pathlib.Path(path)
    try:
        with h5py.File(path) as weights:
            _check_weights(path, weights)
    except OSError as error:
        raise ValueError(f"{path}: not an HDF5 file, or damaged ({_first_line(error)})") from error
    try:
        model.load_weights(path)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: not the weights of this model ({_first_line(error)})") from error


def _check_archive(path, archive):
    """Raises ValueError unless the archive has exactly the files of a saved `Transformer`."""
    if sorted(archive.namelist()) != _PARTS:
        raise ValueError(
            f"{path}: must contain {', '.join(_PARTS)}. Received: {', '.join(archive.namelist())}"
        )
    for name in ("metadata.json", "config.json"):
        if archive.getinfo(name).file_size > _MAX_JSON_BYTES:
            raise ValueError(f"{path}: {name} is larger than {_MAX_JSON_BYTES:,} bytes")
        try:
            config = json.loads(archive.read(name))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {name} is damaged ({error})") from error
    name = config.get("registered_name") if isinstance(config, dict) else None
    if name != _CLASS:
        raise ValueError(f"{path}: must contain a {_CLASS}. Received: {name!r}")


def _check_weights(path, group, seen=None):
    """Raises ValueError for anything but arrays stored in the file itself, such as links."""
    seen = set() if seen is None else seen
    for key in group:
        name = f"{group.name.rstrip('/')}/{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"{path}: {name} is a link. Weights must be in the file itself")
        item = group[key]
        if isinstance(item, h5py.Group):
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                raise ValueError(f"{path}: {name} occurs twice. Weights must be a tree")
            _check_weights(path, item, seen | {address})
        elif not isinstance(item, h5py.Dataset) or item.dtype.kind not in "fiu":
            raise ValueError(f"{path}: {name} is not an array of numbers")
        elif item.external is not None or item.is_virtual:
            raise ValueError(f"{path}: {name} stores its data in another file")


def _first_line(error):
    return str(error).strip().split("\n")[0]
