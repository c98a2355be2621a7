"""Resuming a run: which settings may change, and the data position if the batches change."""

import dataclasses
import json
import logging
import re

from keras_transformer.config import settings as configs
from keras_transformer.config.fields import unknown
from keras_transformer.config.sections import VOCABULARY
from keras_transformer.config.settings import replace
from keras_transformer.files import write_text

logger = logging.getLogger(__name__)

# Settings that change the batches of the same pairs; the pairs are identified by their SHA-256.
_BATCHING = ("batch_tokens", "padding", "max_shapes", "subword_dropout")
_MIXTURE = ("weights", "temperature")  # as checkpoints name them
_SELECTING = ("data.max_length", "cleaning.")  # settings that change which pairs of a raw text are kept

CORPUS_SUM = "corpus.sha256"
# Used only to draw the initial weights: a resumed run keeps its own value.
INITIAL = ("attention_init",)
# Settings that may change freely, as no update depends on them: length of the run, paths, what is kept.
_LENGTH = ("max_steps", "max_minutes", "patience")
_KEPT = ("keep_checkpoints", "keep_best", "average_last", "validation_beam_size")
# `init_checkpoint` is used only before the first step.
FREE = {f"training.{name}" for name in (*_LENGTH, *_KEPT, "log_every_steps", "init_checkpoint")} | {
    "data.data_dir",
    "data.manual_dir",
}
FREE_SECTIONS = ("devices.", "search.")
# Settings that may never change: they decide the shapes of the weights or the meaning of the ids.
FIXED = frozenset(f"data.{name}" for name in ("source", "target", *VOCABULARY, "vocab_texts"))


def apply_config_changes(run, config, *, sha256, allowed=()):
    """Applies changed settings to a run that is resumed; rejects changes that are not allowed.

    Args:
        run: `RunFolder`; its `config` and `config.json` are replaced.
        config: the new `Config` of the run.
        sha256: str, SHA-256 of the training ids, as in `corpus.sha256`.
        allowed: names of settings that may change although they affect the updates, such as
            `"training.warmup_steps"`; `"data.dataset"` also allows other training ids.

    Returns:
        list of `(path, old value, new value)`, the changes. `path` is `"corpus.sha256"` for changed
        training ids.

    Raises:
        ValueError: a setting differs that may not, or `allowed` has an unknown name.
    """
    changes, old = check_config_changes(run, config, allowed), recorded_sha256(run)
    if old not in (None, sha256):
        if "data.dataset" not in allowed:
            selecting = [path for path, _, _ in changes if path.startswith(_SELECTING)]
            cause = f", perhaps because of a changed {' and '.join(selecting)}" if selecting else ""
            raise ValueError(
                f"{run.path}: the training text differs from the one this run started with ({CORPUS_SUM})"
                f"{cause}. Restore {'both' if selecting else 'it'}, pass --allow-config-change "
                f"{','.join([*selecting, 'data.dataset'])}, or choose another --run-dir"
            )
        changes.append((CORPUS_SUM, old, sha256))
    if run.writes and old != sha256:
        write_text(run.path / CORPUS_SUM, f"{sha256}\n")
    run.write_config(config)
    return changes


def with_initial_settings(config, run):
    """Returns `config` with the settings of a run that only its initial weights depend on.

    A logged line names those that differ.

    Args:
        config: `Config` asked for.
        run: `RunFolder` to resume.
    """
    own = {name: getattr(run.config.model, name) for name in INITIAL}
    for name, value in own.items():
        if value != getattr(config.model, name):
            logger.info(
                f"{run.path}: keeps model.{name}={value}: it only decides the initial weights of a new run"
            )
    return replace(config, model=own)


def check_config_changes(run, config, allowed=()):
    """Returns the changed settings as `apply_config_changes` does, without applying them."""
    check_setting_names(allowed, config)
    changes = configs.differences(run.config, config)
    refused = [change for change in changes if not _may_change(change[0], allowed)]
    if refused:
        raise ValueError(_refused_changes_message(run.path, refused))
    return changes


def recorded_sha256(run):
    """Returns the recorded SHA-256 of the training ids, or `None`."""
    file = run.path / CORPUS_SUM
    content = file.read_bytes() if file.exists() else None
    if content is not None and not re.fullmatch(rb"[0-9a-f]{64}\n", content):
        raise ValueError(
            f"{file}: damaged. Restore it from a copy, or delete it to continue with the text as it is now"
        )
    return content and content.decode().strip()


def _may_change(path, allowed):
    if path in FREE or path.startswith(FREE_SECTIONS):
        return True
    return path in map(configs.path_now, allowed) and not _is_fixed(path)


def _is_fixed(path):
    return path in FIXED or (path.startswith("model.") and not path.endswith("_dropout"))


def _refused_changes_message(folder, refused):
    listed = ", ".join(f"{path} {_display(before)} -> {_display(after)}" for path, before, after in refused)
    problem = f"{folder}: this run has different settings: {listed}"
    fixed = [path for path, _, _ in refused if _is_fixed(path)]
    if fixed:
        remedy = "choose another --run-dir"
        if all(path in FIXED or path.endswith("_vocab_size") for path in fixed):
            remedy += f"; --init-from {folder} --new-vocabulary starts a new run from its weights"
        return f"{problem}. {fixed[0]} changes the model: {remedy}"
    names = ",".join(path for path, _, _ in refused)
    return f"{problem}. Pass --allow-config-change {names}, or choose another --run-dir"


def _display(value):
    return "(empty)" if value == "" else value


def check_setting_names(allowed, config):
    """Raises `ValueError` if `allowed` has a name, current or old, of no setting."""
    sections = dataclasses.asdict(config)
    known = [f"{section}.{name}" for section, fields in sections.items() for name in fields]
    for name in map(configs.path_now, allowed):
        if name not in known:
            what = "--allow-config-change: no setting"
            raise ValueError(unknown(what, name, known, otherwise="Write it as in --set"))


def batch_order_key(config, sha256, num_pairs):
    """Returns JSON of everything that decides the order of batches: settings, seed and training ids.

    Args:
        config: `Config`.
        sha256: str, SHA-256 of the training ids, including pairs longer than `data.max_length`.
        num_pairs: number of training pairs of at most that length. With `sha256` it identifies them.
    """
    data = {name: getattr(config.data, name) for name in (*_BATCHING, "temperature")}
    data["weights"] = config.data.dataset_weights
    data |= {"seed": config.training.seed, "sha256": sha256, "num_pairs": num_pairs}
    return json.dumps(data, sort_keys=True)


def batch_offset(checkpoints, config, corpus, batches):
    """Returns the offset from a step to the batch that follows it: after step s comes batch `s + offset`.

    If the batches have changed since the checkpoint was saved, the position in `checkpoints` is updated.
    With the same training pairs, the run continues in the same epoch after the same number of pairs.
    With other pairs, it starts at the first batch.

    Args:
        checkpoints: `Checkpoints`, restored.
        config: the current `Config`.
        corpus: `TrainingData`.
        batches: `TokenBatches` of the current settings.

    Returns:
        int, may be negative.
    """
    new_key = batch_order_key(config, corpus.sha256, corpus.train.num_pairs)
    old_key = checkpoints.batches.numpy().decode() or new_key
    checkpoints.batches.assign(new_key)
    old, new = json.loads(old_key), json.loads(new_key)
    old.setdefault("num_pairs", new["num_pairs"])  # checkpoints of earlier versions lack it
    if old != new:
        step = int(checkpoints.optimizer.iterations.numpy())
        num_read = int(checkpoints.first_batch) + step - int(checkpoints.first_step)
        position = 0
        if all(old[name] == new[name] for name in ("sha256", "num_pairs", *_MIXTURE)):
            data = replace(config.data, **{name: old[name] for name in _BATCHING})
            # Imported here: early checks of programs use this module without TensorFlow.
            from keras_transformer.batches.dataset import training_batches

            old_batches = training_batches(data, corpus, seed=old["seed"])
            position = position_after_change(old_batches, batches, num_read)
        checkpoints.first_step.assign(step)
        checkpoints.first_batch.assign(position)
    return int(checkpoints.first_batch) - int(checkpoints.first_step)


def position_after_change(old_batches, new_batches, batch):
    """Returns the position in new batches that matches the position in old batches of the same pairs.

    The order of pairs differs, so in this one epoch some pairs are read twice and others are skipped.
    For example, after 3 old batches with 30 pairs in all, new batches of 8 pairs continue at batch 4:
    the 4 batches before it have 32 pairs.

    Args:
        old_batches: `TokenBatches` read so far.
        new_batches: `TokenBatches` to read from now on.
        batch: int, number of old batches read, counted over all epochs.

    Returns:
        int, number of the first new batch of the same epoch with at least as many pairs of the epoch
        before it as were read; the first batch of the next epoch if there is none.
    """
    epoch, within = old_batches.planner.locate(batch)
    num_read = sum(len(plan.indices) for plan in old_batches.planner.plan(epoch)[:within])
    position = sum(new_batches.planner.num_batches(number) for number in range(epoch))
    num_before = 0
    for plan in new_batches.planner.plan(epoch):
        if num_before >= num_read:
            break
        num_before += len(plan.indices)
        position += 1
    return position
