"""The batches of a run: plain, with random segmentations, or made by a data service."""

from keras_transformer.batches.ids import drop_long, encode_pairs
from keras_transformer.batches.sampled import SampledBatches
from keras_transformer.batches.service import ServiceBatches
from keras_transformer.batches.token_batches import TokenBatches
from keras_transformer.config.settings import SpecialIds
from keras_transformer.text.lines import DataError


def training_batches(data, corpus, *, seed):
    """Returns the batches to train on.

    Args:
        data: `DataConfig`.
        corpus: `TrainingData`.
        seed: of the order, and of random segmentations.

    Returns:
        `TokenBatches`.

    Raises:
        ValueError: a data service is asked for and cannot be used.
    """
    plan = {
        "batch_tokens": data.batch_tokens,
        "seed": seed,
        "padding": data.padding,
        "max_shapes": data.max_shapes,
        "sizes": corpus.sizes,
        "weights": corpus.weights,
    }
    special = SpecialIds()
    if data.service:
        if data.subword_dropout:
            raise ValueError(
                "A data service makes batches of ids as they were prepared: set "
                "data.subword_dropout=0, or train without --data-service"
            )
        return ServiceBatches(corpus.train, service=data.service, special=special, **plan)
    if data.subword_dropout:
        return SampledBatches(
            corpus.train, corpus.tokenizers, dropout=data.subword_dropout, special=special, **plan
        )
    return TokenBatches(corpus.train, special=special, **plan)


def validation_batches(data, corpus):
    """Returns the batches of the validation split, and how many of its pairs are too long.

    Returns:
        `(TokenBatches, num_dropped)`.

    Raises:
        DataError: all of them are too long.
    """
    filtered = drop_long(encode_pairs(*corpus.validation, *corpus.tokenizers), data.max_length)
    if not filtered.pairs.num_pairs:
        raise DataError(
            f"validation: all {filtered.num_dropped:,} pairs have over {data.max_length} tokens. "
            "Raise data.max_length"
        )
    batches = TokenBatches(
        filtered.pairs,
        special=SpecialIds(),
        batch_tokens=data.batch_tokens,
        padding=data.padding,
        max_shapes=data.max_shapes,
    )
    return batches, filtered.num_dropped
