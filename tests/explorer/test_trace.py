"""The tree of a beam search against one in plain NumPy, written from the definition, and against `n_best`."""

import itertools

import numpy as np
import pytest
from tiny_explorers import TEXTS, tiny_translator

from keras_transformer.analysis.heads import Head, without_heads
from keras_transformer.explorer import Explorer

pytestmark = pytest.mark.slow

TEXT = TEXTS[0]
LIMIT = 9
BEAMS, ALPHAS = (1, 2, 3, 5), (0.0, 0.6, 2.3)


@pytest.fixture(scope="module")
def translator():
    return tiny_translator()


@pytest.fixture(scope="module")
def explorer(translator):
    return Explorer(translator)


def encode(translator, text):
    tokenizer = translator.tokenizers.source
    return [*tokenizer.encode([text])[0], tokenizer.special.eos]


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def search_in_numpy(translator, text, beam_size, alpha, limit, prefix=()):
    """Returns the tree, {tokens: (total, rank, state)}, and the finished or cut hypotheses, best first."""
    (model,) = translator.models
    special = model.special
    source = encode(translator, text)

    def next_log_probs(rows):
        inputs = np.array([source] * len(rows)), np.array([[special.bos, *row] for row in rows])
        logits = np.float64(model(inputs))[:, -1]
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    live, finished, tree = [((), 0.0)], [], {}
    for position in range(limit):
        candidates = []
        for (row, total), log_probs in zip(live, next_log_probs([row for row, _ in live]), strict=True):
            allowed = set(range(len(log_probs))) - {special.pad, special.bos, special.unk}
            for token in [prefix[position]] if position < len(prefix) else allowed:
                candidates.append(((*row, token), total + log_probs[token]))
        candidates.sort(key=lambda candidate: -candidate[1])
        for rank, (row, total) in enumerate(candidates[: 2 * beam_size]):
            tree[row] = [total, rank, "dropped" if row[-1] == special.eos else "pruned"]
        candidates = candidates[: 2 * beam_size if beam_size > 1 else 1]
        finished += [one for one in candidates if one[0][-1] == special.eos]
        finished = sorted(finished, key=lambda one: -one[1] / penalty(len(one[0]), alpha))[:beam_size]
        live = [one for one in candidates if one[0][-1] != special.eos][:beam_size]
        for row, _ in live:
            tree[row][2] = "live"
        worst = -np.inf
        if len(finished) == beam_size:
            worst = finished[-1][1] / penalty(len(finished[-1][0]), alpha)
        if not live or worst >= live[0][1] / penalty(limit, alpha):
            break
    if position + 1 == limit:
        for row, _ in live:
            tree[row][2] = "cut"
    for row, _ in finished:
        tree[row][2] = "finished"
    cut = [one for one in live if tree[one[0]][2] == "cut"]
    return {row: tuple(values) for row, values in tree.items()}, (finished + cut)[:beam_size]


def rows_of(answer):
    """Tokens from the root to each node."""
    rows = [()]
    for node in answer["nodes"][1:]:
        rows.append((*rows[node["parent"]], node["token"]))
    return rows


def check_tree(answer, tree, found, alpha):
    rows = rows_of(answer)
    nodes = dict(zip(rows, answer["nodes"], strict=True))
    assert len(nodes) == len(rows)
    root = nodes.pop(())
    assert (root["id"], root["parent"], root["position"], root["piece"]) == (0, None, -1, "<s>")
    assert {row: (node["rank"], node["state"]) for row, node in nodes.items()} == {
        row: tuple(rest) for row, (_, *rest) in tree.items()
    }
    for row, node in nodes.items():
        total = tree[row][0]
        assert node["position"] == len(row) - 1
        np.testing.assert_allclose(node["total"], total, rtol=1e-4)
        np.testing.assert_allclose(node["score"], total / penalty(len(row), alpha), rtol=1e-4)
        before = tree[row[:-1]][0] if row[:-1] else 0
        np.testing.assert_allclose(node["log_prob"], total - before, atol=1e-4)
        assert node["died_at"] == died_at(row, tree)
    assert [tuple(one["ids"]) for one in answer["hypotheses"]] == [row for row, _ in found]
    for one, (row, total) in zip(answer["hypotheses"], found, strict=True):
        assert rows[one["node"]] == row
        assert one["finished"] == (tree[row][2] == "finished")
        np.testing.assert_allclose(one["log_prob"], total, rtol=1e-4)
        np.testing.assert_allclose(one["score"], total / penalty(len(row), alpha), rtol=1e-4)
    assert answer["steps"] == max(map(len, tree))


def died_at(row, tree):
    """Position of the last descendants of a live hypothesis; `None` if one of them is left."""
    steps = max(map(len, tree))
    below = [other for other in tree if other[: len(row)] == row]
    left = [
        other
        for other in below
        if tree[other][2] in ("finished", "cut") or (tree[other][2] == "live" and len(other) == steps)
    ]
    return None if left or tree[row][2] != "live" else max(map(len, below)) - 1


@pytest.mark.parametrize("beam_size", BEAMS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_tree_is_that_of_a_search_in_plain_numpy(translator, explorer, beam_size, alpha):
    for text in TEXTS[:2]:
        answer = explorer.search({"text": text, "beam_size": beam_size, "alpha": alpha, "max_length": LIMIT})
        check_tree(answer, *search_in_numpy(translator, text, beam_size, alpha, LIMIT), alpha)
    assert not any(node["forced"] for node in answer["nodes"])


@pytest.mark.parametrize("beam_size", BEAMS)
@pytest.mark.parametrize("text", TEXTS[1:3])
def test_a_prefix_and_a_length_limit(translator, explorer, beam_size, text):
    prefix = translator.tokenizers.target.encode(["Ein Text"])[0]
    limit = len(prefix) + 2
    body = {"text": text, "beam_size": beam_size, "alpha": 0.6, "prefix": prefix, "max_length": limit}
    answer = explorer.search(body)
    check_tree(answer, *search_in_numpy(translator, text, beam_size, 0.6, limit, prefix), 0.6)
    assert {node["token"] for node in answer["nodes"] if node["forced"]} == set(prefix)
    assert all(one["ids"][: len(prefix)] == prefix for one in answer["hypotheses"])


def test_these_searches_have_every_state(translator, explorer):
    states, died = set(), 0
    for text, beam_size, length in itertools.product(TEXTS, BEAMS[1:], (2, None)):
        answer = explorer.search({"text": text, "beam_size": beam_size, "max_length": length})
        states |= {node["state"] for node in answer["nodes"]}
        died += sum(node["died_at"] is not None for node in answer["nodes"])
    assert states == {"live", "pruned", "finished", "dropped", "cut"}
    assert died > 9


def check_hypotheses(answer, translator, text, prefix="", **search):
    beam_size = search["beam_size"]
    (expected,) = translator.n_best([text], [prefix], n_best=beam_size, long_lines="cut", **search)
    assert len(answer["hypotheses"]) == len(expected.translations)
    for one, other in zip(answer["hypotheses"], expected.translations, strict=True):
        for field in ("ids", "text", "pieces", "finished"):
            assert one[field] == getattr(other, field)
        np.testing.assert_allclose(one["score"], other.score, rtol=1e-5)
        np.testing.assert_allclose(one["log_prob"], other.log_prob, rtol=1e-5)
        np.testing.assert_allclose(answer["nodes"][one["node"]]["score"], other.score, rtol=1e-5)
    pieces = [piece["text"] for piece in answer["source"]]
    assert pieces == [*expected.source_pieces, "</s>"]
    assert answer["cut"] == expected.is_cut


@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.6), (2, 2.3), (5, 0.0)])
@pytest.mark.parametrize("prefix", ["", "Der Hund"])
def test_the_hypotheses_are_those_of_n_best(translator, explorer, beam_size, alpha, prefix):
    ids = translator.tokenizers.target.encode([prefix])[0]
    search = {"beam_size": beam_size, "alpha": alpha}
    for text in TEXTS:
        answer = explorer.search({"text": text, "prefix": ids, **search})
        check_hypotheses(answer, translator, text, prefix, **search)


@pytest.mark.parametrize(
    "settings",
    [
        {"early_stop": True, "no_repeat_ngram": 1, "length_penalty": "average", "alpha": 1.5},
        {"min_length": 5, "max_length_ratio": 0.5, "length_penalty": "none"},
        {"sampling": True, "max_source_length": 5, "n_best": 7},
        {"coverage_penalty": 2.0},
    ],
    ids=str,
)
def test_the_settings_of_the_translator_hold(settings):
    translator = tiny_translator(**settings)
    answer = Explorer(translator).search({"text": TEXT})
    check_hypotheses(answer, translator, TEXT, beam_size=3, sampling=False)


def test_heads_that_are_off(translator, explorer):
    heads = [Head("encoder", 1, 0), Head("decoder", 0, 1), Head("cross", 1, 0)]
    body = {"text": TEXT, "beam_size": 5, "heads_off": [head._asdict() for head in heads]}
    whole = explorer.search({"text": TEXT, "beam_size": 5})
    answer = explorer.search(body)
    with without_heads(translator.models[0], heads):
        check_hypotheses(answer, translator, TEXT, beam_size=5)
    assert answer["heads_off"] == body["heads_off"]
    assert answer["hypotheses"] != whole["hypotheses"]
    # All heads are back.
    again = explorer.search({"text": TEXT, "beam_size": 5})
    assert (again["hypotheses"], again["nodes"]) == (whole["hypotheses"], whole["nodes"])


def test_a_beam_size_is_compiled_once(translator):
    explorer = Explorer(translator)
    for text, alpha, prefix in zip(TEXTS, (0, 1, 2, 0.5), ([], [7], [8, 9], []), strict=True):
        explorer.search({"text": text, "alpha": alpha, "prefix": prefix, "max_length": 7 - len(prefix)})
        explorer.search({"text": text, "heads_off": [{"kind": "cross", "layer": 0, "head": 1}]})
    (search,) = explorer._trace._compiled.values()
    assert search.experimental_get_tracing_count() == 1
