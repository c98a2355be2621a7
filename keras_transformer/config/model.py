"""Sizes and choices of one model, named as in Table 3 of "Attention Is All You Need" (Vaswani et al., 2017).

The defaults are the paper's base model.
"""

import decimal

from keras_transformer.config.fields import require, section, setting

# Beyond every model that was ever trained: more is a slip of the keyboard.
MAX_LAYERS = 1000
MAX_WEIGHTS = 10**12
# In float32: a weight, its gradient and Adam's two moments.
BYTES_IN_TRAINING = 16
# Numbers that a batch may hold in caches and logits at once: two gigabytes of float32. A budget
# of source tokens alone would put a thousand lines of one word, each with beams, into a batch.
MAX_NUMBERS_IN_SEARCH = 2**29


@section("Sizes and choices of one model.")
class ModelConfig:
    source_vocab_size: int = setting(37_000, "number of source tokens, special ids included", at_least=1)
    target_vocab_size: int = setting(37_000, "number of target tokens, special ids included", at_least=1)
    num_encoder_layers: int = setting(6, "N of the encoder", at_least=1)
    num_decoder_layers: int = setting(6, "N of the decoder (the paper has one N for both)", at_least=1)
    d_model: int = setting(512, "width of embeddings and of every sublayer's output", at_least=1)
    d_ff: int = setting(2048, "inner width of the feed-forward sublayers (section 3.3)", at_least=1)
    num_heads: int = setting(8, "h of section 3.2.2", at_least=1)
    key_dim: int | None = setting(
        None, "d_k, width of each head's queries and keys; `None` is d_model / num_heads", at_least=1
    )
    value_dim: int | None = setting(
        None, "d_v, width of each head's values; `None` is d_model / num_heads", at_least=1
    )
    residual_dropout: float = setting(
        0.1, "rate on each sublayer's output (section 5.4)", at_least=0, below=1
    )
    embedding_dropout: float = setting(
        0.1, "rate on the sums of embeddings and positions (section 5.4)", at_least=0, below=1
    )
    attention_dropout: float = setting(0.0, "rate on attention weights (0 in the paper)", at_least=0, below=1)
    relu_dropout: float = setting(
        0.0, "rate inside the feed-forward sublayers (0 in the paper)", at_least=0, below=1
    )
    norm_first: bool = setting(
        False,
        "LayerNorm before each sublayer, and after each stack, instead of the paper's LayerNorm(x + "
        "Sublayer(x))",
    )
    layer_norm_epsilon: float = setting(1e-6, "added to the variance", above=0)
    positions: str = setting(
        "interleaved",
        '`"interleaved"` sinusoids (the paper), `"halves"` (Tensor2Tensor) or `"learned"` (Table 3, row E)',
        choices=("interleaved", "halves", "learned"),
    )
    max_positions: int = setting(1024, "number of learned positions; without effect on sinusoids", at_least=1)
    sharing: str = setting(
        "all",
        '`"all"` for one matrix as source embedding, target embedding and output projection (the paper), '
        '`"target_output"` or `"none"`',
        choices=("all", "target_output", "none"),
    )
    attention_bias: bool = setting(False, "biases in the attention projections (none in the paper)")
    output_bias: bool = setting(False, "bias on the logits (none in the paper)")

    def __post_init__(self):
        for name in ("key_dim", "value_dim"):
            if getattr(self, name) is None and self.d_model % self.num_heads:
                raise ValueError(
                    f"`d_model` must be a multiple of `num_heads` when `{name}` is not given. "
                    f"Received: d_model={self.d_model}, num_heads={self.num_heads}"
                )
        if self.positions != "learned":
            require(self, "d_model", self.d_model % 2 == 0, "even for sinusoidal positions")
        if self.positions == "halves":
            require(self, "d_model", self.d_model >= 4, "at least 4 for `halves` positions")
        if self.sharing == "all" and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                "`sharing='all'` needs one vocabulary. Received: "
                f"source_vocab_size={self.source_vocab_size}, "
                f"target_vocab_size={self.target_vocab_size}"
            )
        for name in ("num_encoder_layers", "num_decoder_layers"):
            require(self, name, getattr(self, name) <= MAX_LAYERS, f"at most {MAX_LAYERS:,}")
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

    def numbers_in_search(self, tokens, search):
        """Returns how many numbers the search for one sentence holds at once, in caches and logits.

        Args:
            tokens: int, length of the source, end of sentence included.
            search: `SearchConfig`.
        """
        length = min(tokens * search.length_factor + search.extra_length, search.max_length)
        hypotheses = search.n_best if search.sampling else search.beam_size
        width = self.num_heads * (self.d_key + self.d_value)
        caches = 2 * self.num_decoder_layers * width * (length + tokens)
        return hypotheses * (caches + 4 * self.target_vocab_size) + 2 * self.num_heads * tokens**2

    @property
    def d_key(self):
        """d_k of the paper: `key_dim`, or d_model / num_heads."""
        return self.key_dim or self.d_model // self.num_heads

    @property
    def d_value(self):
        """d_v of the paper: `value_dim`, or d_model / num_heads."""
        return self.value_dim or self.d_model // self.num_heads


def _size(number):
    """A number as `1.2e+13`, also one that no float can hold."""
    return f"{number:,}" if number < 10**9 else f"{decimal.Decimal(number):.2g}"
