from keras_transformer.batches.dataset import token_batches as token_batches
from keras_transformer.batches.ids import IdPairs as IdPairs
from keras_transformer.batches.ids import encode_pairs as encode_pairs
from keras_transformer.batches.planning import BatchPlan as BatchPlan
from keras_transformer.batches.planning import EpochPlanner as EpochPlanner
from keras_transformer.batches.prepared import PreparedCorpus as PreparedCorpus
from keras_transformer.batches.preparing import prepare as prepare
from keras_transformer.batches.sharding import UnfinishedError as UnfinishedError
from keras_transformer.batches.streaming import stream_batches as stream_batches

__all__ = [
    "BatchPlan",
    "EpochPlanner",
    "IdPairs",
    "PreparedCorpus",
    "UnfinishedError",
    "encode_pairs",
    "prepare",
    "stream_batches",
    "token_batches",
]
