"""Joey NMT's own beam search, which reads the whole translation again for every token."""

import torch
from joeynmt.batch import Batch
from joeynmt.search import search

from peers.models_joeynmt import EOS_ID, PAD_ID, build
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
        number = len(source_ids)
        batch = Batch(
            torch.from_numpy(source_ids).long(),
            torch.full((number,), job.size.length),
            None,
            None,
            None,
            torch.arange(number),
            torch.device("cpu"),
            pad_index=PAD_ID,
            eos_index=EOS_ID,
            is_train=False,
        )
        found, _, _ = search(
            model,
            batch,
            max_output_length=OUTPUT_LENGTH,
            beam_size=BEAM_SIZE,
            beam_alpha=ALPHA,
            min_output_length=OUTPUT_LENGTH,
        )
        return found.tolist()

    libraries = ["joeynmt", "torch"]
    time_decoding(job, translate, parameters=lambda: num_parameters(model), libraries=libraries)


if __name__ == "__main__":
    main()
