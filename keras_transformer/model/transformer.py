"""The Transformer: encoder, decoder, embeddings and output projection (section 3)."""

import contextlib
import dataclasses
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.config.fields import from_values
from keras_transformer.config.settings import ModelConfig, SpecialIds
from keras_transformer.model.decoding import CachedDecoding
from keras_transformer.model.inputs import check_ids, checked_pair, id_pair
from keras_transformer.model.layers.basics import PACKAGE, Dropout, LayerNormalization, Projection
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.embedding import PositionalEmbedding
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.masks import causal_mask, padding_mask
from keras_transformer.model.loss import LabelSmoothedCrossEntropy

if keras.backend.backend() == "tensorflow":
    from keras_transformer.model.train_step import TokenWeightedStep
else:

    class TokenWeightedStep:
        """Other backends train with Keras' own step."""

        def run_layer(self, layer, *inputs, **arguments):
            """Calls a layer."""
            return layer(*inputs, **arguments)


class Encoded(NamedTuple):
    """What the decoder needs of the source.

    Attributes:
        output: float, shape `(batch, source_len, d_model)`.
        mask: bool, shape `(batch, 1, source_len)`; True for real tokens.
    """

    output: object
    mask: object


class Attended(NamedTuple):
    """Logits, and the attention of the layers that were asked for.

    Each of the three is a dict: number of a layer, from 0 -> float32 weights, which for
    every query sum to 1 over the positions it sees and are 0 at the others.

    Attributes:
        logits: float, shape `(batch, target_len, target_vocab_size)`.
        cross: of the decoder to the source, shape
            `(batch, num_heads, target_len, source_len)`.
        decoder: of the decoder to itself, `(batch, num_heads, target_len, target_len)`.
        encoder: of the encoder to itself, `(batch, num_heads, source_len, source_len)`.
    """

    logits: object
    cross: dict
    decoder: dict
    encoder: dict


@keras.saving.register_keras_serializable(package=PACKAGE)
class Transformer(CachedDecoding, TokenWeightedStep, keras.Model):
    """The model of figure 1.

    It is built, with all its weights, when it is made.

    Args:
        config: a `ModelConfig`, or the dict that `get_config` gives.
        special: `SpecialIds`; the padding id tells real tokens from padding.

    Call arguments:
        inputs: pair `(source_ids, target_ids)`, or a dict with these names, int, shapes
            `(batch, source_len)` and `(batch, target_len)`. Target ids start with the
            begin-of-sentence id: output i predicts the token after target id i.

    Returns:
        float logits, shape `(batch, target_len, target_vocab_size)`.

    Raises:
        TypeError: `config` is no `ModelConfig`; `inputs` are not a pair; or ids are not integers, or
            a ragged or sparse tensor.
        ValueError: ids of another shape, or, where they are called with arrays and not within a graph,
            outside the vocabulary.
    """

    def __init__(self, config, special=SpecialIds(), *, name="transformer", **kwargs):
        # A constant name: checkpoints call the weights by their paths.
        super().__init__(name=name, **kwargs)
        if isinstance(config, dict):
            config = from_values(ModelConfig, config)
        if isinstance(special, dict):
            special = SpecialIds(**special)
        if not isinstance(config, ModelConfig):
            raise TypeError(
                'Transformer takes a ModelConfig: preset("demo").model. '
                f"Received: config of the type {type(config).__name__}"
            )
        if not isinstance(special, SpecialIds):
            raise TypeError(f"`special` must be SpecialIds. Received: {special!r}")
        self.config = config
        self.special = special

        policy = self.dtype_policy
        same_names = (
            "num_heads", "d_ff", "residual_dropout", "attention_dropout", "relu_dropout", "norm_first",
            "layer_norm_epsilon", "attention_bias",
        )  # fmt: skip
        layer = {name: getattr(config, name) for name in same_names}
        layer.update(key_dim=config.d_key, value_dim=config.d_value, dtype=policy)

        def embedding(name, vocab_size):
            positions = {"positions": config.positions, "max_positions": config.max_positions}
            return PositionalEmbedding(vocab_size, config.d_model, **positions, name=name, dtype=policy)

        def norm(name):
            # Nothing normalises the sums that leave a pre-norm stack.
            epsilon = config.layer_norm_epsilon
            return LayerNormalization(epsilon=epsilon, name=name, dtype=policy) if config.norm_first else None

        if config.tie_embeddings == "all":
            self.source_embedding = embedding("embedding", config.source_vocab_size)
            self.target_embedding = self.source_embedding
        else:
            self.source_embedding = embedding("source_embedding", config.source_vocab_size)
            self.target_embedding = embedding("target_embedding", config.target_vocab_size)
        self.embedding_dropout = Dropout(config.embedding_dropout, name="embedding_dropout", dtype=policy)
        self.encoder_layers = [
            EncoderLayer(name=f"encoder_{i}", **layer) for i in range(config.num_encoder_layers)
        ]
        self.decoder_layers = [
            DecoderLayer(name=f"decoder_{i}", **layer) for i in range(config.num_decoder_layers)
        ]
        self.encoder_norm, self.decoder_norm = norm("encoder_norm"), norm("decoder_norm")
        self.output_projection = None
        if config.tie_embeddings == "none":
            self.output_projection = Projection(
                config.target_vocab_size, name="output_projection", dtype=policy
            )
        self.build()

    def build(self, input_shape=None):
        """Makes all weights; their shapes follow from the configuration alone."""
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

    def __call__(self, inputs, *args, **kwargs):
        # Before Keras converts them, and adds a page to what is wrong with them.
        sizes = self.config.source_vocab_size, self.config.target_vocab_size
        inputs = checked_pair(inputs, sizes, self.special.pad)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, training=None):
        source_ids, target_ids = id_pair(inputs)
        encoded = self.encode(source_ids, training=training)
        return self.decode(target_ids, encoded, training=training)

    def encode(self, source_ids, training=None):
        """Runs the encoder.

        Args:
            source_ids: int, shape `(batch, source_len)`.

        Returns:
            `Encoded`.
        """
        return self._encode(source_ids, training=training)[0]

    def decode(self, target_ids, encoded, training=None):
        """Runs the decoder over whole target sentences.

        Args:
            target_ids: int, shape `(batch, target_len)`, starting with bos.
            encoded: `Encoded`.

        Returns:
            float logits, shape `(batch, target_len, target_vocab_size)`.
        """
        return self._logits(self._decode(target_ids, encoded, training=training)[0])

    def attend(self, inputs, *, cross=(), decoder=(), encoder=()):
        """Runs the model without dropout and keeps the attention of some layers.

        Args:
            inputs: pair `(source_ids, target_ids)`, as a call takes it.
            cross: numbers of decoder layers, from 0, whose attention to the source is
                kept.
            decoder: the same, for the decoder's attention to itself.
            encoder: numbers of encoder layers, for the encoder's attention to itself.

        Returns:
            `Attended`.

        Raises:
            ValueError: there is no such layer.
        """
        for name, layers, number in (
            ("cross", cross, len(self.decoder_layers)),
            ("decoder", decoder, len(self.decoder_layers)),
            ("encoder", encoder, len(self.encoder_layers)),
        ):
            if not all(0 <= layer < number for layer in layers):
                raise ValueError(
                    f"`{name}` must hold numbers of layers, from 0 to {number - 1}. Received: {layers}"
                )
        source_ids, target_ids = id_pair(inputs)
        encoded, weights = self._encode(source_ids, encoder, training=False)
        hidden, attended = self._decode(target_ids, encoded, cross, decoder, training=False)
        return attended._replace(logits=self._logits(hidden), encoder=weights)

    def statistics(self, inputs, labels, training=None):
        """Returns the `TokenStatistics` of a batch, without its logits where nobody else sees them.

        TensorFlow only.

        Args:
            inputs: as a call takes them.
            labels: int, shape `(batch, target_len)`.
        """
        if not self._logits_are_projected():
            return super().statistics(inputs, labels, training)
        source_ids, target_ids = id_pair(inputs)
        untied = self.output_projection is not None
        lookups = 2 if self.source_embedding is self.target_embedding else 1
        with contextlib.ExitStack() as stack:
            if untied:
                matrix = self.output_projection.kernel
            else:
                matrix = stack.enter_context(self.target_embedding.gradient_added_once(lookups))
            hidden, _ = self._decode(target_ids, self.encode(source_ids, training), training=training)
        return self.loss.projected_statistics(labels, hidden, matrix, self.output_bias, transposed=untied)

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        """Writes the forward pass for other programs, as every Keras model does: ids in, logits out.

        The model need not have been called. A SavedModel is used as
        `tf.saved_model.load(filepath).serve((source_ids, target_ids))`, without this package.

        It does not translate: that takes a search and the vocabularies. For text in, text out, there are
        `keras_transformer.export.saved_model.export_saved_model` and the program `export`.

        Args:
            filepath: where to write.
            format: as `keras.Model.export` takes it.
            verbose: as `keras.Model.export` takes it.
            input_signature: list of one pair of specifications; int32, of any shape, unless given.
            **kwargs: as `keras.Model.export` takes them.

        Raises:
            ValueError, ImportError: Keras', for another format or one whose package is missing.
        """
        if input_signature is None:
            names = ("source_ids", "target_ids")
            input_signature = [
                tuple(keras.InputSpec(shape=(None, None), dtype="int32", name=name) for name in names)
            ]
        return super().export(
            filepath, format=format, verbose=verbose, input_signature=input_signature, **kwargs
        )

    def compute_output_shape(self, input_shape):
        _, target_shape = input_shape
        return (*target_shape, self.config.target_vocab_size)

    def get_config(self):
        sizes = {"config": dataclasses.asdict(self.config), "special": dataclasses.asdict(self.special)}
        return {**super().get_config(), **sizes}

    def get_build_config(self):
        return {}  # the constructor builds

    def _encode(self, source_ids, kept=(), training=None):
        """Returns `Encoded`, and the attention of the layers `kept` as a dict."""
        check_ids("source_ids", source_ids, self.special.pad)
        mask = padding_mask(source_ids, self.special.pad)
        x = self.source_embedding(source_ids)
        x = self.embedding_dropout(x, training=training)
        weights = {}
        for number, layer in enumerate(self.encoder_layers):
            if number in kept:
                x, weights[number] = layer.attend(x, mask, training=training)
            else:
                x = self.run_layer(layer, x, attention_mask=mask, training=training)
        if self.encoder_norm is not None:
            x = self.encoder_norm(x)
        return Encoded(x, mask), weights

    def _decode(self, target_ids, encoded, cross=(), decoder=(), training=None):
        """Returns what is projected onto the vocabulary, and `Attended` with the attention of some layers."""
        check_ids("target_ids", target_ids, self.special.pad)
        # Padding comes after the real tokens, so the causal mask hides it from them.
        visible = causal_mask(ops.shape(target_ids)[1])
        x = self.target_embedding(target_ids)
        x = self.embedding_dropout(x, training=training)
        attended = Attended(None, {}, {}, {})
        for number, layer in enumerate(self.decoder_layers):
            masks = {"self_attention_mask": visible, "cross_attention_mask": encoded.mask}
            if number not in cross and number not in decoder:
                x = self.run_layer(layer, x, encoded.output, **masks, training=training)
                continue
            x, to_target, to_source = layer.attend(x, encoded.output, **masks, training=training)
            if number in cross:
                attended.cross[number] = to_source
            if number in decoder:
                attended.decoder[number] = to_target
        return self._normalized(x), attended

    def _logits_are_projected(self):
        """Whether the loss may be computed from the matrix that makes the logits."""
        # float16 holds no small probabilities.
        policy = self.dtype_policy
        right_types = policy.variable_dtype == "float32" and policy.compute_dtype != "float16"
        # Who changes what makes the logits, or the loss, wants that used.
        return (
            right_types
            and all(getattr(type(self), name) is getattr(Transformer, name) for name in ("call", "decode"))
            and type(self.loss).statistics is LabelSmoothedCrossEntropy.statistics
            and (self._logits_are_tied() or type(self.output_projection) is Projection)
            and type(self)._logits is Transformer._logits
        )

    def _logits_are_tied(self):
        """Whether the logits are products with the target embedding, and nobody changed how."""
        return (
            self.output_projection is None
            and type(self)._logits is Transformer._logits
            and type(self.target_embedding).logits is PositionalEmbedding.logits
        )

    def _normalized(self, x):
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def _logits(self, x, **kernel):
        if self.output_projection is not None:
            logits = self.output_projection(x)
        else:
            logits = self.target_embedding.logits(x, **kernel)
        if self.output_bias is None:
            return logits
        # Keras casts weights to the compute type inside `call` only, not in `decode` or `step`.
        return logits + ops.cast(self.output_bias, logits.dtype)
