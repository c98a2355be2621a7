"""Continuing a run: which settings may change, and where reading goes on when its batches did."""

import dataclasses
import json
import re

from keras_transformer.config import settings as configs
from keras_transformer.config.fields import unknown
from keras_transformer.config.sections import VOCABULARY
from keras_transformer.config.settings import replace
from keras_transformer.files import write_text

# Settings that number the batches of the same pairs; the pairs have a SHA-256.
_CUT = ("batch_tokens", "padding", "max_shapes", "subword_dropout")
_CHOICE = ("weights", "temperature")  # as checkpoints name them

CORPUS_SUM = "corpus.sha256"
# How long the run is, where its data are and what is kept of it: not what it computes.
_LENGTH = ("max_steps", "max_minutes", "patience")
_KEPT = ("keep_checkpoints", "keep_best", "average_last", "validation_beam_size")
# The state that a run continues from has its first weights.
FREE = {f"training.{name}" for name in (*_LENGTH, *_KEPT, "init_checkpoint")} | {
    "data.data_dir",
    "data.manual_dir",
}
FREE_SECTIONS = ("devices.", "search.")
# Weights of other shapes, or for other tokens, are another model's.
FIXED = frozenset(f"data.{name}" for name in (*VOCABULARY, "vocab_texts"))


def apply_config_changes(run, config, *, sha256, allowed=()):
    """Takes over the settings that may change; refuses any other change.

    Args:
        run: `RunFolder`; its `config` and its file are replaced.
        config: `Config` of the run from now on.
        sha256: of the training ids, as in `corpus.sha256`.
        allowed: settings that may differ though they change what is computed, such as
            `"training.warmup_steps"`; with `"data.dataset"`, also the training ids.

    Returns:
        list of `(path, old value, new value)`, what was taken over. `path` is
        `"corpus.sha256"` where the training ids are others.

    Raises:
        ValueError: another setting differs, or `allowed` names none.
    """
    changes, old = check_config_changes(run, config, allowed), recorded_sha256(run)
    if old not in (None, sha256):
        if "data.dataset" not in allowed:
            raise ValueError(
                f"{run.path}: the training text is not the one that this run began with (see {CORPUS_SUM}). "
                "Put it back, pass --allow-config-change data.dataset, or choose another --run-dir"
            )
        changes.append((CORPUS_SUM, old, sha256))
    if run.writes and old != sha256:
        write_text(run.path / CORPUS_SUM, f"{sha256}\n")
    run.write_config(config)
    return changes


def check_config_changes(run, config, allowed=()):
    """Returns the settings that differ, as `apply_config_changes` does; refuses those that may not."""
    check_setting_names(allowed, config)
    changes = configs.differences(run.config, config)
    refused = [change for change in changes if not _may_change(change[0], allowed)]
    if refused:
        raise ValueError(_refused_changes_message(run.path, refused))
    return changes


def recorded_sha256(run):
    """Returns the SHA-256 of the training ids that a run began with, `None` where there is none."""
    file = run.path / CORPUS_SUM
    found = file.read_bytes() if file.exists() else None
    if found is not None and not re.fullmatch(rb"[0-9a-f]{64}\n", found):
        raise ValueError(
            f"{file}: damaged. Put it back from a copy, or remove it: then the run goes on with the text "
            "that there is now"
        )
    return found and found.decode().strip()


def _may_change(path, allowed):
    if path in FREE or path.startswith(FREE_SECTIONS):
        return True
    return path in map(configs.path_now, allowed) and not _is_fixed(path)


def _is_fixed(path):
    return path in FIXED or (path.startswith("model.") and not path.endswith("_dropout"))


def _refused_changes_message(folder, refused):
    listed = ", ".join(f"{path} {_display(before)} -> {_display(after)}" for path, before, after in refused)
    what = f"{folder}: this run has other settings: {listed}"
    fixed = [path for path, _, _ in refused if _is_fixed(path)]
    if fixed:
        remedy = "choose another --run-dir"
        if all(path in FIXED or path.endswith("_vocab_size") for path in fixed):
            remedy += f"; --init-from {folder} --new-vocabulary starts from its weights"
        return f"{what}. {fixed[0]} makes another model: {remedy}"
    names = ",".join(path for path, _, _ in refused)
    return f"{what}. Pass --allow-config-change {names}, or choose another --run-dir"


def _display(value):
    return "(empty)" if value == "" else value


def check_setting_names(allowed, config):
    """Raises `ValueError` where a name in `allowed`, as `path_now` gives it, is that of no setting."""
    sections = dataclasses.asdict(config)
    known = [f"{section}.{name}" for section, fields in sections.items() for name in fields]
    for name in map(configs.path_now, allowed):
        if name not in known:
            what = "--allow-config-change: no setting"
            raise ValueError(unknown(what, name, known, otherwise="Name it as in --set"))


def batch_order_key(config, sha256):
    """Returns the settings that say which batch has which number, as JSON.

    Args:
        config: `Config`.
        sha256: of the training ids.
    """
    data = {name: getattr(config.data, name) for name in (*_CUT, "temperature")}
    data["weights"] = config.data.dataset_weights
    return json.dumps({**data, "seed": config.training.seed, "sha256": sha256}, sort_keys=True)


def batch_offset(checkpoints, config, corpus, batches):
    """Returns what to add to a step for the number of the batch that follows it.

    Where the batches are not those that the restored state has read, it is rewritten for
    them: of the same pairs, the run goes on where as many of the epoch are read; of others,
    with the first.

    Args:
        checkpoints: `Checkpoints`, restored.
        config: `Config` from now on.
        corpus: `TrainingData`.
        batches: `TokenBatches` from now on.
    """
    now = batch_order_key(config, corpus.sha256)
    before = checkpoints.batches.numpy().decode() or now
    checkpoints.batches.assign(now)
    if before != now:
        step = int(checkpoints.optimizer.iterations.numpy())
        read = int(checkpoints.first_batch) + step - int(checkpoints.first_step)
        old, new = json.loads(before), json.loads(now)
        position = 0
        if all(old[name] == new[name] for name in ("sha256", *_CHOICE)):
            data = replace(config.data, **{name: old[name] for name in _CUT})
            # Programs that refuse a run import this module, and do without TensorFlow.
            from keras_transformer.batches.dataset import training_batches

            position = position_after_change(training_batches(data, corpus, seed=old["seed"]), batches, read)
        checkpoints.first_step.assign(step)
        checkpoints.first_batch.assign(position)
    return int(checkpoints.first_batch) - int(checkpoints.first_step)


def position_after_change(old_batches, new_batches, batch):
    """Finds the place in new batches where as much of the epoch is read as before.

    The orders differ, so some pairs of this one epoch are read twice, and others not.

    Args:
        old_batches: `TokenBatches` that were read so far.
        new_batches: `TokenBatches` that are read from now on.
        batch: int, number of batches read of the old stream.

    Returns:
        int, number of the batch of the new stream, in the same epoch: the first before which
        there are at least as many pairs as were read; that of the next epoch where there is none.
    """
    epoch, within = old_batches.planner.locate(batch)
    num_read = sum(len(plan.indices) for plan in old_batches.planner.plan(epoch)[:within])
    position = sum(new_batches.planner.num_batches(number) for number in range(epoch))
    begin = 0
    for plan in new_batches.planner.plan(epoch):
        if begin >= num_read:
            break
        begin += len(plan.indices)
        position += 1
    return position
