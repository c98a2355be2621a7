"""Decoding speed beside Hugging Face's Marian model and CTranslate2, all of one size.

    python benchmarks/decoding.py
    python benchmarks/decoding.py --systems ours --batches 1 32 --rounds 5

`ours` and `ctranslate2-split` share the sentences out among the threads, as our programs do
(CTranslate2: `inter_threads`); `ours-whole`, `hugging-face` and `ctranslate2` search them as one
batch, each operation on all threads.

The paper's base model with random weights in float32 (6 + 6 layers, `d_model` 512, a shared vocabulary
of 37,000); sources of
`--source-length` tokens, translations of exactly `--length` tokens (no end before it), beam
search with `--beam-size` hypotheses. No tokenizer runs: only the search is timed. Each
system has a process of its own; all are made ready and warmed up first, then they take turns,
so that a machine that is busy for a while is busy for all of them. Printed is the median of
the rounds, and how many times as fast as each other system ours is.

Peers need `pip install torch transformers ctranslate2`; those that are absent are left out.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from refusing import Parser, run

PEERS = {
    "ours": (),
    "ours-whole": (),
    "hugging-face": ("torch", "transformers"),
    "ctranslate2": ("ctranslate2",),
    "ctranslate2-split": ("ctranslate2",),
}
SPECIAL = 4  # pad, bos, eos, unk


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description="Decoding speed, ours and peers'.")
    parser.add_argument("--systems", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], metavar="SENTENCES")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--source-length", type=int, default=32, metavar="TOKENS")
    parser.add_argument("--length", type=int, default=32, metavar="TOKENS")
    parser.add_argument("--vocab-size", type=int, default=37000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    for name in ("batches", "beam_size", "source_length", "length", "threads", "rounds"):
        number = getattr(args, name)
        if min(number if isinstance(number, list) else [number]) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args


def sources(args, batch):
    """int32 rows of `--source-length` tokens, end of sentence included."""
    import numpy as np

    ids = np.random.default_rng(batch).integers(SPECIAL, args.vocab_size, (batch, args.source_length))
    ids[:, -1] = 2
    return ids.astype("int32")


def make_ours(args):
    """Returns a function that searches translations of rows of ids."""
    from concurrent.futures import ThreadPoolExecutor

    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from keras_transformer.config.settings import ModelConfig, SearchConfig
    from keras_transformer.model.transformer import Transformer
    from keras_transformer.translation.ensemble import search_ids

    parts = args.threads if args.worker == "ours" else 1
    tf.config.threading.set_intra_op_parallelism_threads(args.threads // parts)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    model = Transformer(ModelConfig(source_vocab_size=args.vocab_size, target_vocab_size=args.vocab_size))
    config = SearchConfig(
        beam_size=args.beam_size,
        min_length=args.length - 1,
        max_length=args.length,
        max_length_ratio=0.0,
        max_length_offset=args.length,
    )
    search = tf.function(
        lambda ids: search_ids(model, ids, config).lengths,
        input_signature=[tf.TensorSpec((None, None), tf.int32)],
        autograph=False,
    )
    pool = ThreadPoolExecutor(parts)

    def translate(rows):
        found = pool.map(lambda part: search(part).numpy()[:, 0].tolist(), shared_out(rows, parts))
        return [length for part in found for length in part]

    return translate


def shared_out(rows, parts):
    """Cuts rows into at most so many parts of about one size."""
    size = -(-len(rows) // parts)
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def make_hugging_face(args):
    """Returns a function that generates translations of rows of ids."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(args.threads)
    config = MarianConfig(
        vocab_size=args.vocab_size,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        scale_embedding=True,
    )
    torch.manual_seed(1)
    model = MarianMTModel(config).eval()

    def generate(rows):
        ids = torch.tensor(rows, dtype=torch.long)
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                num_beams=args.beam_size,
                do_sample=False,
                min_new_tokens=args.length,
                max_new_tokens=args.length,
            )
        return [found.shape[1] - 1] * len(rows)

    return generate


def make_ctranslate2(args):
    """Returns a function that translates rows of ids."""
    import ctranslate2
    import numpy as np
    from ctranslate2.specs import transformer_spec

    rng = np.random.default_rng(1)
    spec = transformer_spec.TransformerSpec.from_config((6, 6), 8, pre_norm=False)
    width, inner = 512, 2048

    def linear(layer, inputs, outputs):
        layer.weight = rng.normal(0, inputs**-0.5, (outputs, inputs)).astype("float32")
        layer.bias = np.zeros(outputs, "float32")

    def norm(layer):
        layer.gamma, layer.beta = np.ones(width, "float32"), np.zeros(width, "float32")

    embeddings = rng.normal(0, width**-0.5, (args.vocab_size, width)).astype("float32")
    for stack in (spec.encoder, spec.decoder):
        embedding = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embedding.weight = embeddings
        for layer in stack.layer:
            linear(layer.self_attention.linear[0], width, 3 * width)
            linear(layer.self_attention.linear[1], width, width)
            norm(layer.self_attention.layer_norm)
            if hasattr(layer, "attention"):
                linear(layer.attention.linear[0], width, width)
                linear(layer.attention.linear[1], width, 2 * width)
                linear(layer.attention.linear[2], width, width)
                norm(layer.attention.layer_norm)
            linear(layer.ffn.linear_0, width, inner)
            linear(layer.ffn.linear_1, inner, width)
            norm(layer.ffn.layer_norm)
    spec.decoder.projection.weight = embeddings
    spec.decoder.projection.bias = np.zeros(args.vocab_size, "float32")
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *map(str, range(SPECIAL, args.vocab_size))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    with tempfile.TemporaryDirectory() as folder:
        spec.validate()
        spec.optimize(quantization="float32")
        spec.save(folder)
        parts = args.threads if args.worker == "ctranslate2-split" else 1
        translator = ctranslate2.Translator(
            folder,
            device="cpu",
            inter_threads=parts,
            intra_threads=args.threads // parts,
            compute_type="float32",
        )

    def translate(rows):
        found = translator.translate_batch(
            [[tokens[one] for one in row] for row in rows],
            max_batch_size=-(-len(rows) // parts),
            beam_size=args.beam_size,
            length_penalty=0.6,
            min_decoding_length=args.length,
            max_decoding_length=args.length,
        )
        return [len(one.hypotheses[0]) for one in found]

    return translate


MAKERS = {
    "ours": make_ours,
    "ours-whole": make_ours,
    "hugging-face": make_hugging_face,
    "ctranslate2": make_ctranslate2,
    "ctranslate2-split": make_ctranslate2,
}


def work(args):
    """Answers each batch size on standard input with the seconds that it took."""
    translate = MAKERS[args.worker](args)
    for line in sys.stdin:
        rows = sources(args, int(line))
        begin = time.perf_counter()
        lengths = translate(rows)
        seconds = time.perf_counter() - begin
        assert lengths == [args.length] * len(rows), lengths
        print(json.dumps(seconds), flush=True)


def ask(worker, batch):
    try:
        worker.stdin.write(f"{batch}\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        raise ValueError(f"the process of {worker.args[-1]} ended; its message stands above")
    return json.loads(answer)


def main(argv=None):
    """Runs the benchmark; returns its exit code."""
    args = parse_args(argv)
    if args.worker:
        work(args)
        return 0
    workers = {}
    for system in args.systems:
        if any(importlib.util.find_spec(name) is None for name in PEERS[system]):
            print(f"{system}: left out, needs pip install {' '.join(PEERS[system])}", file=sys.stderr)
            continue
        command = [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv), "--worker", system]
        env = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1])}
        env["OMP_NUM_THREADS"] = str(args.threads)
        workers[system] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
    for batch in args.batches:
        times = {system: [] for system in workers}
        for number in range(args.rounds + 1):
            for system, worker in workers.items():
                seconds = ask(worker, batch)
                if number:  # the first is the warm-up
                    times[system].append(seconds)
        report(args, batch, {system: statistics.median(found) for system, found in times.items()})
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    return 0


def report(args, batch, medians):
    """Prints one line a system."""
    for system, seconds in medians.items():
        ratio = f"   ours {seconds / medians['ours']:.2f} times as fast" if "ours" in medians else ""
        print(
            f"batch {batch:3}  beam {args.beam_size}  {system:<17} {seconds:7.3f} s"
            f" {batch * args.length / seconds:8.0f} target tokens/s{'' if system == 'ours' else ratio}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(run(main))
