"""The work that every peer does: sizes, random sentences, and how many operations it takes."""

import dataclasses

import numpy as np

DROPOUT = 0.1  # of residuals, embeddings and attention; none inside the feed-forward layers
SMOOTHING = 0.1
LEARNING_RATE, BETA_1, BETA_2, EPSILON = 1e-4, 0.9, 0.98, 1e-9
BEAM_SIZE, ALPHA = 4, 0.6
OUTPUT_LENGTH = 32  # of every translation, no more and no less
BATCHES = (1, 32)  # sentences that are decoded together
GPU_BATCHES = (1, 32, 256)
FIRST_ID = 4  # ids below it are special in every peer
MAX_POSITIONS = 512  # of peers that keep a table of positions


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Sizes of a model and of its batches in training.

    Attributes:
        vocab_size: of the one vocabulary of both sides; one matrix embeds both and projects.
        d_model: width of the model.
        num_heads: of each attention.
        d_ff: width inside the feed-forward layers.
        num_layers: of the encoder, and of the decoder.
        batch: sentence pairs of a training step.
        length: tokens of each source and, in training, of each target.
    """

    vocab_size: int
    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    batch: int
    length: int = 32


_SMALL = {"d_model": 256, "num_heads": 4, "d_ff": 1024, "num_layers": 3, "batch": 64}
_BASE = {"vocab_size": 32000, "d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6}
SIZES = {
    "small": Size(vocab_size=8000, **_SMALL),
    "small32k": Size(vocab_size=32000, **_SMALL),
    "base": Size(**_BASE, batch=32),
    # The paper's batch, 25,000 tokens a side, which a GPU can hold.
    "base25k": Size(**_BASE, batch=768),
    "big25k": Size(vocab_size=32000, d_model=1024, num_heads=16, d_ff=4096, num_layers=6, batch=768),
}


def variant_words(variant, known):
    """The words of a variant such as `"compile+bfloat16"`.

    Args:
        variant: str, words joined by `+`, or empty.
        known: tuple of str, the words that a peer understands.

    Returns:
        frozenset of str.

    Raises:
        ValueError: a word that is not known.
    """
    words = frozenset(variant.split("+")) - {""}
    if not words <= set(known):
        wanted = ", ".join(known) if known else "none"
        raise ValueError(f"`variant` must be words of: {wanted}. Received: {variant!r}")
    return words


def training_batch(size):
    """One batch without padding.

    Args:
        size: `Size`.

    Returns:
        three int32 arrays, shape `(batch, length)`: sources, what the decoder reads, and what it is to
        predict, which is the second one token further.
    """
    rng = np.random.default_rng(0)
    source = rng.integers(FIRST_ID, size.vocab_size, (size.batch, size.length)).astype("int32")
    target = rng.integers(FIRST_ID, size.vocab_size, (size.batch, size.length + 1)).astype("int32")
    return source, target[:, :-1].copy(), target[:, 1:].copy()


def sentences(size, number):
    """Returns int32, shape `(number, length)`: random sources."""
    return np.random.default_rng(1).integers(FIRST_ID, size.vocab_size, (number, size.length)).astype("int32")


def training_flops(size):
    """Floating-point operations of one training step.

    Two for every multiply-add of a product with a weight matrix, and twice as many again for the
    gradients. Products of attention with itself, less than a twentieth of the whole, are left out.

    Args:
        size: `Size`.

    Returns:
        int.
    """
    attention = 4 * size.d_model**2
    feed_forward = 2 * size.d_model * size.d_ff
    encoder = size.num_layers * (attention + feed_forward)
    decoder = size.num_layers * (2 * attention + feed_forward)
    return 6 * size.batch * size.length * (encoder + decoder + size.d_model * size.vocab_size)


def decoding_flops(size):
    """Floating-point operations for one sentence, counted as in `training_flops`.

    The encoder, and the decoder's keys and values of the source, are computed once; the rest for every
    hypothesis of the beam and every token. A peer without caches computes more than is counted.

    Args:
        size: `Size`.

    Returns:
        int.
    """
    square, feed_forward = size.d_model**2, 2 * size.d_model * size.d_ff
    once = size.num_layers * (4 * square + feed_forward + 2 * square)
    every_token = size.num_layers * (6 * square + feed_forward) + size.d_model * size.vocab_size
    return 2 * (size.length * once + BEAM_SIZE * OUTPUT_LENGTH * every_token)
