"""Settings of the model, the data and the search. Each is defined once: default, meaning and range.

`config.training` has those of training and devices.
"""

import dataclasses
import decimal

from keras_transformer.config.fields import choice, require, section, setting
from keras_transformer.config.tags import parse_tags

# Settings of `data` that an existing vocabulary has fixed.
VOCABULARY = (
    "model_type",
    "vocab_size",
    "separate_vocabularies",
    "normalization",
    "split_digits",
    "keep_tags",
    "tags",
)
# The target "language" of constituency parsing (section 6.3), also the ending of files of trees.
TREES = "trees"
# Far beyond any model ever trained: larger values are typing errors.
MAX_LAYERS = 1000
MAX_WEIGHTS = 10**12
# Bytes per weight in training: float32 weight, gradient and both Adam moments.
BYTES_IN_TRAINING = 16
# Maximum number of elements in the caches and logits of one search batch: 2 GB of float32. A limit on
# source tokens alone would allow batches of a thousand one-word lines, each with its beams.
MAX_NUMBERS_IN_SEARCH = 2**29
# Far longer than any translation, and exact in float32.
MAX_LENGTH = 2**24
# The graph of a search grows with each token of an n-gram.
MAX_NGRAM = 32


@section("Architecture of the model, with the names of the paper's Table 3; defaults are its base model.")
class ModelConfig:
    source_vocab_size: int = setting(37_000, "source vocabulary size, special ids included", at_least=1)
    target_vocab_size: int = setting(37_000, "target vocabulary size, special ids included", at_least=1)
    num_encoder_layers: int = setting(6, "number of encoder layers (N)", at_least=1)
    num_decoder_layers: int = setting(6, "number of decoder layers (also N in the paper)", at_least=1)
    d_model: int = setting(512, "width of embeddings and sublayer outputs", at_least=1)
    d_ff: int = setting(2048, "inner width of the feed-forward sublayers (section 3.3)", at_least=1)
    num_heads: int = setting(8, "number of attention heads (h of section 3.2.2)", at_least=1)
    key_dim: int | None = setting(None, "d_k, width of queries and keys; `None` is d_model / h", at_least=1)
    value_dim: int | None = setting(None, "d_v, width of values; `None` is d_model / h", at_least=1)
    residual_dropout: float = setting(0.1, "dropout on sublayer outputs (section 5.4)", at_least=0, below=1)
    embedding_dropout: float = setting(
        0.1, "dropout on the sums of embeddings and positional encodings (section 5.4)", at_least=0, below=1
    )
    attention_dropout: float = setting(
        0.0, "dropout on attention weights (0 in the paper)", at_least=0, below=1
    )
    relu_dropout: float = setting(0.0, "dropout after the ReLU (0 in the paper)", at_least=0, below=1)
    activation: str = choice(
        "relu",
        'activation of the feed-forward sublayers: `"relu"` (the paper), or a gated linear unit with a third '
        'matrix of d_model x d_ff, `"swiglu"` or `"geglu"` (Shazeer, 2020)',
    )
    norm_first: bool = setting(
        False, "pre-norm: LayerNorm before each sublayer and after each stack; the paper has post-norm"
    )
    norm: str = choice(
        "layer",
        'normalization: `"layer"` is LayerNorm (the paper), `"rms"` is RMSNorm, without mean and bias (Zhang '
        "and Sennrich, 2019)",
    )
    layer_norm_epsilon: float = setting(
        1e-6, "epsilon of LayerNorm, added to the variance; of RMSNorm, to the mean square", above=0
    )
    positions: str = choice(
        "interleaved",
        'positional encoding: `"interleaved"` sines and cosines (the paper), `"halves"` (first sines, then '
        'cosines, as in Tensor2Tensor) or `"learned"` (Table 3, row E); or only distances within '
        'self-attention: `"relative"` embeddings (Shaw et al., 2018) or `"rotary"` (Su et al., 2021)',
    )
    max_positions: int = setting(1024, "number of learned positions; no effect on sinusoids", at_least=1)
    max_relative_position: int = setting(
        16, "largest distance with an embedding of its own, with relative positions", at_least=1
    )
    tie_embeddings: str = choice(
        "all",
        '`"all"` shares one matrix between source embedding, target embedding and output projection (the '
        'paper), `"decoder"` between the last two; `"none"` shares nothing',
        renamed_from="sharing",
        old_values={"target_output": "decoder"},
    )
    attention_init: str = choice(
        "stacked",
        'initial query, key and value matrices: `"stacked"`, as parts of one Glorot matrix, in '
        'cross-attention key and value only (paper-time Tensor2Tensor); `"stacked_all"`, in cross-attention '
        'all three (PyTorch, fairseq); or `"separate"`, one Glorot matrix each, with larger values',
        before="separate",
    )
    depth_scaling: str = choice(
        "none",
        '`"ds_init"` divides the initial matrices of layer l by sqrt(l); `"deepnorm"` scales residuals and '
        'initial matrices by the number of layers (post-norm only); `"none"` is the paper',
    )
    qk_norm: bool = setting(
        False,
        "normalizes queries and keys of each head to length 1, and learns a scale of the scores (Henry et "
        "al., 2020)",
    )
    attention_bias: bool = setting(False, "adds biases to the attention projections (not in the paper)")
    output_bias: bool = setting(False, "adds a bias to the logits (not in the paper)")

    def __post_init__(self):
        d_model = self.d_model
        for name in ("key_dim", "value_dim"):
            demand = f"`d_model` must be a multiple of `num_heads` when `{name}` is not given"
            holds = getattr(self, name) is not None or d_model % self.num_heads == 0
            require(holds, demand, d_model=d_model, num_heads=self.num_heads)
        if self.positions in ("interleaved", "halves"):
            require(d_model % 2 == 0, "`d_model` must be even for sinusoidal positions", d_model=d_model)
        if self.positions == "rotary":
            demand = "d_k, the width of a head's keys, must be even for rotary positions"
            require(self.d_key % 2 == 0, demand, key_dim=self.d_key)
        if self.depth_scaling == "deepnorm":
            demand = "`depth_scaling='deepnorm'` needs post-norm: model.norm_first=false"
            require(not self.norm_first, demand, norm_first=self.norm_first)
        if self.positions == "halves":
            require(d_model >= 4, "`d_model` must be at least 4 for `halves` positions", d_model=d_model)
        sizes = {name: getattr(self, name) for name in ("source_vocab_size", "target_vocab_size")}
        one_size = len(set(sizes.values())) == 1
        demand = "`tie_embeddings='all'` needs one shared vocabulary"
        require(self.tie_embeddings != "all" or one_size, demand, **sizes)
        for name in ("num_encoder_layers", "num_decoder_layers"):
            layers = {name: getattr(self, name)}
            require(layers[name] <= MAX_LAYERS, f"`{name}` must be at most {MAX_LAYERS:,}", **layers)
        number = self.num_weights
        if number > MAX_WEIGHTS:
            names = ("d_model", "d_ff", "num_encoder_layers", "num_decoder_layers", "target_vocab_size")
            received = ", ".join(f"{name}={_size(getattr(self, name))}" for name in names)
            raise ValueError(
                f"A model may have at most {_size(MAX_WEIGHTS)} weights. This one has {_size(number)} and "
                f"needs {_size(BYTES_IN_TRAINING * number)} bytes to train. Received: {received}"
            )

    @property
    def d_key(self) -> int:
        """d_k of the paper: `key_dim`, or d_model / num_heads."""
        return self.key_dim or self.d_model // self.num_heads

    @property
    def d_value(self) -> int:
        """d_v of the paper: `value_dim`, or d_model / num_heads."""
        return self.value_dim or self.d_model // self.num_heads

    @property
    def attention_positions(self) -> str | None:
        """`positions` if self-attention computes them; `None` if they are added to the embeddings."""
        return self.positions if self.positions in ("relative", "rotary") else None

    @property
    def num_weights(self) -> int:
        """int, number of weights in all matrices; biases and LayerNorm are not counted."""
        attention = 2 * self.d_model * self.num_heads * (self.d_key + self.d_value)
        feed_forward = (2 if self.activation == "relu" else 3) * self.d_model * self.d_ff
        tokens = {
            "all": self.target_vocab_size,
            "decoder": self.source_vocab_size + self.target_vocab_size,
            "none": self.source_vocab_size + 2 * self.target_vocab_size,
        }[self.tie_embeddings]
        tables = 1 if self.tie_embeddings == "all" else 2
        positions = tables * self.max_positions if self.positions == "learned" else 0
        distances = 2 * self.max_relative_position + 1 if self.positions == "relative" else 0
        self_attention = attention + distances * (self.d_key + self.d_value)
        return (
            self.num_encoder_layers * (self_attention + feed_forward)
            + self.num_decoder_layers * (self_attention + attention + feed_forward)
            + (tokens + positions) * self.d_model
        )

    def numbers_in_search(self, tokens: int, search: "SearchConfig") -> float:
        """Returns the number of elements in caches and logits while one sentence is translated.

        Args:
            tokens: int, length of the source, end of sentence included.
            search: `SearchConfig`.
        """
        length = min(tokens * search.max_length_ratio + search.max_length_offset, search.max_length)
        hypotheses = search.n_best if search.sampling else search.beam_size
        width = self.num_heads * (self.d_key + self.d_value)
        caches = 2 * self.num_decoder_layers * width * (length + tokens)
        return hypotheses * (caches + 4 * self.target_vocab_size) + 2 * self.num_heads * tokens**2


@section("Training text, vocabulary and batches.")
class DataConfig:
    dataset: str = setting(
        "cldr/en-de",
        "`cldr/SOURCE-TARGET` (built in), a folder or archive of parallel files, `NAME/CONFIG` of TensorFlow "
        "Datasets, or `hf:NAME/CONFIG` of Hugging Face; several are separated by commas",
    )
    source: str = setting("en", "source language code, also the extension of the source files")
    target: str = setting(
        "de",
        "target language code, also the extension of the target files; `trees` for constituency parsing",
    )
    data_dir: str = setting(
        "", "cache folder of datasets and unpacked archives; empty for the libraries' defaults"
    )
    manual_dir: str = setting("", "folder of manually downloaded files for TensorFlow Datasets")
    dataset_weights: str = setting(
        "",
        "passes over each dataset (or part of a prepared corpus) per epoch, such as `1,2.5`; empty for 1",
        renamed_from="weights",
    )
    temperature: float = setting(
        1.0,
        "T: n pairs get a share of each epoch proportional to n ** (1 / T); 1 keeps the original shares",
        at_least=1,
    )
    model_type: str = choice(
        "bpe",
        'type of the vocabulary: `"bpe"` (the paper\'s English-German), `"unigram"` or `"wordpiece"` (the '
        "paper's English-French)",
    )
    vocab_size: int = setting(37_000, "size of the vocabulary, special ids included", at_least=8)
    separate_vocabularies: bool = setting(
        False, 'one vocabulary of `vocab_size` tokens per language; excludes `model.tie_embeddings="all"`'
    )
    vocab_texts: int = setting(
        10_000_000, "number of random sentences to learn the vocabulary from; 0 for all", at_least=0
    )
    normalization: str = choice("nfc", 'Unicode normalisation of the text: `"nfc"`, `"nfkc"` or `"identity"`')
    split_digits: bool = setting(False, "makes every digit a token of its own")
    keep_tags: bool = setting(
        False,
        "parsing: the target has the part-of-speech tag of each word, as in Tensor2Tensor; if false, `XX`",
        before=False,
    )
    tags: str = setting(
        "",
        "tokens to reserve for marking source sentences, such as `<BT>`; several are separated by commas. "
        "Only training text can have them",
        before="",
    )
    max_length: int = setting(256, "longest training sentence, in tokens with end of sentence", at_least=2)
    batch_tokens: int = setting(
        25_000, "maximum tokens per batch and side, padding included (about 25,000 in the paper)"
    )
    padding: str = choice(
        "longest", 'pads to the `"longest"` sentence of a batch, or to few `"fixed"` shapes'
    )
    max_shapes: int = setting(16, 'number of batch shapes with `"fixed"` padding', at_least=1)
    subword_dropout: float = setting(
        0.0, "probability to drop a merge (BPE) or a piece, drawn again each epoch", at_least=0, below=1
    )
    on_bad_utf8: str = choice("refuse", 'invalid UTF-8: `"refuse"` is an error, `"replace"` inserts U+FFFD')

    def __post_init__(self):
        if self.source == self.target:
            raise ValueError(f"`source` and `target` must be different. Received: {self.source!r} for both")
        parse_tags(self.tags)
        require(self.source != TREES, "trees are a target: `target='trees'`", source=TREES)
        if self.parses:
            demand = (
                "target='trees' needs `separate_vocabularies=true`: choose a preset such as parsing_small"
            )
            require(self.separate_vocabularies, demand, target=TREES, separate_vocabularies=False)
        require(self.parses or not self.keep_tags, f"`keep_tags` needs target={TREES!r}", target=self.target)
        alternatives = {"dataset_weights": self.dataset_weights, "temperature": self.temperature}
        exclusive = not self.dataset_weights or self.temperature == 1
        require(exclusive, "`dataset_weights` and `temperature` cannot both be set", **alternatives)
        if self.batch_tokens < 8 * self.max_length:
            raise ValueError(
                "`data.batch_tokens` must be at least 8 * `data.max_length`. Received: "
                f"batch_tokens={self.batch_tokens}, max_length={self.max_length}. Set batch_tokens="
                f"{8 * self.max_length} or max_length={max(self.batch_tokens // 8, 2)}"
            )

    @property
    def parses(self) -> bool:
        """Whether the targets are constituency trees (section 6.3)."""
        return self.target == TREES


@section(
    "Which pairs are dropped from the training text, in addition to those over `data.max_length` tokens.\n\n"
    "The defaults are the paper's (Tensor2Tensor's): only blank sides and length."
)
class CleaningConfig:
    drop_empty: bool = setting(True, "drops pairs with a blank side")
    drop_damaged: bool = setting(False, "drops pairs with U+FFFD, or with UTF-8 encoded twice (`Ã¤`)")
    max_foreign_letters: float = setting(
        1.0, "maximum share of letters in scripts foreign to the language; 1: no limit", at_least=0, at_most=1
    )
    drop_identical: bool = setting(False, "drops pairs whose source and target are the same text")
    min_length: int = setting(1, "minimum tokens of a side, with end of sentence; 1 for no limit", at_least=1)
    max_length_ratio: float = setting(
        0.0, "maximum ratio of the lengths in tokens, if the longer side has more than 10; 0 for no limit"
    )
    drop_duplicates: bool = setting(False, "drops repeated pairs, except for the first")

    def __post_init__(self):
        ratio = self.max_length_ratio
        demand = "`cleaning.max_length_ratio` must be 0 (no limit) or at least 1"
        require(ratio == 0 or ratio >= 1, demand, max_length_ratio=ratio)


@section("Beam search or sampling of translations (section 6.1).")
class SearchConfig:
    beam_size: int = setting(4, "beam size; 1 is greedy search", at_least=1, at_most=1000)
    alpha: float = setting(0.6, "exponent of the length penalty; 0 disables", at_least=0)
    length_penalty: str = choice(
        "gnmt",
        'divides the log-probability of a hypothesis of n tokens: `"gnmt"` by ((5 + n) / 6) ** alpha (the '
        'paper), `"average"` by n ** alpha, `"none"` by 1',
    )
    coverage_penalty: float = setting(
        0.0,
        "beta of the coverage penalty (Wu et al., 2016): adds beta * sum of log(min(attention, 1)) over the "
        "source tokens, each with its attention from all target tokens, to the score; 0 disables",
        at_least=0,
        at_most=1000,
    )
    early_stop: bool = setting(
        False,
        "stops once `beam_size` hypotheses are finished: faster, but may miss better ones. If false, stops "
        "when no better hypothesis is possible",
        renamed_from="stop",
        old_values={"exact": False, "first": True},
    )
    max_length_offset: int = setting(
        50,
        "maximum translation length is `max_length_ratio` * source length + this (section 6.1: input + 50)",
        renamed_from="extra_length",
        at_least=1,
        at_most=MAX_LENGTH,
    )
    max_length_ratio: float = setting(
        1.0,
        "factor on the source length in `max_length_offset`",
        renamed_from="length_factor",
        at_least=0,
        at_most=1000,
    )
    max_length: int = setting(
        1024, "upper limit of the translation length, in tokens", at_least=1, at_most=MAX_LENGTH
    )
    min_length: int = setting(0, "minimum translation length in tokens, without end of sentence", at_least=0)
    tree_grammar: bool = setting(
        False, "parsing: only well-formed trees over the words of the sentence; the paper's search is free"
    )
    no_repeat_ngram: int = setting(
        0, "forbids repeating any n-gram of this size; 0 disables", at_least=0, at_most=MAX_NGRAM
    )
    n_best: int = setting(
        1, "translations per sentence, at most `beam_size` unless sampling", at_least=1, at_most=10_000
    )
    sampling: bool = setting(False, "samples tokens at random instead of beam search; ignores `beam_size`")
    mbr: bool = setting(
        False,
        "minimum Bayes risk decoding (Eikema and Aziz, 2020): the sample with the greatest mean `utility` "
        "over all `samples`; ignores `beam_size`",
    )
    samples: int = setting(64, "number of samples of `mbr`", at_least=1, at_most=10_000)
    utility: str = choice("chrf", 'utility of `mbr`, of sacreBLEU: `"chrf"` or sentence `"bleu"`')
    temperature: float = setting(1.0, "sampling temperature, by which logits are divided", at_least=1e-30)
    top_k: int = setting(0, "samples from the k most probable tokens; 0 for all", at_least=0, below=2**31)
    top_p: float = setting(
        1.0, "samples from the smallest set of tokens with this total probability", above=0, at_most=1
    )
    seed: int = setting(1, "random seed of sampling", at_least=0, below=2**63)
    max_source_length: int = setting(
        256,
        "maximum source tokens; presets and `--set data.max_length=N` set it to `data.max_length`, because "
        "later positions are untrained",
        at_least=2,
    )
    long_lines: str = choice("split", 'longer lines are `"split"` at ends of sentences, or `"cut"` off')
    batch_tokens: int = setting(2048, "maximum source tokens per padded batch", at_least=1, below=2**31)

    def __post_init__(self):
        lengths = {"min_length": self.min_length, "max_length": self.max_length}
        require(self.min_length < self.max_length, "`min_length` must be below `max_length`", **lengths)
        if self.mbr:
            sizes = {"n_best": self.n_best, "samples": self.samples}
            require(self.n_best <= self.samples, "`n_best` must be at most `samples` of `mbr`", **sizes)
            demand = "`mbr` compares texts and cannot parse: leave out `tree_grammar`"
            require(not self.tree_grammar, demand, tree_grammar=True)
            return
        sizes = {"n_best": self.n_best, "beam_size": self.beam_size}
        demand = "`n_best` must be at most `beam_size` unless `sampling` or `mbr` is on"
        require(self.n_best <= self.beam_size or self.sampling, demand, **sizes)


LENGTH_PENALTIES = {field.name: field for field in dataclasses.fields(SearchConfig)}[
    "length_penalty"
].metadata["choices"]


def _size(number):
    """Formats a large number as `1.2e+13`, even beyond the range of float."""
    return f"{number:,}" if number < 10**9 else f"{decimal.Decimal(number):.2g}"
