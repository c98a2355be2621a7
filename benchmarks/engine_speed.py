"""What `engine="ctranslate2"` adds to CTranslate2 itself: the same model in one process, in turn.

    python benchmarks/engine_speed.py
    python benchmarks/engine_speed.py --sizes small --batch 32 --threads 2

One sentence waits for weights, and the speed of memory differs from process to process. `compare.py` gives
each library a process of its own. Here both have the same weights in the same memory. The package starts from
text, CTranslate2 from tokens. Each translation has 32 tokens.
"""

import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from peers.apart import write_apart  # noqa: E402
from peers.decode_ours_ctranslate2 import words_of, write  # noqa: E402
from peers.work import ALPHA, BEAM_SIZE, OUTPUT_LENGTH, SIZES, sentences  # noqa: E402
from refusing import Parser  # noqa: E402

from keras_transformer.export.ctranslate2_model import vocabulary_tokens  # noqa: E402
from keras_transformer.export.engines import load_translator  # noqa: E402

NUM_SENTENCES = 97
WARM_UP = 3  # turns


def contestants(translator, size):
    """Returns texts, and two functions of such texts, the package's and CTranslate2's.

    Args:
        translator: `CTranslate2Translator`.
        size: `Size`.

    Returns:
        a list of str, and two functions of such a list; the first returns a list of ids for each text, the
        second a list of CTranslate2's tokens.
    """
    tokenizer = translator.tokenizers.source
    tokens, words = vocabulary_tokens(tokenizer), words_of(size.vocab_size)
    rows = sentences(size, NUM_SENTENCES)[:, 1:]  # the end of sentence is the last token
    texts = [" ".join(words[number % len(words)] for number in row) for row in rows]
    ids = tokenizer.encode(texts)
    encoded = {text: [tokens[i] for i in row] for text, row in zip(texts, ids, strict=True)}

    def ours(texts):
        return [found.best.ids for found in translator.n_best(texts)]

    def theirs(texts):
        found = translator._model.translate_batch(
            [encoded[text] for text in texts],
            max_batch_size=-(-len(texts) // translator._model.num_translators),
            beam_size=BEAM_SIZE,
            length_penalty=ALPHA,
            min_decoding_length=OUTPUT_LENGTH,
            max_decoding_length=OUTPUT_LENGTH,
        )
        return [each.hypotheses[0] for each in found]

    return texts, ours, theirs


def measure(size, batch, turns, threads):
    """Returns the seconds of a batch in each turn, of the package and of CTranslate2: two lists of float."""
    with tempfile.TemporaryDirectory() as folder:
        write_apart(write, size, f"{folder}/run")
        translator = load_translator(f"{folder}/run", engine="ctranslate2", threads=threads)
        texts, *functions = contestants(translator, size)
        seconds = [[], []]
        for turn in range(WARM_UP + turns):
            chosen = [texts[(turn * batch + i) % len(texts)] for i in range(batch)]
            for function, found in zip(functions, seconds, strict=True):
                begin = time.perf_counter()
                lengths = set(map(len, function(chosen)))
                found.append(time.perf_counter() - begin)
                if lengths != {OUTPUT_LENGTH}:
                    raise ValueError(f"translations have {lengths} tokens, not {OUTPUT_LENGTH}")
    return [found[WARM_UP:] for found in seconds]


def main(argv=None):
    """Runs the program; returns its exit code."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small", "base"], metavar="SIZE")
    parser.add_argument("--batch", type=int, default=1, help="sentences at a time (1)")
    parser.add_argument("--threads", type=int, default=1, help="batches at a time (1)")
    parser.add_argument("--turns", type=int, default=25, help="of each (25)")
    args = parser.parse_args(argv)
    if min(args.batch, args.threads, args.turns) < 1:
        parser.error("--batch, --threads and --turns must be at least 1")
    print("| size | sentences | ours, ms | CTranslate2, ms | ratio of speeds (quartiles of the turns) |")
    print("|---|---|---|---|---|")
    for size in args.sizes:
        ours, theirs = measure(SIZES[size], args.batch, args.turns, args.threads)
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        low, middle, high = statistics.quantiles(ratios) if len(ratios) > 1 else ratios * 3
        times = " | ".join(f"{1000 * statistics.median(found):.1f}" for found in (ours, theirs))
        print(f"| {size} | {args.batch} | {times} | {low:.2f} / {middle:.2f} / {high:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
