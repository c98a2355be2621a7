"""Ids to token-bucketed `tf.data` batches; their order is a pure function of (seed, epoch).

`prepare` writes a corpus of ids, `PreparedCorpus` reads it; `EpochPlanner` decides from the lengths alone
which pairs share a batch; `token_batches` makes a dataset of the batches of a plan, from any position on.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dataset": ("token_batches",),
        "ids": (
            "IdPairs",
            "encode_pairs",
        ),
        "planning": ("EpochPlanner",),
        "prepared": ("PreparedCorpus",),
        "preparing": ("prepare",),
    },
)
