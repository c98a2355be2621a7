"""Where a run goes on reading when its batches have changed."""


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
