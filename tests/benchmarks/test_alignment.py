"""How many known links the attention of each layer has."""

import numpy as np
from alignment import count_hits

from keras_transformer.translation.scorer import Scored


def test_known_links_are_counted_for_every_layer_and_convention():
    pieces = ["▁a", "▁b", "▁c", "."]
    straight = np.pad(np.eye(4), ((0, 1), (0, 1)))
    shifted = np.roll(straight, 1, axis=0)  # each piece's weights stand at the step that reads it
    shifted[0, 2] = 1.0  # bos looks anywhere
    links = {(0, 0), (1, 1), (3, 3), (0, 3)}  # the last is wrong
    pair = Scored(pieces, pieces, None, np.stack([straight, shifted]))
    assert count_hits(pair, links).tolist() == [[3, 1], [0, 3]]
