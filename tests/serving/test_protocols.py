"""The three interfaces, as their clients see them, with a model that writes texts in capitals."""

import base64
import importlib.util
import itertools
import json
import re
import struct
import threading

import numpy as np
import pytest
from fake_serving import Engines, FakeEngine, client_of, error_of, fake_client, fake_server

from keras_transformer import __version__
from keras_transformer.config.settings import SearchConfig
from keras_transformer.serving.app import create_app
from keras_transformer.serving.html_texts import join_html, split_html
from keras_transformer.serving.service import LOWEST

PREDICT = "/v1/models/m30k:predict"
INFER = "/v2/models/m30k/infer"
LENGTH = "Inference-Header-Content-Length"
BEST = {"score": -0.5, "log_prob": -2.0, "finished": True, "truncated": False}


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def client(engine):
    with fake_client(engine) as client:
        yield client


@pytest.fixture
def versions(tmp_path):
    """A folder of versions 3 and 17."""
    for number in (3, 17):
        (tmp_path / "served" / str(number)).mkdir(parents=True)
    return tmp_path / "served"


def post(client, path, values, **options):
    answer = client.post(path, json=values, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def b64(text):
    return {"b64": base64.b64encode(text.encode()).decode()}


# TensorFlow Serving


@pytest.mark.parametrize(
    "instances",
    [
        ["ein Hund", "größer"],
        [{"text": "ein Hund"}, {"text": "größer"}],
        [b64("ein Hund"), "größer"],
        [{"text": b64("ein Hund")}, {"text": "größer"}],
    ],
)
def test_rows_are_answered_by_rows(client, instances):
    answer = post(client, PREDICT, {"instances": instances})
    assert answer == {
        "predictions": [{"translation": "EIN HUND", **BEST}, {"translation": "GRÖSSER", **BEST}]
    }


@pytest.mark.parametrize(
    "inputs", [["a b", "c"], {"text": ["a b", "c"]}, {"text": [b64("a b"), b64("c")]}, [b64("a b"), "c"]]
)
def test_columns_are_answered_by_columns(client, inputs):
    columns = {key: [value, value] for key, value in BEST.items()}
    assert post(client, PREDICT, {"inputs": inputs}) == {"outputs": {"translation": ["A B", "C"], **columns}}


def test_the_second_signature_has_several_translations(client):
    values = {"signature_name": "translate_nbest", "instances": ["x"], "n_best": 3}
    (row,) = post(client, PREDICT, values)["predictions"]
    assert row == {
        "translations": ["X", "X!", "X!!"],
        "scores": [-0.5, -1.5, -2.5],
        "log_probs": [-2.0, -3.0, -4.0],
        "finished": [True, False, True],
        "truncated": False,
    }
    del values["instances"]
    columns = post(client, PREDICT, {**values, "inputs": {"text": ["x", "y"], "beam_size": 5}})["outputs"]
    assert columns["translations"] == [["X", "X!", "X!!"], ["Y", "Y!", "Y!!"]]
    assert columns["truncated"] == [False, False]


def test_without_a_number_the_second_signature_has_as_many_as_the_beam(engine, client):
    values = {"signature_name": "translate_nbest", "instances": ["x"]}
    assert len(post(client, PREDICT, values)["predictions"][0]["translations"]) == 4
    assert len(post(client, PREDICT, {**values, "beam_size": 7})["predictions"][0]["scores"]) == 7
    engine.own_n_best = 3
    assert len(post(client, PREDICT, values)["predictions"][0]["finished"]) == 3
    assert len(post(client, PREDICT, {**values, "beam_size": 2})["predictions"][0]["finished"]) == 2
    engine.max_n_best, engine.own_n_best = 2, 1
    assert len(post(client, PREDICT, values)["predictions"][0]["finished"]) == 2


def test_empty_slots_of_texts_with_fewer_translations_are_padded(client):
    values = {"signature_name": "translate_nbest", "instances": ["", "x", "a\nb"], "n_best": 2}
    blank, full, lines = post(client, PREDICT, values)["predictions"]
    assert full["translations"] == ["X", "X!"]
    assert lines["translations"] == ["A\nB", ""]  # a text in two parts has one translation
    assert lines["scores"] == [-1.0, LOWEST]
    assert lines["finished"] == [True, False]
    assert blank["translations"] == ["", ""]
    assert blank["scores"][0] == 0.0


def test_blank_texts_are_answered_and_not_translated(engine, client):
    rows = post(client, PREDICT, {"instances": ["", "  \t", "a", "\n\n"]})["predictions"]
    assert [row["translation"] for row in rows] == ["", "", "A", ""]
    assert engine.texts == ["a"]


def test_settings_of_the_search_reach_the_model(engine, client):
    post(client, PREDICT, {"instances": ["a"], "beam_size": 3, "alpha": 0.2, "coverage_penalty": 0.5})
    post(client, PREDICT, {"inputs": {"text": ["b"], "no_repeat_ngram": 2, "min_length": 5}})
    post(client, PREDICT, {"inputs": ["c"], "max_length_offset": 11})
    assert [settings for settings, _ in engine.batches] == [
        {"alpha": 0.2, "beam_size": 3, "coverage_penalty": 0.5},
        {"no_repeat_ngram": 2, "min_length": 5},
        {"max_length_offset": 11},
    ]


def test_an_impossible_score_is_a_number_in_json(engine, client, monkeypatch):
    for score in (float("-inf"), float("nan")):
        monkeypatch.setattr(
            engine,
            "_n_best",
            lambda text, number, score=score: FakeEngine._n_best(engine, text, number)._replace(
                translations=[FakeEngine._n_best(engine, text, 1).best._replace(score=score)]
            ),
        )
        (row,) = post(client, PREDICT, {"instances": ["x"]})["predictions"]
        assert row["score"] == LOWEST


def test_lines_arrive_one_for_each_text(client):
    headers = {"Accept": "application/x-ndjson"}
    answer = client.post(PREDICT, json={"instances": ["a", "b", "", "c"]}, headers=headers)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    rows = [json.loads(line) for line in answer.content.splitlines()]
    assert sorted((row["index"], row["translation"]) for row in rows) == [
        (0, "A"),
        (1, "B"),
        (2, ""),
        (3, "C"),
    ]
    assert all(row.items() >= BEST.items() for row in rows if row["translation"])


def test_a_fault_after_the_first_line_is_a_line_with_the_error(engine):
    engine.failing, records = {"bad"}, []
    with fake_client(engine, batch_tokens=2, records=records) as client:
        headers = {"Accept": "application/x-ndjson"}
        answer = client.post(PREDICT, json={"instances": ["a", "bad", "c"]}, headers=headers)
        assert answer.status_code == 200
        first, *_, last = [json.loads(line) for line in answer.content.splitlines()]
        assert (first["index"], first["translation"]) == (0, "A")
        assert "log of the server" in last["error"]
        assert [(record["code"], record.get("error")) for record in records] == [(200, last["error"])]
        assert 'refused_total{reason="fault"} 1.0' in client.get("/metrics").text
        refused = client.post(PREDICT, json={"instances": ["bad"]}, headers=headers)
        assert refused.status_code == 500  # before the first line it has a status of its own
        assert "secret" not in error_of(refused)


def test_a_stream_is_logged_at_its_end(engine):
    records = []
    with fake_client(engine, batch_tokens=2, records=records) as client:
        engine.gate.clear()
        threading.Timer(0.3, engine.gate.set).start()
        with client.stream(
            "POST", PREDICT, json={"instances": ["a", "b"]}, headers={"Accept": "application/x-ndjson"}
        ) as answer:
            assert len(list(answer.iter_lines())) == 2
    (record,) = records
    assert record["num_texts"] == 2
    assert "error" not in record
    assert record["milliseconds"] >= 290


def test_the_status_lists_the_versions(engine, versions):
    with fake_client(Engines({"17": engine}), paths={"m30k": versions}) as client:
        state = {"version": "17", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        assert client.get("/v1/models/m30k").json() == {"model_version_status": [state]}
        assert client.get("/v1/models/m30k/versions/17").json() == {"model_version_status": [state]}
        answer = post(client, "/v1/models/m30k/versions/17:predict", {"instances": ["a"]})
        assert answer["predictions"][0]["translation"] == "A"
        for path in ("/v1/models/m30k/versions/3", "/v1/models/m30k/versions/x", "/v1/models/other"):
            assert client.get(path).status_code == 404
        missing = client.post("/v1/models/m30k/versions/5:predict", json={"instances": ["a"]})
        assert missing.status_code == 404
        assert "version 17" in error_of(missing)
        assert "m30k" in error_of(client.get("/v1/models/other"))


def test_the_metadata_has_both_signatures(client):
    answer = client.get("/v1/models/m30k/metadata").json()
    assert answer["model_spec"] == {"name": "m30k", "signature_name": "", "version": "1"}
    found = answer["metadata"]["signature_def"]["signature_def"]
    best, several = found["serving_default"], found["translate_nbest"]
    assert best["inputs"]["text"]["dtype"] == "DT_STRING"
    assert {name: tensor["dtype"] for name, tensor in best["outputs"].items()} == {
        "translation": "DT_STRING", "score": "DT_FLOAT", "log_prob": "DT_FLOAT",
        "finished": "DT_BOOL", "truncated": "DT_BOOL",
    }  # fmt: skip
    sizes = {
        name: [int(dim["size"]) for dim in tensor["tensor_shape"]["dim"]]
        for name, tensor in several["outputs"].items()
    }
    two = [-1, -1]
    assert sizes == {
        "translations": two, "scores": two, "log_probs": two, "finished": two, "truncated": [-1]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, 'either "instances" or "inputs"'),
        ({"instances": ["a"], "inputs": ["a"]}, 'either "instances" or "inputs"'),
        ({"instances": []}, "at least one"),
        ({"instances": "a"}, "must be a list"),
        ({"instances": [3]}, "text 0 must be a string. Received: a number"),
        ({"instances": ["a", None]}, "text 1 must be a string. Received: null"),
        ({"instances": [{"text": "a"}, {}]}, 'must have "text"'),
        ({"instances": [{"text": "a", "txt": "b"}]}, "unknown input 'txt'. Did you mean 'text'?"),
        ({"instances": [{"b64": "?"}]}, "text 0: not base64"),
        ({"inputs": "a"}, 'list of texts. Received: a string'),
        ({"inputs": {}}, '"inputs" must have "text"'),
        ({"inputs": {"text": "a"}}, "list of texts"),
        ({"instances": ["a"], "beem_size": 3}, "unknown key 'beem_size'. Did you mean 'beam_size'?"),
        ({"instances": ["a"], "beam_size": True}, "`beam_size` must be a number. Received: a boolean"),
        ({"instances": ["a"], "beam_size": 2.5}, "`beam_size` must be int"),
        ({"instances": ["a"], "beam_size": 0}, "from 1 to 16"),
        ({"instances": ["a"], "alpha": -1}, "alpha"),
        ({"instances": ["a"], "n_best": 2}, '"signature_name": "translate_nbest"'),
        ({"instances": ["a"], "n_best": 9, "signature_name": "translate_nbest"}, "at most `beam_size`"),
        ({"instances": ["a"], "signature_name": "parse"}, "'parse' not found"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_with_one_line(client, values, message):
    answer = client.post(PREDICT, json=values)
    assert answer.status_code == 400
    assert message in error_of(answer)


# The Open Inference Protocol


def tensor(texts, shape=None, **more):
    return {"name": "text", "datatype": "BYTES", "shape": shape or [len(texts)], "data": texts, **more}


def outputs_of(answer):
    return {output["name"]: output for output in answer["outputs"]}


def test_tensors_in_json(client):
    answer = post(client, INFER, {"id": "number 7", "inputs": [tensor(["ein Hund", "größer"])]})
    assert answer["id"] == "number 7"
    assert answer["model_name"] == "m30k"
    assert "model_version" not in answer
    assert answer["outputs"] == [
        {"name": "translation", "datatype": "BYTES", "shape": [2], "data": ["EIN HUND", "GRÖSSER"]},
        {"name": "score", "datatype": "FP32", "shape": [2], "data": [-0.5, -0.5]},
        {"name": "log_prob", "datatype": "FP32", "shape": [2], "data": [-2.0, -2.0]},
        {"name": "finished", "datatype": "BOOL", "shape": [2], "data": [True, True]},
        {"name": "truncated", "datatype": "BOOL", "shape": [2], "data": [False, False]},
    ]


@pytest.mark.parametrize("data", [["a", "b", "c"], [["a"], ["b"], ["c"]]])
def test_a_column_of_texts_gives_columns(client, data):
    answer = post(client, INFER, {"inputs": [tensor(data, [3, 1])]})
    assert [output["shape"] for output in answer["outputs"]] == [[3, 1]] * 5
    assert outputs_of(answer)["translation"]["data"] == ["A", "B", "C"]
    assert "id" not in answer


def test_several_translations_are_a_second_axis(client):
    parameters = {"n_best": 3, "beam_size": 5}
    answer = post(client, INFER, {"inputs": [tensor(["a", "b"])], "parameters": parameters})
    found = outputs_of(answer)
    assert found["translation"]["shape"] == [2, 3]
    assert found["translation"]["data"] == ["A", "A!", "A!!", "B", "B!", "B!!"]
    assert found["score"]["data"] == [-0.5, -1.5, -2.5] * 2
    assert found["finished"]["data"] == [True, False, True] * 2
    assert found["truncated"] == {"name": "truncated", "datatype": "BOOL", "shape": [2], "data": [False] * 2}


def test_only_the_outputs_that_are_asked_for_come(client):
    values = {"inputs": [tensor(["a"])], "outputs": [{"name": "finished"}, {"name": "translation"}]}
    assert [output["name"] for output in post(client, INFER, values)["outputs"]] == [
        "finished",
        "translation",
    ]


def packed(texts):
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def binary_body(values, data):
    header = json.dumps(values).encode()
    return {"content": header + data, "headers": {LENGTH: str(len(header))}}


def test_binary_tensors_both_ways(client):
    texts = ["ein Hund", "", "größer"]
    data = packed(texts)
    entry = tensor(texts, parameters={"binary_data_size": len(data)})
    del entry["data"]
    values = {"id": "b", "inputs": [entry], "parameters": {"binary_data_output": True}}
    answer = client.post(INFER, **binary_body(values, data))
    assert answer.status_code == 200, answer.text
    length = int(answer.headers[LENGTH])
    header, rest = json.loads(answer.content[:length]), answer.content[length:]
    assert header["id"] == "b"
    found = {}
    for output in header["outputs"]:
        assert "data" not in output
        size = output["parameters"]["binary_data_size"]
        found[output["name"]], rest = rest[:size], rest[size:]
    assert rest == b""
    assert found["translation"] == packed(["EIN HUND", "", "GRÖSSER"])
    np.testing.assert_array_equal(np.frombuffer(found["score"], "<f4"), np.float32([-0.5, 0.0, -0.5]))
    assert found["finished"] == b"\x01\x01\x01"
    assert found["truncated"] == b"\x00\x00\x00"


def test_one_output_in_binary_and_one_in_json(client):
    asked = [{"name": "translation"}, {"name": "log_prob", "parameters": {"binary_data": True}}]
    answer = client.post(INFER, json={"inputs": [tensor(["a", "b"])], "outputs": asked})
    length = int(answer.headers[LENGTH])
    found = outputs_of(json.loads(answer.content[:length]))
    assert found["translation"]["data"] == ["A", "B"]
    assert answer.content[length:] == np.float32([-2, -2]).tobytes()


def test_a_folder_of_versions_names_the_version(engine, versions):
    with fake_client(Engines({"17": engine}), paths={"m30k": versions}) as client:
        for path in (INFER, "/v2/models/m30k/versions/17/infer"):
            assert post(client, path, {"inputs": [tensor(["a"])]})["model_version"] == "17"
        assert client.get("/v2/models/m30k").json()["versions"] == ["17"]
        assert client.post("/v2/models/m30k/versions/3/infer", json={}).status_code == 404


def test_the_server_and_its_models_describe_themselves(client):
    about = client.get("/v2").json()
    assert about["version"] == __version__
    assert "binary_tensor_data" in about["extensions"]
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/m30k/ready").json() == {"name": "m30k", "ready": True}
    model = client.get("/v2/models/m30k").json()
    assert "versions" not in model
    assert model["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert [output["name"] for output in model["outputs"]] == [
        "translation", "score", "log_prob", "finished", "truncated"
    ]  # fmt: skip
    assert client.get("/v2/models/other").status_code == 404


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "one input, `text`"),
        ({"inputs": [tensor(["a"]), tensor(["b"])]}, "one input"),
        (
            {"inputs": [{**tensor(["a"]), "name": "texts"}]},
            "`name` of the input must be 'text'. Received: 'texts'",
        ),
        ({"inputs": [{}]}, 'no `name`. Give "name": "text"'),
        ({"inputs": [{"name": "text"}]}, 'no `datatype`. Give "datatype": "BYTES"'),
        ({"inputs": [{**tensor(["a"]), "datatype": "FP32"}]}, "must be 'BYTES'. Received: 'FP32'"),
        ({"inputs": [tensor(["a"], [2])]}, "1 values, but its shape is [2]"),
        ({"inputs": [tensor(["a", "b"], [1, 2])]}, "[n] or [n, 1]"),
        ({"inputs": [tensor(["a"], [True])]}, "[n] or [n, 1]"),
        ({"inputs": [tensor(["a"], parameters=[])]}, "must be an object. Received: a list"),
        ({"inputs": [tensor(["a"], parameters={"binary_data_size": 3})]}, "`binary_data_size`"),
        ({"inputs": [tensor([7])]}, "text 0 must be a string"),
        ({"inputs": [tensor(["a"])], "id": 5}, "`id` must be a string"),
        ({"inputs": [tensor(["a"])], "parameters": {"alfa": 1}}, "Did you mean 'alpha'?"),
        ({"inputs": [tensor(["a"])], "input": 3}, "Did you mean 'inputs'?"),
        ({"inputs": [tensor(["a"])], "outputs": [{"name": "translations"}]}, "No output 'translations'"),
    ],
)
def test_a_wrong_tensor_is_answered_with_one_line(engine, client, values, message):
    answer = client.post(INFER, json=values)
    assert answer.status_code in (400, 404)
    assert message in error_of(answer)
    assert not engine.batches


@pytest.mark.parametrize(
    ("data", "length", "message"),
    [
        (b"\x05\x00\x00\x00abc", None, "ends within a text"),
        (b"\x01\x00\x00", None, "ends within a length"),
        (b"\xff\xff\xff\xffa", None, "ends within a text"),
        (b"\x01\x00\x00\x00a\x01\x00\x00\x00b", None, "2 values"),
        (b"", "999", "must be the number of bytes"),
        (b"", "-1", "must be the number of bytes"),
        (b"", "0" * 30 + "9" * 5000, "must be the number of bytes"),
        (b"", "0", "must be JSON"),
    ],
)
def test_broken_binary_tensors(client, data, length, message):
    entry = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
    body = binary_body({"inputs": [entry]}, data)
    if length:
        body["headers"] = {LENGTH: length}
    answer = client.post(INFER, **body)
    assert answer.status_code == 400
    assert message in error_of(answer)


# LibreTranslate

ASK = {"source": "en", "target": "de"}


def test_a_text_and_a_list_of_texts(client):
    assert post(client, "/translate", {"q": "a dog", **ASK}) == {"translatedText": "A DOG"}
    assert post(client, "/translate", {"q": ["a", "b"], **ASK}) == {"translatedText": ["A", "B"]}
    assert post(client, "/translate", {"q": [], **ASK}) == {"translatedText": []}
    assert post(client, "/translate", {"q": "", **ASK}) == {"translatedText": ""}


@pytest.mark.parametrize("kind", ["form", "multipart"])
def test_forms(client, kind):
    def send(values):
        files = {key: (None, value) for key, value in values.items()}
        options = {"data": values} if kind == "form" else {"files": files}
        answer = client.post("/translate", **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert send({"q": "größer & mehr", **ASK}) == {"translatedText": "GRÖSSER & MEHR"}
    assert send({"q": "", **ASK}) == {"translatedText": ""}
    assert send({"q": '["a", "b"]', **ASK}) == {"translatedText": ["A", "B"]}
    for text in ("[1]", "[", "7", '{"a": 2}'):  # no lists of texts
        assert send({"q": text, **ASK}) == {"translatedText": text.upper()}
    assert send({"q": "x", "alternatives": "2", **ASK}) == {
        "translatedText": "X", "alternatives": ["X!", "X!!"]
    }  # fmt: skip


@pytest.mark.parametrize(
    "body", ["q=größer&source=en&target=de", "q=gr%C3%B6%C3%9Fer&source=en&target=de".lower()]
)
def test_a_form_is_utf_8(client, body):
    """`curl -d 'q=größer'` does not encode it."""
    form = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    answer = client.post("/translate", content=body.encode(), headers=form)
    assert answer.json() == {"translatedText": "GRÖSSER"}
    many = client.post("/translate", content="&".join([body] * 9).encode(), headers=form)
    assert many.status_code == 400
    assert "The form cannot be read" in error_of(many)


def test_json_that_is_called_a_form_is_json(client):
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # by `curl -d`
    answer = client.post("/translate", content=json.dumps({"q": "a=b&c", **ASK}), headers=form)
    assert answer.json() == {"translatedText": "A=B&C"}


def test_alternatives_are_at_most_as_many_as_asked_for(engine, client):
    assert post(client, "/translate", {"q": ["x", "y z"], "alternatives": 2, **ASK}) == {
        "translatedText": ["X", "Y Z"],
        "alternatives": [["X!", "X!!"], ["Y Z!", "Y Z!!"]],
    }
    spaced = post(client, "/translate", {"q": " x\n", "alternatives": 1, **ASK})
    assert spaced == {"translatedText": " X\n", "alternatives": [" X!\n"]}
    post(client, "/translate", {"q": "x", "alternatives": 6, **ASK})
    assert engine.batches[-1][0] == {"beam_size": 7, "n_best": 7}
    engine.max_n_best = 2
    answer = post(client, "/translate", {"q": "x", "alternatives": 6, **ASK})
    assert answer["alternatives"] == ["X!"]


def test_paragraphs_are_divided_into_sentences_and_keep_their_line_breaks(engine, client):
    text = "  The first sentence is here. And the second is here.\r\n\r\n\tOne more line \n"
    translated = post(client, "/translate", {"q": text, **ASK})["translatedText"]
    assert translated == text.upper()
    assert sorted(engine.texts) == ["And the second is here.", "One more line", "The first sentence is here."]
    assert post(client, "/translate", {"q": " \n ", **ASK})["translatedText"] == " \n "


def test_sentences_of_languages_without_spaces_are_joined_without(engine):
    with fake_client(FakeEngine(languages=("en", "ja"))) as client:
        text = "The first sentence is here. And the second is here."
        answer = post(client, "/translate", {"q": text, "source": "en", "target": "ja"})
    assert answer["translatedText"] == "THE FIRST SENTENCE IS HERE.AND THE SECOND IS HERE."


def test_many_spaces_within_a_text_take_no_time(client):
    text = "a" + 200_000 * " " + "b"
    assert post(client, "/translate", {"q": text, **ASK})["translatedText"] == text.upper()


def test_markup_stays_as_it_is(engine, client):
    text = (
        "<!DOCTYPE html>\n<P CLASS=\"a > b\" data-x='<'>one &amp; two<br/> <b>three</b> <i>four</i></P >"
        "<script>if (a < b) run('</p>');</script><style>p > a {}</style><!-- a comment -->"
        '<pre>a\n b &quot;<b>c</b></pre><code>x &lt; y</code><span translate="no">Keras <b>3</b></span>'
        "<img alt=x translate=no>1 < 2 &lt;b&gt; &eacute;<p>five"
    )
    answer = post(client, "/translate", {"q": text, "format": "html", **ASK})["translatedText"]
    for piece, other in [
        ("one &amp; two", "ONE &amp; TWO"), ("three", "THREE"), (">four", ">FOUR"),
        ("1 < 2 &lt;b&gt; &eacute;", "1 &lt; 2 &lt;B&gt; É"), ("five", "FIVE"),
    ]:  # fmt: skip
        text = text.replace(piece, other)
    assert answer == text
    assert "one & two" in engine.texts
    assert "1 < 2 <b> é" in engine.texts


@pytest.mark.parametrize(
    "piece", ["<a ", "<!--", "<a b='", '<a b="', "<![", "</", "<script", "<code>", "&", "<"]
)
def test_broken_markup_takes_no_time_and_loses_nothing(piece):
    text = 20_000 * piece
    pieces = split_html(text)
    assert "".join(part for _, part in pieces) == text
    assert join_html(pieces, [part for is_text, part in pieces if is_text]) == text.replace(
        piece, {"&": "&amp;", "<": "&lt;", "</": "&lt;/"}.get(piece, piece)
    )


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (f"&#{'9' * 5000};", "\ufffd"), (f"&#{'9' * 8} ", "\ufffd "), ("&#99999999;", "\ufffd"),
        ("&#0000000065;", "A"), (f"&#{'0' * 50}65;", "A"), ("&#1114109;", chr(1114109)), ("&#228;", "ä"),
    ],
)  # fmt: skip
def test_numbers_of_characters_that_do_not_exist_are_replaced(client, reference, text):
    answer = post(client, "/translate", {"q": f"x {reference}y", "format": "html", **ASK})
    assert answer == {"translatedText": f"X {text.upper()}Y"}


def three_models():
    return Engines(
        one=FakeEngine(languages=("en", "de")),
        two=FakeEngine(languages=("fr", "pt-BR")),
        three=FakeEngine(languages=("our own", "de")),
        four=FakeEngine(languages=("en", "de")),
    )


def test_the_languages_choose_the_model():
    engines = three_models()
    with fake_client(engines) as client:
        for source, target, name in [("fr", "pt-BR", "two"), ("FR", "pt", "two"), ("en-GB", "de_AT", "one")]:
            answer = post(client, "/translate", {"q": f"to {name}", "source": source, "target": target})
            assert answer["translatedText"] == f"TO {name.upper()}"
            assert engines[name].texts[-1] == f"to {name}"
        refused = client.post("/translate", json={"q": "x", "source": "de\n", "target": "en"})
        assert refused.status_code == 400
        supported = error_of(refused).partition("Supported: ")[2]  # each pair once
        assert supported.split(", ") == ["en to de", "fr to pt-BR", "our own to de"]
        listed = {entry["code"]: entry for entry in client.get("/languages").json()}
        assert listed["en"] == {"code": "en", "name": "English", "targets": ["de"]}
        assert listed["pt-BR"] == {"code": "pt-BR", "name": "Portuguese (Brazil)", "targets": []}
        assert client.get("/frontend/settings").json()["language"]["source"]["code"] == "en"


def test_the_language_is_identified():
    with fake_client(three_models()) as client:
        text = "Le chien noir court dans la neige avec son maître."
        found = post(client, "/detect", {"q": text})
        assert found[0]["language"] == "fr"
        assert 90 < found[0]["confidence"] <= 100
        answer = post(client, "/translate", {"q": text, "source": "auto", "target": "pt"})
        assert answer == {"translatedText": text.upper(), "detectedLanguage": found[0]}
        answer = post(client, "/translate", {"q": [text, text], "source": "auto", "target": "pt"})
        assert len(answer["detectedLanguage"]) == 2
        assert post(client, "/detect", {"q": " "}) == [{"confidence": 0.0, "language": "en"}]


def test_with_one_source_language_there_is_nothing_to_identify(client):
    answer = post(client, "/translate", {"q": "Le chien", "source": "auto", "target": "de"})
    assert answer["detectedLanguage"] == {"confidence": 100.0, "language": "en"}
    for blank in ("", " ", []):  # also without the extra that identifies languages
        answer = post(client, "/translate", {"q": blank, "source": "auto", "target": "de"})
        assert answer["translatedText"] == blank
    # A target of a model is no source, but may be what the text is in.
    assert post(client, "/detect", {"q": "Das ist ein kleines Haus."})[0]["language"] == "de"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (ASK, "missing q parameter"),
        ({"q": "a", "source": "en"}, "missing target parameter"),
        ({"q": 5, **ASK}, "`q` must be a string. Received: a number"),
        ({"q": ["a", 5], **ASK}, "`q[1]` must be a string"),
        ({"q": "a", **ASK, "format": "markdown"}, "text or html. Received: 'markdown'"),
        ({"q": "a", **ASK, "alternatives": -1}, "`alternatives` must be a whole number from 0. Received: -1"),
        ({"q": "a", **ASK, "alternatives": [1]}, "a whole number from 0. Received: a list"),
        ({"q": "a", **ASK, "alternatives": 16}, "at most 15"),
        ({"q": "a", **ASK, "sauce": "en"}, "Did you mean 'source'?"),
    ],
)
def test_a_wrong_text_is_answered_with_one_line(client, values, message):
    answer = client.post("/translate", json=values)
    assert answer.status_code == 400
    assert message in error_of(answer)


# All of them


@pytest.mark.slow
def test_the_description_is_valid_and_has_every_route(engine):
    validator = pytest.importorskip("openapi_spec_validator", reason="needs openapi-spec-validator")
    explorer = importlib.util.find_spec("keras_transformer.explorer") is not None
    server = fake_server(engine, explorer=explorer)
    with client_of(server) as client:
        document = client.get("/openapi.json").json()
    validator.validate(document)
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    routes = {
        (method, route.path) for route in create_app(server).routes for method in route.methods - {"HEAD"}
    }
    assert routes - listed == {("GET", "/openapi.json")} | {
        ("GET", path) for path in ("/", "/explorer/assets/{file}") if explorer
    }
    assert listed <= routes
    assert len(listed) > 20


def closed(schema):
    """Returns a JSON schema whose objects allow no property that is not named."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    return found | ({"additionalProperties": False} if "properties" in schema else {})


ASKED = [
    *(("GET", path, None) for path in (
        "/healthz", "/readyz", "/v1/models/{name}", "/v1/models/{name}/versions/{version}", "/v2",
        "/v1/models/{name}/metadata", "/v2/health/live", "/v2/health/ready", "/v2/models/{name}",
        "/v2/models/{name}/ready", "/languages", "/health", "/frontend/settings",
    )),
    *(("POST", "/v1/models/{name}:predict", {**values, **more}) for values, more in itertools.product(
        ({"instances": ["a", "b"]}, {"inputs": {"text": ["a"]}}), ({}, {"signature_name": "translate_nbest"})
    )),
    *(("POST", "/v2/models/{name}/infer", {
        **more, "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]
    }) for more in ({}, {"id": "7", "parameters": {"n_best": 2}})),
    *(("POST", "/translate", {"q": text, "source": "en", "target": "de", **more})
        for text in ("a", ["a", "b"], [])
        for more in ({}, {"alternatives": 2}, {"source": "auto"}, {"format": "html"})),
    ("POST", "/detect", {"q": "a house"}),
]  # fmt: skip


@pytest.mark.slow
def test_answers_are_as_described(engine, versions):
    validation = pytest.importorskip("jsonschema", reason="needs jsonschema, of openapi-spec-validator")
    for name in ("3", "17"):
        (versions / name / "config.json").touch()
    server = fake_server(
        Engines({"m30k": engine, "3": FakeEngine(), "17": FakeEngine()}),
        paths={"m30k": "m30k", "served": versions},
    )
    plain = []
    with client_of(server) as client:
        described = client.get("/openapi.json").json()["paths"]
        for (method, path, body), name in itertools.product(ASKED, ("m30k", "served")):
            address = path.format(name=name, version=1 if name == "m30k" else 17)
            answer = client.request(method, address, json=body)
            assert answer.status_code == 200, (address, answer.text)
            content = described[path][method.lower()]["responses"]["200"]["content"]
            validation.validate(answer.json(), closed(content["application/json"]["schema"]))
            plain.append(path)
    others = {path for path in described if "/versions/" not in path and path not in plain}
    assert others == {"/metrics"}  # no JSON


def test_the_description_says_what_needs_the_token(engine):
    token = {"Authorization": "Bearer cret"}
    with fake_client(engine, token="cret") as client:
        paths = client.get("/openapi.json", headers=token).json()["paths"]
        for path in paths:
            if "get" in paths[path]:
                answer = client.get(path.format(name="m30k", version=1))
                assert (answer.status_code == 401) == ("security" in paths[path]["get"]), path
    assert "security" in paths[PREDICT.replace("m30k", "{name}")]["post"]
    with fake_client(engine) as client:
        assert "security" not in client.get("/openapi.json").text.replace("securitySchemes", "")


def test_other_paths_and_methods_are_answered_in_json(client):
    for method, path, code in [
        ("GET", "/x", 404), ("POST", "/healthz", 405), ("GET", "/translate", 405), ("GET", PREDICT, 405),
        ("POST", "/v1/models/m30k:predct", 404), ("POST", "/v1/models/m30k", 404),
        ("POST", "/v1/models/:predict", 404), ("DELETE", "/v1/models/m30k", 405),
    ]:  # fmt: skip
        answer = client.request(method, path)
        assert answer.status_code == code
        assert (":predict" in error_of(answer)) == (code == 404)


def test_metrics_count_texts_and_refusals(client):
    post(client, PREDICT, {"instances": ["a b", "c"]})
    client.post(PREDICT, json={})
    found = client.get("/metrics").text
    assert 'keras_transformer_texts_total{model="m30k"} 2.0' in found
    assert 'keras_transformer_source_tokens_total{model="m30k"} 5.0' in found
    assert 'keras_transformer_refused_total{reason="invalid"} 1.0' in found
    assert 'keras_transformer_version{model="m30k"} 1.0' in found


def test_the_defaults_of_the_model_hold_without_settings():
    engine = FakeEngine(search=SearchConfig(beam_size=5))
    engine.own_n_best = 3
    with fake_client(engine) as client:
        post(client, PREDICT, {"instances": ["a"]})
        assert engine.batches == [({}, ["a"])]
        values = {"instances": ["a"], "signature_name": "translate_nbest"}
        assert len(post(client, PREDICT, values)["predictions"][0]["translations"]) == 3


def test_halves_of_surrogate_pairs_become_replacement_characters(engine, client):
    whole, half = '"\\ud83d\\ude00"', '"a\\ud800"'  # as JSON writes them
    for path, body, found in [
        (PREDICT, '{"instances": [%s, %s]}', "predictions"),
        (
            INFER,
            '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": [%s, %s]}]}',
            "outputs",
        ),
        ("/translate", '{"q": [%s, %s], "source": "en", "target": "de"}', "translatedText"),
    ]:
        answer = client.post(path, content=body % (whole, half))
        assert answer.status_code == 200, answer.text
        assert {"😀", "A�"} <= set(re.findall("😀|A�", json.dumps(answer.json()[found], ensure_ascii=False)))
    assert set(engine.texts) == {"😀", "a�"}
