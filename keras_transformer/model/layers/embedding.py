"""Token embeddings and positional encodings (sections 3.4 and 3.5)."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.inputs import check_ids
from keras_transformer.model.kernels.basics import copies
from keras_transformer.model.kernels.products import product
from keras_transformer.model.kernels.tensor_ops import flatten_leading_axes, gather, restore_leading_axes
from keras_transformer.model.layers.basics import PACKAGE, Layer
from keras_transformer.model.layers.other_names import accepts_other_names


def sinusoids(positions: Tensor, d_model: int, layout: str = "interleaved") -> Tensor:
    """Returns sinusoidal positional encodings (section 3.5).

    `"interleaved"` is the layout of the paper: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), and
    PE(pos, 2i + 1) is the cosine of the same angle. `"halves"` is the layout of Tensor2Tensor: first all
    sines, then all cosines, with exponents i / (d_model / 2 - 1).

    Args:
        positions: int or float, shape `(length,)`.
        d_model: width; even.
        layout: `"interleaved"` or `"halves"`.

    Returns:
        float32, shape `(length, d_model)`.
    """
    if d_model % 2:
        raise ValueError(f"`d_model` must be even. Received: d_model={d_model}")
    # Always float32: in bfloat16, position 257 rounds to 256.
    positions = ops.cast(positions, "float32")[:, None]
    pair = ops.arange(d_model // 2, dtype="float32")
    if layout == "interleaved":
        angle = positions / ops.power(10000.0, 2.0 * pair / d_model)
        both = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)
        return ops.reshape(both, (-1, d_model))
    if layout == "halves":
        if d_model < 4:
            raise ValueError(f"`d_model` must be at least 4. Received: d_model={d_model}")
        angle = positions / ops.power(10000.0, pair / (d_model // 2 - 1))
        return ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)
    raise ValueError(f"`layout` must be 'interleaved' or 'halves'. Received: {layout!r}")


@keras.saving.register_keras_serializable(package=PACKAGE)
class PositionalEmbedding(Layer):
    """Token embeddings times sqrt(d_model), plus positional encodings.

    With tied embeddings, `logits` uses the same matrix as the output projection (section 3.4).

    Args:
        vocab_size: number of tokens.
        d_model: width.
        positions: `"interleaved"` (the paper), `"halves"` (Tensor2Tensor), `"learned"` (Table 3, row E), or
            `"none"` for layers whose attention has positions. Sinusoids are defined for any length; learned
            positions end at `max_positions`.
        max_positions: number of learned positions.
        mask_zero: whether the output has the implicit mask `ids != 0`, as with `keras.layers.Embedding`.
            The attention layers of this package use it. (`Transformer` makes explicit masks and leaves this
            off.)

    Call arguments:
        ids: int, shape `(batch, length)`.
        first_position: int or scalar tensor, position of the first id in the sentence.

    Returns:
        float, shape `(batch, length, d_model)`; computed in float32.

    Raises:
        TypeError: `ids` is not a dense integer tensor.
        ValueError: `ids` does not have two axes, or there are more positions than `max_positions` learned
            ones. (In a graph with unknown length, the lookup itself fails, but only on a CPU.)
    """

    arguments = ("vocab_size", "d_model", "positions", "max_positions", "mask_zero")

    @accepts_other_names
    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        positions: str = "interleaved",
        max_positions: int = 1024,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if positions not in ("interleaved", "halves", "learned", "none"):
            raise ValueError(
                f"`positions` must be 'interleaved', 'halves', 'learned' or 'none'. Received: {positions!r}"
            )
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.positions = positions
        self.max_positions = max_positions
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self._copies = []

    def build(self, ids_shape: Shape | None = None) -> None:
        def matrix(name, rows):
            # With variance 1 / d_model, the scaled embeddings and the logits both have variance 1.
            return self.add_weight(
                name=name,
                shape=(rows, self.d_model),
                initializer=keras.initializers.RandomNormal(stddev=self.d_model**-0.5),
                autocast=False,  # lookups stay in float32 under mixed precision
            )

        self.embeddings = matrix("embeddings", self.vocab_size)
        learned = self.positions == "learned"
        self.position_embeddings = matrix("position_embeddings", self.max_positions) if learned else None

    def call(self, ids: Tensor, first_position: Tensor = 0) -> Tensor:
        check_ids("ids", ids)
        self._check_length(ids.shape[1], first_position)
        if keras.backend.standardize_dtype(ids.dtype) not in ("int16", "int32", "int64"):
            ids = ops.cast(ids, "int32")  # TensorFlow supports no other index types
        matrix = self._copies.pop() if self._copies else self.embeddings
        tokens = gather(matrix, ids, axis=0)
        tokens = ops.cast(tokens, "float32") * self.d_model**0.5
        if self.positions == "none":
            return ops.cast(tokens, self.compute_dtype)
        positions = ops.arange(ops.shape(ids)[1]) + first_position
        if self.positions == "learned":
            encoding = ops.cast(gather(self.position_embeddings, positions, axis=0), "float32")
        else:
            encoding = sinusoids(positions, self.d_model, self.positions)
        return ops.cast(tokens + encoding, self.compute_dtype)

    @contextlib.contextmanager
    def summed_gradients(self, lookups: int) -> Iterator[None]:
        """Context manager that sums the gradients of several uses of the embedding matrix in one pass.

        Args:
            lookups: int; the first `lookups` calls of this layer in the context take part.

        Yields:
            The matrix as a tensor, for the output projection, whose gradient has the shape of the matrix.
        """
        dense, *self._copies = copies(self.embeddings, 1 + lookups)
        try:
            yield dense
        finally:
            self._copies = []

    def kernel(self) -> Tensor:
        """Returns the transposed matrix for `logits`: float, shape `(d_model, vocab_size)`."""
        return ops.transpose(ops.cast(self.embeddings, self.compute_dtype))

    def logits(self, hidden: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Projects onto the vocabulary: multiplies by the transposed embedding matrix.

        Args:
            hidden: float, shape `(..., d_model)`.
            kernel: result of the method `kernel`, if it is reused for several calls; else `None`.

        Returns:
            float, shape `(..., vocab_size)`, in the layer's compute dtype.
        """
        rows = flatten_leading_axes(hidden)
        if kernel is None:
            logits = product(rows, ops.cast(self.embeddings, self.compute_dtype), transposed=True)
        else:
            logits = product(rows, kernel)
        return restore_leading_axes(logits, hidden)

    def compute_mask(self, ids: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        return ops.not_equal(ids, 0) if self.mask_zero else None

    def compute_output_shape(self, ids_shape: Shape) -> Shape:
        return (*ids_shape, self.d_model)

    def compute_output_spec(self, ids: Tensor, first_position: Tensor = 0) -> Any:
        check_ids("ids", ids)  # the default dtype of `keras.Input` is float
        return super().compute_output_spec(ids)

    def _check_length(self, length, first_position):
        if self.positions != "learned" or length is None or not isinstance(first_position, int):
            return
        if first_position + length > self.max_positions:
            raise ValueError(
                f"Positions must be below `max_positions`={self.max_positions}. "
                f"Received: positions up to {first_position + length - 1}"
            )
