"""Settings of data, cleaning, training, search and devices: default, meaning and range, each said once."""

from keras_transformer.config.fields import require, section, setting

LENGTH_PENALTIES = ("gnmt", "average", "none")
# Settings of `data` that a vocabulary has decided once it is there.
VOCABULARY = ("model_type", "vocab_size", "separate_vocabularies", "normalization", "split_digits")


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
        "",
        "folder of the prepared sets of TensorFlow Datasets and of unpacked archives; empty for "
        "TensorFlow Datasets' own",
    )
    manual_dir: str = setting("", "folder of files downloaded by hand, for TensorFlow Datasets")
    weights: str = setting(
        "",
        'how many times each dataset is seen in an epoch, `"1,2.5"`, also those that a prepared corpus '
        "was made of; empty for once each",
    )
    temperature: float = setting(
        1.0,
        "T; a dataset of n pairs has a share of an epoch proportional to n ** (1 / T). 1 leaves them as "
        "they are",
        at_least=1,
    )
    model_type: str = setting(
        "bpe",
        'of the vocabulary: `"bpe"` (the paper\'s English-German), `"unigram"` or `"wordpiece"` (the '
        "paper's English-French)",
        choices=("bpe", "unigram", "wordpiece"),
    )
    vocab_size: int = setting(37_000, "tokens of the vocabulary, special ids included", at_least=8)
    separate_vocabularies: bool = setting(
        False,
        "one vocabulary of `vocab_size` tokens a language instead of one for both; `model.sharing` cannot"
        ' be `"all"` then',
    )
    vocab_texts: int = setting(
        10_000_000,
        "the vocabulary is learned from a uniform sample of n sentences; 0 for all of them",
        at_least=0,
    )
    normalization: str = setting(
        "nfc",
        'Unicode normalisation before encoding: `"nfc"`, `"nfkc"` or `"identity"`',
        choices=("nfc", "nfkc", "identity"),
    )
    split_digits: bool = setting(False, "gives each digit a token of its own")
    max_length: int = setting(
        256, "longest sentence in training, in tokens, end of sentence included", at_least=2
    )
    batch_tokens: int = setting(
        25_000,
        "budget of one batch in padded tokens, for source and for target each (about 25,000 in the paper)",
    )
    padding: str = setting(
        "longest",
        '`"longest"` of the batch, or `"fixed"` for a small set of shapes',
        choices=("longest", "fixed"),
    )
    max_shapes: int = setting(16, 'number of shapes of `"fixed"` padding', at_least=1)
    subword_dropout: float = setting(
        0.0,
        "sub-word regularisation in training: rate at which merges (BPE) or pieces are left out, drawn "
        "again in every epoch; 0 for none (the paper)",
        at_least=0,
        below=1,
    )
    on_bad_utf8: str = setting("refuse", '`"refuse"` or `"replace"`', choices=("refuse", "replace"))

    def __post_init__(self):
        if self.source == self.target:
            raise ValueError(f"`source` and `target` must be two languages. Received: {self.source!r} twice")
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


@section(
    "Which pairs of the training text are left out, besides those over `data.max_length` tokens.\n\n"
    "The defaults are the paper's (Tensor2Tensor's): blank sides and length only."
)
class CleaningConfig:
    drop_empty: bool = setting(True, "drops pairs with a blank side")
    drop_damaged: bool = setting(
        False, "drops pairs with U+FFFD, or with UTF-8 that was encoded twice (`Ã¤`)"
    )
    max_foreign_letters: float = setting(
        1.0,
        "largest share of the letters of a side that may be of other scripts than its language's; 1 for "
        "no limit",
        at_least=0,
        at_most=1,
    )
    drop_identical: bool = setting(False, "drops pairs whose two sides are the same text")
    min_length: int = setting(
        1, "shortest side, in tokens, end of sentence included; 1 for no limit", at_least=1
    )
    max_length_ratio: float = setting(
        0.0,
        "largest ratio of the longer side to the shorter one, in tokens, end of sentence included, once "
        "the longer has more than 10; 0 for no limit",
    )
    drop_duplicates: bool = setting(False, "drops all but the first of equal pairs")

    def __post_init__(self):
        ratio = self.max_length_ratio
        require(self, "max_length_ratio", ratio == 0 or ratio >= 1, "0 (no limit) or at least 1")


@section("How the model is trained (section 5).")
class TrainingConfig:
    max_steps: int = setting(100_000, "optimizer updates of the whole run", at_least=1)
    max_minutes: float = setting(
        0.0,
        "training stops after the step in which this time is reached; 0 for no limit. Time of earlier "
        "parts of a resumed run counts",
        at_least=0,
    )
    warmup_steps: int = setting(4000, "warm-up of equation 3", at_least=1)
    learning_rate_scale: float = setting(1.0, "factor on equation 3 (1 in the paper)", above=0)
    adam_beta_1: float = setting(0.9, "decay of Adam's first moment", at_least=0, below=1)
    adam_beta_2: float = setting(0.98, "decay of Adam's second moment", at_least=0, below=1)
    adam_epsilon: float = setting(1e-9, "Adam's epsilon, outside the bias correction as in Keras", above=0)
    label_smoothing: float = setting(0.1, "epsilon_ls of section 5.4", at_least=0, below=1)
    smoothing_formula: str = setting(
        "t2t",
        '`"t2t"` gives each wrong token epsilon / (V - 1), `"uniform"` gives every token epsilon / V',
        choices=("t2t", "uniform"),
    )
    clip_norm: float = setting(
        0.0, "global norm to which gradients are clipped; 0 for none (the paper)", at_least=0
    )
    precision: str = setting(
        "float32",
        '`"float32"`, `"mixed_bfloat16"`, or `"mixed_float16"` with loss scaling (one device only); '
        "positions, softmax and loss are float32 in all of them",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    max_skipped: int = setting(
        20,
        "a step whose gradient is not finite changes nothing but the step count; n of them in a row end "
        "the run",
        at_least=1,
    )
    log_every_steps: int = setting(100, "steps between progress lines and TensorBoard points", at_least=1)
    validate_every_steps: int = setting(
        5000, "steps between validations (loss, perplexity, BLEU)", at_least=1
    )
    validation_sentences: int = setting(
        1000,
        "at most n validation sentences are translated for the BLEU shown during training; 0 for none",
        at_least=0,
    )
    validation_beam_size: int = setting(
        0, "beam of those translations; 1 is greedy, 0 is `search.beam_size`", at_least=0
    )
    best_by: str = setting(
        "loss",
        'measure by which validations are compared: `"loss"` (lower is better) or `"bleu"` (higher is '
        "better). Of the average, the last and the best weights, the best by this are delivered",
        choices=("loss", "bleu"),
    )
    early_stopping: int = setting(
        0,
        "training stops after n validations that were no better than the best before them; 0 for never "
        "(the paper)",
        at_least=0,
    )
    checkpoint_every_steps: int = setting(0, "steps between checkpoints; 0 for none", at_least=0)
    checkpoint_every_minutes: float = setting(
        10.0, "minutes between checkpoints; 0 for none (10 in the paper)", at_least=0
    )
    keep_checkpoints: int = setting(20, "the n newest checkpoints of the schedule are kept", at_least=1)
    keep_best: int = setting(3, "the weights of the n best validations are kept, too", at_least=0)
    ema_decay: float = setting(
        0.0,
        "decay of an exponential moving average of the weights, kept beside them; 0 for none (the paper)",
        at_least=0,
        below=1,
    )
    init_from: str = setting("", "run folder whose weights a new run starts from; empty for none")
    init_weights: str = setting(
        "final", 'which of its weights: `"final"`, `"averaged"`, `"last"`, `"best"`, ...'
    )
    init_vocabulary: bool = setting(
        True,
        "takes its vocabulary, too; else the corpus' own, and pieces that both have keep their embeddings",
    )
    average_last: int = setting(
        5,
        "the n newest checkpoints are averaged for inference (5 for the paper's base model, 20 for big): "
        "those of the schedule, from the end of the warm-up on",
        at_least=1,
    )
    seed: int = setting(1, "of weights, dropout and data order", at_least=0)

    def __post_init__(self):
        if self.best_by == "bleu" and not self.validation_sentences:
            raise ValueError("`best_by='bleu'` needs translations. Received: validation_sentences=0")
        if self.average_last > self.keep_checkpoints:
            raise ValueError(
                "`average_last` must be at most `keep_checkpoints`. Received: "
                f"average_last={self.average_last}, keep_checkpoints={self.keep_checkpoints}"
            )


@section("How translations are searched (section 6.1).")
class SearchConfig:
    beam_size: int = setting(
        4, "hypotheses kept at each position; 1 is greedy search", at_least=1, at_most=1000
    )
    alpha: float = setting(0.6, "exponent of the length penalty; 0 for none", at_least=0)
    length_penalty: str = setting(
        "gnmt",
        'divisor of the log-probability of a hypothesis of n tokens: `"gnmt"`, ((5 + n) / 6) ** alpha '
        '(the paper\'s); `"average"`, n ** alpha; `"none"`',
        choices=LENGTH_PENALTIES,
    )
    stop: str = setting(
        "exact",
        '`"exact"` ends a sentence when no better hypothesis can follow, `"first"` as soon as `beam_size`'
        " hypotheses have ended, which is faster and may lose better ones",
        choices=("exact", "first"),
    )
    extra_length: int = setting(
        50, "a translation has at most n tokens more than its source, ...", at_least=1
    )
    length_factor: float = setting(1.0, "... times this, ends of sentence included, ...", at_least=0)
    max_length: int = setting(1024, "... and never more than this", at_least=1)
    min_length: int = setting(0, "fewest tokens of a translation, end of sentence not counted", at_least=0)
    no_repeat_ngram: int = setting(
        0, "forbids repeating any n-gram of this size in a translation; 0 disables", at_least=0
    )
    n_best: int = setting(1, "translations of each sentence, at most `beam_size` unless sampled", at_least=1)
    sampling: bool = setting(
        False, "draws each token at random instead of searching; `beam_size` is not used"
    )
    temperature: float = setting(
        1.0, "of sampling: logits are divided by it before a token is drawn", above=0
    )
    top_k: int = setting(0, "of sampling: draws from the n most probable tokens; 0 for all", at_least=0)
    top_p: float = setting(
        1.0,
        "of sampling: draws from the fewest most probable tokens that together have this probability; 1 "
        "for all",
        above=0,
        at_most=1,
    )
    seed: int = setting(1, "of sampling", at_least=0, below=2**63)
    max_source_length: int = setting(
        256,
        "the longest source, in tokens, end of sentence included. The default is that of "
        "`data.max_length`: a model has not learned of positions beyond",
        at_least=2,
    )
    long_lines: str = setting(
        "split",
        'what becomes of longer sources: `"split"` at ends of sentences, or `"cut"`',
        choices=("split", "cut"),
    )
    batch_tokens: int = setting(2048, "budget of one batch of source tokens, padding included", at_least=1)

    def __post_init__(self):
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


@section("What the training runs on. It changes speed and rounding, not what is computed.")
class DeviceConfig:
    strategy: str = setting(
        "auto",
        '`"none"` for one device, `"mirrored"` for the GPUs of one machine, `"multiworker"` for the '
        'machines of `TF_CONFIG`; `"auto"` is multiworker where TF_CONFIG names several workers, mirrored'
        " where there are several GPUs, else none",
        choices=("auto", "none", "mirrored", "multiworker"),
    )
    replicas: int = setting(
        0,
        "number of GPUs of this machine that are used; 0 for all there are. Asking for more than there "
        "are is an error",
        at_least=0,
    )
    cross_device_ops: str = setting(
        "auto",
        'how gradients are added up: `"nccl"`, `"hierarchical"` or `"reduction"` (to one device) within '
        'one machine, `"nccl"` or `"ring"` between machines; `"auto"` leaves it to TensorFlow',
        choices=("auto", "nccl", "hierarchical", "reduction", "ring"),
    )
    allow_cpu: bool = setting(False, "takes logical CPU devices where GPUs are asked for and there are none")
    batch_tokens: int = setting(
        0,
        "budget of one device in padded tokens, for source and for target each. A batch of more than all "
        "devices have together is cut into micro-batches, whose gradients are summed before the update. 0"
        " for no limit",
        at_least=0,
    )
    xla: bool = setting(False, 'compiles the training step with XLA; needs `data.padding="fixed"`')
    recompute: bool = setting(
        False,
        "keeps only what enters each layer, and computes the rest again for the gradient: less memory for"
        " long sentences and many layers, about a fifth more time",
    )

    def __post_init__(self):
        if self.strategy == "none" and self.replicas > 1:
            raise ValueError(
                "`strategy='none'` has one replica. Received: "
                f"replicas={self.replicas}; choose strategy='mirrored'"
            )
