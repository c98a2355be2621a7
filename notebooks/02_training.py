# %% [markdown]
# # Train with `model.fit`
#
# **Question:** how do you train the paper's model in Keras, on one device or on several, how do its metrics
# develop, and how do you save it? And what does the order of norm do?
#
# **Prerequisites:** Keras' `compile` and `fit`. [Notebook 1](01_the_paper.ipynb) explains the model.
#
# **Time:** about six minutes on two CPU cores. Nothing is downloaded: the corpus is generated from the
# locale data of Unicode's CLDR (dates, times, prices, lists, spelled-out numbers).

# %%
# %matplotlib inline
import os
import pathlib
import random
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import (
    EpochPlanner,
    LabelSmoothedCrossEntropy,
    Perplexity,
    Scorer,
    SubwordTokenizer,
    TokenAccuracy,
    Transformer,
    TransformerSchedule,
    Translator,
    encode_pairs,
    load_corpus,
    load_exported,
    preset,
    token_batches,
)
from keras_transformer.analysis import attention_maps, relative_entropy, token_similarity
from keras_transformer.analysis.plots import fit_curves, loss_and_similarity
from keras_transformer.evaluation.bleu import corpus_scores
from keras_transformer.translation.scorer import perplexity

QUICK = "QUICK" in os.environ  # the tests' small setting

# Two devices of one CPU, to be declared before TensorFlow starts. On a machine with GPUs this goes.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
tf.get_logger().setLevel("ERROR")

# %% [markdown]
# ## Text
#
# A corpus has pairs of sentences for training, validation and test. **To train on your own sentences, change
# only the next cell**, in one of two ways.
#
# A folder with the files `train.en`, `train.de`, `valid.en`, `valid.de`, `test.en` and `test.de`, one
# sentence per line; line i of one file is the translation of line i of the other:
#
#     train, valid, test, *_ = load_corpus("my_folder", SOURCE, TARGET)
#
# Two lists of sentences, `source` and `target`:
#
#     from keras_transformer.text import Pairs
#     parts = slice(1000, None), slice(0, 500), slice(500, 1000)
#     train, valid, test = (Pairs(source[part], target[part]) for part in parts)

# %%
SOURCE, TARGET = "en", "de"
VOCAB_SIZE = 2000  # small corpora have fewer different pieces: the error then says how many
train, valid, test, *_ = load_corpus("cldr/en-de", SOURCE, TARGET)

# %%
for name, split in (("training", train), ("validation", valid), ("test", test)):
    print(f"{name:10} {len(split.source):6,} pairs")
for source, target in zip(train.source[:5], train.target[:5], strict=True):
    print(f"\n{source}\n{target}")

# %% [markdown]
# ## Tokens
#
# As in section 5.1, both languages share one byte-pair vocabulary, which is learned from the text. A
# `▁` marks a space.

# %%
tokenizer = SubwordTokenizer.train(train.source + train.target, vocab_size=VOCAB_SIZE)
(pieces,) = tokenizer.pieces([train.source[0]])
(ids,) = tokenizer.encode([train.source[0]])
print(pieces)
print(ids)
print(tokenizer.decode([ids]))

# %% [markdown]
# ## Batches
#
# "Sentence pairs were batched together by approximate sequence length" (section 5.1): a batch is filled
# with pairs up to a number of tokens, here 2,048 per side (the paper: about 25,000).
#
# A batch is `((source_ids, target_ids), labels)`. The decoder's input is the labels, shifted right: it
# predicts a token at position $i$ and reads it from position $i + 1$ on.

# %%
BATCH_TOKENS = 512 if QUICK else 2048
pairs, unseen = (encode_pairs(*split, tokenizer) for split in (train, valid))
planner = EpochPlanner(*pairs.lengths, batch_tokens=BATCH_TOKENS, seed=1)
validation = token_batches(unseen, EpochPlanner(*unseen.lengths, batch_tokens=BATCH_TOKENS))
(source_ids, target_ids), labels = next(iter(validation))
print("source", source_ids.shape, " target", target_ids.shape, " labels", labels.shape)
assert np.all(target_ids[:, 1:] == labels[:, :-1])
assert np.all(target_ids[:, 0] == tokenizer.special.bos)
per_epoch = planner.num_batches(0)
print(f"{per_epoch:,} batches an epoch, {100 * planner.real_share():.1f} % of them real tokens")

# %% [markdown]
# ## The learning rate
#
# Equation 3:
#
# $$lrate = d_{model}^{-0.5} \cdot \min(step^{-0.5},\; step \cdot warmup\_steps^{-1.5})$$
#
# rises linearly for `warmup_steps` updates and then decays with the square root of the step. The
# paper's warm-up takes 4,000 of 100,000 updates. This small model makes few updates, and a third of
# them are warm-up.

# %%
STEPS, EPOCHS, D_MODEL = (12, 3, 32) if QUICK else (1000, 10, 128)
WARMUP = STEPS // 3
schedule = TransformerSchedule(D_MODEL, warmup_steps=WARMUP)
rates = np.array(schedule(np.arange(STEPS)))  # Keras counts updates from 0, the paper from 1

step = np.arange(1, STEPS + 1)
np.testing.assert_allclose(rates, D_MODEL**-0.5 * np.minimum(step**-0.5, step * WARMUP**-1.5), rtol=1e-5)
print(f"largest: {rates.max():.5f}, at update {rates.argmax() + 1}")

# %% [markdown]
# ## Two devices
#
# `MirroredStrategy` keeps a copy of the weights on each device. The rows of a batch are split between the
# devices, each computes gradients for its half, and both copies are updated with the sum. Only the `with`
# statement is special: without it, the same code trains on one device.
#
# The halves contain different numbers of tokens. A mean of two means would give tokens of the shorter
# half more weight. `Transformer` divides the *sum* of the gradients by the number of tokens in the
# whole batch; its metrics are sums and counts, too.
#
# The recipe follows sections 5.3 and 5.4: Adam with $\beta_1 = 0.9$, $\beta_2 = 0.98$, $\epsilon =
# 10^{-9}$, the schedule above, label smoothing $\epsilon_{ls} = 0.1$. In the summary, "optimizer params" are
# Adam's: two running means per weight.

# %%
keras.utils.set_random_seed(1)
sizes = {"source_vocab_size": tokenizer.vocab_size, "target_vocab_size": tokenizer.vocab_size}
config = preset("demo", d_model=D_MODEL, **sizes).model

with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = Transformer(config)
    model.compile(
        keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        LabelSmoothedCrossEntropy(0.1),
        metrics=[TokenAccuracy(), Perplexity()],
    )
print(f"{config.num_encoder_layers} + {config.num_decoder_layers} layers, d_model {config.d_model},", end=" ")
print(f"{config.num_heads} heads, on {model.distribute_strategy.num_replicas_in_sync} devices")
model.summary()

# %% [markdown]
# ## Before training
#
# Even a model with random weights produces a translation:

# %%
numbers = sorted(random.Random(3).sample(range(len(test.source)), 6))
sources = [test.source[i] for i in numbers]
references = [test.target[i] for i in numbers]
translator = Translator(model, tokenizer)
before = translator.translate(sources, beam_size=1, max_length_offset=10)
for source, translation in zip(sources, before, strict=True):
    print(f"{source}\n    {translation[:90]}")

# %% [markdown]
# ## `fit`, with callbacks
#
# `token_batches` creates a `tf.data.Dataset` with the given number of epochs, each in a different
# order, so Keras does not need to shuffle. `steps_per_epoch` is the number of updates after which `fit`
# validates and counts one epoch; it need not be a pass over the pairs.
#
# Callbacks run during training. These three come with Keras:
#
# - `ModelCheckpoint` saves the model after every epoch in which the validation loss fell;
# - `EarlyStopping` ends the training when it has not fallen for two epochs, and restores the best weights;
# - `LambdaCallback` calls any function: here it translates one sentence after every epoch.
#
# Others, such as `TensorBoard`, work too. While `fit` runs, a progress bar shows updates, time and metrics.
# The stored times are of a machine that did other work at the same time; two free cores need about a tenth.

# %%
temporary = tempfile.TemporaryDirectory()
folder = pathlib.Path(temporary.name)  # your own folder, to keep the files
learned = []


def translate_one(epoch, logs):
    learned.extend(translator.translate(sources[:1], beam_size=1, max_length_offset=10))


stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
callbacks = [
    keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="val_loss", save_best_only=True),
    stopping,
    keras.callbacks.LambdaCallback(on_epoch_end=translate_one),
]
history = model.fit(
    token_batches(pairs, planner, epochs=STEPS // per_epoch + 2),
    steps_per_epoch=STEPS // EPOCHS,
    epochs=EPOCHS,
    validation_data=validation,
    shuffle=False,
    callbacks=callbacks,
).history

# %%
best = stopping.best_epoch
updates = len(history["loss"]) * (STEPS // EPOCHS)
print(f"{updates:,} updates, {updates / per_epoch:.1f} passes over the pairs; best epoch: {best + 1}\n")
for name, values in history.items():
    print(f"{name:20} {values[0]:8.3f} -> {values[-1]:8.3f}")
print(f"\nsource    {sources[0]}")
for epoch, translation in enumerate(learned, start=1):
    print(f"epoch {epoch:2}  {translation[:90]}")

# %% [markdown]
# The loss uses label smoothing (section 5.4), so even a perfect model does not reach 0. Perplexity and
# accuracy are computed without smoothing, as in the paper's Table 3. The minimum of the loss for a
# vocabulary of $V$ tokens, with $\epsilon_{ls}/(V-1)$ on each wrong one, is the entropy of the smoothed
# distribution:

# %%
V, smoothing = tokenizer.vocab_size, 0.1
floor = -(1 - smoothing) * np.log(1 - smoothing) - smoothing * np.log(smoothing / (V - 1))
print(f"the loss cannot fall below {floor:.3f} nats a token; it is at {history['loss'][-1]:.3f}")
assert min(history["loss"] + history["val_loss"]) >= floor

# %%
fit_curves(history, rates, steps_per_epoch=STEPS // EPOCHS)

# %% [markdown]
# Training metrics are means over an epoch, with dropout, while the weights change. Validation metrics are
# computed at its end, without dropout. Validation can therefore be ahead of training at first.
#
# Was the mean over two devices the mean over tokens? We compute the same perplexity in another way, one
# sentence at a time on one device:

# %%
scored = Scorer(model, tokenizer).score(*valid)
reported = history["val_perplexity"][best]
print(f"fit, two devices: {reported:.5f}   sentence by sentence: {perplexity(scored):.5f}")
np.testing.assert_allclose(reported, perplexity(scored), rtol=1e-4)

# %% [markdown]
# ## After training

# %%
after = translator.translate(sources)
for source, translation, reference in zip(sources, after, references, strict=True):
    print(f"source       {source}\ntranslation  {translation}\nreference    {reference}\n")

# %%
count = 20 if QUICK else 500
translations = translator.translate(test.source[:count])
print(corpus_scores(translations, test.target[:count], target_language=TARGET))

# %% [markdown]
# The paper's base model trained for twelve hours on eight GPUs. This small model has made a few passes
# over an easy corpus. It has learned the form of the sentences and most words, but not the rare ones.
# The program's demo makes four times as many updates and then translates 98 of 100 unseen sentences exactly
# like the reference ([results](../docs/results.md#the-built-in-corpus)).
#
# ## Save and load
#
# There are three ways, for three purposes. **A `.keras` file** has the model and the state of its optimizer,
# but no vocabulary: to go on in Keras, with this package imported. `ModelCheckpoint` has written one;
# `model.save(path)` writes the same.

# %%
loaded = keras.saving.load_model(folder / "best.keras")
found = loaded.evaluate(validation, verbose=0, return_dict=True)
print(f"validation loss in training {history['val_loss'][best]:.5f}, of the file {found['loss']:.5f}")
np.testing.assert_allclose(found["loss"], history["val_loss"][best], rtol=1e-4)

# %% [markdown]
# **A run folder** has the weights, the vocabulary and all settings: to translate with `Translator.load` and
# with the programs, such as `python pipelines/translate.py runs/mine`.

# %%
translator.save(folder / "run")
again = Translator.load(folder / "run").translate(sources)
print(again[0])
print("the same as before:", again == after)

# %% [markdown]
# **A SavedModel** has tokenizer, model and beam search in one TensorFlow graph, from text to text: to serve
# it without Python or Keras ([notebook 6](06_serving.ipynb)).

# %%
translator.export(folder / "served")
serve = load_exported(folder / "served").signatures["serving_default"]
answer = [text.decode() for text in serve(text=tf.constant(sources))["translation"].numpy()]
print(answer[0])
print("the same as before:", answer == after)

# %%
for path in ("best.keras", "run", "served"):
    files = [file for file in (folder / path, *(folder / path).rglob("*")) if file.is_file()]
    print(f"{path:12}{len(files):3} files {sum(file.stat().st_size for file in files) / 1e6:6.1f} MB")

# %% [markdown]
# ## The order of norm
#
# The model above normalises as the paper does, *after* each sublayer's residual sum: post-norm. Most later
# models normalise *before* each sublayer: pre-norm. The difference shows in deeper models, so we train four
# layers on each side, narrow ones to save time. Both orders of norm start from two kinds of initial query,
# key and value matrices: *stacked* (parts of one Glorot matrix, as in the Tensor2Tensor of the paper's month;
# the default) and *separate* (one Glorot matrix each, with larger values). Everything else is the same, the
# random seed and the batches included.
#
# Two measurements show what happens inside. The *cosine* between the encoder outputs of two tokens of a
# sentence, averaged over all pairs, is 1 if all tokens look alike ([notebook 1](01_the_paper.ipynb) has the
# reason). The *entropy* of the decoder's attention to the source is 1, relative to its largest value, if
# every source token gets the same weight.

# %%
LAYERS, NORM_STEPS, NORM_EPOCHS = (2, 12, 3) if QUICK else (4, 600, 12)
kinds = {
    "post-norm, stacked": {},
    "post-norm, separate": {"attention_init": "separate"},
    "pre-norm, stacked": {"norm_first": True},
    "pre-norm, separate": {"norm_first": True, "attention_init": "separate"},
}
narrow = {"num_encoder_layers": LAYERS, "num_decoder_layers": LAYERS, "d_model": 64, "d_ff": 128}
small = EpochPlanner(*pairs.lengths, batch_tokens=512 if QUICK else 1024, seed=1)
sentences = [(unseen.source[i], unseen.target[i]) for i in range(min(100, len(valid.source)))]
source_rows, target_rows = zip(*sentences, strict=True)

losses, similarities = {}, {}
for kind, changes in kinds.items():
    keras.utils.set_random_seed(1)
    compared = Transformer(preset("demo", **sizes, **narrow, **changes).model)
    rate = TransformerSchedule(64, warmup_steps=NORM_STEPS // 3, scale=0.2)
    compared.compile(
        keras.optimizers.Adam(rate, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        LabelSmoothedCrossEntropy(0.1),
        metrics=[Perplexity()],
    )
    untrained = token_similarity(compared, source_rows)
    batches = token_batches(pairs, small, epochs=NORM_STEPS // small.num_batches(0) + 2)
    epochs = {"steps_per_epoch": NORM_STEPS // NORM_EPOCHS, "epochs": NORM_EPOCHS}
    found = compared.fit(batches, validation_data=validation, shuffle=False, verbose=0, **epochs).history
    losses[kind] = found["val_loss"]
    similarities[kind] = untrained, token_similarity(compared, source_rows)
    entropy = relative_entropy(attention_maps(compared, source_rows[:20], target_rows[:20]).cross)
    print(f"{kind:20} validation perplexity {found['val_perplexity'][-1]:5.1f},", end=" ")
    print(f"cosine {untrained:.2f} -> {similarities[kind][1]:.2f}, entropy {entropy.mean():.2f}")

# %%
steps = NORM_STEPS // NORM_EPOCHS * np.arange(1, NORM_EPOCHS + 1)
loss_and_similarity(steps, losses, similarities)

# %% [markdown]
# With post-norm and separate matrices, the tokens of a sentence look alike before training (cosine 0.87)
# and even more so after it (0.97). The decoder's attention to the source stays near uniform (entropy 0.95),
# and the loss falls most slowly. With stacked matrices, post-norm learns to tell the tokens apart (cosine
# 0.40). Pre-norm depends less on the initial matrices and learns fastest here.
#
# This is the beginning of training: all four losses are still falling, and post-norm with separate matrices
# is behind, not stuck. Another random seed gave the same order of the two post-norm models.
#
# On Multi30k, with wider layers and a higher learning rate, the gap is wider. After 1,000 updates of the
# published recipe, post-norm had a validation BLEU of 26 with stacked and of 11 with separate matrices.
# After all 8,000 updates, stacked post-norm had 40.2 on the test set (lower-cased tokens); a pre-norm run
# with another recipe had 39.8 ([results](../docs/results.md#the-order-of-norm)). One command compares
# learning rates and warm-ups of both orders ([recipe](../docs/recipes.md#learning-rate-and-warm-up)).
#
# ## A run of the program
#
# The program `pipelines/train_wmt.py` calls the same `fit` with callbacks of its own that
# save checkpoints, translate the validation pairs with beam search, write the history, average the last
# checkpoints (section 6.1) and resume after an interruption. The result is a run folder. In Python,
# `train(config, run_dir)` does the same and takes Keras' callbacks, too
# ([whole runs](../docs/python.md#whole-runs-with-keras-callbacks)).
# `keras_transformer.analysis.plots.training_curves` plots its history: here four and four layers on the
# 29,000 captions of Multi30k, for two hours.
#
# ![Perplexity and validation BLEU of a run on Multi30k over training time](../docs/m30k.png)
#
# **What to read next:** [What attention sees](03_attention.ipynb) inspects such a run,
# [Searching](05_searching.ipynb) explains how translations are found, and [From a run to a served
# translator](06_serving.ipynb) exports it.
