# %% [markdown]
# # The paper, equation by equation
#
# **Question: what do the equations of "Attention Is All You Need" compute, and why are they as they
# are?**
#
# Each equation is computed in a few lines of NumPy and by the corresponding layer of this package, and an
# `assert` compares the two. Where the paper gives a reason, we measure it.
#
# *Prerequisites:* matrix products, gradients, a little Python. *Time:* half a minute on two CPU cores.
# Nothing is trained here.
#
# The paper: Vaswani et al., 2017, [arXiv 1706.03762](https://arxiv.org/abs/1706.03762). Section and
# equation numbers below are the paper's.

# %%
# %matplotlib inline
import os

import keras
import numpy as np
from keras import ops

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LabelSmoothedCrossEntropy,
    MultiHeadAttention,
    PositionalEmbedding,
    Transformer,
    TransformerSchedule,
    causal_mask,
    padding_mask,
    preset,
    scaled_dot_product_attention,
    sinusoids,
)
from keras_transformer.analysis import plots as plotting
from keras_transformer.analysis import token_similarity
from keras_transformer.analysis.complexity import best_seconds, products

QUICK = "QUICK" in os.environ
keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)

# %% [markdown]
# ## Masks: which positions are visible
#
# The sentences of a batch are padded to the same length with id 0. A **padding mask** hides the padding
# from all positions. A **causal mask** hides all later positions (section 3.2.3), because a decoder
# that sees the next word would learn to copy it. Masks are boolean, and `True` means *visible*.

# %%
ids = np.array([[7, 4, 9, 5, 2], [8, 6, 2, 0, 0]])  # two sentences; the second is two tokens shorter
padding = padding_mask(ids, pad_id=0)
causal = causal_mask(5)
print("padding", padding.shape, " causal", causal.shape, " both", (padding & causal).shape)

second = np.broadcast_to(padding[1], (5, 5))
plotting.boolean_maps(
    [second, causal[0], second & causal[0]], ["padding (2nd sentence)", "causal", "padding & causal"]
)

# %% [markdown]
# A mask has the axes *(batch, query, key)*; an axis of length 1 is broadcast. The padding mask is the
# same for all queries, the causal mask the same for all sentences.
#
# ## Scaled dot-product attention (equation 1)
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{Q K^T}{\sqrt{d_k}}\right) V$$
#
# Each row of $Q$ is a query, compared with all rows of $K$, the keys; the result is a weighted mean of
# the rows of $V$, the values. Here 3 queries attend to 5 keys of width $d_k = 4$ and mix values of
# width $d_v = 6$.

# %%
Q, K, V = rng.normal(size=(3, 4)), rng.normal(size=(5, 4)), rng.normal(size=(5, 6))

scores = Q @ K.T / np.sqrt(4)
weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
output = weights @ V

print("scores", scores.shape, " weights", weights.shape, " output", output.shape)
print(weights.round(2), "\neach row sums to", weights.sum(axis=-1).round(6))

# %% [markdown]
# The layer's function takes all sentences and all heads at once, in arrays with the axes *(batch, head,
# position, feature)*.

# %%
found = scaled_dot_product_attention(*(array[None, None].astype("float32") for array in (Q, K, V)))
print("weights", found.weights.shape, " output", found.output.shape)
np.testing.assert_allclose(found.weights[0, 0], weights, atol=1e-6)
np.testing.assert_allclose(found.output[0, 0], output, atol=1e-6)

# %% [markdown]
# A hidden key gets weight 0: its score is set to $-\infty$ before the softmax, so the weights of the
# other keys sum to 1.

# %%
mask = np.array([[[True, True, False, True, False]]])
shown = np.exp(scores) * mask[0]
found = scaled_dot_product_attention(*(array[None, None].astype("float32") for array in (Q, K, V)), mask)
np.testing.assert_allclose(found.weights[0, 0], shown / shown.sum(axis=-1, keepdims=True), atol=1e-6)
print(np.round(found.weights[0, 0], 2))

# %% [markdown]
# ## Why divide by $\sqrt{d_k}$? (section 3.2.1)
#
# If the components of $q$ and $k$ are independent, with mean 0 and variance 1, their dot product $q
# \cdot k = \sum_i q_i k_i$ has mean 0 and variance $d_k$ (footnote 4). The softmax of large scores puts
# all weight on one key, and there its gradient is nearly 0: nothing is learned.
#
# The paper compares with *additive* attention (Bahdanau et al.), whose score is $v \cdot \tanh(W q + U
# k)$: the tanh bounds every summand, so it needs no scale. We measure all three for queries that attend
# to 16 keys: the variance of the scores, and the mean size of $\partial w_i / \partial s_j =
# w_i\,(\delta_{ij} - w_j)$, the gradient of weight $w = \mathrm{softmax}(s)$.

# %%
widths = [4, 8, 16, 32, 64, 128, 256, 512]
queries, keys = 100 if QUICK else 1000, 16
glorot = keras.initializers.GlorotUniform(seed=1)
kinds = "dot product", "dot product / $\\sqrt{d_k}$", "additive"
variances, gradients = {kind: [] for kind in kinds}, {kind: [] for kind in kinds}

for d_k in widths:
    q = rng.normal(size=(queries, 1, d_k)).astype("float32")
    k = rng.normal(size=(queries, keys, d_k)).astype("float32")
    dot = ops.sum(q * k, axis=-1)
    additive = ops.tanh(q @ glorot((d_k, d_k)) + k @ glorot((d_k, d_k))) @ glorot((d_k, 1))
    for kind, score in zip(kinds, (dot, dot / d_k**0.5, additive[..., 0]), strict=True):
        weight = ops.softmax(score)
        jacobian = np.eye(keys) * weight[:, :, None] - weight[:, :, None] * weight[:, None, :]
        variances[kind].append(np.var(score))
        gradients[kind].append(np.abs(jacobian).mean())

plotting.score_curves(widths, variances, gradients)

# %% [markdown]
# The variance of the plain dot product is $d_k$, and its gradient shrinks. The variance of the scaled
# one is 1 for every width, and that of the additive one is constant, too.

# %%
np.testing.assert_allclose(np.divide(variances[kinds[0]], widths), 1, atol=0.2)
np.testing.assert_allclose(variances[kinds[1]], 1, atol=0.2)
for kind in kinds:
    kept = gradients[kind][-1] / gradients[kind][0]
    print(f"{kind:28} gradient at d_k = 512 / gradient at d_k = 4: {kept:.2f}")

# %% [markdown]
# Why not additive attention, then? "While the two are similar in theoretical complexity, dot-product
# attention is much faster and more space-efficient in practice": its scores are one matrix product,
# whereas the tanh needs an array of $n \times n \times d_k$ numbers. Timed for one head of $d_k = 64$:

# %%
n, d_k = 64 if QUICK else 512, 64
v = glorot((d_k, 1))
cases = [
    (lambda x: x @ ops.transpose(x), (n, d_k)),
    (lambda x: ops.tanh(x[:, None] + x[None]) @ v, (n, d_k)),
]
dot_seconds, additive_seconds = best_seconds(cases)
print(f"scores of {n} x {n} pairs: {1e3 * dot_seconds:.2f} ms, additive {1e3 * additive_seconds:.1f} ms")
print(f"largest array: {n * n:,} numbers against {n * n * d_k:,}")

# %% [markdown]
# ## Several heads (section 3.2.2)
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h)\, W^O,
# \quad \mathrm{head}_i = \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)$$
#
# One softmax computes one average, so a single head can attend to one thing only. With $h = 8$ heads of
# $d_k = d_v = d_{model} / h = 64$, eight averages are computed in parallel.

# %%
h, d_model, d_k = 8, 512, 64
layer = MultiHeadAttention(num_heads=h, key_dim=d_k)
x = rng.normal(size=(2, 10, d_model)).astype("float32")  # 2 sentences of 10 tokens
output, weights = layer(x, x, return_attention_scores=True)
print("input", x.shape, " weights", weights.shape, " output", output.shape)
for weight in layer.weights:
    print(f"  {weight.path.split('/')[-2]:7}{tuple(weight.shape)}")

# %% [markdown]
# One matrix holds the $W_i^Q$ of all heads. Computed by hand, one head after the other:

# %%
W_Q, W_K, W_V, W_O = layer.get_weights()
heads = []
for i in range(h):
    columns = slice(i * d_k, (i + 1) * d_k)
    projected = ((x @ W[:, columns])[:, None] for W in (W_Q, W_K, W_V))
    heads.append(scaled_dot_product_attention(*projected).output[:, 0])
    assert heads[i].shape == (2, 10, d_k)
by_hand = np.concatenate(heads, axis=-1) @ W_O
np.testing.assert_allclose(by_hand, output, atol=1e-5)

# %% [markdown]
# "Due to the reduced dimension of each head, the total computational cost is similar to that of
# single-head attention with full dimensionality." The multiply-adds, counted in TensorFlow's graph, and
# the parameters are not just similar:

# %%
single = MultiHeadAttention(num_heads=1, key_dim=d_model)
single.build(x.shape, x.shape)
costs = [products(lambda x, layer=layer: layer(x, x), x.shape) for layer in (layer, single)]
for name, cost, one in zip(("8 heads of 64", "1 head of 512"), costs, (layer, single), strict=True):
    print(f"{name}: {cost.multiply_adds:,} multiply-adds, {one.count_params():,} parameters")
assert costs[0] == costs[1]

# %% [markdown]
# ## Position-wise feed-forward network (equation 2)
#
# $$\mathrm{FFN}(x) = \max(0,\, x W_1 + b_1)\, W_2 + b_2$$
#
# Attention mixes positions; this layer transforms each position separately, with an inner width of
# $d_{ff} = 2048$.

# %%
feed_forward = FeedForward(d_ff=2048)
y = feed_forward(x)
W_1, b_1, W_2, b_2 = feed_forward.get_weights()
print("x", x.shape, " W1", W_1.shape, " b1", b_1.shape, " W2", W_2.shape, " b2", b_2.shape, " y", y.shape)
np.testing.assert_allclose(np.maximum(0, x @ W_1 + b_1) @ W_2 + b_2, y, atol=1e-5)

alone = feed_forward(x[:, 3:4])  # position 3 without the others
np.testing.assert_allclose(alone, y[:, 3:4], atol=1e-5)

# %% [markdown]
# ## Embeddings, times $\sqrt{d_{model}}$ (section 3.4)
#
# One matrix $E$ serves as embedding of the source, embedding of the target and, transposed, as output
# projection. The two uses need different scales: logits $x E^T$ of variance 1 need entries of variance
# $1 / d_{model}$, but embeddings that small would be dominated by the positions that are added to them.
# So embeddings are multiplied by $\sqrt{d_{model}}$ at the input, and not at the output.

# %%
embedding = PositionalEmbedding(vocab_size=1000, d_model=512)
tokens = rng.integers(4, 1000, size=(2, 10))
embedded = embedding(tokens)
E = embedding.get_weights()[0]
positions = np.array(sinusoids(np.arange(10), 512))
np.testing.assert_allclose(embedded, E[tokens] * 512**0.5 + positions, atol=1e-5)

print("ids", tokens.shape, " E", E.shape, " embedded", embedded.shape)
print(f"variance of an entry of E: {E.var():.5f}; 1 / 512 = {1 / 512:.5f}")
print(f"of a scaled embedding: {(E * 512**0.5).var():.2f}; of a position: {positions.var():.2f}")
print(f"of the logits of hidden states of variance 1: {np.var(embedding.logits(x)):.2f}")

# %% [markdown]
# ## Positions (section 3.5)
#
# Attention ignores order: it treats a sentence as a set. So each position adds its own pattern to the
# embedding:
#
# $$PE_{(pos, 2i)} = \sin\!\left(pos / 10000^{2i/d_{model}}\right), \qquad
# PE_{(pos, 2i+1)} = \cos\!\left(pos / 10000^{2i/d_{model}}\right)$$
#
# The paper interleaves sines and cosines. Tensor2Tensor, the authors' program, puts all sines first,
# with exponents $i / (d_{model}/2 - 1)$. This package has both; weights trained with one do not work
# with the other.

# %%
where, d_model = np.arange(60), 64
PE = np.array(sinusoids(where, d_model))
two_i = np.arange(0, d_model, 2)
angle = where[:, None] / 10000 ** (two_i / d_model)
np.testing.assert_allclose(PE[:, 0::2], np.sin(angle), atol=1e-4)
np.testing.assert_allclose(PE[:, 1::2], np.cos(angle), atol=1e-4)

plotting.position_heat_maps(
    {"interleaved (the paper)": PE, "halves (Tensor2Tensor)": np.array(sinusoids(where, d_model, "halves"))}
)

# %% [markdown]
# Each pair of dimensions is a wave. "The wavelengths form a geometric progression from $2\pi$ to $10000
# \cdot 2\pi$": the first dimensions distinguish neighbouring positions, the last ones the beginning of
# a book from its end.

# %%
wavelengths = 2 * np.pi * 10000 ** (two_i / d_model)
ratios = wavelengths[1:] / wavelengths[:-1]
np.testing.assert_allclose(ratios, ratios[0])
print(f"from {wavelengths[0] / np.pi:.0f} pi to {wavelengths[-1] / np.pi:,.0f} pi")
print(f"each {ratios[0]:.4f} times the one before")

fine = np.linspace(0, 60, 601)  # between the tokens, too, to draw the waves
waves = np.array(sinusoids(fine, d_model))
plotting.wavelength_curves(fine, {i: waves[:, i] for i in (0, 8, 16, 24)}, wavelengths)

# %% [markdown]
# The last wavelength is $10000^{1 - 2/d_{model}} \cdot 2\pi$, a little below $10000 \cdot 2\pi$: the
# formula's $2i$ ends at $d_{model} - 2$. Tensor2Tensor's exponents reach the end exactly.
#
# Why sines? "For any fixed offset $k$, $PE_{pos+k}$ can be represented as a linear function of
# $PE_{pos}$." With $\omega = 10000^{-2i/d_{model}}$ each pair turns by the angle $\omega k$:
#
# $$\begin{pmatrix} \sin \omega(pos+k) \\ \cos \omega(pos+k) \end{pmatrix} =
# \begin{pmatrix} \cos \omega k & \sin \omega k \\ -\sin \omega k & \cos \omega k \end{pmatrix}
# \begin{pmatrix} \sin \omega\, pos \\ \cos \omega\, pos \end{pmatrix}$$
#
# One matrix $M_k$ of such blocks moves *every* position by $k$: a head can learn "three words back".

# %%
k = 3
turn = k / 10000 ** (two_i / d_model)
even, odd = two_i, two_i + 1
M = np.zeros((d_model, d_model))
M[even, even], M[even, odd] = np.cos(turn), np.sin(turn)
M[odd, even], M[odd, odd] = -np.sin(turn), np.cos(turn)

print(f"M_{k}", M.shape, f" largest error over all positions: {np.abs(PE[:-k] @ M.T - PE[k:]).max():.1e}")
np.testing.assert_allclose(PE[:-k] @ M.T, PE[k:], atol=1e-4)
np.testing.assert_allclose(M @ M.T, np.eye(d_model), atol=1e-12)  # a rotation: lengths stay

# %% [markdown]
# ## A layer of the encoder (section 3.1)
#
# Two sublayers, each with a residual connection and a normalisation: $\mathrm{LayerNorm}(x +
# \mathrm{Sublayer}(x))$. Output and input have the same width, so layers can be stacked.

# %%
encoder_layer = EncoderLayer(num_heads=8, key_dim=64, d_ff=2048, residual_dropout=0.1)
encoded = encoder_layer(x)  # dropout acts in training only


def layer_norm(x):
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)


attended = layer_norm(x + encoder_layer.self_attention(x, x).numpy())
by_hand = layer_norm(attended + encoder_layer.feed_forward(attended).numpy())
print("x", x.shape, " after attention", attended.shape, " after feed-forward", by_hand.shape)
np.testing.assert_allclose(by_hand, encoded, atol=1e-4)

d, d_ff = 512, 2048
attention_parameters, ffn_parameters, norm_parameters = 4 * d * d, 2 * d * d_ff + d_ff + d, 2 * d
assert encoder_layer.count_params() == attention_parameters + ffn_parameters + 2 * norm_parameters
print(f"{encoder_layer.count_params():,} parameters")

# %% [markdown]
# ## A layer of the decoder
#
# Three sublayers: attention to the target so far (causal), attention to the encoder's output (queries
# from the decoder, keys and values from the encoder), feed-forward. Here the source has 10 tokens, the
# target 7.

# %%
decoder_layer = DecoderLayer(num_heads=8, key_dim=64, d_ff=2048)
target = rng.normal(size=(2, 7, 512)).astype("float32")
decoded = decoder_layer(target, encoded)

scores = {"return_attention_scores": True}
own, to_target = decoder_layer.self_attention(target, target, attention_mask=causal_mask(7), **scores)
one = layer_norm(target + own.numpy())
cross, to_source = decoder_layer.cross_attention(one, encoded, **scores)
two = layer_norm(one + cross.numpy())
three = layer_norm(two + decoder_layer.feed_forward(two).numpy())
print(
    "weights to the target",
    to_target.shape,
    " to the source",
    to_source.shape,
    " output",
    decoded.shape,
)
np.testing.assert_allclose(three, decoded, atol=1e-4)

# %% [markdown]
# ## The whole model (figure 1)
#
# The paper's base model has 6 + 6 such layers. Here, 2 + 2 narrow ones are enough.

# %%
sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
config = preset("base", source_vocab_size=50, target_vocab_size=50, **sizes).model
model = Transformer(config)
source = np.array([[7, 14, 9, 25, 2], [8, 16, 2, 0, 0]])
target = np.array([[1, 33, 12, 40, 21, 5], [1, 11, 19, 6, 0, 0]])  # 1 begins a sentence
logits = model((source, target)).numpy()
print("source", source.shape, " target", target.shape, " logits", logits.shape)

# %% [markdown]
# ### What must not change the output, and what must
#
# *The future.* With other tokens from position 3 on, the logits before position 3 stay the same and the
# later ones change.

# %%
changed = target.copy()
changed[0, 3:] = [17, 28, 39]
other = model((source, changed)).numpy()
difference = np.abs(other - logits)[0].max(axis=-1)
print("largest change of the logits at positions 0 to 5:", difference.round(3))
np.testing.assert_allclose(difference[:3], 0, atol=1e-6)
assert (difference[3:] > 0.01).all()

# %% [markdown]
# *The padding.* Four more columns of padding in the source change nothing. One more real token does.

# %%
longer = np.pad(source, [(0, 0), (0, 4)])
with_padding = np.abs(model((longer, target)).numpy() - logits).max()
longer[:, 5] = 30
with_token = np.abs(model((longer, target)).numpy() - logits).max()
print(f"largest change: {with_padding:.1e} with more padding, {with_token:.2f} with a token more")
assert with_padding < 1e-5 < 0.01 < with_token

# %% [markdown]
# *The order.* An encoder layer alone ignores it: shuffled input gives the shuffled output. The model
# does not, because of the positions.

# %%
shuffled = np.array([3, 1, 4, 0, 2])
without = np.abs(encoder_layer(x[:, :5][:, shuffled]) - encoder_layer(x[:, :5]).numpy()[:, shuffled]).max()
encode = [model.encode(rows).output.numpy()[0] for rows in (source[:1, shuffled], source[:1])]
with_positions = np.abs(encode[0] - encode[1][shuffled]).max()
print(f"largest change: {without:.1e} in a layer, {with_positions:.2f} in the model")
assert without < 1e-4 < 0.01 < with_positions

# %% [markdown]
# ### The order of norm, and how alike the words become
#
# Attention averages, so each encoder layer makes the words of a sentence more alike. With post-norm,
# the paper's order, LayerNorm then rescales the shared part, and the effect adds up from layer to layer.
# If all words look alike, the decoder cannot learn which of them to attend to. The plot shows the mean
# cosine between the encoder outputs of two words, before training. It depends on the initial matrices:
#
# - *separate*: one Glorot matrix each for queries, keys and values, as many implementations have it;
# - *stacked*: the three are parts of one Glorot matrix and 0.71 times as large, as in the Tensor2Tensor of
#   the paper's month. This is the default here (`model.attention_init`);
# - *DeepNorm*: stacked, with scaled residuals and smaller matrices for deep models
#   (`model.depth_scaling`; not in the paper);
# - *pre-norm*: LayerNorm before each sublayer (not in the paper).

# %%
depths = (1, 2, 4) if QUICK else (1, 2, 3, 4, 6, 8)
kinds = {
    "post-norm, separate": {"attention_init": "separate"},
    "post-norm, stacked": {},
    "post-norm, DeepNorm": {"depth_scaling": "deepnorm"},
    "pre-norm, separate": {"norm_first": True, "attention_init": "separate"},
}
rows = rng.integers(4, 50, (16, 14))
similarities = {kind: [] for kind in kinds}
for depth in depths:
    for kind, changes in kinds.items():
        keras.utils.set_random_seed(depth)
        layers = {"num_encoder_layers": depth, "num_decoder_layers": depth, "d_ff": 256}
        untrained = Transformer(
            preset("base", source_vocab_size=50, target_vocab_size=50, **{**sizes, **layers, **changes}).model
        )
        similarities[kind].append(token_similarity(untrained, rows))
last = {kind: values[-1] for kind, values in similarities.items()}
print(f"after {depths[-1]} layers:", ", ".join(f"{kind} {value:.2f}" for kind, value in last.items()))
assert last["post-norm, separate"] > last["post-norm, stacked"] > last["post-norm, DeepNorm"]
plotting.similarity_curves(depths, similarities)

# %% [markdown]
# On Multi30k, four post-norm layers do not learn to translate with separate matrices and a large learning
# rate; with stacked ones they do ([results](../docs/results.md#the-order-of-norm)).
#
# ## Label smoothing (section 5.4)
#
# The target probability of the correct token is not 1, which no finite logit reaches, but $1 -
# \epsilon_{ls}$. The other tokens share $\epsilon_{ls} = 0.1$ (Tensor2Tensor's formula; the paper gives
# none). The loss is then lowest at $p = 1 - \epsilon_{ls}$ and rises again above. In the plot, the
# other $V - 1$ tokens share $1 - p$ evenly.

# %%
V = 1000
p = np.linspace(0.005, 0.995, 199)
logits = np.log(np.column_stack([p, np.repeat((1 - p)[:, None] / (V - 1), V - 1, axis=1)]))[None]
labels = np.zeros((1, 199), "int32")  # the right token is number 0; nothing is padding
losses = {}
for epsilon in (0.0, 0.1, 0.2):
    loss = LabelSmoothedCrossEntropy(epsilon, pad_id=-1)
    losses[epsilon] = loss.statistics(labels, logits.astype("float32")).loss.numpy()[0]
    by_hand = -(1 - epsilon) * np.log(p) - epsilon * np.log((1 - p) / (V - 1))
    np.testing.assert_allclose(losses[epsilon], by_hand, atol=1e-5)
assert abs(p[np.argmin(losses[0.1])] - 0.9) < 0.006
plotting.smoothing_curves(p, losses)

# %% [markdown]
# "This hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score."
#
# ## The learning rate (equation 3)
#
# $$lrate = d_{model}^{-0.5} \cdot \min(step^{-0.5},\; step \cdot warmup\_steps^{-1.5})$$
#
# It rises linearly for `warmup_steps` updates, then decays as $1 / \sqrt{step}$. Wider models get smaller
# rates. The equation counts steps from 1, Keras from 0.

# %%
step = np.arange(1, 40_001)
base = TransformerSchedule(d_model=512, warmup_steps=4000)
np.testing.assert_allclose(base(step - 1), 512**-0.5 * np.minimum(step**-0.5, step * 4000**-1.5), rtol=1e-5)
peak = np.argmax(base(step - 1))
print(f"largest rate of the base model: {base(step - 1)[peak]:.2e} at step {step[peak]}")

chosen = {
    "base: $d_{model}$ 512": (512, 4000),
    "big: $d_{model}$ 1024": (1024, 4000),
    "base, warm-up 8000": (512, 8000),
}
plotting.schedule_curves(
    step, {name: np.array(TransformerSchedule(*sizes)(step - 1)) for name, sizes in chosen.items()}
)

# %% [markdown]
# ## What to read next
#
# - `02_training`: the same layers trained with `model.fit`, and what they then translate.
# - `03_attention`: what the heads of a trained model attend to.
# - `04_why_self_attention`: the paper's Table 1, measured: the cost and reach of self-attention,
#   recurrent and convolutional layers.
# - The code: `keras_transformer/model/layers/` follows the order of this notebook.
