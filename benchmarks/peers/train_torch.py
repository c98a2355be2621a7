"""torch.nn.Transformer in training (variants: `compile`; `bfloat16`, by autocast, loss in float32)."""

import functools

import torch
from torch.nn import functional

from peers.models_torch import DEVICE, TorchTransformer, adam, gpu_memory, num_parameters, prepare
from peers.timing import parse_job, time_training
from peers.work import SMOOTHING, training_batch


def main():
    """Runs this peer."""
    job = parse_job(("compile", "bfloat16"))
    prepare()
    model = TorchTransformer(job.size).to(DEVICE).train()
    optimizer = adam(model)
    batch = [torch.from_numpy(ids).long().to(DEVICE) for ids in training_batch(job.size)]

    def loss_of(source, target, labels):
        with torch.autocast(DEVICE, torch.bfloat16, enabled="bfloat16" in job.words):
            logits = model(source, target)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=0, label_smoothing=SMOOTHING
        )

    compiled = torch.compile(loss_of) if "compile" in job.words else loss_of

    def run(steps):
        for _ in range(steps):
            loss = compiled(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    count = functools.partial(num_parameters, model)
    time_training(job, run, parameters=count, libraries=["torch"], gpu_memory=gpu_memory)


if __name__ == "__main__":
    main()
