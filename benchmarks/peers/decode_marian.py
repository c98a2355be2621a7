"""Hugging Face's `MarianMTModel.generate`, with its key and value caches."""

import torch

from peers.models_marian import build
from peers.models_torch import num_parameters
from peers.timing import THREADS, parse_job, time_decoding
from peers.work import ALPHA, BEAM_SIZE, OUTPUT_LENGTH


def main():
    """Runs this peer."""
    job = parse_job()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = build(job.size).eval()

    def translate(source_ids):
        source = torch.from_numpy(source_ids).long()
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

    libraries = ["torch", "transformers"]
    time_decoding(job, translate, parameters=lambda: num_parameters(model), libraries=libraries)


if __name__ == "__main__":
    main()
