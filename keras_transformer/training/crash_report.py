"""Crash dump of a run with non-finite gradients: the batch, the affected weights, and advice."""

import json
import math
import pathlib
import shutil

import numpy as np
import tensorflow as tf

from keras_transformer.files import create_folder_atomically, open_atomically, write_text
from keras_transformer.training.progress import learning_rate_schedule

RECORDS = 20


def write_crash_dump(run, model, step, batch, plan_key, records):
    """Writes `crash/step-N` of a run folder: the batch, and a report of non-finite weights and gradients.

    The folder is written atomically and replaces an earlier one of the same step. Weights, metrics
    and dropout seeds do not change.

    Args:
        run: `RunFolder`.
        model: the compiled `Transformer` in training.
        step: int, the step whose gradient was not finite.
        batch: pair `((source_ids, target_ids), labels)` of that step, int, shapes
            `(batch, source_len)`, `(batch, target_len)` and `(batch, target_len)`; or each with a
            leading axis of micro-batches, which is flattened.
        plan_key: the key of the batch in the plan of its epoch; a JSON value.
        records: list of dict, the history; the last 20 records are written.

    Returns:
        `pathlib.Path`, the folder; `None` on a worker that does not write.

    Raises:
        OSError: the folder cannot be written; no part of it remains.
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
        **_findings(model, arrays, run.config.devices.micro_batch_tokens),
        "advice": advice(run.config, step),
        "history": records[-RECORDS:],
    }
    folder = pathlib.Path(run.path) / "crash" / f"step-{step}"
    folder.parent.mkdir(exist_ok=True)  # no parents: they are missing if the run was renamed
    if folder.exists():
        shutil.rmtree(folder)
    with create_folder_atomically(folder) as temporary:
        with open_atomically(temporary / "batch.npz") as file:
            np.savez(file, **arrays)
        write_text(temporary / "report.json", json.dumps(_plain(report), indent=2, allow_nan=False) + "\n")
    return folder


def advice(config, step):
    """Returns advice after a non-finite step: settings to change.

    Args:
        config: `Config` of the run.
        step: int, the step with the non-finite gradient.

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
        f" {' '.join(changes)} in a new --run-dir, also with larger batches (--set data.batch_tokens="
        f"{2 * batch_tokens}); or go back to an earlier checkpoint with --resume-from"
    )


def _learning_rate(config, step):
    return float(learning_rate_schedule(config.model, config.training)(step - 1))


def _findings(model, arrays, batch_tokens):
    """Returns the loss and the names of non-finite weights and gradients, as a dict for the report.

    Loss and gradients are computed in micro-batches of at most `batch_tokens` tokens.
    """
    longest = max(arrays["source_ids"].shape[1], arrays["labels"].shape[1])
    rows = max(batch_tokens // longest, 1) if batch_tokens else len(arrays["labels"])
    findings = {"weights_not_finite": [weight.path for weight in model.weights if not _finite(weight.value)]}
    weights, not_finite = model.trainable_weights, set()
    total = tokens = 0.0
    try:
        for begin in range(0, len(arrays["labels"]), rows):
            source_ids, target_ids, labels = (array[begin : begin + rows] for array in arrays.values())
            with tf.GradientTape() as tape:
                # Without dropout: the masks of the failed step are not known any more.
                statistics = model.loss.statistics(labels, model((source_ids, target_ids), training=False))
                loss = tf.reduce_sum(statistics.loss)
            gradients = zip(weights, tape.gradient(loss, weights), strict=True)
            not_finite |= {
                weight.path for weight, grad in gradients if grad is not None and not _finite(grad)
            }
            total += float(loss)
            tokens += float(tf.reduce_sum(statistics.weight))
    except tf.errors.ResourceExhaustedError:
        return {**findings, "not_examined": "the batch does not fit into memory outside the training step"}
    return {
        **findings,
        "gradients_not_finite": [weight.path for weight in weights if weight.path in not_finite],
        "loss": total / max(tokens, 1.0),
    }


def _finite(array):
    # The gradient of an embedding may be sparse: only the rows that were looked up.
    values = array.values if isinstance(array, tf.IndexedSlices) else array
    return bool(tf.reduce_all(tf.math.is_finite(values)))


def _plain(value):
    """Replaces NaN and infinities, which JSON does not have, by text."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
