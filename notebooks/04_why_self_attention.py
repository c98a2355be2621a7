# %% [markdown]
# # Why self-attention: Table 1 measured
#
# **Question: what do self-attention, recurrent and convolutional layers cost, how much of it can happen
# at once, and how far does a signal travel in them?**
#
# Section 4 of "Attention Is All You Need" answers with orders of growth:
#
# | layer | complexity per layer | sequential operations | maximum path length |
# |---|---|---|---|
# | self-attention | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | recurrent | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | convolutional | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(\log_k(n))$ |
# | self-attention (restricted) | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n/r)$ |
#
# for $n$ positions of width $d$, kernels of $k$ positions and neighbourhoods of $r$. Here every entry
# is counted in TensorFlow's graph, timed on this machine, or derived from gradients. The last table
# compares both.
#
# *Prerequisites:* notebook `01_the_paper` up to multi-head attention. *Time:* two minutes on one CPU
# core; the timings need an otherwise idle machine.

# %%
# %matplotlib inline
import os

import keras
import numpy as np
import tensorflow as tf
from IPython.display import Markdown, display

from keras_transformer import MultiHeadAttention
from keras_transformer.analysis import plots as plotting
from keras_transformer.analysis.complexity import (
    best_seconds,
    convolutional,
    products,
    reach,
    recurrent,
    restricted_self_attention,
    self_attention,
)
from keras_transformer.analysis.plots import fitted_exponent

QUICK = "QUICK" in os.environ
keras.utils.set_random_seed(1)
# One core: its time is the work, whatever another program does to the others.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

# %% [markdown]
# ## The four layers
#
# As the table counts them: attention without the projections of its heads, the simplest recurrent
# layer, $h_t = \tanh(x_t W + h_{t-1} U)$, a convolution over $k = 3$ positions. Restricted attention
# sees 16 positions on either side ($r = 33$). It is computed in blocks, so hidden positions are skipped
# instead of computed and masked.
#
# Each maps *(batch, n, d)* to the same shape, so the layers are interchangeable.

# %%
KERNEL, RADIUS, BATCH = 3, 16, 4


def restricted(x):
    return restricted_self_attention(x, RADIUS)


layers = {
    "self-attention": lambda d: self_attention,
    "recurrent": lambda d: recurrent(d),
    "convolutional": lambda d: convolutional(d, KERNEL),
    "restricted self-attention": lambda d: restricted,
}
x = np.zeros((BATCH, 64, 128), "float32")
for name, layer in layers.items():
    print(f"{name:26}{x.shape} -> {tuple(layer(128)(x).shape)}")

# %% [markdown]
# ## Complexity per layer: counted
#
# A product of an $(a \times b)$ with a $(b \times c)$ matrix takes $a b c$ multiply-adds. `products`
# adds up those of all matrix products and convolutions in the graph that TensorFlow makes of a layer. A
# loop hides its products, so for counting, and only for that, the recurrent layer is unrolled. For one
# sentence of $n = 64$, $d = 128$:

# %%
counted = {**layers, "recurrent": lambda d: recurrent(d, unroll=True)}
n, d = 64, 128
by_hand = {
    "self-attention": 2 * n * n * d,  # scores, mixture of the values
    "recurrent": 2 * n * d * d,  # x W and h U
    "convolutional": KERNEL * n * d * d,
    "restricted self-attention": 2 * n * (3 * RADIUS) * d,  # a block sees itself and two more
}
for name, layer in counted.items():
    found = products(layer(d), (1, n, d)).multiply_adds
    print(f"{name:26}{found:12,}")
    assert found == by_hand[name]

# %% [markdown]
# The same over a range of lengths and widths. The exponent $e$ in *cost* $= c \cdot size^e$ is fitted by
# least squares of the logarithms: the slope of a straight line when both axes are logarithmic.

# %%
lengths, widths = [32, 64, 128, 256], [64, 128, 256, 512]
exponents = {name: {} for name in layers}
for name, layer in counted.items():
    over_n = [products(layer(128), (1, n, 128)).multiply_adds for n in lengths]
    over_d = [products(layer(d), (1, 64, d)).multiply_adds for d in widths]
    exponents[name]["counted"] = fitted_exponent(lengths, over_n), fitted_exponent(widths, over_d)
    print(f"{name:26} n^{exponents[name]['counted'][0]:.2f}  d^{exponents[name]['counted'][1]:.2f}")

for name, wanted in zip(layers, [(2, 1), (1, 2), (1, 2), (1, 1)], strict=True):
    np.testing.assert_allclose(exponents[name]["counted"], wanted, atol=1e-6)

# %% [markdown]
# ## Complexity per layer: timed
#
# Now we measure time, on one core, for batches of 4 sentences. All cases take turns, many times, and
# the fastest call of each counts, because other load only adds time. Heads are 64 wide, as in the
# paper, so wider models have more of them.

# %%
rounds = 1 if QUICK else 10
lengths, widths = ([32, 64], [64, 128]) if QUICK else ([256, 512, 1024, 2048], [256, 512, 1024, 2048])
fixed_d, fixed_n = (64, 32) if QUICK else (256, 128)
cases = {}
for name, layer in layers.items():
    cases |= {(name, "n", n): (layer(fixed_d), (BATCH, n, fixed_d)) for n in lengths}
    cases |= {(name, "d", d): (layer(d), (BATCH, fixed_n, d)) for d in widths}
seconds = dict(zip(cases, best_seconds(list(cases.values()), rounds=rounds), strict=True))

over_n = {name: (lengths, [seconds[name, "n", n] for n in lengths]) for name in layers}
over_d = {name: (widths, [seconds[name, "d", d] for d in widths]) for name in layers}
for name in layers:
    exponents[name]["timed"] = fitted_exponent(*over_n[name]), fitted_exponent(*over_d[name])
print(f"left: d = {fixed_d}; right: n = {fixed_n}; batches of {BATCH}")
plotting.cost_curves(over_n, over_d, ylabel="time for a batch (seconds)")

# %% [markdown]
# The slopes are close to the paper's. Where a measured exponent is off, it is for reasons that no count
# of multiply-adds knows:
#
# - *Constant parts.* Starting an operation costs tens of microseconds. At the small end of a range this
#   is a large part of the time, so the exponent is too small.
# - *Caches.* Arrays that fit into a cache only at the small end make the exponent too large: the scores
#   of self-attention over n, and the weights of the recurrent layer over d, which it reads again at
#   every step.
# - *The softmax* works on every score and is not a matrix product. Heads of a fixed width hide it from
#   the exponents: twice the width means twice the heads and twice the scores.
#
# ## Multiply-adds are not equally fast
#
# The products of a recurrent layer are small and depend on each other. A convolution is a single large
# product, which uses a processor well. Restricted attention pays for its blocks with small products,
# copies of neighbours and a mask.

# %%
n, d = (32, 64) if QUICK else (512, 512)
found = best_seconds([(layer(d), (BATCH, n, d)) for layer in layers.values()], rounds=rounds)
for (name, layer), best in zip(counted.items(), found, strict=True):
    rate = products(layer(d), (BATCH, n, d)).multiply_adds / best
    print(f"{name:26}{rate / 1e9:7.1f} billion multiply-adds a second (n = {n}, d = {d})")

# %% [markdown]
# ## Short sentences in wide models
#
# "Self-attention layers are faster than recurrent layers when the sequence length n is smaller than the
# representation dimensionality d": $2 n^2 d < 2 n d^2$ where $n < d$. The paper's base model has
# $d = 512$; a sentence has some 25 tokens. Two things are outside of Table 1: a multi-head layer has four
# projections, $4 n d^2$ multiply-adds, most of its work when sentences are short; and recurrent
# translators used LSTMs, which have four times the products of the simplest recurrent layer.

# %%
d = 64 if QUICK else 512
heads = MultiHeadAttention(num_heads=d // 64, key_dim=64)
heads.build((None, None, d), (None, None, d))
kinds = {
    "attention alone": self_attention,
    "multi-head layer": lambda x: heads(x, x),
    "recurrent": recurrent(d),
    "LSTM": keras.layers.LSTM(d, return_sequences=True),
}
print(f"d = {d}; milliseconds for a batch of {BATCH}\n{'n':>6}" + "".join(f"{kind:>19}" for kind in kinds))
for n in (16, 32) if QUICK else (32, 128, 512, 1024):
    times = best_seconds([(kind, (BATCH, n, d)) for kind in kinds.values()], rounds=rounds)
    print(f"{n:6}" + "".join(f"{1e3 * best:19.1f}" for best in times))

# %% [markdown]
# Attention alone compared with the simplest recurrent layer: the order changes where $n$ is about $d$,
# as the counts predict. The fair comparison, with all their matrices, is the multi-head layer and the
# LSTM. On one core this compares work alone. The next column is about how much of the work can run in
# parallel, which parallel processors turn into time.
#
# ## Sequential operations
#
# How many products depend on each other and cannot run in parallel? In the graph, this is the longest
# chain of products in which each reads the result of the one before.

# %%
lengths = [16, 32, 64, 128]
chains = {
    name: [products(layer(64), (1, n, 64)).sequential for n in lengths] for name, layer in counted.items()
}
heads = MultiHeadAttention(num_heads=1, key_dim=64)
heads.build((None, None, 64), (None, None, 64))
chains["multi-head layer"] = [products(lambda x: heads(x, x), (1, n, 64)).sequential for n in lengths]
print(f"{'n':26}" + "".join(f"{n:5}" for n in lengths))
for name, chain in chains.items():
    print(f"{name:26}" + "".join(f"{steps:5}" for steps in chain))
assert chains["recurrent"] == lengths
assert chains["self-attention"] == [2] * 4  # the scores, then the mixture

# %% [markdown]
# Whatever the length, attention takes two products one after the other (four with the projections), a
# convolution one. The recurrent layer takes $n$: its state at a position needs the state before. This is
# why a Transformer trains in parallel over all positions.
#
# ## Maximum path length: where gradients reach
#
# "The shorter these paths between any combination of positions in the input and output sequences, the
# easier it is to learn long-range dependencies." We stack layers and test for every pair of positions
# whether the gradient of the output at one with respect to the input at the other is nonzero, that is,
# whether the input influences the output. For 16 positions:


# %%
def contiguous(number):
    return convolutional(8, KERNEL)


def dilated(number):
    return convolutional(8, KERNEL, dilation=KERNEL**number)


def neighbours(number):
    return lambda x: restricted_self_attention(x, 4)


shown = reach(dilated, 16, 8, causal=True)
plotting.boolean_maps(
    [reach(lambda _: self_attention, 16, 8)[0], reach(lambda _: recurrent(8), 16, 8, causal=True)[0], *shown],
    ["self-attention, 1", "recurrent, 1"] + [f"dilated conv., {i + 1}" for i in range(len(shown))],
    rows="output position",
    columns="input position",
    meaning="reached after n layers",
)

# %%
slow = reach(neighbours, 16, 8)
plotting.boolean_maps(
    slow,
    [f"restricted, {i + 1}" for i in range(len(slow))],
    rows="output position",
    columns="input position",
    meaning="reached after n layers",
)

# %% [markdown]
# Recurrent and convolutional layers look back only, as in a decoder; for them "all" means all positions
# up to the current one. One recurrent layer reaches everything, but through $n$ steps *inside* the
# layer: its path is as long as its chain of products above. A stack of convolutions reaches $k - 1$
# positions more with every layer, and if each layer's kernel is spread $k$ times as far as the one
# below (*dilated*), $k$ times as far.
#
# The smallest number of layers after which every position reaches every other, times the steps within
# one:

# %%
lengths = [8, 16, 32] if QUICK else [8, 16, 32, 64]
paths = {
    "self-attention": [len(reach(lambda _: self_attention, n, 8)) for n in lengths],
    "recurrent": [
        len(reach(lambda _: recurrent(8), n, 8, causal=True))
        * products(recurrent(8, unroll=True), (1, n, 8)).sequential
        for n in lengths
    ],
    f"convolutional, k = {KERNEL}": [len(reach(contiguous, n, 8, causal=True)) for n in lengths],
    f"dilated, k = {KERNEL}": [len(reach(dilated, n, 8, causal=True)) for n in lengths],
    "restricted, r = 9": [len(reach(neighbours, n, 8)) for n in lengths],
}
print(f"{'n':22}" + "".join(f"{n:5}" for n in lengths))
for name, steps in paths.items():
    print(f"{name:22}" + "".join(f"{number:5}" for number in steps))

for number, n in enumerate(lengths):
    wanted = [1, n, -(-(n - 1) // (KERNEL - 1)), np.ceil(np.log(n) / np.log(KERNEL)), -(-(n - 1) // 4)]
    assert [steps[number] for steps in paths.values()] == wanted
plotting.path_curves({name: (lengths, steps) for name, steps in paths.items()})

# %% [markdown]
# Exactly $\lceil \log_k n \rceil$ layers of dilated convolutions, $\lceil (n-1)/(k-1) \rceil$ of
# contiguous ones, $\lceil 2(n-1)/(r-1) \rceil$ of restricted attention, and for self-attention one.
#
# A nonzero gradient is not a large one. Every step multiplies a signal by something; the longer the path,
# the more factors, and the harder to keep their product from vanishing or exploding.
#
# ## Table 1, the paper's orders and ours


# %%
def power(over_n, over_d):
    return rf"$n^{{{over_n:.2f}}} \cdot d^{{{over_d:.2f}}}$"


longest = {name.split(",")[0]: steps[-1] for name, steps in paths.items()}
both = f"{longest['convolutional']}; dilated {longest['dilated']}"
table = [
    ["layer", "complexity", "multiply-adds, counted", "time, fitted", "sequential operations"]
    + ["counted, n = 128", "maximum path length", f"steps, n = {lengths[-1]}"],
    ["---"] * 8,
]
for name, order, wait, path, steps in [
    ("self-attention", r"$n^2 \cdot d$", "1", "1", longest["self-attention"]),
    ("recurrent", r"$n \cdot d^2$", "n", "n", longest["recurrent"]),
    ("convolutional", r"$k \cdot n \cdot d^2$", "1", "n/k; dilated $\\log_k(n)$", both),
    ("restricted self-attention", r"$r \cdot n \cdot d$", "1", "n/r", longest["restricted"]),
]:
    found = power(*exponents[name]["counted"]), power(*exponents[name]["timed"])
    table.append([name, order, *found, wait, chains[name][-1], path, steps])
display(Markdown("\n".join("| " + " | ".join(map(str, row)) + " |" for row in table)))

# %% [markdown]
# The paper's columns have $O(\ldots)$; the column next to each has our measurement. ($r = 33$ for the
# costs of restricted attention, $r = 9$ for its path.)
#
# ## What to read next
#
# - `01_the_paper`: what the layers compute.
# - `03_attention`: what the heads of a trained model attend to.
# - `keras_transformer/analysis/complexity.py`: the layers and the counting, a page of code.
