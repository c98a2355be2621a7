"""What a run leaves behind when its numbers are no longer finite, and what to try next."""

import contextlib
import functools
import json
import math
import os
import pathlib
import shutil

import numpy as np
import tensorflow as tf

from keras_transformer.files import temporary_beside, to_disk
from keras_transformer.model.schedule import TransformerSchedule

RECORDS = 20


def write_crash_dump(run, model, step, batch, plan_key, records):
    """Writes `crash/step-N` of a run folder: the batch, and where it ceases to be finite.

    The folder is there as a whole or not at all; one of the same step is replaced. Weights,
    metrics and dropout's seeds stay as they are.

    Args:
        run: `RunFolder`.
        model: the compiled `Transformer` in training.
        step: int, the step whose gradient was not finite.
        batch: pair `((source_ids, target_ids), labels)` of that step, int, shapes
            `(batch, source_len)`, `(batch, target_len)` and `(batch, target_len)`; or all
            with an axis of micro-batches before, which are put under each other.
        plan_key: what names the batch in the plan of the run, as JSON can hold it.
        records: list of dict, the history; the last 20 are written.

    Returns:
        `pathlib.Path`, the folder; `None` on a worker that does not write.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    if not run.writes:
        return None
    (source_ids, target_ids), labels = batch
    arrays = {
        name: np.reshape(array, (-1, np.shape(array)[-1]))
        for name, array in (("source_ids", source_ids), ("target_ids", target_ids), ("labels", labels))
    }
    report = {
        "step": step,
        "learning_rate": _learning_rate(run.config, step),
        "warmup_steps": run.config.training.warmup_steps,
        "batch": {
            "plan_key": plan_key,
            "sentences": len(arrays["labels"]),
            "source_tokens": int(np.sum(arrays["source_ids"] != model.special.pad)),
            "target_tokens": int(np.sum(arrays["labels"] != model.special.pad)),
            "source_len": arrays["source_ids"].shape[1],
            "target_len": arrays["labels"].shape[1],
        },
        **_findings(model, arrays, run.config.devices.batch_tokens),
        "advice": advice(run.config, step),
        "history": records[-RECORDS:],
    }
    folder = pathlib.Path(run.path) / "crash" / f"step-{step}"
    folder.parent.mkdir(exist_ok=True)
    temporary = temporary_beside(folder)
    temporary.mkdir()
    try:
        with (temporary / "batch.npz").open("wb") as file:
            np.savez(file, **arrays)
        with (temporary / "report.json").open("w", encoding="utf-8") as file:
            json.dump(_plain(report), file, indent=2, allow_nan=False)
            file.write("\n")
        for path in temporary.iterdir():
            to_disk(path)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(temporary, folder)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
        raise
    return folder


def advice(config, step):
    """Says what to try next, with the settings to do so.

    Args:
        config: `Config` of the run.
        step: int, the step that was not finite.

    Returns:
        str, one line.
    """
    training, batch_tokens = config.training, config.data.batch_tokens
    changes = [
        f"--set training.learning_rate_scale={min(training.learning_rate_scale / 2, 1):g}",
        f"--set training.warmup_steps={2 * training.warmup_steps}",
    ]
    if training.precision == "mixed_float16":
        changes.append("--set training.precision=mixed_bfloat16")
    return (
        f"learning rate {_learning_rate(config, step):.2e} at step {step:,}, warm-up"
        f" {training.warmup_steps:,} steps, batches of up to {batch_tokens:,} tokens a side: try"
        f" {' '.join(changes)} in a new --run-dir, there also larger batches (--set data.batch_tokens="
        f"{2 * batch_tokens}); or go back to an earlier checkpoint with --resume-from"
    )


def _learning_rate(config, step):
    training = config.training
    schedule = TransformerSchedule(
        config.model.d_model, training.warmup_steps, scale=training.learning_rate_scale
    )
    return float(schedule(step - 1))


def _findings(model, arrays, batch_tokens):
    """Looks at weights, gradients and layers, in parts of the batch that a device holds."""
    longest = max(arrays["source_ids"].shape[1], arrays["labels"].shape[1])
    rows = max(batch_tokens // longest, 1) if batch_tokens else len(arrays["labels"])
    found = {"weights_not_finite": [weight.path for weight in model.weights if not _finite(weight.value)]}
    weights, gradients = model.trainable_weights, set()
    total = tokens = 0.0
    try:
        with _watched_layers(model) as finite:
            for begin in range(0, len(arrays["labels"]), rows):
                source_ids, target_ids, labels = (array[begin : begin + rows] for array in arrays.values())
                with tf.GradientTape() as tape:
                    # Without dropout: what that step drew is gone.
                    logits = model((source_ids, target_ids), training=False)
                    statistics = model.loss.statistics(labels, logits)
                    loss = tf.reduce_sum(statistics.loss)
                for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                    if gradient is not None and not _finite(gradient):
                        gradients.add(weight.path)
                finite["logits"] = finite.get("logits", True) and _finite(logits)
                total += float(loss)
                tokens += float(tf.reduce_sum(statistics.weight))
    except tf.errors.ResourceExhaustedError:
        return {**found, "not_examined": "the batch does not fit into memory outside the training step"}
    return {
        **found,
        "gradients_not_finite": [weight.path for weight in weights if weight.path in gradients],
        "first_layer_not_finite": next((name for name in finite if not finite[name]), None),
        "loss": total / max(tokens, 1.0),
    }


@contextlib.contextmanager
def _watched_layers(model):
    """Gives {layer name: whether all its outputs are finite}, in the order of the first calls."""
    finite = {}

    def watched(layer, call):
        @functools.wraps(call)
        def call_and_look(*args, **kwargs):
            output = call(*args, **kwargs)
            finite[layer.name] = finite.get(layer.name, True) and _finite(output)
            return output

        return call_and_look

    for layer in model.layers:
        layer.call = watched(layer, layer.call)
    try:
        yield finite
    finally:
        for layer in model.layers:
            del layer.call  # the class has its own


def _finite(array):
    # A gradient of an embedding may hold the rows that were looked up, and no others.
    values = array.values if isinstance(array, tf.IndexedSlices) else array
    return bool(tf.reduce_all(tf.math.is_finite(values)))


def _plain(value):
    """The same for JSON, which knows no NaN and no infinity: they become text."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
