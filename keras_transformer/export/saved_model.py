"""Exports a trained model as a SavedModel: text in, text or trees out, without Python and Keras.

Each version has a model card: languages, data, scores, sizes, limits, licences.
"""

import contextlib
import dataclasses
import errno
import json
import pathlib
import signal
import threading
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer import __version__
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.tensor_files import by_path
from keras_transformer.config.settings import replace
from keras_transformer.config.types import PathLike
from keras_transformer.export.forcing import pair_signatures
from keras_transformer.export.graphs import ServedModel, ids_signature, text_signatures
from keras_transformer.export.phrases import constrained_signature
from keras_transformer.export.serving import (
    WARMUP_TEXTS,
    ServingSettings,
    has_serving,
    import_serving,
    server_name,
    write_batching,
    write_warmup,
)
from keras_transformer.export.trees import tree_ids_signature, tree_signatures
from keras_transformer.export.versions import CARD, IDS, new_version, write_manifest
from keras_transformer.model.kernels.switch import without_gradients
from keras_transformer.tokenizers.base import import_tensorflow_text
from keras_transformer.translation.alignment import default_alignment_choice

NOT_STATED = "not stated"
# A frozen graph is one protocol buffer; protocol buffers are limited to 2 GiB.
_MAX_FROZEN_BYTES = 1_900_000_000


class Exported(NamedTuple):
    """Result of `export_saved_model`.

    Attributes:
        version: int.
        name: str, of the model on the server.
        path: `pathlib.Path`, folder of the version with all signatures.
        ids_path: `pathlib.Path`, folder of the version with `translate_ids` only; `None` if not written.
    """

    version: int
    name: str
    path: Any
    ids_path: Any


def export_saved_model(
    run_dir: PathLike, folder: PathLike, *,
    checkpoint: str = "final", settings: ServingSettings | None = None, version: int | None = None,
    name: str | None = None, licences: dict[str, str] | None = None, warmup: bool | None = None,
    with_ids: bool = True, with_constraints: bool = False,
) -> Exported:  # fmt: skip
    """Exports `folder/<version>/` for TensorFlow Serving, and `folder/ids/<version>/` without TF Text.

    A SavedModel with TF Text operations loads only into programs that link them, even if just
    another signature is used. Therefore `translate_ids`, or `parse_ids` of a parser, also has a SavedModel
    of its own.

    Args:
        run_dir: path of a run folder.
        folder: path of the folder of versions, created if missing.
        checkpoint: the weights to export, as in `RunFolder.load_weights`.
        settings: `ServingSettings`; `None` for the search settings of the run.
        version: int; `None` for the next free one.
        name: str, of the model on the server; `None` for the name of the run folder.
        licences: dict with `model` and `data`, for the model card.
        warmup: bool, writes warm-up requests; `None` writes them if tensorflow-serving-api is installed.
        with_ids: bool, writes `folder/ids` as well.
        with_constraints: bool, adds the signature `translate_constrained`, see `phrases`.

    Returns:
        `Exported`.

    Raises:
        ValueError: not a run folder, no such weights, an invalid setting, or the version exists.
        MissingExtraError: `warmup` is true and tensorflow-serving-api is not installed.
        OSError: the disk is full, or the folder is not writable.
    """
    run = RunFolder(run_dir)
    check_constraints(run, with_constraints)
    settings = ServingSettings(search=run.config.search) if settings is None else settings
    replace(run.config, search=settings.search)  # raises for a tree grammar without trees
    name = server_name(run, name)
    warmup = has_serving() if warmup is None else warmup
    if warmup:
        import_serving()  # raises MissingExtraError before any work is done
    tokenizers = run.load_tokenizers()
    model = run.load_model(checkpoint=checkpoint)
    _, tensorflow_text = import_tensorflow_text()
    size = sum(variable.numpy().nbytes for variable in model.weights)
    if settings.frozen and size > _MAX_FROZEN_BYTES:
        raise ValueError(
            f"{run.path}: {size:,} bytes of weights are too large for a frozen graph "
            f"({_MAX_FROZEN_BYTES:,} at most). Remove --frozen"
        )
    card = make_card(
        run,
        settings,
        name=name,
        checkpoint=checkpoint,
        num_parameters=model.count_params(),
        versions={"tensorflow": tf.__version__, "tensorflow-text": tensorflow_text.__version__},
        licences=licences or {},
    )
    warmup_ids = tokenizers.source.encode(WARMUP_TEXTS)
    served = ServedModel(model, settings, tokenizers.target.tags.values())
    if run.config.data.parses:
        ids_only = {"parse_ids": tree_ids_signature(served, tokenizers.target)}
        everything = {**tree_signatures(served, tokenizers), **ids_only}
        with_graphs = [tokenizers.source]  # the tree symbols are constants
    else:
        layer = default_alignment_choice(model.config.num_decoder_layers).layer
        ids_only = {"translate_ids": ids_signature(served)}
        pairs = pair_signatures(served, tokenizers, layer)
        everything = {**text_signatures(served, tokenizers), **ids_only, **pairs}
        if with_constraints:
            everything["translate_constrained"] = constrained_signature(served, tokenizers)
        with_graphs = list(dict.fromkeys(tokenizers))
    resources = [tokenizer.graph_tokenizer for tokenizer in with_graphs]
    kinds = {folder: (everything, resources)}
    if with_ids:
        kinds[f"{folder}/{IDS}"] = ids_only, []
    with new_version(list(kinds), version) as new:
        for path, (functions, resources) in zip(new.folders, kinds.values(), strict=True):
            signatures = {}
            for key, function in functions.items():
                with uninterrupted(), without_gradients():
                    signatures[key] = function.get_concrete_function()
            with uninterrupted():
                _save(path, served, signatures, resources)
            write_card(path, {**card, "signatures": sorted(signatures)})
            if warmup:
                write_warmup(path, name, signatures, warmup_ids)
            if not settings.inputs and len(signatures) > 1:
                write_batching(path, settings)
            write_manifest(path)
    paths = [path.with_name(str(new.number)) for path in new.folders]
    return Exported(new.number, name, paths[0], paths[1] if with_ids else None)


def check_constraints(run, with_constraints):
    """Raises `ValueError` if constraints are asked of a parser."""
    if with_constraints and run.config.data.parses:
        raise ValueError(f"{run.path}: a parser has no required phrases. Leave out --with-constraints")


def _save(path, served, signatures, resources):
    module = tf.Module()
    if not served.settings.frozen:
        # Plain variables without Keras objects, named by their paths in checkpoints.
        module.weights = dict(sorted(by_path(served.model.weights).items()))
    module.tokenizers = resources
    # Served models are not trained.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(path), signatures=signatures, options=options)
    except tf.errors.OpError as error:  # TensorFlow reports failed writes like this
        full = isinstance(error, tf.errors.ResourceExhaustedError) or "File too large" in error.message
        reason = "no space left on device" if full else error.message.splitlines()[0]
        raise OSError(errno.ENOSPC if full else errno.EIO, reason, str(path)) from error


@contextlib.contextmanager
def uninterrupted():
    """Delays SIGINT and SIGTERM until the end of the block, then calls their handlers.

    Keras and TensorFlow may swallow an exception that a handler raises while they trace, and fail later
    with another one. Does nothing outside the main thread, where no handlers run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(signal.getsignal(number))  # not for the system's default handling
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received[:1]:
        before[number](number, None)


def make_card(run, settings, *, name, checkpoint, num_parameters, versions, licences):
    """Returns the model card of an exported model, made from its run folder.

    It contains no time and no path, so that the same run gives the same card.

    Args:
        run: `RunFolder`.
        settings: `ServingSettings`.
        name: str, of the model on the server.
        checkpoint: the exported weights, as in `RunFolder.load_weights`.
        num_parameters: int.
        versions: dict, library -> version.
        licences: dict with `model` and `data`; missing ones are "not stated".

    Returns:
        dict that is valid JSON.
    """
    config, history = run.config, run.read_history()
    trained = [record for record in history if record["kind"] in ("train", "validation")]
    # Only the final weights have test scores. In early versions these were always the average.
    final = [record["weights"] for record in history if record["kind"] == "final"] or ["averaged"]
    is_scored = checkpoint in ("final", final[-1])
    tests = [record for record in history if record["kind"] == "test" and is_scored]
    tests = {record["split"]: record for record in tests}  # a resumed run has several: take the last
    corpus = run.path / "corpus.sha256"
    search = dataclasses.asdict(settings.search)
    for unused in ("sampling", "temperature", "top_k", "top_p", "seed", "mbr", "samples", "utility"):
        del search[unused]
    del search["long_lines"]
    if config.data.parses:
        search["tree_grammar"] = True  # in the graph it always is
    return {
        "name": name,
        "task": "constituency parsing" if config.data.parses else "machine translation",
        "languages": {"source": config.data.source, "target": config.data.target},
        "data": {
            "dataset": [_public(part) for part in config.data.dataset.split(",")],
            "sha256": corpus.read_text(encoding="utf-8").split()[0] if corpus.exists() else None,
        },
        "training": {key: trained[-1].get(key) for key in ("step", "minutes")} if trained else {},
        "weights": {"name": checkpoint, "parameters": num_parameters, "frozen": settings.frozen},
        "scores": list(tests.values()),
        "model": dataclasses.asdict(config.model),
        "search": {**search, "n_best": settings.n_best},
        "inputs": list(settings.inputs),
        "limits": {
            "sentences": settings.max_sentences,
            "characters": settings.max_characters,
            "tokens": settings.max_tokens(config.model),
        },
        "licence": {key: licences.get(key) or NOT_STATED for key in ("model", "data")},
        "made_with": {"keras_transformer": __version__, **versions},
    }


def write_card(folder, card):
    """Writes a model card as JSON and as Markdown into the folder of a version."""
    (folder / CARD).parent.mkdir(exist_ok=True)
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / CARD).with_suffix(".md").write_text(_markdown(card), encoding="utf-8")


def _public(dataset):
    """Returns the name of a dataset; of a local path only its last component, for privacy."""
    dataset = dataset.strip()
    is_path = dataset.startswith((".", "/", "~"))
    return pathlib.PurePath(dataset).name if is_path else dataset


_MARKDOWN = """\
# {name}

| {task} | |
|---|---|
| languages | {languages[source]} to {languages[target]} |
| trained on | {datasets} |
| SHA-256 of the training ids | {sha256} |
| updates | {step} |
| minutes of training | {minutes} |
| weights | {weights[name]}, {weights[parameters]:,} parameters |
| sizes | {model[num_encoder_layers]} + {model[num_decoder_layers]} layers, d {model[d_model]}, \
feed-forward {model[d_ff]}, {model[num_heads]} heads, \
{model[source_vocab_size]:,} + {model[target_vocab_size]:,} tokens, tied embeddings: {model[tie_embeddings]} |
| search | beam {search[beam_size]}, alpha {search[alpha]:g} ({search[length_penalty]}){coverage}{given} |
| limits of a call | {limits[sentences]} sentences; of each, {limits[characters]:,} characters and \
{limits[tokens]:,} tokens, the rest is cut off |
| licence of the model | {licences[0]} |
| licence of the data | {licences[1]} |
| made with | {libraries} |
"""


def _markdown(card):
    training = {key: card["training"].get(key) for key in ("step", "minutes")}
    penalty = card["search"]["coverage_penalty"]
    text = _MARKDOWN.format_map(
        {
            **card,
            "datasets": ", ".join(card["data"]["dataset"]),
            "sha256": card["data"]["sha256"] or NOT_STATED,
            **{key: NOT_STATED if value is None else f"{value:,.0f}" for key, value in training.items()},
            "coverage": f", coverage penalty {penalty:g}" if penalty else "",
            "given": "".join(f", {name} is an input" for name in card["inputs"]),
            # Escaped for a table cell.
            "licences": [" ".join(text.split()).replace("|", "\\|") for text in card["licence"].values()],
            "libraries": ", ".join(f"{library} {version}" for library, version in card["made_with"].items()),
        }
    )
    if not card["scores"]:
        return text + "| scores | none were measured with these weights |\n"
    signatures = "\nSignatures of sacreBLEU:\n\n"
    for test in card["scores"]:
        for figure in ("bleu", "chrf"):
            if figure in test:
                what = f"{figure} of {test['num_lines']:,} lines of {test['split']}"
                text += f"| {what} | {test[figure]:.2f} |\n"
                signatures += f"- {what}: `{test.get(f'{figure}_signature', NOT_STATED)}`\n"
    # Not in the table: the `|` in a signature would end its cell, and some viewers show the escape.
    return text + signatures
