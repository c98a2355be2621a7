"""Hugging Face's Marian in training (variants: `compile`; `bfloat16`, by autocast, loss in float32)."""

import functools

import torch
from torch.nn import functional

from peers.models_marian import build
from peers.models_torch import DEVICE, adam, gpu_memory, num_parameters, prepare
from peers.timing import parse_job, time_training
from peers.work import SMOOTHING, training_batch


def main():
    """Runs this peer."""
    job = parse_job(("compile", "bfloat16"))
    prepare()
    model = build(job.size).to(DEVICE).train()
    forward = torch.compile(model) if "compile" in job.words else model
    optimizer = adam(model)
    source, target, labels = (torch.from_numpy(ids).long().to(DEVICE) for ids in training_batch(job.size))
    visible = torch.ones_like(source)

    def run(steps):
        for _ in range(steps):
            with torch.autocast(DEVICE, torch.bfloat16, enabled="bfloat16" in job.words):
                logits = forward(
                    input_ids=source, attention_mask=visible, decoder_input_ids=target, use_cache=False
                ).logits
            loss = functional.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=0, label_smoothing=SMOOTHING
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    libraries, count = ["torch", "transformers"], functools.partial(num_parameters, model)
    time_training(job, run, parameters=count, libraries=libraries, gpu_memory=gpu_memory)


if __name__ == "__main__":
    main()
