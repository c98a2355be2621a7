"""What the tests of the explorer share: hostile texts, a model that ends early, one that has many heads."""

import keras
import numpy as np

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import ModelConfig, SearchConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.translation.translator import Translator

TEXTS = [
    "The dog reads a text.", "Der Hund liest einen Text.", "Ein Hund und ein Text.", "A dog and the text.",
]  # fmt: skip
HOSTILE = [
    "<script>alert(1)</script>", "</script><!--", "a\u2028b\u2029c", "\ud83d", "\ude00\ud83d", "nul\0nul",
    "", " ", "\0", "\n", "\t \u3000\u200b", "\u202e\u202a", "a" * 10_000, "ä" * 1001, "🐎" * 500, "\ufeff",
    "\uffff\U0010ffff", "e" + "\u0301" * 900, "<s> </s> <unk> <pad> ▁▁", "%s %n {0} ${x} \\u0000", "⁇",
    "العربية ירושלים", "\r\n\x1b[31m",
]  # fmt: skip
EXTRA = 3  # tokens that a translation may be longer than its source


def tiny_translator(*, seed=3, eos_bias=8.0, **search):
    """A `Translator` with three encoder layers, two decoder layers and heads of unequal sizes."""
    tokenizer = SubwordTokenizer.train(TEXTS * 3, vocab_size=293)
    config = ModelConfig(
        source_vocab_size=293, target_vocab_size=293, num_encoder_layers=3, num_decoder_layers=2, d_model=14,
        d_ff=17, num_heads=2, key_dim=5, value_dim=3, norm_first=True, tie_embeddings="none",
        output_bias=True,
    )  # fmt: skip
    model = Transformer(config)
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:  # not the gains of the normalisations
            weight.assign(rng.normal(0, 0.9, weight.shape))
    bias = np.zeros(293, np.float32)
    bias[model.special.eos] = eos_bias
    model.output_bias.assign(bias)
    return Translator(model, tokenizer, SearchConfig(beam_size=3, max_length_offset=EXTRA, **search))


def many_heads():
    """A `Translator` of 6 + 6 layers with 8 heads, whose translations are as long as they may be."""
    tokenizer = RunFolder("en-de-tatoeba").load_tokenizers().target
    size = tokenizer.vocab_size
    config = ModelConfig(
        source_vocab_size=size, target_vocab_size=size, num_encoder_layers=6, num_decoder_layers=6,
        d_model=32, d_ff=48, num_heads=8, tie_embeddings="none", output_bias=True,
    )  # fmt: skip
    keras.utils.set_random_seed(1)
    model = Transformer(config)
    bias = np.zeros(size, np.float32)
    bias[model.special.eos] = -50.0
    model.output_bias.assign(bias)
    return Translator(model, tokenizer, SearchConfig(beam_size=4, max_length_offset=EXTRA))
