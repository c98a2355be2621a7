"""Requests of the explorer: one clear line for each fault, and nothing else for any text or JSON value."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_explorers import HOSTILE, TEXTS, tiny_translator

from keras_transformer.config.settings import SpecialIds
from keras_transformer.explorer import Explorer, InvalidRequestError
from keras_transformer.explorer.checks import Limits, check_inspect, check_search

SPECIAL = SpecialIds()
LIMITS = Limits(5, 37, 11, 293, SPECIAL, {"encoder": (3, 2), "decoder": (2, 2), "cross": (2, 2)})
HEAD = {"kind": "encoder", "layer": 0, "head": 1}
NAN = float("nan")


@pytest.fixture(scope="module")
def explorer():
    return Explorer(tiny_translator(), "tiny")


def test_a_whole_request():
    body = {
        "model": "tiny", "text": "a", "beam_size": 5, "alpha": 1, "max_length": 11, "prefix": [292, 7],
        "heads_off": [HEAD, HEAD, {"kind": "cross", "layer": 1, "head": 0}],
    }  # fmt: skip
    heads = [("encoder", 0, 1), ("cross", 1, 0)]
    assert check_search(body, LIMITS) == ("tiny", "a", 5, 1.0, 11, [292, 7], heads)
    assert check_search({"text": "a"}, LIMITS) == (None, "a", None, None, None, [], [])
    body = {"text": "a", "target": [8, 9, SPECIAL.eos], "alternatives": 20, "heads_off": [HEAD]}
    assert check_inspect(body, LIMITS) == (None, "a", [8, 9], [("encoder", 0, 1)], 20)
    assert check_inspect({"text": "a", "target": "b"}, LIMITS) == (None, "a", "b", [], 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_siz": 3}, "unknown key 'beam_siz'. Did you mean `beam_size`?"),
        ({"wrong": 3}, "unknown key 'wrong'. Known: model, text, beam_size"),
        ({"x\n" * 99: 3}, r"unknown key 'x\nx\n"),
        ({"model": 3}, "`model` must be a name. Received: 3"),
        ({"text": None}, "`text` must be a text. Received: None"),
        ({"text": ["a"]}, "`text` must be a text. Received: a list"),
        ({"text": "a" * 38}, "`text` has 38 bytes, more than the limit of 37"),
        ({"text": "ä" * 19}, "`text` has 38 bytes"),
        ({"text": "a\ud800"}, "`text` has half of a surrogate pair at character 1"),
        ({"beam_size": 0}, "`beam_size` must be a whole number from 1 to 5. Received: 0"),
        ({"beam_size": 6}, "Received: 6"),
        ({"beam_size": True}, "Received: True"),
        ({"beam_size": 3.0}, "Received: 3.0"),
        ({"beam_size": "3"}, "Received: '3'"),
        ({"beam_size": 10**5000}, "Received: a very large number"),
        ({"max_length": 12}, "`max_length` must be a whole number from 1 to 11"),
        ({"alpha": NAN}, "`alpha` must be a number from 0 to 5. Received: nan"),
        ({"alpha": float("inf")}, "Received: inf"),
        ({"alpha": -0.1}, "Received: -0.1"),
        ({"alpha": 10**400}, "Received: a very large number"),
        ({"alpha": False}, "Received: False"),
        ({"alpha": {}}, "Received: an object"),
        ({"prefix": 7}, "`prefix` must be a list of ids. Received: 7"),
        ({"prefix": "text"}, "`prefix` must be a list of ids"),
        ({"prefix": [7, 293]}, "`prefix[1]` must be an id from 0 to 292. Received: 293"),
        ({"prefix": [-1]}, "`prefix[0]` must be an id"),
        ({"prefix": [True]}, "`prefix[0]` must be an id from 0 to 292. Received: True"),
        ({"prefix": [7.0]}, "Received: 7.0"),
        ({"prefix": [7, SPECIAL.eos]}, f"`prefix[1]` is {SPECIAL.eos}, the id of end of sentence"),
        ({"prefix": [SPECIAL.bos]}, "the id of begin of sentence"),
        ({"prefix": [SPECIAL.pad]}, "the id of padding"),
        ({"prefix": [7] * 11}, "`prefix` has 11 ids, more than the limit of 10"),
        ({"heads_off": HEAD}, "`heads_off` must be a list of heads. Received: an object"),
        ({"heads_off": [HEAD] * 15}, "`heads_off` has 15 heads; the model has 14"),
        ({"heads_off": [HEAD, 3]}, "`heads_off[1]` must be a JSON object. Received: 3"),
        ({"heads_off": [{**HEAD, "layers": 1}]}, "`heads_off[0]` has the unknown key 'layers'. Did you mean"),
        ({"heads_off": [{"kind": "cross", "layer": 1}]}, "`heads_off[0]` lacks `head`"),
        ({"heads_off": [{**HEAD, "kind": "self"}]}, "`kind` must be one of encoder, decoder, cross."),
        ({"heads_off": [{**HEAD, "kind": ["cross"]}]}, "Received: a list"),
        ({"heads_off": [{**HEAD, "layer": 3}]}, "`layer` must be a whole number from 0 to 2. Received: 3"),
        ({"heads_off": [{**HEAD, "kind": "cross", "layer": 2}]}, "from 0 to 1. Received: 2"),
        ({"heads_off": [{**HEAD, "head": True}]}, "`head` must be a whole number from 0 to 1."),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)  # fmt: skip
def test_each_fault_of_a_search_has_one_line(changes, message):
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        check_search({"text": "a", **changes}, LIMITS)
    assert_one_line(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": None}, "`target` must be a text or a list of ids. Received: None"),
        ({"target": "a" * 38}, "`target` has 38 bytes"),
        ({"target": "\udfff"}, "`target` has half of a surrogate pair at character 0"),
        ({"target": [SPECIAL.eos, 7]}, "`target[0]` is 2, the id of end of sentence"),
        ({"target": [7, SPECIAL.eos, SPECIAL.eos]}, "`target[1]` is 2"),
        ({"target": [7] * 12}, "`target` has 12 ids"),
        ({"target": [None]}, "`target[0]` must be an id"),
        ({"alternatives": 21}, "`alternatives` must be a whole number from 1 to 20. Received: 21"),
        ({"beam_size": 3}, "unknown key 'beam_size'. Known: model, text, target"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_each_fault_of_an_inspection_has_one_line(changes, message):
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        check_inspect({"text": "a", "target": [7], **changes}, LIMITS)
    assert_one_line(caught.value)


@pytest.mark.parametrize("check", [check_search, check_inspect])
@pytest.mark.parametrize("body", [None, 3, "text", [{"text": "a"}], {}, {"prefix": [7]}], ids=str)
def test_a_request_is_an_object_with_what_is_required(check, body):
    with pytest.raises(InvalidRequestError, match="must be a JSON object|lacks `text`|unknown key 'prefix'"):
        check(body, LIMITS)


def assert_one_line(error):
    assert re.fullmatch(r"[ -~]{10,250}", str(error)), str(error)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([[HEAD], 7, "cross"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*HEAD, "text", "x"]), inner, max_size=3)
    ),
)
NAMES = ("model", "text", "target", "beam_size", "alpha", "max_length", "prefix", "heads_off", "alternatives")


@pytest.mark.slow
@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4) | VALUES)
def test_any_json_value_is_accepted_or_refused_in_one_line(body):
    for check in (check_search, check_inspect):
        for request in (body, {"text": "a", "target": "b", **body} if isinstance(body, dict) else body):
            try:
                check(request, LIMITS)
            except InvalidRequestError as error:
                assert_one_line(error)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_hostile_texts_are_answered_with_json_or_one_line(explorer, text):
    """In the source and in the target, for both requests."""
    for ask, body in (
        (explorer.search, {"text": text, "beam_size": 2, "max_length": 5}),
        (explorer.inspect, {"text": TEXTS[0], "target": text}),
        (explorer.inspect, {"text": text, "target": [7]}),
    ):
        try:
            answer = ask(body)
        except InvalidRequestError as error:
            assert_one_line(error)
        else:
            written = json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()
            assert json.loads(written) == answer
            assert answer["text"] == body["text"]


@settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.characters(), min_size=1, max_size=40))
def test_any_text_is_answered_with_json_or_one_line(explorer, text):
    test_hostile_texts_are_answered_with_json_or_one_line(explorer, text)


@pytest.mark.slow
def test_faults_that_the_model_decides(explorer):
    with pytest.raises(InvalidRequestError, match="`text` is blank"):
        explorer.search({"text": "  "})
    with pytest.raises(InvalidRequestError, match="`model` must be 'tiny'. Received: 'other'"):
        explorer.inspect({"text": "a", "target": "b", "model": "other"})
    strict = Explorer(tiny_translator(min_length=4))
    with pytest.raises(InvalidRequestError, match="`min_length` must be below `max_length`"):
        strict.search({"text": "a", "max_length": 3})
