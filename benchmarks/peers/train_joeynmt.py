"""Joey NMT in training: its model and its label-smoothed loss, stepped as its trainer does."""

import numpy as np
import torch
from joeynmt.batch import Batch

from peers.models_joeynmt import EOS_ID, PAD_ID, build
from peers.models_torch import adam, num_parameters
from peers.timing import THREADS, parse_job, time_training
from peers.work import SMOOTHING, training_batch

BOS_ID = 2


def main():
    """Runs this peer."""
    job = parse_job()
    size = job.size
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = build(size).train()
    model.loss_function = ("crossentropy", SMOOTHING)
    optimizer = adam(model)
    source, _, labels = training_batch(size)
    target = np.concatenate([np.full_like(labels[:, :1], BOS_ID), labels], axis=1)
    batch = Batch(
        torch.from_numpy(source).long(),
        torch.full((size.batch,), size.length),
        None,
        torch.from_numpy(target).long(),
        None,
        torch.arange(size.batch),
        torch.device("cpu"),
        pad_index=PAD_ID,
        eos_index=EOS_ID,
        is_train=True,
    )
    batch.trg_input = batch.trg_input[:, : size.length]  # there is no end of sentence to cut off

    def run(steps):
        for _ in range(steps):
            loss, _, _, _ = model(return_type="loss", **vars(batch))
            loss = batch.normalize(loss, "tokens")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    libraries = ["joeynmt", "torch"]
    time_training(job, run, parameters=lambda: num_parameters(model), libraries=libraries)


if __name__ == "__main__":
    main()
