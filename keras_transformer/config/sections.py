"""Every setting of a run, said once: default, meaning and range. A class for each part of a run."""

import decimal

from keras_transformer.config.fields import choice, require, section, setting

# Settings of `data` that a vocabulary has decided once it is there.
VOCABULARY = ("model_type", "vocab_size", "separate_vocabularies", "normalization", "split_digits")
# Beyond every model that was ever trained: more is a slip of the keyboard.
MAX_LAYERS = 1000
MAX_WEIGHTS = 10**12
# In float32: a weight, its gradient and Adam's two moments.
BYTES_IN_TRAINING = 16
# Numbers that a batch may hold in caches and logits at once: two gigabytes of float32. A budget
# of source tokens alone would put a thousand lines of one word, each with beams, into a batch.
MAX_NUMBERS_IN_SEARCH = 2**29


@section("Sizes and choices of one model, named as in Table 3 of the paper; the defaults are its base model.")
class ModelConfig:
    source_vocab_size: int = setting(37_000, "number of source tokens, special ids included", at_least=1)
    target_vocab_size: int = setting(37_000, "number of target tokens, special ids included", at_least=1)
    num_encoder_layers: int = setting(6, "N of the encoder", at_least=1)
    num_decoder_layers: int = setting(6, "N of the decoder (the paper has one N for both)", at_least=1)
    d_model: int = setting(512, "width of embeddings and of every sublayer's output", at_least=1)
    d_ff: int = setting(2048, "inner width of the feed-forward sublayers (section 3.3)", at_least=1)
    num_heads: int = setting(8, "h of section 3.2.2", at_least=1)
    key_dim: int | None = setting(None, "d_k, width of queries and keys; `None` is d_model / h", at_least=1)
    value_dim: int | None = setting(None, "d_v, width of values; `None` is d_model / h", at_least=1)
    residual_dropout: float = setting(0.1, "rate on sublayers' outputs (section 5.4)", at_least=0, below=1)
    embedding_dropout: float = setting(
        0.1, "rate on the sums of embeddings and positions (section 5.4)", at_least=0, below=1
    )
    attention_dropout: float = setting(0.0, "rate on attention weights (0 in the paper)", at_least=0, below=1)
    relu_dropout: float = setting(0.0, "rate after the ReLU (0 in the paper)", at_least=0, below=1)
    norm_first: bool = setting(
        False, "LayerNorm before each sublayer and after each stack; the paper has LayerNorm(x + Sublayer(x))"
    )
    layer_norm_epsilon: float = setting(1e-6, "added to the variance", above=0)
    positions: str = choice(
        "interleaved",
        '`"interleaved"` sinusoids (the paper), `"halves"` (Tensor2Tensor) or `"learned"` (Table 3, row E)',
    )
    max_positions: int = setting(1024, "number of learned positions; without effect on sinusoids", at_least=1)
    tie_embeddings: str = choice(
        "all",
        'one matrix for source embedding, target embedding and logits: `"all"` (the paper); for the last '
        'two: `"decoder"`; or `"none"`',
        renamed_from="sharing",
        old_values={"target_output": "decoder"},
    )
    attention_bias: bool = setting(False, "biases in the attention projections (none in the paper)")
    output_bias: bool = setting(False, "bias on the logits (none in the paper)")

    def __post_init__(self):
        d_model = self.d_model
        for name in ("key_dim", "value_dim"):
            demand = f"`d_model` must be a multiple of `num_heads` when `{name}` is not given"
            holds = getattr(self, name) is not None or d_model % self.num_heads == 0
            require(holds, demand, d_model=d_model, num_heads=self.num_heads)
        if self.positions != "learned":
            require(d_model % 2 == 0, "`d_model` must be even for sinusoidal positions", d_model=d_model)
        if self.positions == "halves":
            require(d_model >= 4, "`d_model` must be at least 4 for `halves` positions", d_model=d_model)
        sizes = {name: getattr(self, name) for name in ("source_vocab_size", "target_vocab_size")}
        one_size = len(set(sizes.values())) == 1
        require(
            self.tie_embeddings != "all" or one_size, "`tie_embeddings='all'` needs one vocabulary", **sizes
        )
        for name in ("num_encoder_layers", "num_decoder_layers"):
            layers = {name: getattr(self, name)}
            require(layers[name] <= MAX_LAYERS, f"`{name}` must be at most {MAX_LAYERS:,}", **layers)
        number = self.num_weights
        if number > MAX_WEIGHTS:
            names = ("d_model", "d_ff", "num_encoder_layers", "num_decoder_layers", "target_vocab_size")
            received = ", ".join(f"{name}={_size(getattr(self, name))}" for name in names)
            raise ValueError(
                f"A model of {_size(number)} weights takes {_size(BYTES_IN_TRAINING * number)} bytes to "
                f"train; {_size(MAX_WEIGHTS)} weights are the limit. Received: {received}"
            )

    @property
    def d_key(self):
        """d_k of the paper: `key_dim`, or d_model / num_heads."""
        return self.key_dim or self.d_model // self.num_heads

    @property
    def d_value(self):
        """d_v of the paper: `value_dim`, or d_model / num_heads."""
        return self.value_dim or self.d_model // self.num_heads

    @property
    def num_weights(self):
        """int, the elements of all matrices: what the model has but for biases and norms."""
        attention = 2 * self.d_model * self.num_heads * (self.d_key + self.d_value)
        feed_forward = 2 * self.d_model * self.d_ff
        tokens = {
            "all": self.target_vocab_size,
            "decoder": self.source_vocab_size + self.target_vocab_size,
            "none": self.source_vocab_size + 2 * self.target_vocab_size,
        }[self.tie_embeddings]
        tables = 1 if self.tie_embeddings == "all" else 2
        positions = tables * self.max_positions if self.positions == "learned" else 0
        return (
            self.num_encoder_layers * (attention + feed_forward)
            + self.num_decoder_layers * (2 * attention + feed_forward)
            + (tokens + positions) * self.d_model
        )

    def numbers_in_search(self, tokens, search):
        """Returns how many numbers the search for one sentence holds at once, in caches and logits.

        Args:
            tokens: int, length of the source, end of sentence included.
            search: `SearchConfig`.
        """
        length = min(tokens * search.max_length_ratio + search.max_length_offset, search.max_length)
        hypotheses = search.n_best if search.sampling else search.beam_size
        width = self.num_heads * (self.d_key + self.d_value)
        caches = 2 * self.num_decoder_layers * width * (length + tokens)
        return hypotheses * (caches + 4 * self.target_vocab_size) + 2 * self.num_heads * tokens**2


@section("Where the sentences come from and how they become batches.")
class DataConfig:
    dataset: str = setting(
        "cldr/en-de",
        "`cldr/SOURCE-TARGET` (built in), a folder or archive of parallel files, or `NAME/CONFIG` of "
        "TensorFlow Datasets; several with commas between",
    )
    source: str = setting("en", "source language, also the ending of the source files")
    target: str = setting("de", "target language, also the ending of the target files")
    data_dir: str = setting(
        "", "folder of TensorFlow Datasets' prepared sets and of unpacked archives; empty for the default one"
    )
    manual_dir: str = setting("", "folder of files downloaded by hand, for TensorFlow Datasets")
    dataset_weights: str = setting(
        "",
        'passes over each dataset (or part of a prepared corpus) in an epoch, such as `"1,2.5"`; empty: one',
        renamed_from="weights",
    )
    temperature: float = setting(
        1.0, "T: n pairs have a share of an epoch proportional to n ** (1 / T); 1 keeps their own", at_least=1
    )
    model_type: str = choice(
        "bpe",
        'of the vocabulary: `"bpe"` (the paper\'s English-German), `"unigram"` or `"wordpiece"` (the '
        "paper's English-French)",
    )
    vocab_size: int = setting(37_000, "tokens of the vocabulary, special ids included", at_least=8)
    separate_vocabularies: bool = setting(
        False, 'a vocabulary of `vocab_size` tokens a language; `model.tie_embeddings` cannot be `"all"` then'
    )
    vocab_texts: int = setting(
        10_000_000, "sentences, drawn uniformly, that the vocabulary is learned from; 0 for all", at_least=0
    )
    normalization: str = choice(
        "nfc", 'Unicode normalisation before encoding: `"nfc"`, `"nfkc"` or `"identity"`'
    )
    split_digits: bool = setting(False, "gives each digit a token of its own")
    max_length: int = setting(256, "longest sentence in training, in tokens, its end included", at_least=2)
    batch_tokens: int = setting(
        25_000, "padded tokens of one batch, of source and target each (about 25,000 in the paper)"
    )
    padding: str = choice("longest", '`"longest"` of the batch, or `"fixed"` for a small set of shapes')
    max_shapes: int = setting(16, 'number of shapes of `"fixed"` padding', at_least=1)
    subword_dropout: float = setting(
        0.0, "rate of merges (BPE) or pieces left out, drawn again each epoch; 0: none", at_least=0, below=1
    )
    on_bad_utf8: str = choice("refuse", '`"refuse"` or `"replace"`')

    def __post_init__(self):
        if self.source == self.target:
            raise ValueError(f"`source` and `target` must be two languages. Received: {self.source!r} twice")
        alternatives = {"dataset_weights": self.dataset_weights, "temperature": self.temperature}
        exclusive = not self.dataset_weights or self.temperature == 1
        require(exclusive, "`dataset_weights` and `temperature` exclude each other", **alternatives)
        if self.batch_tokens < 8 * self.max_length:
            raise ValueError(
                "`data.batch_tokens` must hold 8 sentences of `data.max_length` tokens. Received: "
                f"batch_tokens={self.batch_tokens}, max_length={self.max_length}; raise the first to "
                f"{8 * self.max_length} or lower the second to {max(self.batch_tokens // 8, 2)}"
            )


@section(
    "Which pairs of the training text are left out, besides those over `data.max_length` tokens.\n\n"
    "The defaults are the paper's (Tensor2Tensor's): blank sides and length only."
)
class CleaningConfig:
    drop_empty: bool = setting(True, "drops pairs with a blank side")
    drop_damaged: bool = setting(False, "drops pairs with U+FFFD, or with UTF-8 encoded twice (`Ã¤`)")
    max_foreign_letters: float = setting(
        1.0, "largest share of letters of foreign scripts on a side; 1 for no limit", at_least=0, at_most=1
    )
    drop_identical: bool = setting(False, "drops pairs whose two sides are the same text")
    min_length: int = setting(1, "shortest side, in tokens, its end included; 1 for no limit", at_least=1)
    max_length_ratio: float = setting(
        0.0, "largest ratio of the sides' tokens, once the longer has more than 10; 0 for no limit"
    )
    drop_duplicates: bool = setting(False, "drops all but the first of equal pairs")

    def __post_init__(self):
        ratio = self.max_length_ratio
        demand = "`max_length_ratio` of CleaningConfig must be 0 (no limit) or at least 1"
        require(ratio == 0 or ratio >= 1, demand, max_length_ratio=ratio)


@section("How the model is trained (section 5).")
class TrainingConfig:
    max_steps: int = setting(100_000, "optimizer updates of the whole run", at_least=1)
    max_minutes: float = setting(
        0.0, "training time, that of resumed parts included, after which it stops; 0: no limit", at_least=0
    )
    warmup_steps: int = setting(4000, "warm-up of equation 3", at_least=1)
    learning_rate_scale: float = setting(1.0, "factor on equation 3 (1 in the paper)", above=0)
    adam_beta_1: float = setting(0.9, "decay of Adam's first moment", at_least=0, below=1)
    adam_beta_2: float = setting(0.98, "decay of Adam's second moment", at_least=0, below=1)
    adam_epsilon: float = setting(1e-9, "Adam's epsilon, outside the bias correction as in Keras", above=0)
    label_smoothing: float = setting(0.1, "epsilon_ls of section 5.4", at_least=0, below=1)
    smoothing_formula: str = choice(
        "t2t", '`"t2t"` gives each wrong token epsilon / (V - 1), `"uniform"` gives every token epsilon / V'
    )
    clip_norm: float = setting(0.0, "global norm to clip gradients to; 0 for none (the paper)", at_least=0)
    precision: str = choice(
        "float32",
        '`"float32"`, `"mixed_bfloat16"`, or `"mixed_float16"` with loss scaling (one device only); '
        "positions, softmax and loss are float32 in all of them",
    )
    max_nonfinite_steps: int = setting(
        20,
        "n steps in a row whose gradient is not finite end the run; fewer are skipped",
        renamed_from="max_skipped",
        at_least=1,
    )
    log_every_steps: int = setting(100, "steps between progress lines and TensorBoard points", at_least=1)
    validate_every_steps: int = setting(5000, "steps between validations", at_least=1)
    validation_sentences: int = setting(
        1000, "at most n validation sentences are translated for BLEU in training; 0 for none", at_least=0
    )
    validation_beam_size: int = setting(0, "beam for them; 1: greedy, 0: `search.beam_size`", at_least=0)
    best_metric: str = choice(
        "loss",
        'validation `"loss"` or `"bleu"`: of the average, the last and the best weights, the best by this '
        "metric are delivered",
        renamed_from="best_by",
    )
    patience: int = setting(
        0,
        "training stops after n validations without a new best; 0 for never (the paper)",
        renamed_from="early_stopping",
        at_least=0,
    )
    checkpoint_every_steps: int = setting(0, "steps between checkpoints; 0 for none", at_least=0)
    checkpoint_every_minutes: float = setting(
        10.0, "minutes between checkpoints; 0 for none (10 in the paper)", at_least=0
    )
    keep_checkpoints: int = setting(20, "the n newest checkpoints of the schedule are kept", at_least=1)
    keep_best: int = setting(3, "the weights of the n best validations are kept, too", at_least=0)
    ema_decay: float = setting(
        0.0, "decay of an exponential moving average of the weights; 0 for none", at_least=0, below=1
    )
    init_from: str = setting("", "run folder whose weights a new run starts from; empty for none")
    init_checkpoint: str = setting(
        "final",
        'which of them: `"final"`, `"averaged"`, `"last"`, `"best"`, ...',
        renamed_from="init_weights",
    )
    init_vocabulary: bool = setting(
        True, "takes its vocabulary, too; else the corpus' own, where shared pieces keep their embeddings"
    )
    average_last: int = setting(
        5, "the n newest scheduled checkpoints after the warm-up are averaged (paper: 5, big 20)", at_least=1
    )
    seed: int = setting(1, "of weights, dropout and data order", at_least=0)

    def __post_init__(self):
        if self.best_metric == "bleu":
            demand = "`best_metric='bleu'` needs translations"
            require(self.validation_sentences, demand, validation_sentences=self.validation_sentences)
        kept = {name: getattr(self, name) for name in ("average_last", "keep_checkpoints")}
        demand = "`average_last` must be at most `keep_checkpoints`"
        require(self.average_last <= self.keep_checkpoints, demand, **kept)


@section("How translations are searched (section 6.1).")
class SearchConfig:
    beam_size: int = setting(4, "hypotheses kept at each position; 1 is greedy", at_least=1, at_most=1000)
    alpha: float = setting(0.6, "exponent of the length penalty; 0 for none", at_least=0)
    length_penalty: str = choice(
        "gnmt",
        'divisor of the log-probability of a hypothesis of n tokens: `"gnmt"`, ((5 + n) / 6) ** alpha '
        '(the paper\'s); `"average"`, n ** alpha; `"none"`',
    )
    early_stop: bool = setting(
        False,
        "ends a sentence as soon as `beam_size` hypotheses have ended: faster, may miss better ones. Without "
        "it a sentence ends when no better hypothesis can follow",
        renamed_from="stop",
        old_values={"exact": False, "first": True},
    )
    max_length_offset: int = setting(
        50,
        "a translation has at most `max_length_ratio` * source length + n tokens (section 6.1: input + 50)",
        renamed_from="extra_length",
        at_least=1,
    )
    max_length_ratio: float = setting(
        1.0, "factor on the source length in that limit", renamed_from="length_factor", at_least=0
    )
    max_length: int = setting(1024, "limit of every translation, in tokens", at_least=1)
    min_length: int = setting(0, "fewest tokens of a translation, end of sentence not counted", at_least=0)
    no_repeat_ngram: int = setting(0, "forbids repeating any n-gram of this size; 0 disables", at_least=0)
    n_best: int = setting(1, "translations of each sentence, at most `beam_size` unless sampled", at_least=1)
    sampling: bool = setting(False, "draws tokens at random instead of searching; without `beam_size`")
    temperature: float = setting(1.0, "of sampling: logits are divided by it", above=0)
    top_k: int = setting(0, "of sampling: draws from the n most probable tokens; 0 for all", at_least=0)
    top_p: float = setting(
        1.0, "of sampling: draws from the fewest tokens that together have it; 1 for all", above=0, at_most=1
    )
    seed: int = setting(1, "of sampling", at_least=0, below=2**63)
    max_source_length: int = setting(
        256,
        "longest source in tokens, by default as in training: positions beyond are untrained",
        at_least=2,
    )
    long_lines: str = choice("split", 'longer sources: `"split"` at ends of sentences, or `"cut"` off')
    batch_tokens: int = setting(2048, "budget of one batch of source tokens, padding included", at_least=1)

    def __post_init__(self):
        lengths = {"min_length": self.min_length, "max_length": self.max_length}
        require(self.min_length < self.max_length, "`min_length` must be below `max_length`", **lengths)
        sizes = {"n_best": self.n_best, "beam_size": self.beam_size}
        demand = "`n_best` must be at most `beam_size` unless `sampling` is on"
        require(self.n_best <= self.beam_size or self.sampling, demand, **sizes)


LENGTH_PENALTIES = SearchConfig.__dataclass_fields__["length_penalty"].metadata["choices"]


@section("What the training runs on. It changes speed and rounding, not what is computed.")
class DeviceConfig:
    strategy: str = choice(
        "auto",
        '`"none"` for one device, `"mirrored"` for the GPUs of one machine, `"multiworker"` for the machines '
        'of `TF_CONFIG`; `"auto"` chooses by TF_CONFIG and the number of GPUs',
    )
    replicas: int = setting(0, "number of GPUs of this machine; 0 for all, more is an error", at_least=0)
    cross_device_ops: str = choice(
        "auto",
        'how gradients are added up: `"nccl"`, `"hierarchical"` or `"reduction"` (to one device) within '
        'one machine, `"nccl"` or `"ring"` between machines; `"auto"` leaves it to TensorFlow',
    )
    allow_cpu: bool = setting(False, "takes logical CPU devices where GPUs are asked for and there are none")
    micro_batch_tokens: int = setting(
        0,
        "padded tokens of one device, of source and target each; larger batches are cut into "
        "micro-batches, whose gradients are summed before the update. 0 for no limit",
        renamed_from="batch_tokens",
        at_least=0,
    )
    xla: bool = setting(False, 'compiles the training step with XLA; needs `data.padding="fixed"`')
    recompute: bool = setting(
        False,
        "keeps only the inputs of each layer and computes the rest again for the gradient: less memory for "
        "long sentences and many layers, about a fifth more time",
    )

    def __post_init__(self):
        demand = "`strategy='none'` has one replica; choose strategy='mirrored'"
        require(self.strategy != "none" or self.replicas <= 1, demand, replicas=self.replicas)


def _size(number):
    """A number as `1.2e+13`, also one that no float can hold."""
    return f"{number:,}" if number < 10**9 else f"{decimal.Decimal(number):.2g}"
