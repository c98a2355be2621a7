"""What users of other systems type, and what says the same here: a table, one row a meaning.

Flags of fairseq, OpenNMT-py and OpenNMT-tf, Marian, Sockeye, Joey NMT and Hugging Face's and Keras'
scripts. A row has the flags, what is different here, and an example that the program takes.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """One meaning.

    Attributes:
        words: str, flags with spaces between, without leading hyphens.
        said: what is different here, or `""`.
        example: arguments that the program takes, as a shell has them.
    """

    words: str
    said: str
    example: str


TRAINING = (
    Row(
        "epochs epoch num-epochs max-epoch max-epochs num-train-epochs max-num-epochs after-epochs",
        "training is measured in updates, or in minutes",
        "--set training.max_steps=8000",
    ),
    Row(
        "steps train-steps max-update max-updates max-steps max-step num-steps updates after-batches after",
        "",
        "--set training.max_steps=8000",
    ),
    Row(
        "batch-size batch bsz b mini-batch mini-batch-words max-tokens batch-tokens maxi-batch "
        "per-device-train-batch-size train-batch-size batch-type",
        "batches are counted in tokens of a side, padding included",
        "--set data.batch_tokens=4096",
    ),
    Row(
        "update-freq accum-count gradient-accumulation-steps optimizer-delay update-interval grad-accum",
        "a batch that is too large for the memory is computed in parts of so many tokens",
        "--set devices.batch_tokens=3000",
    ),
    Row(
        "lr learning-rate learn-rate initial-learning-rate learning-rate-scale lr-scheduler "
        "decay-method lr-report lr-decay lr-decay-inv-sqrt lr-scheduler-type",
        "the rate follows equation 3, times a factor",
        "--set training.learning_rate_scale=0.5",
    ),
    Row(
        "warmup warmup-updates warmup-steps lr-warmup learning-rate-warmup num-warmup-steps",
        "",
        "--set training.warmup_steps=4000",
    ),
    Row(
        "config c conf config-file task-config",
        "settings are a preset and changes to it",
        "--preset base",
    ),
    Row(
        "arch a model model-type model-name-or-path type",
        "sizes and recipe are a preset",
        "--preset base",
    ),
    Row(
        "output-dir save-dir model-dir output o checkpoint-dir save-model logdir log-dir model-path",
        "",
        "--run-dir runs/mine",
    ),
    Row(
        "data d data-path data-bin train-data training-data train-sets train-src train-tgt "
        "trainpref train-file train validpref valid-sets valid-src valid-tgt validation-source "
        "validation-target validation-file valid-data prepared-data testpref path",
        "a corpus is a folder with train.en, train.de, valid.en and valid.de",
        "--dataset corpus --source en --target de",
    ),
    Row(
        "source-lang src-lang src s source-language",
        "",
        "--source en",
    ),
    Row(
        "target-lang tgt-lang tgt t trg target-language",
        "",
        "--target de",
    ),
    Row(
        "vocabs vocab vocabulary src-vocab tgt-vocab srcdict tgtdict joined-dictionary source-vocab "
        "target-vocab tokenizer tokenizer-name shared-vocab share-vocab",
        "the vocabulary is learned from the corpus, one for both languages",
        "--set data.vocab_size=8000",
    ),
    Row(
        "vocab-size dim-vocabs nwordssrc nwordstgt bpe-tokens num-words",
        "",
        "--set data.vocab_size=8000",
    ),
    Row(
        "dropout transformer-dropout dropout-rate hidden-dropout",
        "",
        "--set model.residual_dropout=0.3",
    ),
    Row(
        "attention-dropout attn-dropout",
        "",
        "--set model.attention_dropout=0.1",
    ),
    Row(
        "label-smoothing label-smoothing-factor",
        "",
        "--set training.label_smoothing=0.1",
    ),
    Row(
        "clip-norm max-grad-norm gradient-clipping-threshold clip",
        "",
        "--set training.clip_norm=1",
    ),
    Row(
        "seed random-seed",
        "",
        "--set training.seed=1",
    ),
    Row(
        "layers enc-layers dec-layers encoder-layers enc-depth dec-depth num-layers",
        "encoder and decoder have a number each",
        "--set model.num_encoder_layers=4",
    ),
    Row(
        "decoder-layers",
        "",
        "--set model.num_decoder_layers=4",
    ),
    Row(
        "d-model hidden-size embed-dim dim-emb encoder-embed-dim decoder-embed-dim rnn-size "
        "word-vec-size transformer-model-size",
        "",
        "--set model.d_model=256",
    ),
    Row(
        "d-ff ffn-dim encoder-ffn-embed-dim decoder-ffn-embed-dim transformer-dim-ffn "
        "transformer-ff transformer-feed-forward-num-hidden",
        "",
        "--set model.d_ff=1024",
    ),
    Row(
        "heads num-heads encoder-attention-heads decoder-attention-heads transformer-heads "
        "transformer-attention-heads",
        "",
        "--set model.num_heads=4",
    ),
    Row(
        "pre-norm prenorm normalize-before encoder-normalize-before transformer-preprocess",
        "",
        "--set model.norm_first=true",
    ),
    Row(
        "share-all-embeddings tied-embeddings-all tied-embeddings weight-tying share-embeddings",
        "",
        "--set model.sharing=all",
    ),
    Row(
        "gpus num-gpus gpu devices device device-ids world-size gpu-ranks n-gpu nproc",
        "",
        "--replicas 2",
    ),
    Row(
        "no-cuda use-cpu cpu cpu-threads cpu-only",
        "without a GPU the CPU is used anyway",
        "--strategy none",
    ),
    Row(
        "fp16 amp mixed-precision bf16 half precision dtype",
        "",
        "--set training.precision=mixed_bfloat16",
    ),
    Row(
        "patience early-stopping max-num-checkpoint-not-improved stop-early",
        "validations are counted",
        "--set training.early_stopping=10",
    ),
    Row(
        "valid-freq valid-steps eval-steps validate-interval checkpoint-interval "
        "validate-interval-updates valid-interval eval-frequency validation-freq eval-every",
        "",
        "--set training.validate_every_steps=1000",
    ),
    Row(
        "save-freq save-interval save-interval-updates save-steps save-checkpoint-steps "
        "save-checkpoints-steps checkpoint-frequency save-every",
        "",
        "--set training.checkpoint_every_steps=1000",
    ),
    Row(
        "keep-checkpoint keep-last-epochs keep-interval-updates save-total-limit keep-checkpoints "
        "keep-last-params",
        "",
        "--set training.keep_checkpoints=10",
    ),
    Row(
        "log-interval log-steps logging-steps disp-freq report-every log-freq log-every",
        "",
        "--set training.log_every_steps=50",
    ),
    Row(
        "exponential-smoothing ema ema-decay",
        "",
        "--set training.ema_decay=0.999",
    ),
    Row(
        "max-length max-len max-seq-len max-source-positions max-source-length max-target-length "
        "src-seq-length",
        "tokens of a side; longer pairs are left out",
        "--set data.max_length=256",
    ),
    Row(
        "finetune-from-model restore-file train-from pretrained-model init pretrained load-model params",
        "",
        "--init-from runs/other",
    ),
    Row(
        "resume resume-from-checkpoint continue restart",
        "the same --run-dir continues by itself",
        "--run-dir runs/mine",
    ),
    Row(
        "workers num-workers n-cpu threads",
        "a large corpus is prepared once, on all cores",
        "--dataset data/prepared",
    ),
)

TRANSLATING = (
    Row(
        "beam b k num-beams beam-width",
        "",
        "--beam-size 4",
    ),
    Row(
        "model m models path checkpoint checkpoint-path ckpt model-path model-dir "
        "model-name-or-path run run-dir c config",
        "the run folder comes first, without a flag",
        "runs/mine",
    ),
    Row(
        "src s source source-file predict i features-file text file in infile",
        "",
        "--input test.en",
    ),
    Row(
        "o out outfile tgt results-path predictions-file result output-file output-dir save-dir",
        "",
        "--output test.de",
    ),
    Row(
        "lenpen normalize length-penalty-alpha length-penalty-weight alpha-length normalise n",
        "",
        "--alpha 0.6",
    ),
    Row(
        "nbest num-hypotheses num-return-sequences",
        "",
        "--n-best 4",
    ),
    Row(
        "batch-size max-tokens mini-batch batch-type max-batch-size mini-batch-words",
        "batches are counted in tokens",
        "--batch-tokens 2048",
    ),
    Row(
        "max-len max-len-b max-len-a max-decoding-length max-output-length max-new-tokens max-length-factor",
        "",
        "--max-length 200",
    ),
    Row(
        "sample do-sample sampling-topk random-sampling-topk sampling-temp",
        "",
        "--sampling --top-k 10",
    ),
    Row(
        "cpu-threads num-threads workers",
        "",
        "--threads 2",
    ),
    Row(
        "average weight last-checkpoints",
        "",
        "--weights best",
    ),
    Row(
        "score with-score report-score",
        "",
        "--scores",
    ),
    Row(
        "print-alignment report-align",
        "",
        "--format moses --alignment",
    ),
    Row(
        "detokenize remove-bpe post-process",
        "text goes in and comes out whole; nothing is left to join",
        "--format text",
    ),
)


def row_of(flag, rows):
    """Returns the `Row` that has a flag of another system, or `None`.

    Args:
        flag: str, such as `"-s"`; underscores count as hyphens.
        rows: iterable of `Row`.
    """
    word = flag.lstrip("-").lower().replace("_", "-")
    return next((row for row in rows if word in row.words.split()), None)
