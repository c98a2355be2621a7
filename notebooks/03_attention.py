# %% [markdown]
# # What attention sees
#
# **Question:** what do the heads of a trained model attend to, do some have a recognisable function,
# and what is lost without one?
#
# **Prerequisites:** heads and the three kinds of attention in section 3.2.3: encoder self-attention,
# decoder self-attention, and attention from the decoder to the source ("cross"). [Notebook
# 1](01_the_paper.ipynb) explains them.
#
# **Time:** about three minutes on two CPU cores.
#
# As it is, and as it is stored, it looks at the model that comes with the package, on a few sentences;
# `make notebooks RUN=...` looks at your run, on its test split. All statements about particular heads are
# therefore computed and printed; the text only explains how they are measured.

# %%
# %matplotlib inline
import contextlib
import os

import numpy as np

from keras_transformer import (
    RunFolder,
    Scorer,
    Translator,
    corpus_scores,
    explore,
    hard_alignment,
    soft_alignment,
)
from keras_transformer.analysis.heads import (
    Head,
    all_heads,
    attention_maps,
    attention_mass,
    link_pattern,
    offset_pattern,
    place_pattern,
    repeat_pattern,
    sure_links,
    without_heads,
)
from keras_transformer.analysis.plots import (
    ablation_bars,
    attention_lines,
    attention_map,
    attention_mass_bars,
    head_grid,
)
from keras_transformer.text.datasets import load_split
from keras_transformer.text.lines import read_lines
from keras_transformer.translation.alignment import format_pharaoh
from keras_transformer.translation.scorer import perplexity

QUICK = "QUICK" in os.environ  # the tests' small setting
RUN = os.environ.get("RUN") or "en-de-tatoeba"  # a run, or the package's model

# %% [markdown]
# ## A run and its text
#
# The text is the test split of the run's corpus, or the files in the environment variables `TEXT` and
# `REFERENCE`. The model that comes with the package translates the 48 sentences of `sentences.en`.

# %%
config = RunFolder(RUN).config
if os.environ.get("TEXT"):
    sources, references = read_lines(os.environ["TEXT"]), read_lines(os.environ["REFERENCE"])
elif RUN == "en-de-tatoeba":
    sources, references = read_lines("sentences.en"), read_lines("sentences.de")
else:
    data = config.data
    with contextlib.chdir(".."):  # a run names its corpus as the program was told, from there
        sources, references = load_split(data.dataset, "test", data.source, data.target)
COUNT = 12 if QUICK else 300
translator = Translator.load(RUN)
model, tokenizers = translator.models[0], translator.tokenizers
scorer = Scorer(model, tokenizers)

sizes = model.config
print(f"{sizes.num_encoder_layers} + {sizes.num_decoder_layers} layers of {sizes.num_heads} heads,", end=" ")
print(f"d_model {sizes.d_model}; {len(all_heads(sizes))} heads in all; {len(sources):,} test sentences")

# %% [markdown]
# ## One sentence, all heads
#
# We translate the first sentence of medium length. `attention_maps` then runs the model on the pair and
# returns $\mathrm{softmax}(QK^T/\sqrt{d_k})$ of every head: an array of shape (layers, heads, queries,
# keys) for each kind of attention, each row of which sums to 1.

# %%
lengths = [len(pieces) for pieces in tokenizers.source.pieces(sources[:COUNT])]
number = next((i for i, length in enumerate(lengths) if 8 <= length <= 11), 0)
source = sources[number]
found = translator.n_best([source])[0]
translation = found.best
print(source, translation.text, sep="\n")

END, START = "</s>", "<s>"
source_pieces = [*found.source_pieces, END]
produced = [*translation.pieces, END][: len(translation.ids)]
read = [START, *produced[:-1]]
eos = tokenizers.source.special.eos
maps = attention_maps(model, [[*tokenizers.source.encode([source])[0], eos]], [translation.ids])
for kind, (weights,) in maps._asdict().items():
    print(f"{kind:8} {weights.shape}")
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)

# %% [markdown]
# ### Encoder self-attention
#
# Rows are queries, columns are keys. `▁` is the space before a word. `</s>` is the end of the sentence,
# which is part of the encoder's input.

# %%
head_grid(maps.encoder[0], source_pieces, source_pieces)

# %% [markdown]
# ### Decoder self-attention
#
# A step reads the previous output piece (`<s>` at first) and may attend to everything read so far, but
# not ahead: the causal mask of section 3.2.3 sets the triangle above the diagonal to zero.

# %%
(decoder,) = maps.decoder
assert not decoder[..., *np.triu_indices(decoder.shape[-1], k=1)].any()
head_grid(decoder, read, read, names=("piece read (query)", "piece attended to (key)"))

# %% [markdown]
# ### Cross-attention
#
# Rows are the steps that *produce* a piece, columns the source pieces they attend to.

# %%
head_grid(maps.cross[0], produced, source_pieces, names=("piece produced (query)", "source piece (key)"))

# %% [markdown]
# ### All of it in one page
#
# `explore` shows the same weights in an interactive page, together with the beam search and the
# log-probability of each token: choose a head, point at a token, choose another hypothesis. What the page
# computes anew, such as another sentence or a model without a head, needs a running server:
# `keras-transformer serve RUN` has the same page at `http://localhost:8501/`.

# %%
explore(translator, source)

# %% [markdown]
# ## Word alignments
#
# The mean of the heads of one layer's cross-attention, summed over the pieces of a word, is a soft
# alignment; the largest weight of each row gives a hard one. The default is the last decoder layer but
# one, at the step that produces a piece (Garg et al., 2019).

# %%
layer, convention = scorer.choice
target = translation.text or references[number]  # a model that learned little may say nothing
(scored,) = scorer.score([source], [target], layers=[layer])
aligned = scored.attention[0], scored.source_pieces, scored.target_pieces
weights = soft_alignment(*aligned, convention=convention)
links = hard_alignment(*aligned, convention=convention)
print(f"layer {layer}, convention {convention!r}: {format_pharaoh(links)}")
source_words, target_words = source.split(), target.split()
assert weights.shape == (len(target_words), len(source_words))
for link in links:
    print(f"{source_words[link[0]]:>16} - {target_words[link[1]]}")
attention_map(weights, source_words, target_words)

# %% [markdown]
# ## Heads with a function
#
# "Many of the attention heads exhibit behaviour that seems related to the structure of the sentence",
# says the paper below its figure 5. We call such a function a *job*. A simple job is a boolean matrix
# of the keys that a head with this job would attend to. The **score of a head** is the share of its
# attention on these keys:
#
# $$\frac{1}{|Q|}\sum_{i \in Q}\sum_{j:\,job_{ij}} a_{ij}, \qquad Q = \{i : job_{ij} \text{ for some } j\}$$
#
# A head with uniform attention has a score, too ("uniform", above each panel); only scores far above it
# are meaningful. We measure on pairs of the test text, with the reference as the decoder's input.

# %%
tests, targets = sources[:COUNT], references[:COUNT]
source_rows = [[*row, eos] for row in tokenizers.source.encode(tests)]
target_rows = [[*row, eos] for row in tokenizers.target.encode(targets)]
maps = attention_maps(model, source_rows, target_rows)
num_source, num_target = (sum(map(len, rows)) for rows in (source_rows, target_rows))
print(f"{len(tests)} pairs, {num_source:,} source and {num_target:,} target pieces")

# %%
squares = [(len(row), len(row)) for row in source_rows]
encoder_shares = {
    "the piece before": attention_mass(maps.encoder, [offset_pattern(*shape, -1) for shape in squares]),
    "itself": attention_mass(maps.encoder, [offset_pattern(*shape, 0) for shape in squares]),
    "the next piece": attention_mass(maps.encoder, [offset_pattern(*shape, 1) for shape in squares]),
    "the end </s>": attention_mass(maps.encoder, [place_pattern(*shape, -1) for shape in squares]),
    "the same piece\nelsewhere": attention_mass(maps.encoder, [repeat_pattern(row) for row in source_rows]),
}
attention_mass_bars(encoder_shares, title="encoder")

# %% [markdown]
# In the decoder, "the piece before" is the one before the piece that the step reads. Early steps see few
# positions, so the uniform share is larger than in the encoder.

# %%
bos = tokenizers.target.special.bos
read_rows = [[bos, *row[:-1]] for row in target_rows]
squares = [(len(row), len(row)) for row in read_rows]
decoder_shares = {
    "what it reads": attention_mass(
        maps.decoder, [offset_pattern(*shape, 0) for shape in squares], causal=True
    ),
    "the piece before": attention_mass(
        maps.decoder, [offset_pattern(*shape, -1) for shape in squares], causal=True
    ),
    "the start <s>": attention_mass(
        maps.decoder, [place_pattern(*shape, 0) for shape in squares], causal=True
    ),
    "the same piece\nelsewhere": attention_mass(
        maps.decoder, [repeat_pattern(row) for row in read_rows], causal=True
    ),
}
attention_mass_bars(decoder_shares, title="decoder to itself")

# %% [markdown]
# For cross-attention the job is alignment. There are no manual alignments of this text. As a reference,
# we learn IBM model 1 from the test text, in both directions, and keep the links of pieces on which
# both agree. A head may attend to the source of the piece that its step *produces* or of the piece that
# it *reads*.

# %%
rows = [tokenizers.source.encode(sources[:2000]), tokenizers.target.encode(references[:2000])]
links = sure_links(*rows, len(tests))
print(f"{sum(map(len, links)):,} links")
shapes = [(len(target), len(source)) for source, target in zip(source_rows, target_rows, strict=True)]
cross_shares = {
    "source of what\nis produced": attention_mass(
        maps.cross, [link_pattern(*shape, ones) for shape, ones in zip(shapes, links, strict=True)]
    ),
    "source of what\nis read": attention_mass(
        maps.cross, [link_pattern(*shape, ones, shift=1) for shape, ones in zip(shapes, links, strict=True)]
    ),
    "the end </s>": attention_mass(maps.cross, [place_pattern(*shape, -1) for shape in shapes]),
}
attention_mass_bars(cross_shares, title="decoder to the source")

# %%
CLEAR = 0.5  # below it, a head's attention is mostly elsewhere
jobs = {"encoder": encoder_shares, "decoder": decoder_shares, "cross": cross_shares}
for kind, shares in jobs.items():
    for name, share in shares.items():
        layer, head = share.best
        one_line = name.replace("\n", " ")
        print(f"{kind:8} {one_line:28} layer {layer}, head {head}: {share.heads[share.best]:6.1%}", end="")
        print(f"   uniform {share.uniform:6.1%}   {share.num_queries:6,} queries", end="")
        print("   a clear job" if share.heads[share.best] >= CLEAR else "")

# %% [markdown]
# Not every job has a head. We say that a head does a job if at least half of its attention falls there.
# If even the best share is close to uniform, no head does it.
#
# ### As in the paper's figures 3 to 5
#
# For each job, we plot the head with the best score, high or low (see the list above), on one sentence
# of the text, as in the paper: lines from queries to keys, darker for more attention. First the
# encoder, on a sentence in which a piece occurs twice, if there is one:

# %%
rows = [(i, row) for i, row in enumerate(source_rows) if 6 <= len(row) <= 13] or [(0, source_rows[0])]
number, row = max(rows, key=lambda one: len(one[1]) - len(set(one[1])))
pieces = [*tokenizers.source.pieces([tests[number]])[0], END]
panels = {}
for name, share in encoder_shares.items():
    layer, head = share.best
    panels[f"{name}\nlayer {layer}, head {head}"] = (maps.encoder[number][layer, head], pieces, pieces)
attention_lines(panels)

# %% [markdown]
# Then the decoder on the same pair. The left side shows the piece that a step *produces*; in the panel
# "read" and in the panels of the decoder's self-attention, it shows the piece that the step reads.

# %%
produced = [*tokenizers.target.pieces([targets[number]])[0], END]
read = [START, *produced[:-1]]
panels = {}
for name, share in cross_shares.items():
    layer, head = share.best
    left = read if "read" in name else produced
    panels[f"{name}\nlayer {layer}, head {head}"] = (maps.cross[number][layer, head], left, pieces)
for name in ("the piece before", "what it reads"):
    layer, head = decoder_shares[name].best
    panels[f"decoder: {name}\nlayer {layer}, head {head}"] = (maps.decoder[number][layer, head], read, read)
attention_lines(panels, names=("step (query)", "key"))

# %% [markdown]
# ## Without a head
#
# $\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(head_1, \dots, head_h)W^O = \sum_i head_i W^O_i$, where
# $W^O_i$ are the rows of $W^O$ that belong to head $i$: a head whose rows are 0 adds nothing.
# `without_heads` sets them to 0 and restores them afterwards. We do this for one head at a time,
# without training again, and measure
#
# - the loss: cross-entropy of the reference, in nats per token, without smoothing;
# - BLEU of greedy translations, which varies by some tenths with any change. With 300 sentences,
#   differences below a point may be chance; with 48, those of several points.


# %%
def measured():
    """Loss and BLEU of the model as it is now."""
    loss = np.log(perplexity(scorer.score(tests, targets)))
    translations = translator.translate(tests, beam_size=1, max_length_offset=20)
    return loss, corpus_scores(translations, targets, target_language=config.data.target).bleu


before = [weight.numpy() for weight in model.weights]
whole = measured()
figures = {}
for head in all_heads(sizes):
    with without_heads(model, [head]):
        figures[head] = measured()
assert all(np.array_equal(one, weight) for one, weight in zip(before, model.weights, strict=True))
print(f"with all heads: loss {whole[0]:.3f} nats a token, BLEU {whole[1]:.2f}")

# %%
changes = {
    kind: np.array(
        [
            [np.subtract(figures[Head(kind, layer, head)], whole) for head in range(sizes.num_heads)]
            for layer in range(sizes.num_encoder_layers if kind == "encoder" else sizes.num_decoder_layers)
        ]
    )
    for kind in ("encoder", "decoder", "cross")
}
names = {"encoder": "encoder", "decoder": "decoder to itself", "cross": "decoder to the source"}
ablation_bars(
    {names[kind]: change[..., 0] for kind, change in changes.items()},
    ylabel="loss more without the head\n(nats a token)",
)

# %%
ablation_bars(
    {names[kind]: change[..., 1] for kind, change in changes.items()}, ylabel="BLEU more without the head"
)

# %% [markdown]
# Which heads matter most, and what is their job? The job is the one whose share is furthest above
# uniform, if at least half of the attention falls there. Otherwise there is no clear job, and the
# closest one is in brackets.


# %%
def job_of(head):
    """The job that a head does best, compared with a head that looks everywhere alike."""
    shares = jobs[head.kind]
    name = max(shares, key=lambda one: shares[one].heads[head.layer, head.head] - shares[one].uniform)
    share = shares[name].heads[head.layer, head.head]
    one_line = name.replace("\n", " ")
    if share < CLEAR:
        return f"no clear job ({one_line} {share:.0%})"
    return f"looks at {one_line} ({share:.0%})"


order = sorted(figures, key=lambda head: -figures[head][0])
for title, some in (("missed most", order[:6]), ("missed least", order[-6:])):
    print(f"{title}:")
    for head in some:
        loss, bleu = np.subtract(figures[head], whole)
        print(
            f"  {head.kind:8} layer {head.layer}, head {head.head}: loss {loss:+.3f}, BLEU {bleu:+5.2f}",
            end="",
        )
        print(f"   {job_of(head)}")

# %% [markdown]
# A head that can go alone need not be useless: another may do its job. So how many can go together?
# From the head that is missed least on, more and more at once (Michel et al., 2019, ask the same of the
# paper's big model):

# %%
for share in (0, 0.125, 0.25, 0.5):
    some = order[len(order) - int(share * len(order)) :] if share else []
    with without_heads(model, some):
        loss, bleu = measured()
    print(f"without {len(some):3} of {len(order)} heads: loss {loss:.3f}, BLEU {bleu:5.2f}")

# %% [markdown]
# **What to read next:** [Why self-attention](04_why_self_attention.ipynb) compares it with what came
# before; [Searching](05_searching.ipynb) uses the same run. In Python, `model.attend` gives the attention
# of any layer, `Scorer` that of whole files, and `pipelines/score.py --alignment hard` writes links for
# other programs.
