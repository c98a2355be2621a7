"""A trained model as a SavedModel: text in, text out, without Python and without Keras."""

import contextlib
import errno
import signal
import threading
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.tensor_files import by_path
from keras_transformer.export.forcing import pair_signatures
from keras_transformer.export.graphs import ServedModel, ids_signature, text_signatures
from keras_transformer.export.model_card import make_card, write_card
from keras_transformer.export.serving import import_serving, warmup_texts, write_batching, write_warmup
from keras_transformer.export.settings import ServingSettings, checked_name
from keras_transformer.export.versions import IDS, new_version, write_manifest
from keras_transformer.tokenizers.base import import_tensorflow_text
from keras_transformer.translation.alignment import default_choice

# A frozen graph is one protocol buffer, which must be smaller than two gigabytes.
_MAX_FROZEN_BYTES = 1_900_000_000


class Exported(NamedTuple):
    """What was written.

    Attributes:
        version: int.
        name: str, of the model on the server.
        path: `pathlib.Path`, folder of the version, with all signatures.
        ids_path: `pathlib.Path`, folder of the version that has `translate_ids` alone, or `None`.
    """

    version: int
    name: str
    path: object
    ids_path: object


def export_saved_model(
    run_dir, folder, *,
    weights="final", settings=None, version=None, name=None, licences=None, warmup=True, with_ids=True,
):  # fmt: skip
    """Writes `folder/<version>/` for TensorFlow Serving, and `folder/ids/<version>/` without TF Text.

    A SavedModel with operations of TF Text can be loaded only where these are linked, whichever
    signature is wanted; therefore ids have one of their own.

    Args:
        run_dir: folder of a training run.
        folder: where versions are, made if it is missing.
        weights: name of weights, as `RunFolder.load_weights` takes it.
        settings: `ServingSettings`; `None` for the run's own search.
        version: int; `None` for the next free one.
        name: of the model on the server; `None` for the run folder's.
        licences: dict with `model` and `data`, for the model card.
        warmup: writes warm-up requests.
        with_ids: writes `ids` as well.

    Returns:
        `Exported`.

    Raises:
        ValueError: not a run folder, no such weights, a setting that is refused, or a
            version that is there.
        OSError: the disk is full, or the folder cannot be written to.
    """
    run = RunFolder(run_dir)
    settings = ServingSettings(search=run.config.search) if settings is None else settings
    name = checked_name(run, name)
    if warmup:
        import_serving()  # refused before any work is done
    tokenizers = run.load_tokenizers()
    model = run.load_model(weights=weights)
    _, tensorflow_text = import_tensorflow_text()
    size = sum(variable.numpy().nbytes for variable in model.weights)
    if settings.frozen and size > _MAX_FROZEN_BYTES:
        raise ValueError(
            f"{run.path}: {size:,} bytes of weights do not fit into one frozen graph "
            f"({_MAX_FROZEN_BYTES:,} at most). Leave --frozen out"
        )
    card = make_card(
        run,
        settings,
        name=name,
        weights=weights,
        num_parameters=model.count_params(),
        versions={"tensorflow": tf.__version__, "tensorflow-text": tensorflow_text.__version__},
        licences=licences or {},
    )
    warmup_ids = tokenizers.source.encode(warmup_texts())
    served = ServedModel(model, settings)
    ids_only = {"translate_ids": ids_signature(served)}
    everything = {
        **text_signatures(served, tokenizers),
        **ids_only,
        **pair_signatures(served, tokenizers, default_choice(model.config.num_decoder_layers)),
    }
    kinds = [(everything, [tokenizer.graph_tokenizer for tokenizer in dict.fromkeys(tokenizers)])]
    folders = [folder] if not with_ids else [folder, f"{folder}/{IDS}"]
    kinds += [(ids_only, [])] * with_ids
    with new_version(folders, version) as new:
        for path, (functions, resources) in zip(new.folders, kinds, strict=True):
            signatures = {}
            for key, function in functions.items():
                with uninterrupted():
                    signatures[key] = function.get_concrete_function()
            with uninterrupted():
                _save(path, served, signatures, resources)
            write_card(path, {**card, "signatures": sorted(signatures)})
            if warmup:
                write_warmup(path, name, signatures, warmup_ids)
            if not settings.inputs and len(signatures) > 1:
                write_batching(path, settings)
            write_manifest(path)
    paths = [each.with_name(str(new.number)) for each in new.folders]
    return Exported(new.number, name, paths[0], paths[1] if with_ids else None)


def _save(path, served, signatures, resources):
    module = tf.Module()
    if not served.settings.frozen:
        # Nothing of Keras: variables alone, under the paths that checkpoints call them by.
        module.weights = dict(sorted(by_path(served.model.weights).items()))
    module.tokenizers = resources
    # Nobody trains what is served.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(path), signatures=signatures, options=options)
    except tf.errors.OpError as error:  # that is how TensorFlow says that it cannot write
        full = isinstance(error, tf.errors.ResourceExhaustedError) or "File too large" in error.message
        reason = "no space left on device" if full else error.message.splitlines()[0]
        raise OSError(errno.ENOSPC if full else errno.EIO, reason, str(path)) from error


@contextlib.contextmanager
def uninterrupted():
    """Holds SIGINT and SIGTERM back until the end of the block, when their handlers are called.

    In another thread than the main one, which no handler interrupts, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(signal.getsignal(number))  # not where the system's own handling is wanted
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received[:1]:
        before[number](number, None)
