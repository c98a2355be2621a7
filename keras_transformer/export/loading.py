"""Exported models, checked and loaded without Keras."""

import json
import pathlib

import tensorflow as tf

from keras_transformer.export.manifest import check_manifest
from keras_transformer.export.model_card import CARD
from keras_transformer.export.versions import versions
from keras_transformer.files import without_wildcards
from keras_transformer.tokenizers.base import import_tensorflow_text


def load_exported(path):
    """Loads a SavedModel that `export_saved_model` wrote, if every file is as it was written.

    A SavedModel is a program: load none of which you do not know where it comes from.

    Args:
        path: folder of one version, or of several, of which the newest is taken.

    Returns:
        The object that `tf.saved_model.load` gives; `signatures` has the functions.

    Raises:
        ValueError: not an exported model, or a file of it was changed, removed or added.
        ImportError: tensorflow-text is missing, which all but the `ids` models need.
    """
    path = pathlib.Path(path)
    numbers = versions(path)
    if numbers and not (path / "saved_model.pb").exists():
        path = path / str(numbers[-1])
    check_manifest(path)
    if not (path / CARD).is_file():
        raise ValueError(f"{path}: not a SavedModel of export_model.py. Export it with --format savedmodel")
    card = json.loads((path / CARD).read_text(encoding="utf-8"))
    if card["signatures"] != ["translate_ids"]:
        import_tensorflow_text()  # it registers the operations of the tokenizers
    with without_wildcards(path) as plain:
        return tf.saved_model.load(str(plain))
