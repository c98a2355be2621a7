"""Settings of training and devices. Each is defined once: default, meaning and range."""

from keras_transformer.config.fields import choice, require, section, setting

# Scores of what search finds for validation sentences: name in records -> name in messages. Higher is better.
SEARCH_METRICS = {"bleu": "BLEU", "f1": "F1"}


@section("Schedule, optimizer, loss, validation and checkpoints of training (section 5).")
class TrainingConfig:
    max_steps: int = setting(100_000, "maximum number of optimizer updates", at_least=1)
    max_minutes: float = setting(
        0.0, "maximum training time in minutes, resumed parts included; 0 for no limit", at_least=0
    )
    warmup_steps: int = setting(4000, "warm-up steps of the learning rate (equation 3)", at_least=1)
    learning_rate_scale: float = setting(1.0, "factor on the rate of equation 3 (1 in the paper)", above=0)
    adam_beta_1: float = setting(0.9, "decay of Adam's first moment", at_least=0, below=1)
    adam_beta_2: float = setting(0.98, "decay of Adam's second moment", at_least=0, below=1)
    adam_epsilon: float = setting(1e-9, "Adam's epsilon, outside the bias correction as in Keras", above=0)
    label_smoothing: float = setting(0.1, "label smoothing, epsilon_ls of section 5.4", at_least=0, below=1)
    smoothing_formula: str = choice(
        "t2t", '`"t2t"` gives each wrong token epsilon / (V - 1), `"uniform"` gives every token epsilon / V'
    )
    clip_norm: float = setting(0.0, "clips gradients to this global norm; 0 disables (the paper)", at_least=0)
    precision: str = choice(
        "float32",
        '`"float32"`, `"mixed_bfloat16"`, or `"mixed_float16"` with loss scaling (one device only); '
        "positional encodings, softmax and loss are always float32",
    )
    max_nonfinite_steps: int = setting(
        20,
        "stops after n consecutive steps with a non-finite gradient; each such step is skipped",
        renamed_from="max_skipped",
        at_least=1,
    )
    log_every_steps: int = setting(100, "steps between progress lines and TensorBoard points", at_least=1)
    validate_every_steps: int = setting(5000, "steps between validations", at_least=1)
    validation_sentences: int = setting(
        1000,
        "number of validation sentences to translate for BLEU, or to parse for F1; 0 disables",
        at_least=0,
    )
    validation_beam_size: int = setting(
        0, "beam size for validation; 1: greedy, 0: `search.beam_size`", at_least=0
    )
    best_metric: str = choice(
        "loss",
        'validation metric, `"loss"`, `"bleu"` or (parsing) `"f1"`, that chooses the best weights, and the '
        "final ones among averaged, last and best",
        renamed_from="best_by",
    )
    patience: int = setting(
        0,
        "stops after n validations without a new best; 0 disables early stopping (the paper)",
        renamed_from="early_stopping",
        at_least=0,
    )
    checkpoint_every_steps: int = setting(0, "steps between checkpoints; 0 disables", at_least=0)
    checkpoint_every_minutes: float = setting(
        10.0, "minutes between checkpoints; 0 disables (10 in the paper)", at_least=0
    )
    keep_checkpoints: int = setting(20, "number of newest scheduled checkpoints to keep", at_least=1)
    keep_best: int = setting(3, "number of best validations whose weights are kept, too", at_least=0)
    ema_decay: float = setting(
        0.0, "decay of an exponential moving average of the weights; 0 disables", at_least=0, below=1
    )
    init_from: str = setting("", "fine-tuning: run folder with the initial weights; empty for random weights")
    init_checkpoint: str = setting(
        "final",
        'name of the initial weights in that run: `"final"`, `"averaged"`, `"last"`, `"best"`, ...',
        renamed_from="init_weights",
    )
    init_vocabulary: bool = setting(
        True, "also uses its vocabulary; if false, shared pieces of the new vocabulary keep their embeddings"
    )
    average_last: int = setting(
        5, "number of newest scheduled checkpoints after the warm-up to average (big: 20)", at_least=1
    )
    seed: int = setting(1, "random seed of initial weights, dropout and data order", at_least=0, below=2**32)

    def __post_init__(self):
        if self.best_metric != "loss":
            demand = f"`best_metric='{self.best_metric}'` needs `validation_sentences` above 0"
            require(self.validation_sentences, demand, validation_sentences=self.validation_sentences)
        kept = {name: getattr(self, name) for name in ("average_last", "keep_checkpoints")}
        demand = "`average_last` must be at most `keep_checkpoints`"
        require(self.average_last <= self.keep_checkpoints, demand, **kept)


@section("Devices of training. These settings affect speed and rounding only.")
class DeviceConfig:
    strategy: str = choice(
        "auto",
        '`"none"` for one device, `"mirrored"` for the GPUs of one machine, `"multiworker"` for the machines '
        'of `TF_CONFIG`; `"auto"` decides by `TF_CONFIG` and the number of GPUs',
    )
    replicas: int = setting(0, "number of GPUs to use on this machine; 0 for all", at_least=0)
    cross_device_ops: str = choice(
        "auto",
        'all-reduce of gradients: `"nccl"`, `"hierarchical"` or `"reduction"` (to one device) within '
        'one machine, `"nccl"` or `"ring"` between machines; `"auto"` leaves it to TensorFlow',
    )
    allow_cpu: bool = setting(False, "uses logical CPU devices if GPUs are requested but missing")
    micro_batch_tokens: int = setting(
        0,
        "maximum tokens per device and side, padding included. Larger batches are split into micro-batches, "
        "whose gradients are accumulated; 0 for no limit",
        renamed_from="batch_tokens",
        at_least=0,
    )
    xla: bool = setting(False, 'compiles the training step with XLA; needs `data.padding="fixed"`')
    recompute: bool = setting(
        False,
        "gradient checkpointing: keeps only the inputs of each layer and recomputes the rest in the backward "
        "pass. Saves memory with long sentences or many layers, takes about a fifth more time",
    )

    cpu_towers: int = setting(
        0,
        "parts of each batch whose gradients are computed side by side on a CPU, each with its share of the "
        "cores; 0 for one part per core, at most 4; 1 disables. The same updates up to rounding and dropout",
        at_least=0,
        at_most=64,
    )

    def __post_init__(self):
        demand = "`strategy='none'` uses one device; for several, choose strategy='mirrored'"
        require(self.strategy != "none" or self.replicas <= 1, demand, replicas=self.replicas)
        demand = (
            "`devices.cpu_towers` must be 0 or 1 with `devices.xla`, which compiles for every batch shape"
        )
        require(not self.xla or self.cpu_towers <= 1, demand, cpu_towers=self.cpu_towers)
