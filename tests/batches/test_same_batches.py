"""Batches are those of earlier versions, bit for bit: or a run could not continue across an update.

The digests are those of commit c696585, whose batches a generator in Python made. Each is the SHA-256 of 200
batches; its key is (number of the first batch, replicas).
"""

import hashlib
import pathlib

import numpy as np
import pytest

from keras_transformer.batches.dataset import DeviceShare, TokenBatches, training_batches
from keras_transformer.batches.ids import encode_pairs
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.batches.training_data import load_training_data
from keras_transformer.config.presets import preset
from keras_transformer.config.settings import SpecialIds, replace

MULTI30K = pathlib.Path(__file__).resolve().parents[2] / "../shared/data/multi30k"

DEMO_IDS = "2cb8c1bc6e3779657a383bb1fbe0a51c5c7afa4738d8b4ce6b3798361f55c9f4"
DEMO = {
    (0, 1): "bef1cbb7d7ff367f25173bbdd5cb1cdfab3c2d75350b9134b010ca01e19fdf3f",
    (0, 2): "2d4d76f07f170a4241c4858792301cf59aa9d64457afcc7c55b14e8eb573a09a",
    (137, 1): "728b980a0aceebde92a6fb4eb93accb6f94affb80032499078250f11f547c182",
    (137, 2): "ccdb77e2887abcee1efcf7551761a6b6537f357ac1ebf8f864ef0f49a2442acd",
}
SAMPLED = {
    (0, 1): "b626c2d965450b512976065abcba9066cba952f76bb89ceb7fb260ffc6033390",
    (0, 2): "bc940471957badefd94cb419b05cdea3b0dddf6cdfaa085cb94a9631c972614b",
    (137, 1): "87699d344fa32d21e25690997c7b7a15fa59bdaff3a8d56efb17297ededbf33c",
    (137, 2): "639b7474d2feef2af8d7ace27186d7e492d889934af0f81d8526b7c03a1794b0",
}
# Of Multi30k, with a number for every word.
OF_MULTI30K = {
    "4,096 tokens": (
        {"batch_tokens": 4096},
        {
            (0, 1): "4e9c3e84093a34e05c2366897f9c0deadc37f2127a6599a4893a9fbf6f5bb426",
            (0, 2): "66aab99d17c386d579d2a11344c605750c4015f953151052a2488d59352f6be8",
            (137, 1): "427ef8a90c4eb67591aca2d314555ca25809216cd4965a5e54a70e06a6b6eab1",
            (137, 2): "116ff19480f4e4baa4987d41f6ad3a5798fb3f00ac4ae7ee3b07219d7211a6a8",
        },
    ),
    "25,000 tokens": (
        {"batch_tokens": 25_000},
        {
            (0, 1): "3d1b3440ff724f52b4db2d02f19226d043275d4911b5e453f29e980489845134",
            (0, 2): "215fb8a5f958799b8b12a227def40ab97ea53d5b9b195af694149e329454f847",
            (137, 1): "7c05bf00a67db4bb21c3613d5c01f28b605900df597d491a35e98d8987da318d",
            (137, 2): "b2349fde4748aa7a83ba6c473bd6a03dcc92575d4ad7872732dc07bcc428f305",
        },
    ),
    "few shapes": (
        {"batch_tokens": 4096, "padding": "fixed"},
        {
            (0, 1): "c92f583bcded23bdd845dacb99830bbe9a6aa39994780bf61e479739541cc8ea",
            (137, 2): "e3091441bfd7260302734270bd4717773eab690aaf80dc448efb6a0ab95389a6",
        },
    ),
    "weights": (
        {"batch_tokens": 4096, "sizes": [10_000, 19_000], "weights": [0.5, 1.7]},
        {
            (0, 1): "b4bf0c8255127db02934664af208d311ca0e9fe3f572d3cda11647d6f042063f",
            (137, 2): "ec456702d7f6674d79463722e0a3904721d505a7e29e4c642b0711a19959d3a3",
        },
    ),
}


def digest(batches, start, replicas):
    """SHA-256 of 200 batches: their shapes and their ids."""
    found = hashlib.sha256()
    epochs, _ = batches.count_epochs(start, 200)
    dataset = batches.dataset(start, epochs, DeviceShare(num_replicas=replicas))
    for (source_ids, target_ids), labels in dataset.take(200 * replicas).as_numpy_iterator():
        for ids in (source_ids, target_ids, labels):
            found.update(repr(ids.shape).encode())
            found.update(np.ascontiguousarray(ids))
    return found.hexdigest()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Settings and corpus of the demo."""
    config = preset("demo")
    corpus = load_training_data(config, tmp_path_factory.mktemp("run") / "corpus")
    ids = hashlib.sha256()
    for sequences in corpus.train:
        ids.update(np.ascontiguousarray(sequences.lengths))
        ids.update(np.concatenate(sequences.arrays).astype(np.int32))
    if ids.hexdigest() != DEMO_IDS:
        pytest.skip("another CLDR or SentencePiece makes another corpus")
    return config, corpus


@pytest.mark.slow
@pytest.mark.parametrize("place", DEMO)
def test_of_the_demo(demo, place):
    config, corpus = demo
    batches = training_batches(config.data, corpus, seed=config.training.seed)
    assert digest(batches, *place) == DEMO[place]


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[pytest.mark.very_slow] * (place != (137, 2))) for place in SAMPLED]
)
def test_of_the_demo_with_random_segmentations(demo, place):
    config, corpus = demo
    batches = training_batches(replace(config.data, subword_dropout=0.1), corpus, seed=config.training.seed)
    assert digest(batches, *place) == SAMPLED[place]


class WordNumbers:
    """Numbers words as they occur."""

    special = SpecialIds()

    def __init__(self):
        self.numbers = {}

    def encode(self, texts):
        return [
            [self.numbers.setdefault(word, 4 + len(self.numbers)) for word in text.split()] for text in texts
        ]


@pytest.fixture(scope="module")
def multi30k():
    """`IdPairs`."""
    if not MULTI30K.is_dir():
        pytest.skip("needs ../shared/data/multi30k")
    sides = ((MULTI30K / name).read_text(encoding="utf-8") for name in ("train.en", "train.de"))
    return encode_pairs(*(side.split("\n")[:29_000] for side in sides), WordNumbers())


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, (_, digests) in OF_MULTI30K.items() for place in digests]
)
def test_of_multi30k(multi30k, name, place):
    plan, digests = OF_MULTI30K[name]
    batches = TokenBatches(multi30k, EpochPlanner(*multi30k.lengths, **plan))
    assert digest(batches, *place) == digests[place]
