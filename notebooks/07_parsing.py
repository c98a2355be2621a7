# %% [markdown]
# # Parsing
#
# **Question:** a translator can learn to parse if the target is a tree, written as a sequence (section
# 6.3). What does it attend to when it closes a constituent, what does a grammar in the search change, and
# which labels does it get wrong?
#
# **Prerequisites:** constituency trees: a sentence is divided into phrases, such as noun phrases (NP) and
# verb phrases (VP), which contain smaller ones.
#
# **Time:** about five minutes on two CPU cores, plus a parser
# (`python pipelines/train_wmt.py --preset parsing_small --dataset TREEBANK --run-dir runs/parsing`).
#
# The stored plots are from a run on CRAFT, a treebank of biomedical text (CC BY 3.0;
# [results](../docs/parsing.md)); `make notebooks PARSER=...` makes them for yours. All statements about
# particular heads and labels are therefore computed and printed; the text only explains how they are
# measured.

# %%
# %matplotlib inline
import contextlib
import os
from collections import Counter

from keras_transformer import RunFolder
from keras_transformer.analysis.heads import attention_maps, attention_mass
from keras_transformer.analysis.plots import (
    attention_lines,
    attention_mass_bars,
    label_bars,
    training_curves,
    tree_diagrams,
)
from keras_transformer.analysis.trees import closings, opening_pattern, word_pattern
from keras_transformer.evaluation.brackets import COLLINS, bracket_scores
from keras_transformer.evaluation.tree_report import NamedTrees, compare_trees
from keras_transformer.text.datasets import load_split
from keras_transformer.text.linearised import delinearise, linearise, mend
from keras_transformer.text.trees import read_tree, words, write_tree
from keras_transformer.translation import Parser
from keras_transformer.translation.alignment import word_numbers

QUICK = "QUICK" in os.environ  # the tests' small setting
RUN = os.environ.get("PARSER") or "../runs/parsing"  # the folder of a finished run

# %% [markdown]
# ## A tree and its linearisation
#
# A bracket with a label opens a constituent, and a word stands in a bracket with its part-of-speech tag.

# %%
tree = read_tree(
    "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat) (PP (IN near) (NP (NN home))))))"
)
tree_diagrams({write_tree(tree): tree})

# %% [markdown]
# The target sequence has one symbol for each opening and each closing bracket, with the label, and one
# for each word. The words themselves are not in it, because the source has them. `XX` stands for any word
# (Vinyals et al., 2015); with `data.keep_tags=true`, it is the word's tag (as in Tensor2Tensor). The
# sequence and the words give the tree back:

# %%
print("  ".join(linearise(tree)))
print("  ".join(linearise(tree, keep_tags=True)))
assert delinearise(linearise(tree, keep_tags=True), words(tree)) == tree

# %% [markdown]
# A model may produce a sequence that is no tree. Named rules mend it, so that every sentence has a tree
# over exactly its words:

# %%
for symbols in ("(S (NP XX XX )NP (VP XX", "(S (NP XX XX )VP )S XX XX XX"):
    mended, rules = mend(symbols.split(), ["the", "dog", "barks"])
    print(f"{symbols:30} {', '.join(rules):28} {write_tree(mended)}")

# %% [markdown]
# ## A parser
#
# The trees are those of the run's validation split. F1 is the one of evalb: labelled brackets without
# punctuation ([definition](../docs/parsing.md)).

# %%
run = RunFolder(RUN)
data = run.config.data
with contextlib.chdir(".."):  # a run names its treebank as the program was told, from there
    sources, trees = load_split(data.dataset, "validation", data.source, data.target)
COUNT = 12 if QUICK else 300
every = max(1, len(sources) // COUNT)
sources, gold = sources[::every][:COUNT], [read_tree(text) for text in trees[::every][:COUNT]]
parser = Parser.load(RUN)
print(f"{len(sources)} sentences, {sum(map(len, map(words, gold))):,} words, tags kept: {data.keep_tags}")
training_curves(run.read_history())

# %% [markdown]
# ## Free against constrained search
#
# The paper's search is free: any symbol may follow any other. With the tree grammar, the search forbids
# whatever leads to no tree over the words: a closing bracket needs the label of the innermost open one,
# there are as many word symbols as words, and the end comes when everything is closed. Both use the
# paper's settings, a beam of 21 with $\alpha = 0.3$ (a narrower one here in the small setting).

# %%
search = {"beam_size": 3} if QUICK else {}
free = parser.parse(sources, **search)
constrained = parser.parse(sources, tree_grammar=True, **search)
systems = {"free search": free, "tree grammar": constrained}
print(
    compare_trees(
        [NamedTrees(name, [one.tree for one in parsed]) for name, parsed in systems.items()],
        NamedTrees("validation trees", gold),
        COLLINS,
    ).format()
)
rules = Counter(rule for one in free for rule in one.mended)
print(f"\nfree search: {sum(bool(one.mended) for one in free)} of {len(free)} results were mended")
print("\n".join(f"{count:5} {rule}" for rule, count in rules.most_common()))
assert not any(one.mended for one in constrained)

# %% [markdown]
# Where the searches differ, which result has the higher probability? The search with the grammar sees
# only a part of the sequences, so the probability of its result can be higher only if the free search
# missed it.

# %%
differing = [(a, b) for a, b in zip(free, constrained, strict=True) if a.tree != b.tree]
higher = sum(b.score > a.score for a, b in differing)
print(
    f"{len(differing)} of {len(free)} trees differ; that of the grammar has the higher score {higher} times"
)

# %% [markdown]
# ## One sentence
#
# The first sentence of 8 to 13 words with an error. Constituents that the reference lacks are orange and
# dashed.

# %%
parses = [one.tree for one in constrained]
fitting = [i for i, tree in enumerate(gold) if 8 <= len(words(tree)) <= 13]
wrong = [i for i in fitting if bracket_scores([gold[i]], [parses[i]]).all.f1 < 100]
number = next(iter(wrong + fitting), 0)
tree_diagrams({"reference": gold[number], "parse": parses[number]}, reference=gold[number])

# %% [markdown]
# ## What attention does when it closes a constituent
#
# The step that produces `)NP` must know the label of the constituent and that it ends here. We run the
# decoder on the reference trees and measure, for all closing symbols, the share of each head's attention
# on
#
# - decoder self-attention: the step that reads the opening symbol of the same constituent;
# - cross-attention: the pieces of the first and the last word of the constituent, and of the word after it.
#
# A head with uniform attention has the share above each panel.

# %%
(model,), tokenizers = parser.models, parser.tokenizers
special = tokenizers.source.special
with_tags = data.keep_tags
kept = [i for i, text in enumerate(sources) if len(text.split()) <= 40][:COUNT]
source_rows = [[*row, special.eos] for row in tokenizers.source.encode([sources[i] for i in kept])]
target_rows = [[*row, special.eos] for row in tokenizers.target.encode([write_tree(gold[i]) for i in kept])]
maps = attention_maps(model, source_rows, target_rows)
symbols = [linearise(gold[i], keep_tags=with_tags) for i in kept]
pieces = tokenizers.source.pieces([sources[i] for i in kept])
numbers = [[*word_numbers(row), None] for row in pieces]
print(f"{len(kept)} sentences, {sum(len(closings(row)) for row in symbols):,} closing symbols")
steps = list(map(len, target_rows))
opening = attention_mass(
    maps.decoder, [opening_pattern(*pair) for pair in zip(symbols, steps, strict=True)], causal=True
)
attention_mass_bars({"self-attention:\nits opening symbol": opening})

# %%
near = {
    which: attention_mass(
        maps.cross,
        [word_pattern(*row, which) for row in zip(symbols, steps, numbers, strict=True)],
    )
    for which in ("first", "last", "next")
}
attention_mass_bars({f"cross-attention:\nthe {which} word": share for which, share in near.items()})

# %%
shares = {"its opening symbol": opening} | {f"the {which} word": share for which, share in near.items()}
for name, share in shares.items():
    layer, head = share.best
    value, uniform = share.heads[layer, head], share.uniform
    print(f"{name:20} layer {layer}, head {head}: {value:5.0%} (uniform: {uniform:.0%})")

# %% [markdown]
# The two heads with the largest shares in one short sentence:

# %%
place = min(range(len(kept)), key=lambda i: abs(len(symbols[i]) - 16))
read = ["<s>", *symbols[place]]
produced = [*symbols[place], "</s>"]
best = max(near, key=lambda which: near[which].heads.max() - near[which].uniform)
(a, b), (c, d) = opening.best, near[best].best
lines = {
    f"self-attention {a}.{b}": (maps.decoder[place][a, b], produced, read),
    f"cross-attention {c}.{d}": (maps.cross[place][c, d], produced, [*pieces[place], "</s>"]),
}
attention_lines(lines, names=("produces", "attends to"))

# %% [markdown]
# ## Errors by label
#
# Precision is the share of the parser's brackets that are right, recall the share of the reference's that
# it found.

# %%
scores = bracket_scores(gold, parses)
label_bars(scores.labels)

# %% [markdown]
# Which labels does the parser confuse? A constituent over the right words with the wrong label:


# %%
def labels_of_spans(tree):
    """{(first word, last word): labels of the constituents over them, the outermost first}."""
    found, symbols = {}, linearise(tree)
    for one in closings(symbols):
        found.setdefault((one.first, one.last), []).insert(0, symbols[one.opening][1:])
    return found


confused = Counter()
for reference, parse in zip(map(labels_of_spans, gold), map(labels_of_spans, parses), strict=True):
    for span in reference.keys() & parse.keys():
        missing, extra = (Counter(x[span]) - Counter(y[span]) for x, y in
                          ((reference, parse), (parse, reference)))  # fmt: skip
        confused.update(zip(sorted(missing.elements()), sorted(extra.elements()), strict=False))
print("reference   parse")
print("\n".join(f"{a:11} {b:9} {count:4}" for (a, b), count in confused.most_common(8)))
print(f"labelled F1 {scores.all.f1:.2f}, without labels {scores.all.unlabelled_f1:.2f}")

# %% [markdown]
# And the length of sentences:

# %%
for low, high in ((1, 10), (11, 20), (21, 30), (31, 40), (41, 10_000)):
    chosen = [i for i, tree in enumerate(gold) if low <= len(words(tree)) <= high]
    if chosen:
        part = bracket_scores([gold[i] for i in chosen], [parses[i] for i in chosen]).all
        name = f"{low} to {high}" if high < 10_000 else f"from {low}"
        print(f"{name:9} words: {len(chosen):4} sentences, F1 {part.f1:6.2f},", end=" ")
        print(f"all brackets right: {part.complete_match:5.1f} %")

# %% [markdown]
# **What to read next:** [docs/parsing.md](../docs/parsing.md) has the commands, the mending rules and the
# scores; `keras_transformer.translation.tree_grammar` proves that the grammar always ends in a tree. A
# `Constraint` of your own can restrict any search in the same way.
