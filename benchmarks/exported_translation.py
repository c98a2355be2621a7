"""Sentences a second of a run and of what was exported of it, each system in its own process.

    python pipelines/export_model.py RUN served --length-penalty average
    python benchmarks/exported_translation.py RUN test.en --reference test.de \
        --saved-model served/1 --ctranslate2 exported/float32 exported/int8
    python benchmarks/exported_translation.py TEACHER test.en --runs STUDENT --lines 1 --threads 1

Every system translates all lines, in turns; a line says the median time, BLEU, and how many
translations are those of the run. The length penalty is length^alpha everywhere, and the search
goes on as long as a better translation can come (CTranslate2: until twice the beam has ended).
Loading is not counted.

With `--lines`, a system gets so many lines in a call, in their order: 1 is the speed for one sentence.
Without it, a run and CTranslate2 get all lines at once, and sort them. The SavedModel is asked as clients
would: as many callers as there are threads; its process has TensorFlow and TensorFlow Text and not this
package.
"""

import argparse
import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from refusing import Parser, refused

CARD = "assets.extra/model_card.json"


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("text", metavar="FILE", help="one sentence a line")
    parser.add_argument("--reference", metavar="FILE", help="its translation, for BLEU")
    parser.add_argument("--runs", nargs="*", default=[], metavar="RUN", help="other run folders")
    parser.add_argument("--saved-model", nargs="*", default=[], metavar="FOLDER", help="of a version each")
    parser.add_argument("--lines", type=int, help="in a call (all; SavedModels: 128)")
    parser.add_argument("--ctranslate2", nargs="*", default=[], metavar="FOLDER", help="exported models")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after one that is not (5)")
    parser.add_argument("--checkpoint", default="final", help="of the runs: final, averaged, ...")
    parser.add_argument("--threads", type=int, default=2, help="of each system (2)")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def search_of(args):
    """Returns the search settings of all systems: {name: value}."""
    return {
        "beam_size": args.beam_size,
        "alpha": args.alpha,
        "length_penalty": "average",
        "early_stop": False,
    }


def make_translator(args):
    """Returns a function that translates a list of str."""
    search = search_of(args)
    if args.worker in args.saved_model:
        return served_translator(args)
    if args.worker in (args.run, *args.runs):
        import tensorflow as tf

        from keras_transformer.translation.translator import Translator

        # As `translate.py` does: each core has a batch of its own.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        translator = Translator.load(args.worker, checkpoint=args.checkpoint, threads=args.threads)
        return in_calls(functools.partial(translator.translate, **search), args.lines)
    from keras_transformer.export.ctranslate2 import CTranslate2Translator

    translator = CTranslate2Translator(args.worker, inter_threads=args.threads, intra_threads=1)
    return in_calls(functools.partial(translator.translate, **search), args.lines)


def in_calls(translate, lines):
    """Returns `translate` with so many lines in a call, one call after the other; all at once for `None`."""
    if lines is None:
        return translate
    return lambda texts: list(itertools.chain.from_iterable(map(translate, batched(texts, lines))))


def batched(texts, size):
    """Returns the list in parts of this size, the last one smaller."""
    return [texts[begin : begin + size] for begin in range(0, len(texts), size)]


def served_translator(args):
    """As `make_translator`, for a SavedModel, whose search is part of it."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    tf.config.threading.set_intra_op_parallelism_threads(1)
    model = tf.saved_model.load(args.worker)
    assert "keras_transformer" not in sys.modules

    def call(lines):
        found = model.signatures["serving_default"](text=tf.constant(lines))
        return [text.decode() for text in found["translation"].numpy()]

    def translate(lines):
        with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
            calls = pool.map(call, batched(lines, args.lines or 128))
            return list(itertools.chain.from_iterable(calls))

    return translate


def work(args):
    """Translates the text once for every line of standard input."""
    lines = pathlib.Path(args.text).read_text(encoding="utf-8").splitlines()
    translate = make_translator(args)
    for _ in sys.stdin:
        begin = time.perf_counter()
        found = translate(lines)
        print(json.dumps([time.perf_counter() - begin, found]), flush=True)


def refuse(args):
    """Raises ValueError or OSError for what would be found out too late, or never."""
    for name in ("rounds", "threads", "lines", "beam_size"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(
                f"--{name.replace('_', '-')} must be at least 1. Received: {getattr(args, name)}"
            )
    needed = [(run, "config.json") for run in (args.run, *args.runs)]
    needed += [(folder, "saved_model.pb") for folder in args.saved_model]
    needed += [(folder, "model.bin") for folder in args.ctranslate2]
    for folder, file in needed:
        if not (pathlib.Path(folder) / file).is_file():
            raise ValueError(f"{folder}: has no {file}. Name a run folder, or what export_model.py wrote")
    for folder in args.saved_model:  # its search was fixed when it was exported
        card = json.loads((pathlib.Path(folder) / CARD).read_text(encoding="utf-8"))["search"]
        for name, value in search_of(args).items():
            if card.get(name) != value:
                raise ValueError(
                    f"{folder}: searches with {name}={card.get(name)}, the others would with {value}. Give "
                    f"--beam-size and --alpha of the export, or export it again with {name}={value}"
                )
    paths = [path for path in (args.text, args.reference) if path]
    counts = [len(pathlib.Path(path).read_text(encoding="utf-8").splitlines()) for path in paths]
    if not counts[0]:
        raise ValueError(f"{args.text}: is empty. Name a file of one sentence a line")
    if len(set(counts)) > 1:
        raise ValueError(f"{args.reference}: has {counts[1]} lines, {args.text} {counts[0]}. They must match")


def main(argv=None):
    """Runs the benchmark; returns its exit code."""
    args = parse_args(argv)
    if args.worker:
        work(args)
        return 0
    try:
        refuse(args)
    except (OSError, ValueError) as error:
        return refused("exported_translation.py", error)
    root = pathlib.Path(__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": str(root), "TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    env["OMP_NUM_THREADS"] = str(args.threads)
    workers = {
        system: subprocess.Popen(
            [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv), "--worker", system],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
        )
        for system in (args.run, *args.runs, *args.saved_model, *args.ctranslate2)
    }  # fmt: skip
    times, found = {system: [] for system in workers}, {}
    for number in range(args.rounds + 1):
        for system, worker in workers.items():
            worker.stdin.write("\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
            if not answer:
                for other in workers.values():
                    other.kill()
                print(f"exported_translation.py: {system}: its process failed", file=sys.stderr)
                return 1
            seconds, found[system] = json.loads(answer)
            if number:  # the first is the warm-up
                times[system].append(seconds)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    report(args, times, found)
    return 0


def report(args, times, found):
    """Prints one line a system."""
    ours = statistics.median(times[args.run])
    for system, seconds in times.items():
        median, texts = statistics.median(seconds), found[system]
        same = sum(one == other for one, other in zip(texts, found[args.run], strict=True))
        bleu = ""
        if args.reference:
            from sacrebleu import corpus_bleu

            references = pathlib.Path(args.reference).read_text(encoding="utf-8").splitlines()
            bleu = f"BLEU {corpus_bleu(texts, [references]).score:.2f}  "
        print(
            f"{system:<40} {len(texts) / median:7.1f} sentences/s  {ours / median:5.2f} times  "
            f"{bleu}{same} of {len(texts)} as {args.run}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
