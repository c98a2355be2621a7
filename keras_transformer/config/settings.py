"""Every setting of a run, as frozen dataclasses that validate themselves.

Standard library only, so that a configuration can be read, checked and compared
without TensorFlow. Sizes are named as in Table 3 of "Attention Is All You Need"
(Vaswani et al., 2017); the defaults are the paper's base model.
"""

import dataclasses
import decimal
import difflib
import json
import math
import types
import typing

SHARING = ("all", "target_output", "none")
POSITIONS = ("interleaved", "halves", "learned")
SMOOTHING_FORMULAS = ("t2t", "uniform")
MODEL_TYPES = ("bpe", "unigram", "wordpiece")
PADDINGS = ("longest", "fixed")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
BEST_BY = ("loss", "bleu")
STRATEGIES = ("auto", "none", "mirrored", "multiworker")
CROSS_DEVICE_OPS = ("auto", "nccl", "hierarchical", "reduction", "ring")
LENGTH_PENALTIES = ("gnmt", "average", "none")
STOP_RULES = ("exact", "first")
LONG_LINES = ("split", "cut")
MAX_BEAM_SIZE = 1000
# Beyond every model that was ever trained: what is over them is a slip of the keyboard.
MAX_LAYERS = 1000
MAX_WEIGHTS = 10**12
# In float32: a weight, its gradient and Adam's two moments.
BYTES_IN_TRAINING = 16


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Ids of the four tokens that stand for no text; the same in every vocabulary."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes and choices of one model.

    Attributes:
        source_vocab_size: number of source tokens, special ids included.
        target_vocab_size: number of target tokens, special ids included.
        num_encoder_layers: N of the encoder.
        num_decoder_layers: N of the decoder (the paper has one N for both).
        d_model: width of embeddings and of every sublayer's output.
        d_ff: inner width of the feed-forward sublayers (section 3.3).
        num_heads: h of section 3.2.2.
        key_dim: d_k, width of each head's queries and keys; `None` is d_model / num_heads.
        value_dim: d_v, width of each head's values; `None` is d_model / num_heads.
        residual_dropout: rate on each sublayer's output (section 5.4).
        embedding_dropout: rate on the sums of embeddings and positions (section 5.4).
        attention_dropout: rate on attention weights (0 in the paper).
        relu_dropout: rate inside the feed-forward sublayers (0 in the paper).
        norm_first: LayerNorm before each sublayer, and after each stack, instead of
            the paper's LayerNorm(x + Sublayer(x)).
        layer_norm_epsilon: added to the variance.
        positions: `"interleaved"` sinusoids (the paper), `"halves"` (Tensor2Tensor)
            or `"learned"` (Table 3, row E).
        max_positions: number of learned positions; without effect on sinusoids.
        sharing: `"all"` for one matrix as source embedding, target embedding and
            output projection (the paper), `"target_output"` or `"none"`.
        attention_bias: biases in the attention projections (none in the paper).
        output_bias: bias on the logits (none in the paper).
    """

    source_vocab_size: int = 37_000
    target_vocab_size: int = 37_000
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    residual_dropout: float = 0.1
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.0
    relu_dropout: float = 0.0
    norm_first: bool = False
    layer_norm_epsilon: float = 1e-6
    positions: str = "interleaved"
    max_positions: int = 1024
    sharing: str = "all"
    attention_bias: bool = False
    output_bias: bool = False

    def __post_init__(self):
        _check_types(self)
        for name in (
            "source_vocab_size",
            "target_vocab_size",
            "num_encoder_layers",
            "num_decoder_layers",
            "d_model",
            "d_ff",
            "num_heads",
            "max_positions",
        ):
            _check(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("key_dim", "value_dim"):
            if getattr(self, name) is None and self.d_model % self.num_heads:
                raise ValueError(
                    f"`d_model` must be a multiple of `num_heads` when `{name}` is not given. "
                    f"Received: d_model={self.d_model}, num_heads={self.num_heads}"
                )
            if getattr(self, name) is not None:
                _check(self, name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "residual_dropout",
            "embedding_dropout",
            "attention_dropout",
            "relu_dropout",
        ):
            _check(self, name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        _check(self, "layer_norm_epsilon", self.layer_norm_epsilon > 0, "above 0")
        _check_choice(self, "positions", POSITIONS)
        _check_choice(self, "sharing", SHARING)
        if self.positions != "learned":
            _check(self, "d_model", self.d_model % 2 == 0, "even for sinusoidal positions")
        if self.positions == "halves":
            _check(self, "d_model", self.d_model >= 4, "at least 4 for `halves` positions")
        if self.sharing == "all" and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                "`sharing='all'` needs one vocabulary. Received: "
                f"source_vocab_size={self.source_vocab_size}, "
                f"target_vocab_size={self.target_vocab_size}"
            )
        for name in ("num_encoder_layers", "num_decoder_layers"):
            _check(self, name, getattr(self, name) <= MAX_LAYERS, f"at most {MAX_LAYERS:,}")
        number = self.num_weights
        if number > MAX_WEIGHTS:
            names = ("d_model", "d_ff", "num_encoder_layers", "num_decoder_layers", "target_vocab_size")
            received = ", ".join(f"{name}={_size(getattr(self, name))}" for name in names)
            needed = _size(BYTES_IN_TRAINING * number)
            raise ValueError(
                f"A model of {_size(number)} weights takes {needed} bytes to train; "
                f"{_size(MAX_WEIGHTS)} weights are the limit. Received: {received}"
            )

    @property
    def num_weights(self):
        """int, the elements of all matrices: what the model has but for biases and norms."""
        attention = 2 * self.d_model * self.num_heads * (self.d_key + self.d_value)
        feed_forward = 2 * self.d_model * self.d_ff
        tokens = {
            "all": self.target_vocab_size,
            "target_output": self.source_vocab_size + self.target_vocab_size,
            "none": self.source_vocab_size + 2 * self.target_vocab_size,
        }[self.sharing]
        tables = 1 if self.sharing == "all" else 2
        positions = tables * self.max_positions if self.positions == "learned" else 0
        return (
            self.num_encoder_layers * (attention + feed_forward)
            + self.num_decoder_layers * (2 * attention + feed_forward)
            + (tokens + positions) * self.d_model
        )

    @property
    def d_key(self):
        """d_k of the paper: `key_dim`, or d_model / num_heads."""
        return self.key_dim or self.d_model // self.num_heads

    @property
    def d_value(self):
        """d_v of the paper: `value_dim`, or d_model / num_heads."""
        return self.value_dim or self.d_model // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Where the sentences come from and how they become batches.

    Attributes:
        dataset: `cldr/SOURCE-TARGET` (built in), a folder or archive of parallel files,
            or `NAME/CONFIG` of TensorFlow Datasets; several with commas between.
        source: source language, also the ending of the source files.
        target: target language, also the ending of the target files.
        data_dir: folder of the prepared sets of TensorFlow Datasets and of unpacked
            archives; empty for TensorFlow Datasets' own.
        manual_dir: folder of files downloaded by hand, for TensorFlow Datasets.
        weights: how many times each dataset is seen in an epoch, `"1,2.5"`, also those
            that a prepared corpus was made of; empty for once each.
        temperature: T; a dataset of n pairs has a share of an epoch proportional to
            n ** (1 / T). 1 leaves them as they are.
        model_type: of the vocabulary: `"bpe"` (the paper's English-German), `"unigram"`
            or `"wordpiece"` (the paper's English-French).
        vocab_size: tokens of the vocabulary, special ids included.
        separate_vocabularies: one vocabulary of `vocab_size` tokens a language instead of
            one for both; `model.sharing` cannot be `"all"` then.
        vocab_texts: the vocabulary is learned from a uniform sample of so many sentences;
            0 for all of them.
        normalization: Unicode normalisation before encoding: `"nfc"`, `"nfkc"` or
            `"identity"`.
        split_digits: gives each digit a token of its own.
        max_length: longest sentence in training, in tokens, end of sentence included.
        batch_tokens: budget of one batch in padded tokens, for source and for target
            each (about 25,000 in the paper).
        padding: `"longest"` of the batch, or `"fixed"` for a small set of shapes.
        max_shapes: number of shapes of `"fixed"` padding.
        subword_dropout: sub-word regularisation in training: rate at which merges (BPE) or
            pieces are left out, anew in every epoch; 0 for none (the paper).
        on_bad_utf8: `"refuse"` or `"replace"`.
        service: `HOST:PORT` of a `tf.data` service that makes the batches; empty for none.
    """

    dataset: str = "cldr/en-de"
    source: str = "en"
    target: str = "de"
    data_dir: str = ""
    manual_dir: str = ""
    weights: str = ""
    temperature: float = 1.0
    model_type: str = "bpe"
    vocab_size: int = 37_000
    separate_vocabularies: bool = False
    vocab_texts: int = 10_000_000
    normalization: str = "nfc"
    split_digits: bool = False
    max_length: int = 256
    batch_tokens: int = 25_000
    padding: str = "longest"
    max_shapes: int = 16
    subword_dropout: float = 0.0
    on_bad_utf8: str = "refuse"
    service: str = ""

    def __post_init__(self):
        _check_types(self)
        _check(self, "vocab_size", self.vocab_size >= 8, "at least 8")
        _check(self, "max_length", self.max_length >= 2, "at least 2")
        _check_choice(self, "normalization", ("nfc", "nfkc", "identity"))
        _check_choice(self, "model_type", MODEL_TYPES)
        _check(self, "vocab_texts", self.vocab_texts >= 0, "at least 0")
        _check_choice(self, "padding", PADDINGS)
        _check(self, "max_shapes", self.max_shapes >= 1, "at least 1")
        _check(self, "subword_dropout", 0 <= self.subword_dropout < 1, "at least 0 and below 1")
        _check_choice(self, "on_bad_utf8", ("refuse", "replace"))
        if self.source == self.target:
            raise ValueError(f"`source` and `target` must be two languages. Received: {self.source!r} twice")
        _check(self, "temperature", self.temperature >= 1, "at least 1")
        if self.weights and self.temperature != 1:
            raise ValueError(
                "`weights` and `temperature` exclude each other. "
                f"Received: weights={self.weights!r}, temperature={self.temperature}"
            )
        if self.batch_tokens < 8 * self.max_length:
            raise ValueError(
                "`data.batch_tokens` must hold 8 sentences of `data.max_length` tokens. Received: "
                f"batch_tokens={self.batch_tokens}, max_length={self.max_length}; raise the first to "
                f"{8 * self.max_length} or lower the second to {max(self.batch_tokens // 8, 2)}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CleaningConfig:
    """Which pairs of the training text are left out, besides those over `data.max_length` tokens.

    The defaults are the paper's (Tensor2Tensor's): blank sides and length only.

    Attributes:
        drop_empty: drops pairs with a blank side.
        drop_damaged: drops pairs with U+FFFD, or with UTF-8 that was encoded twice (`Ã¤`).
        max_foreign_letters: largest share of the letters of a side that may be of other
            scripts than its language's; 1 for no limit.
        drop_identical: drops pairs of which both sides are the same text.
        min_length: shortest side, in tokens, end of sentence included; 1 for no limit.
        max_length_ratio: largest ratio of the longer side to the shorter one, in tokens,
            end of sentence included, once the longer has more than 10; 0 for no limit.
        drop_duplicates: drops all but the first of equal pairs.
    """

    drop_empty: bool = True
    drop_damaged: bool = False
    max_foreign_letters: float = 1.0
    drop_identical: bool = False
    min_length: int = 1
    max_length_ratio: float = 0.0
    drop_duplicates: bool = False

    def __post_init__(self):
        _check_types(self)
        _check(self, "max_foreign_letters", 0 <= self.max_foreign_letters <= 1, "from 0 to 1")
        _check(self, "min_length", self.min_length >= 1, "at least 1")
        _check(
            self,
            "max_length_ratio",
            self.max_length_ratio == 0 or self.max_length_ratio >= 1,
            "0 (no limit) or at least 1",
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How the model is trained (section 5).

    Attributes:
        max_steps: optimizer updates of the whole run.
        max_minutes: training stops after the step in which this time is reached;
            0 for no limit. Time of earlier parts of a resumed run counts.
        warmup_steps: warm-up of equation 3.
        learning_rate_scale: factor on equation 3 (1 in the paper).
        adam_beta_1: decay of Adam's first moment.
        adam_beta_2: decay of Adam's second moment.
        adam_epsilon: Adam's epsilon, outside the bias correction as in Keras.
        label_smoothing: epsilon_ls of section 5.4.
        smoothing_formula: `"t2t"` gives each wrong token epsilon / (V - 1),
            `"uniform"` gives every token epsilon / V.
        clip_norm: global norm to which gradients are clipped; 0 for none (the paper).
        precision: `"float32"`, `"mixed_bfloat16"`, or `"mixed_float16"` with loss scaling
            (one device only); positions, softmax and loss are float32 in all of them.
        max_skipped: a step whose gradient is not finite changes nothing but the step count; so
            many of them in a row end the run.
        log_every_steps: steps between progress lines and TensorBoard points.
        validate_every_steps: steps between validations (loss, perplexity, BLEU).
        validation_sentences: at most so many validation sentences are translated
            for the BLEU shown during training; 0 for none.
        validation_beam_size: beam of those translations; 1 is greedy, 0 is `search.beam_size`.
        best_by: what makes a validation better than another: `"loss"` (lower) or `"bleu"` (higher).
            Of the average, the last and the best weights, the best by this are delivered.
        early_stopping: training stops after so many validations that were no better than the
            best before them; 0 for never (the paper).
        checkpoint_every_steps: steps between checkpoints; 0 for none.
        checkpoint_every_minutes: minutes between checkpoints; 0 for none (10 in the
            paper).
        keep_checkpoints: so many newest checkpoints of the schedule are kept.
        keep_best: the weights of so many best validations are kept, too.
        ema_decay: decay of an exponential moving average of the weights, kept beside them;
            0 for none (the paper).
        init_from: run folder whose weights a new run starts from; empty for none.
        init_weights: which of its weights: `"final"`, `"averaged"`, `"last"`, `"best"`, ...
        init_vocabulary: takes its vocabulary, too; else the corpus' own, of which the pieces
            that both have keep their embeddings.
        average_last: so many newest checkpoints are averaged for inference (5 for the
            paper's base model, 20 for big): those of the schedule, from the end of the warm-up on.
        seed: of weights, dropout and data order.
    """

    max_steps: int = 100_000
    max_minutes: float = 0.0
    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    adam_beta_1: float = 0.9
    adam_beta_2: float = 0.98
    adam_epsilon: float = 1e-9
    label_smoothing: float = 0.1
    smoothing_formula: str = "t2t"
    clip_norm: float = 0.0
    precision: str = "float32"
    max_skipped: int = 20
    log_every_steps: int = 100
    validate_every_steps: int = 5000
    validation_sentences: int = 1000
    validation_beam_size: int = 0
    best_by: str = "loss"
    early_stopping: int = 0
    checkpoint_every_steps: int = 0
    checkpoint_every_minutes: float = 10.0
    keep_checkpoints: int = 20
    keep_best: int = 3
    ema_decay: float = 0.0
    init_from: str = ""
    init_weights: str = "final"
    init_vocabulary: bool = True
    average_last: int = 5
    seed: int = 1

    def __post_init__(self):
        _check_types(self)
        for name in (
            "max_steps",
            "warmup_steps",
            "max_skipped",
            "log_every_steps",
            "validate_every_steps",
            "keep_checkpoints",
            "average_last",
        ):
            _check(self, name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "max_minutes",
            "clip_norm",
            "validation_sentences",
            "validation_beam_size",
            "early_stopping",
            "checkpoint_every_steps",
            "checkpoint_every_minutes",
            "keep_best",
            "seed",
        ):
            _check(self, name, getattr(self, name) >= 0, "at least 0")
        for name in ("adam_beta_1", "adam_beta_2", "label_smoothing", "ema_decay"):
            _check(self, name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        for name in ("learning_rate_scale", "adam_epsilon"):
            _check(self, name, getattr(self, name) > 0, "above 0")
        _check_choice(self, "smoothing_formula", SMOOTHING_FORMULAS)
        _check_choice(self, "precision", PRECISIONS)
        _check_choice(self, "best_by", BEST_BY)
        if self.best_by == "bleu" and not self.validation_sentences:
            raise ValueError("`best_by='bleu'` needs translations. Received: validation_sentences=0")
        if self.average_last > self.keep_checkpoints:
            raise ValueError(
                "`average_last` must be at most `keep_checkpoints`. Received: "
                f"average_last={self.average_last}, keep_checkpoints={self.keep_checkpoints}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How translations are searched (section 6.1).

    Attributes:
        beam_size: hypotheses kept at each position; 1 is greedy search.
        alpha: exponent of the length penalty; 0 for none.
        length_penalty: what the log-probability of a hypothesis of n tokens is divided by:
            `"gnmt"`, ((5 + n) / 6) ** alpha (the paper's); `"average"`, n ** alpha; `"none"`.
        stop: `"exact"` ends a sentence when no better hypothesis can follow, `"first"` as
            soon as `beam_size` hypotheses have ended, which is faster and may lose better ones.
        extra_length: a translation has at most so many tokens more than its source, ...
        length_factor: ... times this, ends of sentence included, ...
        max_length: ... and never more than these.
        min_length: fewest tokens of a translation, end of sentence not counted.
        no_repeat_ngram: no so many tokens in a row occur twice in a translation; 0 for no
            such rule.
        n_best: translations of each sentence, at most `beam_size` unless sampled.
        sampling: draws each token at random in place of a search; `beam_size` is not used.
        temperature: logits are divided by it before a token is drawn.
        top_k: only so many most probable tokens are drawn from; 0 for all.
        top_p: only the fewest most probable tokens that together have this probability are
            drawn from; 1 for all.
        seed: of sampling.
        max_source_length: the longest source, in tokens, end of sentence included. The default
            is that of `data.max_length`: a model has not learned of positions beyond.
        long_lines: what becomes of longer ones: `"split"` at ends of sentences, or `"cut"`.
        batch_tokens: budget of one batch of source tokens, padding included.
    """

    beam_size: int = 4
    alpha: float = 0.6
    length_penalty: str = "gnmt"
    stop: str = "exact"
    extra_length: int = 50
    length_factor: float = 1.0
    max_length: int = 1024
    min_length: int = 0
    no_repeat_ngram: int = 0
    n_best: int = 1
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    max_source_length: int = 256
    long_lines: str = "split"
    batch_tokens: int = 2048

    def __post_init__(self):
        _check_types(self)
        _check(self, "beam_size", 1 <= self.beam_size <= MAX_BEAM_SIZE, f"from 1 to {MAX_BEAM_SIZE}")
        _check_choice(self, "length_penalty", LENGTH_PENALTIES)
        _check_choice(self, "stop", STOP_RULES)
        _check_choice(self, "long_lines", LONG_LINES)
        for name in ("extra_length", "max_length", "n_best", "batch_tokens"):
            _check(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("alpha", "length_factor", "min_length", "no_repeat_ngram", "top_k"):
            _check(self, name, getattr(self, name) >= 0, "at least 0")
        _check(self, "max_source_length", self.max_source_length >= 2, "at least 2")
        _check(self, "temperature", self.temperature > 0, "above 0")
        _check(self, "top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        _check(self, "seed", 0 <= self.seed < 2**63, "at least 0 and below 2 ** 63")
        if self.min_length >= self.max_length:
            raise ValueError(
                "`min_length` must be below `max_length`. Received: "
                f"min_length={self.min_length}, max_length={self.max_length}"
            )
        if self.n_best > self.beam_size and not self.sampling:
            raise ValueError(
                "`n_best` must be at most `beam_size` unless `sampling` is on. Received: "
                f"n_best={self.n_best}, beam_size={self.beam_size}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    """What the training runs on. It changes speed and rounding, not what is computed.

    Attributes:
        strategy: `"none"` for one device, `"mirrored"` for the GPUs of one machine,
            `"multiworker"` for the machines of `TF_CONFIG`; `"auto"` is multiworker where
            TF_CONFIG names several workers, mirrored where there are several GPUs, else none.
        replicas: number of GPUs of this machine that are used; 0 for all there are. Asking
            for more than there are is an error.
        cross_device_ops: how gradients are added up: `"nccl"`, `"hierarchical"` or
            `"reduction"` (to one device) within one machine, `"nccl"` or `"ring"` between
            machines; `"auto"` leaves it to TensorFlow.
        allow_cpu: takes logical CPU devices where GPUs are asked for and there are none.
        batch_tokens: budget of one device in padded tokens, for source and for target each.
            A batch of more than it has for all devices is cut into micro-batches, whose
            gradients are summed before the update. 0 for no limit.
        xla: compiles the training step with XLA; needs `data.padding="fixed"`.
        recompute: keeps only what enters each layer, and computes the rest again for the
            gradient: less memory for long sentences and many layers, about a fifth more time.
    """

    strategy: str = "auto"
    replicas: int = 0
    cross_device_ops: str = "auto"
    allow_cpu: bool = False
    batch_tokens: int = 0
    xla: bool = False
    recompute: bool = False

    def __post_init__(self):
        _check_types(self)
        _check_choice(self, "strategy", STRATEGIES)
        _check_choice(self, "cross_device_ops", CROSS_DEVICE_OPS)
        for name in ("replicas", "batch_tokens"):
            _check(self, name, getattr(self, name) >= 0, "at least 0")
        if self.strategy == "none" and self.replicas > 1:
            raise ValueError(
                "`strategy='none'` has one replica. Received: "
                f"replicas={self.replicas}; choose strategy='mirrored'"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """All settings of one run: what `config.json` of a run folder holds."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    cleaning: CleaningConfig = dataclasses.field(default_factory=CleaningConfig)
    devices: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)

    def __post_init__(self):
        _check_types(self)
        if 0 < self.devices.batch_tokens < self.data.max_length:
            raise ValueError(
                "`devices.batch_tokens` must hold a sentence of `data.max_length` tokens. Received: "
                f"batch_tokens={self.devices.batch_tokens}, max_length={self.data.max_length}"
            )
        if self.devices.xla and self.data.padding != "fixed":
            raise ValueError(
                "`devices.xla` compiles once for each shape and needs `data.padding='fixed'`. "
                f"Received: padding={self.data.padding!r}"
            )
        if self.cleaning.min_length > self.data.max_length:
            raise ValueError(
                "`cleaning.min_length` must be at most `data.max_length`. Received: "
                f"min_length={self.cleaning.min_length}, max_length={self.data.max_length}"
            )
        if self.model.positions == "learned" and self.data.max_length > self.model.max_positions:
            raise ValueError(
                "`data.max_length` must be at most `model.max_positions` with learned positions. "
                f"Received: max_length={self.data.max_length}, "
                f"max_positions={self.model.max_positions}"
            )


def replace(config, **changes):
    """Returns a copy of `config` with some fields changed.

    Raises:
        ValueError: for an unknown field (with the nearest name) or a refused value.
    """
    known = [field.name for field in dataclasses.fields(config)]
    for name in changes:
        if name not in known:
            raise ValueError(_unknown(f"{type(config).__name__} has no field", name, known))
    return dataclasses.replace(config, **changes)


def override(config, assignments):
    """Returns a copy of `config` with settings given as text.

    Args:
        config: a `Config`.
        assignments: iterable of `"section.field=value"`, as after `--set`.

    Raises:
        ValueError: for a malformed assignment, an unknown section or field (with the
            nearest name), or a value of the wrong type or range.
    """
    changes = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            raise ValueError(_expected(config, assignment))
        sections = [field.name for field in dataclasses.fields(config)]
        if section not in sections:
            raise ValueError(_unknown("No section", section, sections))
        part = getattr(config, section)
        known = [field.name for field in dataclasses.fields(part)]
        if name not in known:
            raise ValueError(_unknown(f"{type(part).__name__} has no field", name, known))
        wanted = typing.get_type_hints(type(part))[name]
        changes.setdefault(section, {})[name] = _parse(f"{section}.{name}", text.strip(), wanted)
    # One replacement a section: settings that must agree are checked together.
    return replace(
        config,
        **{section: replace(getattr(config, section), **new) for section, new in changes.items()},
    )


def to_json(config):
    """Returns `config` as indented JSON text."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text):
    """Returns the `Config` that `to_json` wrote.

    Raises:
        ValueError: for text that is not JSON, unknown fields, or refused values.
    """
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    return from_dict(values)


def from_dict(values):
    """Returns the `Config` of a dict of sections, as `dataclasses.asdict` makes it.

    Raises:
        ValueError: for unknown fields, or refused values.
    """
    return _from_dict(Config, values)


def differences(old, new):
    """Lists the settings in which two configurations differ.

    Returns:
        list of `(path, old value, new value)`, for example
        `("model.d_model", 512, 1024)`.
    """
    found = []
    for section in dataclasses.fields(old):
        a, b = getattr(old, section.name), getattr(new, section.name)
        for field in dataclasses.fields(a):
            before, after = getattr(a, field.name), getattr(b, field.name)
            if before != after:
                found.append((f"{section.name}.{field.name}", before, after))
    return found


def _from_dict(cls, values):
    if not isinstance(values, dict):
        raise ValueError(f"{cls.__name__} must be a JSON object. Received: {values!r}")
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            raise ValueError(_unknown(f"{cls.__name__} has no field", name, list(hints)))
    return cls(
        **{
            name: _from_dict(hints[name], value) if dataclasses.is_dataclass(hints[name]) else value
            for name, value in values.items()
        }
    )


def _unknown(what, name, known):
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}"
    return f"{what} {name!r}. {hint}"


def _expected(config, assignment):
    """What to say of an assignment without a section, or without a value."""
    name = assignment.partition("=")[0].strip()
    paths = {
        field.name: f"{section.name}.{field.name}"
        for section in dataclasses.fields(config)
        for field in dataclasses.fields(getattr(config, section.name))
    }
    near = difflib.get_close_matches(name, paths, n=1)
    hint = f". Did you mean {paths[near[0]]}?" if near else ""
    return f"Expected section.field=value. Received: {assignment!r}{hint}"


def _parse(path, text, wanted):
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if type(None) in options and text.lower() == "none":
        return None
    kind = next(option for option in options if option is not type(None))
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"`{path}` must be true or false. Received: {text!r}")
    try:
        return kind(text.replace("_", "")) if kind is int else kind(text)
    except ValueError:
        name = {int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"`{path}` must be {name}. Received: {text!r}") from None


def _check_types(config):
    for name, wanted in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
        if float in options and type(value) is int:
            continue
        # `True` is an int to Python; as a number of layers it is a mistake.
        if type(value) not in options:
            names = " or ".join("None" if o is type(None) else o.__name__ for o in options)
            raise ValueError(f"`{name}` of {type(config).__name__} must be {names}. Received: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"`{name}` of {type(config).__name__} must be finite. Received: {value!r}")


def _size(number):
    """A number as `1.2e+13`, also one that no float can hold."""
    return f"{number:,}" if number < 10**9 else f"{decimal.Decimal(number):.2g}"


def _check(config, name, holds, wanted):
    if not holds:
        raise ValueError(
            f"`{name}` of {type(config).__name__} must be {wanted}. Received: {name}={getattr(config, name)}"
        )


def _check_choice(config, name, choices):
    value = getattr(config, name)
    if value not in choices:
        known = f" Known: {', '.join(map(str, choices))}"
        text = _unknown(f"`{name}` of {type(config).__name__} cannot be", value, list(choices))
        raise ValueError(text if known in text else text + known)
