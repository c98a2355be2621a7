"""Flags of other toolkits and their equivalents here, for hints in error messages.

Covers fairseq, OpenNMT-py, OpenNMT-tf, Marian, Sockeye, Joey NMT, and the scripts of Hugging Face and Keras.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """Equivalent flags of other toolkits.

    Attributes:
        example: str, equivalent arguments of our program, such as `"--beam-size 4"`; `""` if there are none.
        words: str, flags of other toolkits separated by spaces, without leading hyphens.
        said: str, what is different here, or `""`.
    """

    example: str
    words: str
    said: str = ""


TRAINING = (
    Row(
        "--set training.max_steps=8000",
        "epochs epoch num-epochs max-epoch max-epochs num-train-epochs max-num-epochs after-epochs",
        "training is measured in updates, or in minutes",
    ),
    Row(
        "--set training.max_steps=8000",
        "steps train-steps max-update max-updates max-steps max-step num-steps updates after-batches after",
    ),
    Row(
        "--set data.batch_tokens=4096",
        "batch-size batch bsz b mini-batch mini-batch-words max-tokens batch-tokens maxi-batch "
        "per-device-train-batch-size train-batch-size batch-type",
        "batches are counted in tokens of a side, padding included",
    ),
    Row(
        "--set devices.micro_batch_tokens=3000",
        "update-freq accum-count gradient-accumulation-steps optimizer-delay update-interval grad-accum",
        "large batches are cut into micro-batches of n tokens",
    ),
    Row(
        "--set training.learning_rate_scale=0.5",
        "lr learning-rate learn-rate initial-learning-rate learning-rate-scale lr-scheduler decay-method "
        "lr-report lr-decay lr-decay-inv-sqrt lr-scheduler-type",
        "the learning rate is equation 3 times a factor",
    ),
    Row(
        "--set training.warmup_steps=4000",
        "warmup warmup-updates warmup-steps lr-warmup learning-rate-warmup num-warmup-steps",
    ),
    Row(
        "--config run.yaml", "c conf config-file task-config", "settings are YAML or JSON, on top of a preset"
    ),
    Row(
        "--preset base", "arch a model model-type model-name-or-path type", "a preset names sizes and recipe"
    ),
    Row(
        "--run-dir runs/mine",
        "output-dir save-dir model-dir output o checkpoint-dir save-model logdir log-dir model-path",
    ),
    Row(
        "--dataset corpus --source en --target de",
        "data d data-path data-bin train-data training-data train-sets train-src train-tgt trainpref "
        "train-file train validpref valid-sets valid-src valid-tgt validation-source validation-target "
        "validation-file valid-data prepared-data testpref path",
        "a corpus is a folder with train.en, train.de, valid.en and valid.de",
    ),
    Row("--source en", "source-lang src-lang src s source-language"),
    Row("--target de", "target-lang tgt-lang tgt t trg target-language"),
    Row(
        "--set data.vocab_size=8000",
        "vocabs vocab vocabulary src-vocab tgt-vocab srcdict tgtdict joined-dictionary source-vocab "
        "target-vocab tokenizer tokenizer-name shared-vocab share-vocab",
        "the vocabulary is learned from the corpus, one for both languages",
    ),
    Row("--set data.vocab_size=8000", "vocab-size dim-vocabs nwordssrc nwordstgt bpe-tokens num-words"),
    Row("--set model.residual_dropout=0.3", "dropout transformer-dropout dropout-rate hidden-dropout"),
    Row("--set model.attention_dropout=0.1", "attention-dropout attn-dropout"),
    Row("--set training.label_smoothing=0.1", "label-smoothing label-smoothing-factor"),
    Row("--set training.clip_norm=1", "clip-norm max-grad-norm gradient-clipping-threshold clip"),
    Row("--set training.seed=1", "seed random-seed"),
    Row(
        "--set model.num_encoder_layers=4",
        "layers enc-layers dec-layers encoder-layers enc-depth dec-depth num-layers",
        "the encoder and the decoder each have a number of layers",
    ),
    Row("--set model.num_decoder_layers=4", "decoder-layers"),
    Row(
        "--set model.d_model=256",
        "d-model hidden-size embed-dim dim-emb encoder-embed-dim decoder-embed-dim rnn-size word-vec-size "
        "transformer-model-size",
    ),
    Row(
        "--set model.d_ff=1024",
        "d-ff ffn-dim encoder-ffn-embed-dim decoder-ffn-embed-dim transformer-dim-ffn transformer-ff "
        "transformer-feed-forward-num-hidden",
    ),
    Row(
        "--set model.num_heads=4",
        "heads num-heads encoder-attention-heads decoder-attention-heads transformer-heads "
        "transformer-attention-heads",
    ),
    Row(
        "--set model.norm_first=true",
        "pre-norm prenorm normalize-before encoder-normalize-before transformer-preprocess",
    ),
    Row(
        "--set model.positions=relative",
        "maximum-relative-position max-relative-positions relative-attention",
        "the largest distance is model.max_relative_position",
    ),
    Row("--set model.activation=swiglu", "activation-fn transformer-ffn-activation activation"),
    Row("--set model.norm=rms", "rms-norm rmsnorm"),
    Row("--set model.qk_norm=true", "qk-norm qk-layernorm query-key-norm"),
    Row("--set model.positions=rotary", "rotary rope use-rotary"),
    Row("--set model.depth_scaling=ds_init", "transformer-depth-scaling"),
    Row("--set model.depth_scaling=deepnorm", "deepnorm deep-norm use-deepnorm"),
    Row(
        "--set model.tie_embeddings=all",
        "share-all-embeddings tied-embeddings-all tied-embeddings weight-tying weight-tying-type "
        "share-embeddings",
    ),
    Row(
        "--set data.subword_dropout=0.1",
        "sentencepiece-alphas bpe-dropout src-subword-alpha tgt-subword-alpha",
        "sub-words are sampled again in every epoch",
    ),
    Row("--replicas 2", "gpus num-gpus gpu devices device device-ids world-size gpu-ranks n-gpu nproc"),
    Row(
        "--strategy none", "no-cuda use-cpu cpu cpu-threads cpu-only", "without a GPU the CPU is used anyway"
    ),
    Row("--set training.precision=mixed_bfloat16", "fp16 amp mixed-precision bf16 half precision dtype"),
    Row(
        "--set training.patience=10",
        "patience early-stopping max-num-checkpoint-not-improved stop-early",
        "patience is counted in validations",
    ),
    Row(
        "--set training.validate_every_steps=1000",
        "valid-freq valid-steps eval-steps validate-interval checkpoint-interval "
        "validate-interval-updates valid-interval eval-frequency validation-freq eval-every",
    ),
    Row(
        "--set training.checkpoint_every_steps=1000",
        "save-freq save-interval save-interval-updates save-steps save-checkpoint-steps "
        "save-checkpoints-steps checkpoint-frequency save-every",
    ),
    Row(
        "--set training.keep_checkpoints=10",
        "keep-checkpoint keep-last-epochs keep-interval-updates save-total-limit keep-checkpoints "
        "keep-last-params",
    ),
    Row(
        "--set training.log_every_steps=50",
        "log-interval log-steps logging-steps disp-freq report-every log-freq log-every",
    ),
    Row("--set training.ema_decay=0.999", "exponential-smoothing ema ema-decay"),
    Row(
        "--set data.max_length=256",
        "max-length max-len max-seq-len max-source-positions max-source-length max-target-length "
        "src-seq-length",
        "counted in tokens; longer pairs are left out of training",
    ),
    Row(
        "--init-from runs/other",
        "finetune-from-model restore-file train-from pretrained-model init pretrained load-model params",
    ),
    Row(
        "--run-dir runs/mine",
        "resume resume-from-checkpoint continue restart",
        "the same --run-dir continues by itself",
    ),
    Row(
        "--dataset data/prepared",
        "workers num-workers n-cpu threads",
        "a large corpus is prepared once, on all cores, by another program",
    ),
    Row(
        "",
        "data-service tf-data-service",
        "apply tf.data.experimental.service to the dataset yourself, as docs/data.md shows",
    ),
)

TRANSLATING = (
    Row("--beam-size 4", "beam b k num-beams beam-width"),
    Row(
        "runs/mine",
        "model m models path checkpoint-path ckpt model-path model-dir model-name-or-path run "
        "run-dir c config",
        "the run folder comes first, without a flag",
    ),
    Row("--input test.en", "src s source source-file predict i features-file text file in infile"),
    Row(
        "--output test.de",
        "o out outfile tgt results-path predictions-file result output-file output-dir save-dir",
    ),
    Row("--alpha 0.6", "length-penalty-alpha length-penalty-weight alpha-length"),
    Row(
        "--length-penalty average --alpha 1",
        "lenpen normalize normalise n",
        "the length to the power of alpha; the default is the formula of Wu et al. (2016)",
    ),
    Row(
        "--coverage-penalty 0.2",
        "beta coverage-penalty-weight",
        "a number, the beta of Wu et al. (2016); 0 disables",
    ),
    Row("--n-best 4", "nbest num-hypotheses num-return-sequences"),
    Row(
        "--batch-tokens 2048",
        "batch-size max-tokens mini-batch batch-type max-batch-size mini-batch-words",
        "batches are counted in tokens",
    ),
    Row(
        "--max-length 200",
        "max-len max-decoding-length max-output-length max-new-tokens",
    ),
    Row("--max-length-ratio 3", "max-len-a max-length-factor"),
    Row("--max-length-offset 200", "max-len-b"),
    Row("--sampling --top-k 10", "sample do-sample sampling-topk random-sampling-topk sampling-temp"),
    Row("--threads 2", "cpu-threads num-threads workers"),
    Row("--checkpoint best", "average weight last-checkpoints"),
    Row("--scores", "score with-score report-score"),
    Row("--format moses --alignment", "print-alignment report-align"),
    Row(
        "--format text",
        "detokenize remove-bpe post-process",
        "translations are plain text already",
    ),
)

# For a program without `--input` and `--output`.
_FILES = [row.words for row in TRANSLATING if row.example.startswith(("--input", "--output"))]
STREAMS = (
    Row(
        "< test.en > test.de",
        " ".join(["input", "output", *_FILES]),
        "text is read from standard input, and translations go to standard output",
    ),
)


def find_row(flag, rows):
    """Returns the `Row` with a flag of another toolkit, or `None`.

    Args:
        flag: str, such as `"-s"`; underscores count as hyphens.
        rows: iterable of `Row`.
    """
    word = flag.lstrip("-").lower().replace("_", "-")
    return next((row for row in rows if word in row.words.split()), None)
