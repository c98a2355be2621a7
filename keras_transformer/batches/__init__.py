"""Turns token ids into token-bucketed `tf.data` batches, in an order that depends only on (seed, epoch).

`prepare` encodes a corpus and writes its ids; `PreparedCorpus` reads them. `EpochPlanner` plans which pairs
share a batch, from their lengths alone. `token_batches` returns the planned batches as a `tf.data.Dataset`
that can start at any batch. Pairs that nobody has counted go through `stream_batches`.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dataset": ("token_batches",),
        "ids": ("IdPairs", "encode_pairs"),
        "planning": ("BatchPlan", "EpochPlanner"),
        "prepared": ("PreparedCorpus",),
        "preparing": ("prepare",),
        "sharding": ("UnfinishedError",),
        "streaming": ("stream_batches",),
    },
)
