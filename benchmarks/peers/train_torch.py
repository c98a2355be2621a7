"""torch.nn.Transformer in training (variants: `compile`; `bfloat16`, by autocast, loss in float32)."""

import torch
from torch.nn import functional

from peers.models_torch import TorchTransformer, adam, num_parameters
from peers.timing import THREADS, parse_job, time_training
from peers.work import SMOOTHING, training_batch


def main():
    """Runs this peer."""
    job = parse_job(("compile", "bfloat16"))
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = TorchTransformer(job.size).train()
    optimizer = adam(model)
    batch = [torch.from_numpy(ids).long() for ids in training_batch(job.size)]

    def loss_of(source, target, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled="bfloat16" in job.words):
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

    time_training(job, run, parameters=lambda: num_parameters(model), libraries=["torch"])


if __name__ == "__main__":
    main()
