"""The Transformer model: embeddings, encoder, decoder and output projection (section 3)."""

import contextlib
import dataclasses
from collections.abc import Collection
from typing import Any

import keras
from keras import ops

from keras_transformer.config.fields import current_names, with_earlier_defaults
from keras_transformer.config.settings import ModelConfig, SpecialIds
from keras_transformer.config.types import PathLike, Shape, Tensor
from keras_transformer.model.decoding import CachedDecoding, Encoded, TransformerOutput
from keras_transformer.model.inputs import check_ids, check_pair, id_pair
from keras_transformer.model.kernels.switch import without_gradients
from keras_transformer.model.layers.basics import PACKAGE, Dropout, Projection
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.embedding import PositionalEmbedding
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.masks import causal_mask, padding_mask
from keras_transformer.model.layers.rms_norm import normalization
from keras_transformer.model.layers.scaling import depth_scale
from keras_transformer.model.loss import LabelSmoothedCrossEntropy, TokenStatistics

if keras.backend.backend() == "tensorflow":
    from keras_transformer.model.train_step import TokenWeightedStep
else:
    from keras_transformer.model.keras_step import KerasStep as TokenWeightedStep  # type: ignore[assignment]


@keras.saving.register_keras_serializable(package=PACKAGE)
class Transformer(CachedDecoding, TokenWeightedStep, keras.Model):
    """The encoder-decoder Transformer of figure 1.

    The constructor creates all weights; no call is needed to build the model.

    Args:
        config: a `ModelConfig`, or its fields as a dict.
        special: `SpecialIds`, the ids of the special tokens.

    Call arguments:
        inputs: pair `(source_ids, target_ids)`, or a dict with these keys; int, shapes `(batch, source_len)`
            and `(batch, target_len)`. Target ids start with the begin-of-sentence id (bos): output i predicts
            the token after target id i. Source padding is masked wherever it stands. Target padding must
            follow the real tokens: only the causal mask hides it from them.

    Returns:
        float logits, shape `(batch, target_len, target_vocab_size)`.

    Raises:
        TypeError: `config` is neither a `ModelConfig` nor a dict, `inputs` is not a pair, or the ids are not
            a dense integer tensor.
        ValueError: the ids have the wrong shape, or are outside the vocabulary. (The range is checked only
            outside a graph, where the values are known.)
    """

    def __init__(
        self,
        config: ModelConfig,
        special: SpecialIds = SpecialIds(),
        *,
        name: str = "transformer",
        **kwargs: Any,
    ) -> None:
        # Checkpoints store a weight under its Keras path, which begins with the name of the model. Without
        # this default, Keras would number the instances: transformer, transformer_1 and so on.
        super().__init__(name=name, **kwargs)
        if isinstance(config, dict):
            config = ModelConfig(**current_names(ModelConfig, config)[0])
        if isinstance(special, dict):
            special = SpecialIds(**special)
        if not isinstance(config, ModelConfig):
            raise TypeError(
                '`config` must be a ModelConfig, such as preset("demo").model. '
                f"Received: config of the type {type(config).__name__}"
            )
        if not isinstance(special, SpecialIds):
            raise TypeError(f"`special` must be SpecialIds. Received: {special!r}")
        self.config = config
        self.special = special

        policy = self.dtype_policy
        shared_settings = (
            "num_heads", "d_ff", "residual_dropout", "attention_dropout", "relu_dropout", "norm_first",
            "layer_norm_epsilon", "attention_bias", "attention_init", "activation", "norm",
            "max_relative_position", "qk_norm",
        )  # fmt: skip
        settings = {name: getattr(config, name) for name in shared_settings}
        settings.update(key_dim=config.d_key, value_dim=config.d_value, dtype=policy)
        in_attention = settings["positions"] = config.attention_positions

        def embedding(name, vocab_size):
            added = "none" if in_attention else config.positions
            positions = {"positions": added, "max_positions": config.max_positions}
            return PositionalEmbedding(vocab_size, config.d_model, **positions, name=name, dtype=policy)

        def norm(name):
            # In a pre-norm stack the last residual sum is not normalised, so a final norm follows.
            arguments = {"epsilon": config.layer_norm_epsilon, "name": name, "dtype": policy}
            return normalization(config.norm, **arguments) if config.norm_first else None

        if config.tie_embeddings == "all":
            self.source_embedding = embedding("embedding", config.source_vocab_size)
            self.target_embedding = self.source_embedding
        else:
            self.source_embedding = embedding("source_embedding", config.source_vocab_size)
            self.target_embedding = embedding("target_embedding", config.target_vocab_size)
        self.embedding_dropout = Dropout(config.embedding_dropout, name="embedding_dropout", dtype=policy)
        depths = config.num_encoder_layers, config.num_decoder_layers

        def scale(i, decoder):
            return {"depth_scale": depth_scale(config.depth_scaling, i, *depths, decoder=decoder)}

        self.encoder_layers = [
            EncoderLayer(name=f"encoder_{i}", **scale(i, False), **settings) for i in range(depths[0])
        ]
        self.decoder_layers = [
            DecoderLayer(name=f"decoder_{i}", **scale(i, True), **settings) for i in range(depths[1])
        ]
        self.encoder_norm, self.decoder_norm = norm("encoder_norm"), norm("decoder_norm")
        self.output_projection: Any = None
        if config.tie_embeddings == "none":
            self.output_projection = Projection(
                config.target_vocab_size, name="output_projection", dtype=policy
            )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Creates all weights; their shapes depend on the configuration only."""
        if self.built:
            return
        hidden = (None, None, self.config.d_model)
        self.source_embedding.build((None, None))
        if self.target_embedding is not self.source_embedding:
            self.target_embedding.build((None, None))
        self.embedding_dropout.build(hidden)
        for layer in self.encoder_layers:
            layer.build(hidden)
        for layer in self.decoder_layers:
            layer.build(hidden, hidden)
        for layer in filter(None, (self.encoder_norm, self.decoder_norm, self.output_projection)):
            layer.build(hidden)
        self.output_bias = None
        if self.config.output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(self.config.target_vocab_size,), initializer="zeros"
            )
        self.built = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        # Checked before Keras converts the ids: Keras' own errors for wrong ids are a page long.
        sizes = self.config.source_vocab_size, self.config.target_vocab_size
        inputs = check_pair(inputs, sizes, self.special.pad)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        source_ids, target_ids = id_pair(inputs)
        encoded = self.encode(source_ids, training=training)
        return self.decode(target_ids, encoded, training=training)

    def encode(self, source_ids: Tensor, training: bool | None = None) -> Encoded:
        """Runs the encoder.

        Args:
            source_ids: int, shape `(batch, source_len)`.
            training: whether dropout is applied.

        Returns:
            `Encoded`.
        """
        return self._encode(source_ids, training=training)[0]

    def decode(self, target_ids: Tensor, encoded: Encoded, training: bool | None = None) -> Tensor:
        """Runs the decoder on whole target sentences (teacher forcing).

        Args:
            target_ids: int, shape `(batch, target_len)`, starting with bos.
            encoded: `Encoded`.
            training: whether dropout is applied.

        Returns:
            float logits, shape `(batch, target_len, target_vocab_size)`.
        """
        return self._logits(self._decode(target_ids, encoded, training=training)[0])

    def attend(
        self,
        inputs: Any,
        *,
        cross: Collection[int] = (),
        decoder: Collection[int] = (),
        encoder: Collection[int] = (),
    ) -> TransformerOutput:
        """Runs the model without dropout and returns the attention weights of selected layers.

        Args:
            inputs: pair `(source_ids, target_ids)`, as for a call.
            cross: indices of decoder layers, from 0, whose cross-attention weights are returned.
            decoder: indices of decoder layers whose self-attention weights are returned.
            encoder: indices of encoder layers whose self-attention weights are returned.

        Returns:
            `TransformerOutput`.

        Raises:
            ValueError: a layer index is out of range.
        """
        for name, layers, num_layers in (
            ("cross", cross, len(self.decoder_layers)),
            ("decoder", decoder, len(self.decoder_layers)),
            ("encoder", encoder, len(self.encoder_layers)),
        ):
            if not all(0 <= layer < num_layers for layer in layers):
                raise ValueError(
                    f"`{name}` must contain layer numbers from 0 to {num_layers - 1}. Received: {layers}"
                )
        source_ids, target_ids = id_pair(inputs)
        encoded, encoder_weights = self._encode(source_ids, encoder, training=False)
        x, cross_weights, self_weights = self._decode(target_ids, encoded, cross, decoder, training=False)
        return TransformerOutput(self._logits(x), cross_weights, self_weights, encoder_weights)

    def statistics(self, inputs: Any, labels: Tensor, training: bool | None = None) -> TokenStatistics:
        """Returns the `TokenStatistics` (loss and metrics) of a batch; TensorFlow only.

        Where possible, one fused kernel computes the output projection and the loss.

        Args:
            inputs: pair `(source_ids, target_ids)`, as for a call.
            labels: int, shape `(batch, target_len)`.
            training: whether dropout is applied.
        """
        if not self._can_fuse_projection_and_loss():
            return super().statistics(inputs, labels, training)
        source_ids, target_ids = id_pair(inputs)
        has_projection = self.output_projection is not None
        # With tied embeddings, the output projection and the lookup of the target ids use one matrix. If all
        # embeddings are tied, the lookup of the source ids uses it too. `summed_gradients` adds up the
        # gradients of all these uses.
        num_lookups = 2 if self.source_embedding is self.target_embedding else 1
        with contextlib.ExitStack() as stack:
            if has_projection:
                matrix = self.output_projection.kernel
            else:
                matrix = stack.enter_context(self.target_embedding.summed_gradients(num_lookups))
            hidden, *_ = self._decode(target_ids, self.encode(source_ids, training), training=training)
        return self.loss.projected_statistics(
            labels, hidden, matrix, self.output_bias, transposed=has_projection
        )

    def export(
        self,
        filepath: PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Exports the forward pass, from ids to logits, like `keras.Model.export`.

        The model need not have been called before. A SavedModel runs without this package:
        `tf.saved_model.load(filepath).serve((source_ids, target_ids))`.

        The exported model does not translate text: it has no beam search and no tokenizers. To export those
        too, use `keras_transformer.export.saved_model.export_saved_model` or the program `export`.

        Args:
            filepath: output path.
            format: see `keras.Model.export`.
            verbose: see `keras.Model.export`.
            input_signature: list with one pair of input specs; the default is int32 with the shape
                `(None, None)` for both.
            **kwargs: see `keras.Model.export`.

        Raises:
            ValueError, ImportError: raised by Keras for an unknown format, or if the format's package is
                not installed.
        """
        if input_signature is None:
            names = ("source_ids", "target_ids")
            input_signature = [
                tuple(keras.InputSpec(shape=(None, None), dtype="int32", name=name) for name in names)
            ]
        options = {"format": format, "verbose": verbose, "input_signature": input_signature, **kwargs}
        with without_gradients():
            super().export(filepath, **options)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        _, target_shape = id_pair(input_shape)
        return (*target_shape, self.config.target_vocab_size)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "Transformer":
        # A file of an earlier version lacks the settings added since.
        config = {**config, "config": with_earlier_defaults(ModelConfig, config["config"])}
        return super().from_config(config, custom_objects)

    def get_config(self) -> dict[str, Any]:
        arguments = {"config": dataclasses.asdict(self.config), "special": dataclasses.asdict(self.special)}
        return {**super().get_config(), **arguments}

    def get_build_config(self) -> dict[str, Any] | None:
        return {}  # empty, because the constructor creates all weights

    def _encode(self, source_ids, layers=(), training=None):
        """Returns `Encoded`, and a dict from layer index to self-attention weights, for the `layers`."""
        check_ids("source_ids", source_ids, self.special.pad)
        mask = padding_mask(source_ids, self.special.pad)
        x = self.source_embedding(source_ids)
        x = self.embedding_dropout(x, training=training)
        weights = {}
        for index, layer in enumerate(self.encoder_layers):
            if index in layers:
                x, weights[index] = layer.attend(x, mask, training=training)
            else:
                x = self.run_layer(layer, x, attention_mask=mask, training=training)
        if self.encoder_norm is not None:
            x = self.encoder_norm(x)
        return Encoded(x, mask), weights

    def _decode(self, target_ids, encoded, cross_layers=(), self_layers=(), training=None):
        """Runs the decoder up to the output projection.

        Returns:
            float, shape `(batch, target_len, d_model)`, and two dicts from layer index to attention weights:
            of cross-attention for `cross_layers`, and of self-attention for `self_layers`.
        """
        check_ids("target_ids", target_ids, self.special.pad)
        # Padding follows the real tokens, so the causal mask also hides padding from real tokens.
        causal = causal_mask(ops.shape(target_ids)[1])
        x = self.target_embedding(target_ids)
        x = self.embedding_dropout(x, training=training)
        cross_attention, self_attention = {}, {}
        for index, layer in enumerate(self.decoder_layers):
            masks = {"self_attention_mask": causal, "cross_attention_mask": encoded.mask}
            if index not in cross_layers and index not in self_layers:
                x = self.run_layer(layer, x, encoded.output, **masks, training=training)
                continue
            x, self_weights, cross_weights = layer.attend(x, encoded.output, **masks, training=training)
            if index in cross_layers:
                cross_attention[index] = cross_weights
            if index in self_layers:
                self_attention[index] = self_weights
        return self._final_norm(x), cross_attention, self_attention

    def _can_fuse_projection_and_loss(self):
        """Whether `kernels.losses.projected_losses` may replace the output projection and the loss."""
        # In float16, small probabilities would underflow to 0.
        policy = self.dtype_policy
        supported = policy.variable_dtype == "float32" and policy.compute_dtype != "float16"
        # A subclass may compute logits or loss in another way, which the fused kernel would ignore.
        return (
            supported
            and all(getattr(type(self), name) is getattr(Transformer, name) for name in ("call", "decode"))
            and type(self.loss).statistics is LabelSmoothedCrossEntropy.statistics
            and (self._has_tied_logits() or self._has_plain_projection())
            and type(self)._logits is Transformer._logits
        )

    def _has_plain_projection(self):
        projection = self.output_projection
        return type(projection) is Projection and projection.is_product

    def _has_tied_logits(self):
        """Whether the tied target embedding makes the logits, with no override in a subclass."""
        return (
            self.output_projection is None
            and type(self)._logits is Transformer._logits
            and type(self.target_embedding).logits is PositionalEmbedding.logits
        )

    def _final_norm(self, x):
        """Applies the layer normalisation after the last layer of a pre-norm decoder."""
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def _logits(self, x, **kernel_argument):
        """Projects `x` onto the vocabulary.

        Args:
            x: float, shape `(..., d_model)`.
            **kernel_argument: empty, or `kernel=` with `StepKernels.logits`. It is empty if a
                subclass overrides this method, so an override needs no such argument.

        Returns:
            float logits, shape `(..., target_vocab_size)`.
        """
        if self.output_projection is not None:
            logits = self.output_projection(x)
        else:
            logits = self.target_embedding.logits(x, **kernel_argument)
        if self.output_bias is None:
            return logits
        # Keras casts weights to the compute dtype inside `call` only, not in `CachedDecoding.step`.
        return logits + ops.cast(self.output_bias, logits.dtype)
