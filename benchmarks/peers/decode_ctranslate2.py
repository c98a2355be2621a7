"""CTranslate2 with the random weights of `decode_marian.py`.

Variants: `int8`; `split`, the batch shared out among the threads.
"""

import os
import pathlib
import tempfile

from peers.apart import write_apart
from peers.timing import THREADS, parse_job, time_decoding
from peers.work import ALPHA, BEAM_SIZE, OUTPUT_LENGTH


def write(size, folder, parameters):
    """Writes a model that CTranslate2 reads; in a process of its own, whose memory is not counted.

    Args:
        size: `Size`.
        folder: str, made here.
        parameters: shared integer that is given their number.
    """
    import torch
    from ctranslate2.converters.transformers import BartLoader

    from peers.models_marian import build
    from peers.models_torch import num_parameters

    torch.manual_seed(0)
    model = build(size).eval()
    model.config.normalize_before = model.config.normalize_embedding = False
    # Marian's own loader takes the last id for padding and drops it; here that is 0.
    specification = BartLoader().get_model_spec(model)
    words = [f"w{number}" for number in range(size.vocab_size)]
    specification.register_source_vocabulary(words)
    specification.register_target_vocabulary(words)
    specification.config.decoder_start_token, specification.config.unk_token = words[0], words[1]
    specification.config.bos_token, specification.config.eos_token = words[2], words[3]
    specification.validate()
    specification.optimize()
    pathlib.Path(folder).mkdir()
    specification.save(folder)
    parameters.value = num_parameters(model)


def main():
    """Runs this peer."""
    job = parse_job(("int8", "split"))
    parts = THREADS if "split" in job.words else 1
    with tempfile.TemporaryDirectory() as folder:
        folder = f"{folder}/model"
        parameters = write_apart(write, job.size, folder)
        # These would be for each of the translator's own threads.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.pop(name, None)
        import ctranslate2

        translator = ctranslate2.Translator(
            folder,
            device="cpu",
            compute_type=job.precision,
            inter_threads=parts,
            intra_threads=THREADS // parts,
        )

    def translate(source_ids):
        found = translator.translate_batch(
            [[f"w{number}" for number in row] for row in source_ids],
            max_batch_size=-(-len(source_ids) // parts),
            beam_size=BEAM_SIZE,
            length_penalty=ALPHA,
            min_decoding_length=OUTPUT_LENGTH,
            max_decoding_length=OUTPUT_LENGTH,
        )
        return [each.hypotheses[0] for each in found]

    time_decoding(job, translate, parameters=lambda: parameters, libraries=["ctranslate2"])


if __name__ == "__main__":
    main()
