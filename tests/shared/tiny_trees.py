"""A grammar of a few words, from which tests draw trees."""

import random

NOUNS = ("dog", "cat", "bird", "man")
VERBS = ("sees", "hears")


def draw(rng):
    """One tree as a bracketed line."""
    noun = [f"(NP (DT the) (NN {rng.choice(NOUNS)}))" for _ in range(3)]
    if rng.random() < 0.4:
        noun[1] = f"(NP {noun[1]} (PP (IN near) {noun[2]}))"
    verb = f"(VP (VBZ {rng.choice(VERBS)}) {noun[1]})" if rng.random() < 0.7 else "(VP (VBZ barks))"
    return f"(S {noun[0]} {verb} (. .))"


def write_treebank(folder, *, train=60, valid=12, seed=1):
    """Writes `train.trees` and `valid.trees`; returns the folder."""
    rng = random.Random(seed)
    folder.mkdir(exist_ok=True)
    for split, number in (("train", train), ("valid", valid)):
        (folder / f"{split}.trees").write_text("".join(f"{draw(rng)}\n" for _ in range(number)))
    return folder
