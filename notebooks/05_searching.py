# %% [markdown]
# # Searching
#
# **Question:** a trained model assigns a probability to every translation. How do beam size, length
# penalty and sampling affect which translation we get?
#
# **Prerequisites:** a decoder step computes the probability of the next piece. Section 6.1 has the
# paper's settings: beam 4, $\alpha = 0.6$, at most 50 pieces more than the source.
#
# **Time:** about four minutes on two CPU cores. As it is, it runs with the model that comes with the
# package.
#
# The stored plots are from a run on Multi30k; `make notebooks RUN=...` makes them for yours. The demo's
# corpus is so easy that searches hardly differ; an uncertain model shows more.

# %%
# %matplotlib inline
import contextlib
import functools
import logging
import os
import time

import numpy as np
import tensorflow as tf
from sacrebleu import corpus_bleu

from keras_transformer import RunFolder, Scorer, Translator
from keras_transformer.analysis.plots import diversity_curves, search_curves
from keras_transformer.evaluation.bleu import bleu_scorer
from keras_transformer.evaluation.report import NamedLines, compare
from keras_transformer.text.datasets import load_split
from keras_transformer.text.lines import read_lines
from keras_transformer.translation.rules import length_penalty

QUICK = "QUICK" in os.environ  # the tests' small setting
RUN = os.environ.get("RUN") or "en-de-tatoeba"  # a run, or the package's model
tf.config.threading.set_intra_op_parallelism_threads(1)  # each core has a batch of its own
logging.getLogger("keras_transformer").setLevel("ERROR")

# %% [markdown]
# ## A run and its text
#
# The text is the test split of the run's corpus, or the files in the environment variables `TEXT` and
# `REFERENCE`. The model that comes with the package translates the 48 sentences of `sentences.en`. We use
# an evenly spaced part of the text.

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
COUNT = 6 if QUICK else 300
every = max(1, len(sources) // COUNT)
sources, references = sources[::every][:COUNT], references[::every][:COUNT]
translator = Translator.load(RUN, threads=2)
bleu = bleu_scorer(config.data.target)
print(f"{len(sources)} sentences")

# %% [markdown]
# One function measures everything below: BLEU, the length ratio of translations to references (in
# sacreBLEU's tokens), the mean log-probability of the translations under the model, and the time.


# %%
@functools.cache
def searched(beam_size, alpha, formula="gnmt", early_stop=False):
    """Translates the text with some settings of search; returns settings and figures."""
    settings = {"beam_size": beam_size, "alpha": alpha, "length_penalty": formula, "early_stop": early_stop}
    translator.n_best(sources[:1], **settings)  # makes the graph
    begin = time.perf_counter()
    found = [one.best for one in translator.n_best(sources, **settings)]
    seconds = time.perf_counter() - begin
    score = bleu.corpus_score([one.text for one in found], [references])
    return {
        **settings,
        "bleu": score.score,
        "length_ratio": score.sys_len / score.ref_len,
        "log_prob": float(np.mean([one.log_prob for one in found])),
        "seconds": seconds,
        "found": found,
    }


# %% [markdown]
# ## One sentence
#
# Greedy search takes the most probable piece at each step and never revises it. Beam search keeps the
# `beam_size` most probable prefixes, so a piece that was second best at first can win. These are the
# final translations of a beam of 8, for the sentence on which beam and greedy search differ most in
# probability.
#
# The score is $\log P(Y|X) / lp(Y)$, with the penalty of Wu et al. (2016, equation 14), to which section
# 6.1 refers:
#
# $$lp(Y) = \left(\frac{5 + |Y|}{6}\right)^{\alpha}$$

# %%
greedy, wide = (searched(size, 0.0) for size in (1, 4))
gains = [b.log_prob - a.log_prob for a, b in zip(greedy["found"], wide["found"], strict=True)]
number = int(np.argmax(gains))
(listed,) = translator.n_best([sources[number]], beam_size=8, n_best=8, alpha=0.6, length_penalty="gnmt")
print(f"source     {sources[number]}\nreference  {references[number]}\n")
print(f"  score  log P   |Y|   greedy: {greedy['found'][number].text}")
for one in listed.translations:
    print(f"{one.score:7.3f} {one.log_prob:6.2f} {len(one.ids):5}   {one.text}")
    penalty = ((5 + len(one.ids)) / 6) ** 0.6
    np.testing.assert_allclose(one.score, one.log_prob / penalty, rtol=1e-4)
    np.testing.assert_allclose(float(length_penalty(len(one.ids), 0.6)), penalty, rtol=1e-5)

# %% [markdown]
# ## BLEU and length against $\alpha$
#
# The log-probability of a translation is a sum of negative numbers, one for each piece: a longer one is
# less probable, if only because it is longer. The larger $\alpha$, the less that counts.

# %%
BEAMS, ALPHAS = ((1, 2), (0.6,)) if QUICK else ((1, 2, 4, 8), (0.0, 0.3, 0.6, 1.0, 1.5))
by_alpha = [searched(size, alpha) for size in BEAMS for alpha in ALPHAS]
search_curves(
    by_alpha, x="alpha", lines="beam_size", names=("alpha of the penalty ((5 + n) / 6)^alpha", "beam")
)

# %% [markdown]
# A beam of 1 has only one hypothesis, so its line is flat. Are such differences significant with this
# few sentences? A paired bootstrap resamples the text many times and estimates how likely the
# difference is due to chance:

# %%
systems = {(one["beam_size"], one["alpha"]): one for one in by_alpha}
paper = max(size for size in BEAMS if size <= 4), 0.6  # beam 4, alpha 0.6 of section 6.1
named = {"greedy": (1, 0.6), "no penalty": (paper[0], ALPHAS[0]), "the paper's": paper}
print(
    compare(
        [NamedLines(name, [one.text for one in systems[key]["found"]]) for name, key in named.items()],
        [NamedLines("reference", references)],
        target_language=config.data.target,
        ter=False,
        bootstrap_samples=50 if QUICK else 500,
    )
)

# %% [markdown]
# ## One $\alpha$, three formulas
#
# Toolkits use different formulas for the length penalty. `gnmt` is the one above, `average` is
# $|Y|^{\alpha}$ (fairseq, Marian, CTranslate2; with $\alpha = 1$ the mean over pieces), `none` is 1, as
# is any of them at $\alpha = 0$. A figure quoted with an $\alpha$ and without its formula says little:

# %%
size = paper[0]
by_formula = [searched(size, alpha, formula) for formula in ("gnmt", "average") for alpha in ALPHAS]
search_curves(
    by_formula, x="alpha", lines="length_penalty", names=(f"alpha, with a beam of {size}", "length penalty")
)

# %%
print("pieces  " + "  ".join(f"{name:>7}" for name in ("gnmt", "average", "none")) + "   at alpha 0.6")
for length in (1, 5, 10, 20, 40):
    row = [float(length_penalty(length, 0.6, name)) for name in ("gnmt", "average", "none")]
    print(f"{length:6}  " + "  ".join(f"{penalty:7.3f}" for penalty in row))

# %% [markdown]
# ## Wider is not better
#
# A wider beam finds translations with a higher probability under the model; the right panel measures
# this. If the model were right, they would also be better translations.

# %%
WIDTHS = (1, 2) if QUICK else (1, 2, 4, 8, 16)
PENALTIES = {"none": (0.0,), "gnmt, 0.6": (0.6,), "average, 1": (1.0, "average")}
by_width = [
    {**searched(size, *penalty), "penalty": name} for name, penalty in PENALTIES.items() for size in WIDTHS
]
search_curves(
    by_width,
    x="beam_size",
    lines="penalty",
    names=("beam", "length penalty"),
    panels={
        "bleu": "BLEU",
        "length_ratio": "length of translations / of references",
        "log_prob": "log P of a translation (nats)",
    },
    log=True,
)

# %%
unpenalised = [one for one in by_width if one["penalty"] == "none"]
print("beam   BLEU  length   log P   sentences/s   of the translations, this much shorter than greedy's")
for one in unpenalised:
    shorter = np.mean(
        [len(a.ids) < len(b.ids) for a, b in zip(one["found"], unpenalised[0]["found"], strict=True)]
    )
    print(
        f"{one['beam_size']:4} {one['bleu']:6.2f}  {one['length_ratio']:6.3f} {one['log_prob']:7.2f}", end=""
    )
    print(f"   {len(sources) / one['seconds']:11.1f}   {shorter:.1%}")

# %% [markdown]
# Where BLEU falls with the beam and the length falls with it, this is the "beam search curse" (Koehn
# and Knowles, 2017). Stahlberg and Byrne (2019) searched exactly, and for half of their sentences the
# most probable translation of all was the empty one. A narrow beam does not find such translations: a
# search error hides a model error. A length penalty compensates for the model error, so wide beams do
# less harm.
#
# Is the model to blame? It assigns a probability to the reference, too. For how many sentences is its own
# translation more probable than the human one, and how do these compare in length?

# %%
scored = Scorer(translator.models[0], translator.tokenizers).score(sources, references)
widest = unpenalised[-1]["found"]
preferred = np.mean([one.log_prob > ref.log_prob for one, ref in zip(widest, scored, strict=True)])
print(f"beam {WIDTHS[-1]}: mean log P {np.mean([one.log_prob for one in widest]):.2f},", end=" ")
print(f"{np.mean([len(one.ids) for one in widest]):.1f} pieces")
print(f"references: mean log P {np.mean([ref.log_prob for ref in scored]):.2f},", end=" ")
print(f"{np.mean([len(ref.log_probs) for ref in scored]):.1f} pieces")
print(f"{preferred:.1%} of its translations are more probable to the model than the reference")

# %% [markdown]
# ## When to stop
#
# An unfinished hypothesis may still overtake a finished one. By default the search of a sentence stops
# when this is impossible; with `early_stop=True`, as in fairseq, it stops when `beam_size` hypotheses
# have finished. The default never has the worse score of the two unless the beams differ:

# %%
print("beam   stop    BLEU    seconds   translations with a better, worse score than the other rule's")
for size in (2,) if QUICK else (4, 8):
    exact, early = searched(size, 0.6), searched(size, 0.6, "gnmt", early_stop=True)
    pairs = list(zip(exact["found"], early["found"], strict=True))
    better = sum(a.score > b.score + 1e-4 for a, b in pairs)
    worse = sum(a.score < b.score - 1e-4 for a, b in pairs)
    print(f"{size:4}   exact {exact['bleu']:6.2f} {exact['seconds']:9.1f}   {better}, {worse}")
    print(f"{size:4}   early {early['bleu']:6.2f} {early['seconds']:9.1f}   {worse}, {better}")

# %% [markdown]
# ## Sampling
#
# Instead of searching, we can sample each piece from the model's distribution, to get several different
# translations. A *temperature* $T$ divides the logits: $p_i \propto \exp(z_i / T)$; near 0 it is greedy
# search. `top_k` samples from the $k$ most probable pieces, `top_p` from the smallest set with a total
# probability of $p$.

# %%
SAMPLES = 2 if QUICK else 4


def sampled(family, name, **settings):
    """Draws several translations of each sentence; returns their quality and how they differ."""
    drawn = translator.n_best(sources, sampling=True, n_best=SAMPLES, **settings)
    columns = list(zip(*[[one.text for one in each.translations] for each in drawn], strict=True))
    pairs = [(a, b) for a in columns for b in columns if a is not b]
    distinct = np.mean([len({one.text for one in each.translations}) / SAMPLES for each in drawn])
    return {
        "family": family,
        "name": name,
        "bleu": np.mean([bleu.corpus_score(column, [references]).score for column in columns]),
        "pairwise_bleu": np.mean([corpus_bleu(a, [b]).score for a, b in pairs]),
        "distinct": distinct,
        "columns": columns,
    }


ways = {
    "temperature": [(f"{t:g}", {"temperature": t}) for t in ((1.0,) if QUICK else (0.3, 0.5, 0.7, 1.0))],
    "top-k": [(f"{k}", {"top_k": k}) for k in ((5,) if QUICK else (2, 5, 20))],
    "top-p": [(f"{p:g}", {"top_p": p}) for p in ((0.9,) if QUICK else (0.5, 0.8, 0.95))],
}
drawn = [sampled(family, name, **settings) for family, some in ways.items() for name, settings in some]
print("draws from       BLEU   distinct   pairwise BLEU")
for one in drawn:
    print(
        f"{one['family']:12}{one['name']:>5}{one['bleu']:7.2f}{one['distinct']:10.0%}{one['pairwise_bleu']:14.1f}"
    )

# %% [markdown]
# Pairwise BLEU (Shen et al., 2019) compares the samples of a sentence with each other; it is 100 if all
# are the same. The best region of the plot is at the top right: diverse and good. Search is on the
# left, because it gives only one translation.

# %%
diversity_curves(drawn, reference=systems[paper]["bleu"])

# %%
print(sources[number])
for one in drawn:
    if one["name"] in ("0.5", "1"):
        print(f"\n{one['family']} {one['name']}")
        for column in one["columns"]:
            print(f"    {column[number]}")

# %% [markdown]
# The samples of a line depend only on its number and `seed`, not on its neighbours or the batch:

# %%
alone = translator.n_best(sources[1:2], first_number=1, sampling=True, n_best=2)
together = translator.n_best(sources[:4], sampling=True, n_best=2)
assert [one.text for one in alone[0].translations] == [one.text for one in together[1].translations]

# %% [markdown]
# **What to read next:** [From a run to a served translator](06_serving.ipynb) exports one of these
# searches as a graph. All settings are flags of `pipelines/translate.py`;
# `benchmarks/search_settings.py` measures them on a whole test set. The docstring of
# `keras_transformer.translation.search.beam_search` explains the algorithm.
