"""Keras' habits with a Transformer and its layers: `python examples/keras_habits.py FOLDER`.

Two logical CPUs stand for two GPUs. All data is drawn: a "translation" is the source, reversed.
"""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
folder = pathlib.Path(sys.argv[1] if len(sys.argv) == 2 else sys.exit("usage: python keras_habits.py FOLDER"))
keras.utils.set_random_seed(7)
VOCAB, LENGTH, BOS = 29, 7, 1

source = np.random.default_rng(0).integers(4, VOCAB, (44, LENGTH)).astype("int32")
source[::3, 5:] = 0  # padding
labels = source[:, ::-1].copy()
target = np.concatenate([np.full((len(labels), 1), BOS, "int32"), labels[:, :-1]], axis=1)
sample_weight = np.linspace(0.5, 1.5, len(labels), dtype="float32")
dataset = tf.data.Dataset.from_tensor_slices(((source, target), labels, sample_weight)).batch(8)

with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 19, "num_heads": 2}
    config = kt.ModelConfig(source_vocab_size=VOCAB, target_vocab_size=VOCAB, **sizes)
    model = kt.Transformer(config, dtype="mixed_bfloat16")
    metrics = {"metrics": ["accuracy"], "weighted_metrics": ["sparse_top_k_categorical_accuracy"]}
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", **metrics)
model.summary()
callbacks = [
    keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_best_only=True, save_weights_only=True),
    keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1),
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
    keras.callbacks.CSVLogger(folder / "log.csv"),
    keras.callbacks.TensorBoard(folder / "events"),
    keras.callbacks.TerminateOnNaN(),
    keras.callbacks.BackupAndRestore(folder / "backup"),
]
losses = model.fit(dataset, validation_data=dataset, epochs=3, callbacks=callbacks, verbose=2).history["loss"]
assert losses[-1] < losses[0], losses
model.load_weights(folder / "best.weights.h5")
print(model.evaluate((source, target), labels, batch_size=8, sample_weight=sample_weight, return_dict=True))
model.export(folder / "exported", verbose=False)
pair = source[:3], target[:3]
loaded = tf.saved_model.load(folder / "exported")
assert np.allclose(loaded.serve(pair), model.predict(pair, verbose=0), atol=0.1)

keras.config.set_dtype_policy("mixed_bfloat16")
ids, wanted = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
embedding = kt.PositionalEmbedding(VOCAB, 16)
encoded = kt.EncoderLayer(num_heads=2, key_dim=8, d_ff=19)(embedding(ids))
decoded = kt.DecoderLayer(num_heads=2, key_dim=8, d_ff=19)(embedding(wanted), encoded)
attended = kt.MultiHeadAttention(2, 8)(decoded, encoded)
tagger = keras.Model([ids, wanted], keras.layers.Dense(VOCAB, dtype="float32")(attended))
twin = keras.models.clone_model(tagger)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
twin.compile("adam", loss, metrics=["accuracy"])
twin.fit([source, target], labels, sample_weight=sample_weight[:, None], epochs=2, verbose=2)
twin.save(folder / "twin.keras")
