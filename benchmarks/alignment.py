r"""Which layer aligns best: by twins, and beside IBM model 1, which knows no Transformer.

    python benchmarks/alignment.py RUN DIR/val.en DIR/val.de --train DIR/train.en DIR/train.de

By twins: the share of pieces written alike on both sides, once on each, that point to each
other. By IBM model 1 (Brown et al., 1993): of the links that its two directions share, which
are few and mostly right, the share that the hard alignment has, too. Both in percent, for
the mean of the heads of every layer and for both conventions.
"""

import argparse
import os

import numpy as np

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.alignment import CONVENTIONS, best_choice, hard_alignment  # noqa: E402
from keras_transformer.data.text import read_lines  # noqa: E402
from keras_transformer.scoring import Scorer  # noqa: E402


def parse_args():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="text for IBM model 1")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--weights", default="averaged")
    return parser.parse_args()


def ibm1_links(source_rows, target_rows, vocab_size, iterations, num_wanted):
    """Learns t(target | source), an empty source word included, and aligns.

    Returns:
        list of sets of (source, target), of the first `num_wanted` pairs.
    """
    pair, of_source, of_target, place = [], [], [], []
    for number, (source, target) in enumerate(zip(source_rows, target_rows, strict=True)):
        words = np.array([vocab_size, *source])  # the empty word first
        pair.append(np.full(len(words) * len(target), number))
        of_source.append(np.repeat(words, len(target)))
        of_target.append(np.tile(np.array(target, int), len(words)))
        place.append(
            np.stack(np.meshgrid(range(len(words)), range(len(target)), indexing="ij"), -1).reshape(-1, 2)
        )
    pair, of_source, of_target = map(np.concatenate, (pair, of_source, of_target))
    place = np.concatenate(place)
    _, both = np.unique(of_source * vocab_size + of_target, return_inverse=True)
    # Every target word of every sentence, over which its links sum to 1.
    _, word = np.unique(pair * 100_000 + place[:, 1], return_inverse=True)
    probability = np.ones(len(both))
    for _ in range(iterations):
        posterior = probability / np.bincount(word, probability)[word]
        counts = np.bincount(both, posterior)[both]
        probability = counts / np.bincount(of_source, posterior, minlength=vocab_size + 1)[of_source]
    links = [set() for _ in range(num_wanted)]
    order = np.lexsort((probability, word))
    best = order[np.append(word[order][1:] != word[order][:-1], True)]
    for one in best[pair[best] < num_wanted]:
        if place[one, 0]:
            links[pair[one]].add((int(place[one, 0]) - 1, int(place[one, 1])))
    return links


def main():
    """Prints both tables."""
    args = parse_args()
    scorer = Scorer.load(args.run, weights=args.weights)
    texts = [read_lines(path) for path in (args.source, args.target)]
    counts = scorer.count_anchors(*texts, max_pairs=len(texts[0]))
    print(f"twins: {counts.num_anchors}; chosen {best_choice(counts)}; layer, then {CONVENTIONS}")
    for layer, row in enumerate(100 * counts.correct / max(counts.num_anchors, 1)):
        print(f"  {layer}  " + "  ".join(f"{share:5.1f}" for share in row))
    if not args.train:
        return
    both = [texts[side] + read_lines(path) for side, path in enumerate(args.train)]
    rows = [tokenizer.encode(each) for tokenizer, each in zip(scorer.tokenizers, both, strict=True)]
    size, number = max(scorer.tokenizers.sizes), len(texts[0])
    forward = ibm1_links(*rows, size, args.iterations, number)
    backward = ibm1_links(*rows[::-1], size, args.iterations, number)
    sure = [a & {(s, t) for t, s in b} for a, b in zip(forward, backward, strict=True)]
    scored = scorer.score(*texts, layers=range(len(counts.correct)))
    print(
        f"IBM model 1, both directions: {sum(map(len, sure))} links of {sum(len(r) for r in rows[1][:number])}"
    )
    for layer in range(len(counts.correct)):
        shares = []
        for convention in CONVENTIONS:
            hits = 0
            for each, links in zip(scored, sure, strict=True):
                found = hard_alignment(
                    each.attention[layer],
                    each.source_pieces,
                    each.target_pieces,
                    convention=convention,
                    unit="pieces",
                )
                hits += len(links & set(found))
            shares.append(100 * hits / sum(map(len, sure)))
        print(f"  {layer}  " + "  ".join(f"{share:5.1f}" for share in shares))


if __name__ == "__main__":
    main()
