r"""Which layer aligns best: by IBM model 1, and by words that both languages share.

    python benchmarks/alignment.py RUN DIR/val.en DIR/val.de --train DIR/train.en DIR/train.de

By IBM model 1: of the links that its two directions share, the part that the hard alignment
has, too. By twins, pieces that are whole words or marks, written alike on both sides, once on
each: the part of them that point to each other. In percent, for the mean of the heads of every
layer and for the steps that produce a piece ("output") and that read it ("input").
"""

import argparse
import os
import time

import numpy as np

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.batches.ids import encode_pairs  # noqa: E402
from keras_transformer.text.lines import read_lines  # noqa: E402
from keras_transformer.translation.alignment import CONVENTIONS, SPACE, best_choice, count_hits  # noqa: E402
from keras_transformer.translation.scorer import Scorer  # noqa: E402


def parse_args():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="text for IBM model 1")
    parser.add_argument("--weights", default="final")
    return parser.parse_args()


def twins(source_pieces, target_pieces):
    """Returns the twins of a pair; the last pieces, nearly always full stops, are left out."""
    sides = [whole_pieces(pieces[:-1]) for pieces in (source_pieces, target_pieces)]
    return {(sides[0][text], sides[1][text]) for text in sides[0].keys() & sides[1].keys()}


def whole_pieces(pieces):
    """Text of a piece -> its number, of those that are whole words or marks and occur once."""
    found = {}
    for number, piece in enumerate(pieces):
        text = piece.strip(SPACE).casefold()
        begins = not number or piece.startswith(SPACE) or pieces[number - 1] == SPACE
        following = pieces[number + 1] if number + 1 < len(pieces) else SPACE
        ends = not following[:1].isalnum()
        if text and (not any(map(str.isalnum, text)) or (begins and ends)):
            found.setdefault(text, []).append(number)
    return {text: numbers[0] for text, numbers in found.items() if len(numbers) == 1}


def show(name, num_links, hits):
    """Prints a table."""
    print(f"{name}: {num_links} links; layer, then {CONVENTIONS}")
    for layer, row in enumerate(100 * hits / max(num_links, 1)):
        print(f"  {layer}  " + "  ".join(f"{share:5.1f}" for share in row))


def main():
    """Prints both tables."""
    args = parse_args()
    scorer = Scorer.load(args.run, weights=args.weights)
    texts = [read_lines(path) for path in (args.source, args.target)]
    more = encode_pairs(*map(read_lines, args.train), *scorer.tokenizers) if args.train else None
    begin = time.monotonic()
    counts = scorer.count_hits(*texts, more=more, max_pairs=len(texts[0]))
    show(f"IBM model 1, {time.monotonic() - begin:.1f} s", *counts)
    print(f"chosen: {best_choice(counts)}")
    num_twins, hits = 0, np.zeros_like(counts.hits)
    for scored in scorer.score(*texts, layers=range(len(hits))):
        found = twins(scored.source_pieces, scored.target_pieces)
        of_pair = count_hits(scored.attention, scored.source_pieces, scored.target_pieces, found)
        num_twins, hits = num_twins + of_pair.num_links, hits + of_pair.hits
    show("twins", num_twins, hits)


if __name__ == "__main__":
    main()
