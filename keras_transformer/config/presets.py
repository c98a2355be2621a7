"""Presets: the paper's models, the rows of its Table 3, and small models.

A preset is a whole configuration: model, batch size, training and search. Values given in the paper are
used unchanged. Comments explain the values that the paper does not give.
"""

from typing import Any, NamedTuple

from keras_transformer.config.fields import unknown
from keras_transformer.config.sections import TREES
from keras_transformer.config.settings import Config, replace


def _dropout(rate):
    """The paper's one P_drop: residual and embedding dropout (section 5.4)."""
    return {"residual_dropout": rate, "embedding_dropout": rate}


def _layers(encoder, decoder=None):
    """Numbers of layers; the paper has one N for both stacks."""
    return {"num_encoder_layers": encoder, "num_decoder_layers": decoder or encoder}


def _compact(
    vocab_size,
    *,
    num_layers,
    dropout,
    model,
    training,
    batch_tokens=4096,
    dataset="cldr/en-de",
    search=None,
):
    """Returns the configuration of a small model for a small corpus, with ten checkpoints averaged."""
    return replace(
        with_vocab_size(Config(), vocab_size),
        model={"num_heads": 4, **_layers(num_layers), **_dropout(dropout), **model},
        data={
            "dataset": dataset,
            "vocab_size": vocab_size,
            "max_length": 128,
            "batch_tokens": batch_tokens,
        },
        training={
            "validation_sentences": 500,
            "checkpoint_every_minutes": 0,
            "keep_checkpoints": 10,
            "average_last": 10,
            **training,
        },
        search={"max_source_length": 128, **(search or {})},  # as `data.max_length`
    )


def with_vocab_size(config, source, target=None):
    """Returns a copy of `config` with these vocabulary sizes.

    Args:
        config: `Config`.
        source: number of source tokens.
        target: number of target tokens; `None` for one shared vocabulary.

    Raises:
        ValueError: the sizes differ and `tie_embeddings="all"` needs one shared vocabulary.
    """
    target = source if target is None else target
    return replace(config, model={"source_vocab_size": source, "target_vocab_size": target})


# WMT14 English-German, sections 5 and 6.1; 27.3 BLEU (tokenized, compounds split).
BASE = Config()

# Table 3, last line; 28.4 BLEU. 300,000 steps, average of 20 checkpoints.
BIG = replace(
    BASE,
    model={"d_model": 1024, "d_ff": 4096, "num_heads": 16, **_dropout(0.3)},
    training={"max_steps": 300_000, "average_last": 20},
)

# Tensor2Tensor's `transformer_base` (version 3), which most later code copied. Its
# learning-rate factor, warm-up and beta_2 all differ from the paper's.
T2T_BASE = replace(
    with_vocab_size(BASE, 32_000),
    model={
        "norm_first": True,
        "positions": "halves",
        "attention_init": "separate",
        "attention_dropout": 0.1,
        "relu_dropout": 0.1,
    },
    data={"vocab_size": 32_000, "batch_tokens": 32_768},
    training={"warmup_steps": 8000, "learning_rate_scale": 2.0, "adam_beta_2": 0.997},
    search={"max_length_offset": 100},
)

# For tens of thousands of sentences: pre-norm and the rate of equation 3 train without a search for the peak
# rate.
TINY = _compact(
    8000,
    num_layers=4,
    dropout=0.3,
    model={"d_model": 128, "d_ff": 256, "norm_first": True},
    training={
        "max_steps": 16_000,
        "warmup_steps": 2000,
        "log_every_steps": 50,
        "validate_every_steps": 500,
        "validation_sentences": 1000,
        "checkpoint_every_steps": 250,
    },
)

# The published recipe for Multi30k ("Tiny" of Wu et al., 2021; on lower-cased tokens, 41.02 BLEU for
# English-German and 61.80 for English-French), with fairseq's defaults where it has no value of its own.
# The peak learning rate is 0.005, 2.53 times that of equation 3. An update has 2 x 4,096 tokens, an epoch
# 70 updates; the checkpoints of the last ten epochs are averaged.
MULTI30K_TINY = _compact(
    10_000,
    num_layers=4,
    dropout=0.3,
    dataset="multi30k",
    batch_tokens=8192,
    model={"d_model": 128, "d_ff": 256, "layer_norm_epsilon": 1e-5},
    training={
        "max_steps": 8000,
        "warmup_steps": 2000,
        "learning_rate_scale": 2.53,
        "adam_epsilon": 1e-8,
        "clip_norm": 25.0,
        "smoothing_formula": "uniform",
        "log_every_steps": 50,
        "validate_every_steps": 500,
        "validation_sentences": 1000,
        "checkpoint_every_steps": 70,
    },
    search={"beam_size": 5, "length_penalty": "average", "alpha": 1.0},
)
MULTI30K_TINY_PRE = replace(MULTI30K_TINY, model={"norm_first": True})

# Constituency parsing, section 6.3: 4 layers, d_model 1024, about 40,000 sentences of the Wall Street Journal
# with 16,000 source tokens. The paper gives neither heads nor d_ff: they are the base model's, as in
# Tensor2Tensor's `parsing_base`, which also has this dropout, warm-up and maximum length, and no shared
# matrix. The number of updates is not given either, and rates were chosen on section 22.
NUM_TREE_SYMBOLS = 64  # about; the trees decide
_PARSING = {"dataset": "treebank", "source": "en", "target": TREES, "separate_vocabularies": True}
PARSING_PAPER = replace(
    with_vocab_size(replace(BASE, model={"tie_embeddings": "none"}), 16_000, NUM_TREE_SYMBOLS),
    model={
        "d_model": 1024,
        **_layers(4),
        **_dropout(0.2),
        "attention_dropout": 0.2,
    },
    data={**_PARSING, "vocab_size": 16_000, "max_length": 512},
    training={"warmup_steps": 16_000, "max_steps": 50_000, "best_metric": "f1"},
    search={"beam_size": 21, "alpha": 0.3, "max_length_offset": 300, "max_source_length": 512},
)
# Section 6.3, semi-supervised: 17 million sentences, 32,000 source tokens.
PARSING_SEMI_SUPERVISED = replace(
    with_vocab_size(PARSING_PAPER, 32_000, NUM_TREE_SYMBOLS),
    data={"vocab_size": 32_000},
    training={"max_steps": 100_000},
)
# For two CPU cores and some ten thousand trees. Pre-norm: with post-norm, the encoder made all tokens of a
# sentence alike, and nothing was learned from the source (docs/parsing.md).
PARSING_SMALL = replace(
    with_vocab_size(PARSING_PAPER, 8000, NUM_TREE_SYMBOLS),
    model={
        "d_model": 256,
        "d_ff": 1024,
        "num_heads": 4,
        "norm_first": True,
        **_dropout(0.1),
        "attention_dropout": 0.0,
    },
    data={"vocab_size": 8000, "max_length": 256, "batch_tokens": 2048},
    search={"max_source_length": 256},
    training={
        "max_steps": 16_000,
        "warmup_steps": 2000,
        "log_every_steps": 50,
        "validate_every_steps": 1000,
        "validation_sentences": 300,
        "validation_beam_size": 1,
        "checkpoint_every_steps": 400,
        "checkpoint_every_minutes": 0,
        "keep_checkpoints": 10,
        "average_last": 10,
    },
)

# At most ten minutes on two CPU cores with the built-in corpus. Little dropout, as this corpus has
# no noise to overfit to.
DEMO = _compact(
    2000,
    num_layers=2,
    dropout=0.05,
    batch_tokens=2048,
    model={"d_model": 128, "d_ff": 512},
    training={
        "max_steps": 4000,
        "max_minutes": 9.0,
        "warmup_steps": 500,
        "validate_every_steps": 500,
        "checkpoint_every_steps": 100,
    },
)

# For 10,000 to a million pairs on a few CPU cores: half the paper's width, pre-norm like
# TINY, and dropout 0.2, between its 0.3 and the paper's 0.1.
SMALL = _compact(
    8000,
    num_layers=4,
    dropout=0.2,
    model={"d_model": 256, "d_ff": 1024, "norm_first": True},
    training={"max_steps": 60_000, "validate_every_steps": 2000, "checkpoint_every_steps": 1000},
)

PRESETS = {
    "base": BASE,
    "big": BIG,
    # English-French: dropout 0.1 for big, too (section 6.1); word pieces of 32,000.
    "big_enfr": replace(
        with_vocab_size(BIG, 32_000),
        model=_dropout(0.1),
        data={
            "dataset": "cldr/en-fr",
            "target": "fr",
            "vocab_size": 32_000,
            "model_type": "wordpiece",  # section 5.1
        },
    ),
    # Table 3. Row A: heads, with h * d_k constant.
    "table3_a_heads_1": replace(BASE, model={"num_heads": 1}),
    "table3_a_heads_4": replace(BASE, model={"num_heads": 4}),
    "table3_a_heads_16": replace(BASE, model={"num_heads": 16}),
    "table3_a_heads_32": replace(BASE, model={"num_heads": 32}),
    # Row B: size of the keys; d_v stays 64.
    "table3_b_key_16": replace(BASE, model={"key_dim": 16}),
    "table3_b_key_32": replace(BASE, model={"key_dim": 32}),
    # Row C: size of the model.
    "table3_c_layers_2": replace(BASE, model=_layers(2)),
    "table3_c_layers_4": replace(BASE, model=_layers(4)),
    "table3_c_layers_8": replace(BASE, model=_layers(8)),
    "table3_c_model_256": replace(BASE, model={"d_model": 256}),
    "table3_c_model_1024": replace(BASE, model={"d_model": 1024}),
    "table3_c_ff_1024": replace(BASE, model={"d_ff": 1024}),
    "table3_c_ff_4096": replace(BASE, model={"d_ff": 4096}),
    # Row D: regularisation.
    "table3_d_dropout_0.0": replace(BASE, model=_dropout(0.0)),
    "table3_d_dropout_0.2": replace(BASE, model=_dropout(0.2)),
    "table3_d_smoothing_0.0": replace(BASE, training={"label_smoothing": 0.0}),
    "table3_d_smoothing_0.2": replace(BASE, training={"label_smoothing": 0.2}),
    # Row E: learned positions.
    "table3_e_learned_positions": replace(BASE, model={"positions": "learned"}),
    "t2t_base": T2T_BASE,
    # Deep encoder, shallow decoder (Kasai et al., 2021), to be trained on translations of `base`: a search
    # runs the decoder once for each token. Twelve post-norm layers need initial matrices scaled by depth.
    "base_12_1": replace(BASE, model={**_layers(12, 1), "depth_scaling": "ds_init"}),
    "base_6_2": replace(BASE, model={**_layers(6, 2), "depth_scaling": "ds_init"}),
    "multi30k_tiny": MULTI30K_TINY,
    "multi30k_tiny_pre_norm": MULTI30K_TINY_PRE,
    "tiny": TINY,
    "parsing_paper": PARSING_PAPER,
    "parsing_semi_supervised": PARSING_SEMI_SUPERVISED,
    "parsing_small": PARSING_SMALL,
    "small": SMALL,
    "demo": DEMO,
}


class _Row(NamedTuple):
    """Configuration that `auto` chooses for corpora of at most `num_pairs` pairs."""

    num_pairs: float
    config: Config
    vocab_size: int
    updates_a_minute: float  # roughly, on two CPU cores


PAIRS_FOR_BASE = 1_000_000  # above it, `auto` chooses the paper's base model

# Smaller corpora need smaller models and vocabularies and more dropout: Sennrich and Zhang
# (2019), Ding et al. (2019), Araabi and Monz (2020), Gowda and May (2020).
_AUTO = (
    _Row(5_000, replace(DEMO, model=_dropout(0.3), training={"max_steps": 6000}), 1000, 400),
    _Row(20_000, replace(DEMO, model=_dropout(0.3), training={"max_steps": 12_000}), 2000, 400),
    _Row(100_000, TINY, 8000, 125),
    _Row(PAIRS_FOR_BASE, SMALL, 8000, 25),
    _Row(float("inf"), BASE, 37_000, 0.3),
)
_GPU_SPEED = 50  # roughly, relative to two CPU cores
_FEWEST_UPDATES = 1000  # with fewer updates, a smaller model does better


def auto(num_pairs, *, num_characters=0, max_minutes=0.0, gpu=False):
    """Returns the configuration for a corpus of a given size: `--preset auto`.

    The result depends only on the arguments. If time is limited, the size of the model and the warm-up
    follow from a rough estimate of the training speed.

    Args:
        num_pairs: number of training pairs.
        num_characters: number of different characters; the vocabulary has a piece for each.
        max_minutes: maximum training time; 0 for no limit.
        gpu: whether a GPU is available.
    """
    rows = list(_AUTO[: 1 + sum(row.num_pairs < num_pairs for row in _AUTO)])
    updates = [row.updates_a_minute * (_GPU_SPEED if gpu else 1) * max_minutes for row in rows]
    while max_minutes and len(rows) > 1 and updates[len(rows) - 1] < _FEWEST_UPDATES:
        rows.pop()
    row, training = rows[-1], rows[-1].config.training
    expected = training.max_steps
    if max_minutes:
        expected = max(80, min(expected, round(updates[len(rows) - 1])))
    warmup = min(training.warmup_steps, expected // 8)
    every = max(1, expected // 40)
    # 300 leaves room for the special tokens and the 256 bytes.
    vocab_size = max(row.vocab_size, -(-(300 + 2 * num_characters) // 500) * 500)
    return replace(
        with_vocab_size(row.config, vocab_size),
        data={"vocab_size": vocab_size},
        training={
            "max_minutes": float(max_minutes),
            "warmup_steps": warmup,
            # Keeps the peak learning rate of the row despite the shorter warm-up.
            "learning_rate_scale": round((warmup / training.warmup_steps) ** 0.5, 3),
            "checkpoint_every_steps": every,
            "checkpoint_every_minutes": 0.0,
            "keep_checkpoints": 10,
            "average_last": 10,
            "log_every_steps": min(100, 2 * every),
            "validate_every_steps": 4 * every,
            "validation_sentences": 200 if 0 < max_minutes <= 30 else 500,
            "patience": 10,
            # In a short run, the weights with the lowest loss may not translate best.
            "best_metric": "bleu",
        },
    )


def preset(name: str, **model_changes: Any) -> Config:
    """Returns the configuration called `name`.

    Args:
        name: a key of `PRESETS`.
        **model_changes: fields of its `ModelConfig` to change, for example
            `source_vocab_size=5000`.

    Raises:
        ValueError: for an unknown name; the message has similar names.
    """
    if name not in PRESETS:
        raise ValueError(unknown("There is no preset", name, [*PRESETS, "auto"]))
    return replace(PRESETS[name], model=model_changes)
