r"""Which layer aligns best: by IBM model 1, and by words that both languages share.

    python benchmarks/alignment.py RUN DIR/val.en DIR/val.de --train DIR/train.en DIR/train.de

By IBM model 1: of the links that its two directions share, the part that the hard alignment
has, too. By twins, pieces that are whole words or marks, written alike on both sides, once on
each: the part of them that point to each other. In percent, for the mean of the heads of every
layer and for the steps that produce a piece ("output") and that read it ("input").
"""

import argparse
import os
import sys
import time

import numpy as np
from refusing import Parser, run

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.analysis.heads import sure_links  # noqa: E402
from keras_transformer.text.lines import read_lines  # noqa: E402
from keras_transformer.translation.alignment import CONVENTIONS, SPACE, hard_alignment  # noqa: E402
from keras_transformer.translation.scorer import Scorer  # noqa: E402


def parse_args():
    """Parses the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="text for IBM model 1")
    parser.add_argument("--checkpoint", default="final")
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


def count_hits(pair, links):
    """Returns the number of links that the hard alignment has as well, for each layer and convention.

    Args:
        pair: `Scored`, with the attention of all layers.
        links: set of (source piece, target piece), from 0.

    Returns:
        int array, shape `(num_layers, 2)`, one column for each of `CONVENTIONS`.
    """
    pieces = pair.source_pieces, pair.target_pieces
    return np.array(
        [
            [
                len(links & set(hard_alignment(weights, *pieces, convention=convention, unit="pieces")))
                for convention in CONVENTIONS
            ]
            for weights in pair.attention
        ]
    )


def show(name, pairs, links):
    """Prints a table of the percentage of links that each layer's attention has."""
    num_links = sum(map(len, links))
    if not pairs:
        raise ValueError(f"{name}: no pairs. Name files of one sentence a line")
    hits = sum(count_hits(pair, of_pair) for pair, of_pair in zip(pairs, links, strict=True))
    print(f"{name}: {num_links} links; layer, then {CONVENTIONS}")
    for layer, row in enumerate(100 * hits / max(num_links, 1)):
        print(f"  {layer}  " + "  ".join(f"{share:5.1f}" for share in row))


def main():
    """Prints both tables."""
    args = parse_args()
    scorer = Scorer.load(args.run, checkpoint=args.checkpoint)
    texts = [read_lines(path) for path in (args.source, args.target)]
    training = [read_lines(path) for path in args.train] if args.train else ([], [])
    begin = time.monotonic()
    rows = [
        tokenizer.encode(side + more)
        for tokenizer, side, more in zip(scorer.tokenizers, texts, training, strict=True)
    ]
    links = sure_links(*rows, len(texts[0]))
    print(f"IBM model 1 learned in {time.monotonic() - begin:.1f} s")
    layers = range(scorer.model.config.num_decoder_layers)
    pairs = scorer.score(*texts, layers=layers)
    show("IBM model 1", pairs, links)
    show("twins", pairs, [twins(pair.source_pieces, pair.target_pieces) for pair in pairs])


if __name__ == "__main__":
    sys.exit(run(main))
