"""Joey NMT's own model (post-norm, all embeddings tied)."""

from types import SimpleNamespace

from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary

from peers.work import DROPOUT

PAD_ID, EOS_ID = 1, 3


def build(size):
    """Returns Joey NMT's `Model` of a `Size`."""
    vocabulary = _vocabulary(size.vocab_size)
    side = {
        "type": "transformer",
        "num_layers": size.num_layers,
        "num_heads": size.num_heads,
        "hidden_size": size.d_model,
        "ff_size": size.d_ff,
        "dropout": DROPOUT,
        "layer_norm": "post",
        "activation": "relu",
        "embeddings": {"embedding_dim": size.d_model, "scale": True, "dropout": DROPOUT},
    }
    settings = {
        "encoder": dict(side),
        "decoder": dict(side),
        "tied_embeddings": True,
        "tied_softmax": True,
        "initializer": "xavier_uniform",
        "init_gain": 1.0,
        "embed_initializer": "xavier_uniform",
        "embed_init_gain": 1.0,
        "bias_initializer": "zeros",
    }
    model = build_model(settings, vocabulary, vocabulary)
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.feed_forward.pwff_layer[2].p = 0.0  # inside the feed-forward layers no peer has any
    return model


def _vocabulary(vocab_size):
    special = SimpleNamespace(
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        sep_token=None,
        unk_id=0,
        pad_id=PAD_ID,
        bos_id=2,
        eos_id=EOS_ID,
        lang_tags=[],
    )
    vocabulary = Vocabulary([], special)
    # Its own way of adding words takes time that grows with their square.
    words = [f"w{number}" for number in range(len(vocabulary), vocab_size)]
    vocabulary._stoi.update({word: number for number, word in enumerate(words, len(vocabulary))})
    vocabulary._itos.extend(words)
    return vocabulary
