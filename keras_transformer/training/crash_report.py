"""What a run leaves behind when its numbers are no longer finite, and what to try next."""

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
    """Writes `crash/step-N` of a run folder: the batch, and which weights and gradients are not finite.

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
        **_findings(model, arrays, run.config.devices.micro_batch_tokens),
        "advice": advice(run.config, step),
        "history": records[-RECORDS:],
    }
    folder = pathlib.Path(run.path) / "crash" / f"step-{step}"
    folder.parent.mkdir(exist_ok=True)  # not the folders above: the run may have been renamed
    if folder.exists():
        shutil.rmtree(folder)
    with create_folder_atomically(folder) as temporary:
        with open_atomically(temporary / "batch.npz") as file:
            np.savez(file, **arrays)
        write_text(temporary / "report.json", json.dumps(_plain(report), indent=2, allow_nan=False) + "\n")
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
    return float(learning_rate_schedule(config.model, config.training)(step - 1))


def _findings(model, arrays, batch_tokens):
    """Looks at weights, loss and gradients, in parts of the batch that a device holds."""
    longest = max(arrays["source_ids"].shape[1], arrays["labels"].shape[1])
    rows = max(batch_tokens // longest, 1) if batch_tokens else len(arrays["labels"])
    found = {"weights_not_finite": [weight.path for weight in model.weights if not _finite(weight.value)]}
    weights, not_finite = model.trainable_weights, set()
    total = tokens = 0.0
    try:
        for begin in range(0, len(arrays["labels"]), rows):
            source_ids, target_ids, labels = (array[begin : begin + rows] for array in arrays.values())
            with tf.GradientTape() as tape:
                # Without dropout: what that step drew is gone.
                statistics = model.loss.statistics(labels, model((source_ids, target_ids), training=False))
                loss = tf.reduce_sum(statistics.loss)
            gradients = zip(weights, tape.gradient(loss, weights), strict=True)
            not_finite |= {
                weight.path for weight, each in gradients if each is not None and not _finite(each)
            }
            total += float(loss)
            tokens += float(tf.reduce_sum(statistics.weight))
    except tf.errors.ResourceExhaustedError:
        return {**found, "not_examined": "the batch does not fit into memory outside the training step"}
    return {
        **found,
        "gradients_not_finite": [weight.path for weight in weights if weight.path in not_finite],
        "loss": total / max(tokens, 1.0),
    }


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
