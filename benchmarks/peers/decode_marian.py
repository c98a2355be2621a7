"""Hugging Face's `MarianMTModel.generate`, with its key and value caches.

Variant: `bfloat16`, the weights.
"""

import functools

import torch

from peers.models_marian import build
from peers.models_torch import DEVICE, gpu_memory, num_parameters, prepare
from peers.timing import parse_job, time_decoding
from peers.work import ALPHA, BEAM_SIZE, OUTPUT_LENGTH


def main():
    """Runs this peer."""
    job = parse_job(("bfloat16",))
    prepare()
    model = build(job.size).to(DEVICE, torch.bfloat16 if "bfloat16" in job.words else torch.float32).eval()

    def translate(source_ids):
        source = torch.from_numpy(source_ids).long().to(DEVICE)
        found = model.generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            do_sample=False,
            num_beams=BEAM_SIZE,
            length_penalty=ALPHA,
            early_stopping=False,
            min_new_tokens=OUTPUT_LENGTH,
            max_new_tokens=OUTPUT_LENGTH,
            use_cache=True,
        )
        return found[:, 1:].tolist()

    libraries, count = ["torch", "transformers"], functools.partial(num_parameters, model)
    time_decoding(job, translate, parameters=count, libraries=libraries, gpu_memory=gpu_memory)


if __name__ == "__main__":
    main()
