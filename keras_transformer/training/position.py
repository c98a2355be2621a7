"""Where a run goes on reading when its batches have changed."""

import json

from keras_transformer.batches.feeding import training_batches
from keras_transformer.config.settings import replace

# Settings that number the batches of the same pairs; the pairs have a SHA-256.
_CUT = ("batch_tokens", "padding", "max_shapes", "subword_dropout")
_CHOICE = ("weights", "temperature")


def numbering(config, sha256):
    """Returns the settings that say which batch has which number, as JSON.

    Args:
        config: `Config`.
        sha256: of the training ids.
    """
    data = {name: getattr(config.data, name) for name in (*_CUT, *_CHOICE)}
    return json.dumps({**data, "seed": config.training.seed, "sha256": sha256}, sort_keys=True)


def restored_position(checkpoints, config, corpus, batches):
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
    now = numbering(config, corpus.sha256)
    before = checkpoints.batches.numpy().decode() or now
    checkpoints.batches.assign(now)
    if before != now:
        step = int(checkpoints.optimizer.iterations.numpy())
        read = int(checkpoints.first_batch) + step - int(checkpoints.first_step)
        old, new = json.loads(before), json.loads(now)
        position = 0
        if all(old[name] == new[name] for name in ("sha256", *_CHOICE)):
            data = replace(config.data, service="", **{name: old[name] for name in _CUT})
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
    num_read = sum(len(plan.indices) for plan in old_batches.plan(epoch)[:within])
    position = sum(new_batches.planner.num_batches(number) for number in range(epoch))
    begin = 0
    for plan in new_batches.plan(epoch):
        if begin >= num_read:
            break
        begin += len(plan.indices)
        position += 1
    return position
