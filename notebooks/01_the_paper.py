# %% [markdown]
# # The paper, equation by equation
#
# **Question: what do the equations of "Attention Is All You Need" compute, and why are they as they
# are?**
#
# Each equation is computed in a few lines of NumPy and by the corresponding layer of this package, and an
# `assert` compares the two. A layer of the encoder is built in NumPy, one step per cell. Where the paper
# gives a reason, we measure it. At the end there are five exercises, with solutions.
#
# *Prerequisites:* matrix products, gradients, a little Python. *Time:* half a minute on two CPU cores.
# Nothing is trained here.
#
# The paper: Vaswani et al., 2017, [arXiv 1706.03762](https://arxiv.org/abs/1706.03762). Section and
# equation numbers below are the paper's.

# %%
# %matplotlib inline
import inspect
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
# ## The model at a glance (figure 1)
#
# The Transformer translates token by token. The *encoder* (left) turns the $n$ tokens of the source sentence
# into $n$ vectors of width $d_{model}$. The *decoder* (right) reads these vectors and the target tokens so
# far, and gives a probability to each possible next token.
#
# Both are stacks of $N$ equal layers. Every block below has a section in this notebook; the number is that
# of the section of the paper. *Add & norm* adds the input of a block to its output, the *residual connection*
# around the block, and normalises the sum.

# %%
plotting.model_diagram()

# %% [markdown]
# ## Scaled dot-product attention (equation 1)
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{Q K^T}{\sqrt{d_k}}\right) V$$
#
# Each row of $Q$ is a query, compared with all rows of $K$, the keys; the result is a weighted mean of
# the rows of $V$, the values. Figure 2 of the paper, with shapes; the next sections explain the mask and the
# right half:

# %%
plotting.attention_diagrams()

# %% [markdown]
# Here $m = 3$ queries attend to $n = 5$ keys of width $d_k = 4$ and mix values of width $d_v = 6$.

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
# one is 1 for every width, and that of the additive one stays near it.

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
# ### Built in NumPy, step by step
#
# The same weights, now without the layer. **Step 1: project.** One matrix holds the $W_i^Q$ of all heads side
# by side, so one product projects for all of them.

# %%
W_Q, W_K, W_V, W_O = layer.get_weights()
q, k, v = x @ W_Q, x @ W_K, x @ W_V
print("queries", q.shape, " keys", k.shape, " values", v.shape)

# %% [markdown]
# **Step 2: split into heads.** Columns 0 to 63 belong to the first head, 64 to 127 to the second, and so on.
# The axis of the heads comes before that of the positions, as if each head were a sentence of its own.


# %%
def split_heads(y):
    batch, length, width = y.shape
    return y.reshape(batch, length, h, width // h).transpose(0, 2, 1, 3)


q, k, v = split_heads(q), split_heads(k), split_heads(v)
print("queries", q.shape, " keys", k.shape, " values", v.shape)
np.testing.assert_allclose(q[:, 1], x @ W_Q[:, 64:128], atol=1e-5)  # the second head

# %% [markdown]
# **Step 3: scores.** Every query times every key of the same sentence and head, divided by $\sqrt{d_k}$.

# %%
scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d_k)
print("scores", scores.shape)

# %% [markdown]
# **Step 4: weights.** Softmax over the keys. Without the largest score in the exponent, $e^{1000}$ would be
# infinite; it cancels in the quotient.


# %%
def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


weights_by_hand = softmax(scores)
print("weights", weights_by_hand.shape, " sum of a row", weights_by_hand[0, 0, 0].sum().round(6))

# %% [markdown]
# **Step 5: weighted means** of the values, one per query and head.

# %%
heads = weights_by_hand @ v
print("heads", heads.shape)

# %% [markdown]
# **Step 6: concatenate and project.** The heads of a position are put side by side again, and $W^O$ mixes
# them.

# %%
concatenated = heads.transpose(0, 2, 1, 3).reshape(2, 10, h * d_k)
by_hand = concatenated @ W_O
print("concatenated", concatenated.shape, " output", by_hand.shape)

# %% [markdown]
# The layer computes the same; only the rounding of float32 differs:

# %%
print(f"largest difference: weights {np.abs(weights_by_hand - weights).max():.1e},", end=" ")
print(f"output {np.abs(by_hand - output).max():.1e}")
np.testing.assert_allclose(weights_by_hand, weights, atol=1e-5)
np.testing.assert_allclose(by_hand, output, atol=1e-5)

# %% [markdown]
# All six steps in one function, which the encoder layer needs below:


# %%
def multi_head_attention(x, matrices):
    *projections, output = matrices  # W_Q, W_K, W_V and W_O
    q, k, v = (split_heads(x @ matrix) for matrix in projections)
    heads = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(d_k)) @ v
    return heads.transpose(0, 2, 1, 3).reshape(x.shape) @ output


np.testing.assert_array_equal(multi_head_attention(x, layer.get_weights()), by_hand)

# %% [markdown]
# ### What several heads cost
#
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
# ## A layer of the encoder, built in NumPy (section 3.1)
#
# Two sublayers, multi-head attention and the feed-forward network. Around each: $\mathrm{LayerNorm}(x +
# \mathrm{Sublayer}(x))$. Output and input have the same width, so layers can be stacked. Here are the
# weights of our layer. Random numbers are added to them, so that no gain is just 1 and no bias just 0.

# %%
encoder_layer = EncoderLayer(num_heads=8, key_dim=64, d_ff=2048, residual_dropout=0.1)
encoder_layer.build(x.shape)
encoder_layer.set_weights([w + rng.normal(0, 0.02, w.shape) for w in encoder_layer.get_weights()])
for weight in encoder_layer.weights:
    print(f"{weight.path.partition('/')[2]:36}{tuple(weight.shape)}")

# %% [markdown]
# **Attention**, with the function from above:

# %%
*matrices, gain_1, bias_1, W_1, b_1, W_2, b_2, gain_2, bias_2 = encoder_layer.get_weights()
attended = multi_head_attention(x, matrices)
print("attended", attended.shape)

# %% [markdown]
# **Add and norm.** LayerNorm (Ba et al., 2016) gives the numbers of each position mean 0 and variance 1,
# then applies a learned gain and bias to each of the $d_{model}$ features. A small $\epsilon$ keeps the
# quotient finite.


# %%
def layer_norm(x, gain=1.0, bias=0.0, epsilon=1e-6):
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gain + bias


one = layer_norm(x + attended, gain_1, bias_1)
print("after attention", one.shape)

# %% [markdown]
# **Feed-forward**, equation 2, then **add and norm** again:

# %%
inner = np.maximum(0, one @ W_1 + b_1)
two = layer_norm(one + inner @ W_2 + b_2, gain_2, bias_2)
print("inner", inner.shape, " after feed-forward", two.shape)

# %% [markdown]
# The layer itself. Its dropout acts in training only.

# %%
encoded = encoder_layer(x)
print(f"largest difference: {np.abs(two - encoded).max():.1e}")
np.testing.assert_allclose(two, encoded, atol=1e-4)

# %% [markdown]
# Its source has the same steps. `pre` and `post` are the residual connection with its norm: with the paper's
# order of norm, `pre(x)` is `x`, and `post(x, y)` is $\mathrm{LayerNorm}(x + y)$.

# %%
print(inspect.getsource(EncoderLayer.attend))

# %% [markdown]
# The parameters, counted:

# %%
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
print("weights to the target", to_target.shape, " to the source", to_source.shape, " output", decoded.shape)
np.testing.assert_allclose(three, decoded, atol=1e-4)

# %% [markdown]
# ## The whole model
#
# The paper's base model has 6 + 6 such layers. Here, 2 + 2 narrow ones are enough. The model returns logits,
# the numbers before the last softmax; loss and search apply it.

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
# ## Exercises
#
# Each ends with a check that must pass. The solutions follow below.
#
# 1. **A window.** Write a mask of 10 positions with which each position sees itself and the two before it.
#    How many layers does it take until the last position depends on the first? *Check:* shape (10, 10); the
#    masks of that many layers, multiplied as matrices, are positive at (9, 0), and those of one layer fewer
#    are 0 there.
# 2. **Sets.** Shuffle keys and values of an attention in the same way; then shuffle only the keys. When does
#    the output stay as it is, and why? *Check:* `scaled_dot_product_attention`.
# 3. **Pre-norm.** Change the encoder layer in NumPy so that it normalises the input of each sublayer instead
#    of the sum. *Check:* `EncoderLayer(..., norm_first=True)` with the same weights.
# 4. **Parameters.** Write a function of $N$, $d_{model}$, $d_{ff}$ and the size of the vocabulary $V$ that
#    counts the parameters of the whole model. *Check:* `model.count_params()` of the small model above;
#    table 3 of the paper says 65 million for the base model, whose vocabulary has "about 37000 tokens".
# 5. **The learning rate.** After warm-up, at which step is the rate of the base model again what it was at
#    step 1,000? Solve equation 3 for it. *Check:* `TransformerSchedule(512, 4000)`.
#
# ## Solutions
#
# **1.** Each layer reaches two positions further, so nine positions take five layers. The paper's section 4
# calls this *restricted* self-attention: with a window of $r$ positions, the path between two tokens takes up
# to about $n / r$ layers instead of one.

# %%
position = np.arange(10)
distance = position[:, None] - position[None, :]
window = (distance >= 0) & (distance <= 2)
reached = [int(np.linalg.matrix_power(window.astype(int), layers)[9, 0]) for layers in range(1, 7)]
print("paths from position 9 to position 0 after 1 to 6 layers:", reached)
assert window.shape == (10, 10)
assert reached[3] == 0 < reached[4]

# %% [markdown]
# **2.** The output is a sum over the keys, and a sum has no order: with both shuffled, each weight still
# meets its value. With only the keys shuffled, the weights meet other values.

# %%
query, key, value = (rng.normal(size=(1, 1, rows, 4)).astype("float32") for rows in (3, 5, 5))
order = [4, 2, 0, 1, 3]
plain = scaled_dot_product_attention(query, key, value).output
both = scaled_dot_product_attention(query, key[:, :, order], value[:, :, order]).output
only_keys = scaled_dot_product_attention(query, key[:, :, order], value).output
changes = [float(np.abs(output - plain).max()) for output in (both, only_keys)]
print(f"largest change: keys and values {changes[0]:.1e}, only keys {changes[1]:.1f}")
assert changes[0] < 1e-6 < 0.1 < changes[1]

# %% [markdown]
# **3.** The norm moves from the sum to the input of the sublayer. The sum itself is not normalised, so $x$
# passes through all layers unchanged but for what is added to it.

# %%
one = x + multi_head_attention(layer_norm(x, gain_1, bias_1), matrices)
two = one + np.maximum(0, layer_norm(one, gain_2, bias_2) @ W_1 + b_1) @ W_2 + b_2
pre_norm = EncoderLayer(num_heads=8, key_dim=64, d_ff=2048, norm_first=True)
pre_norm.build(x.shape)
pre_norm.set_weights(encoder_layer.get_weights())
print(f"largest difference: {np.abs(two - pre_norm(x)).max():.1e}")
np.testing.assert_allclose(two, pre_norm(x), atol=1e-4)

# %% [markdown]
# **4.** A decoder layer has two attentions and three norms. Embeddings and output projection share one
# matrix, and the positions have no parameters. (Table 3 rounds, and does not say what it counts.)


# %%
def parameters(layers, d, d_ff, vocabulary):
    attention, feed_forward, norm = 4 * d * d, 2 * d * d_ff + d_ff + d, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    return layers * (encoder + decoder) + vocabulary * d


assert parameters(2, 64, 128, 50) == model.count_params()
print(f"the base model with 37,000 tokens: {parameters(6, 512, 2048, 37_000) / 1e6:.1f} million parameters")

# %% [markdown]
# **5.** Before the end of warm-up the rate is $c \cdot step \cdot warmup^{-1.5}$, after it $c \cdot
# step^{-0.5}$. Equal rates at $s$ and $t$ mean $t^{-0.5} = s \cdot warmup^{-1.5}$, so $t = warmup^3 / s^2$.

# %%
t = 4000**3 // 1000**2
rate = TransformerSchedule(512, 4000)
print(f"step {t:,}: {float(rate(t - 1)):.3e}; step 1,000: {float(rate(999)):.3e}")  # Keras counts from 0
np.testing.assert_allclose(rate(t - 1), rate(999), rtol=1e-5)

# %% [markdown]
# ## What to read next
#
# - `02_training`: the same layers trained with `model.fit`, and what they then translate.
# - `03_attention`: what the heads of a trained model attend to.
# - `04_why_self_attention`: the paper's Table 1, measured: the cost and reach of self-attention,
#   recurrent and convolutional layers.
# - The code: `keras_transformer/model/layers/` follows the order of this notebook.
