"""What a client may send and a disk may do to an exported model: faults F48-F58, F61-F63."""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import threading

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.versions import load_exported, new_version, versions

MAX_SENTENCES, MAX_CHARACTERS, MAX_TOKENS = 32, 300, 40  # of the fixture `model`


def translate(model, texts):
    """(list of bytes, list of bool: truncated)."""
    found = model.signatures["serving_default"](text=tf.constant(texts, tf.string))
    return found["translation"].numpy().tolist(), found["truncated"].numpy().tolist()


@pytest.mark.parametrize("blank", ["", " ", "   \u2581 "])
def test_f48_a_blank_text_has_a_blank_translation_at_its_place(model, blank):
    texts = ["The dog reads.", blank, "Hund und Text"]
    translations, truncated = translate(model, texts)
    alone = [translate(model, [text])[0][0] for text in texts]
    assert translations == alone
    assert translations[1] == b""
    assert any(translations)
    assert not any(truncated)


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000, "dog " * 25_000, "\U0001f600" * 100_000, " " * 100_000 + "dog", "e\u0301" * 50_000],
    ids=["one word", "words", "emoji", "spaces", "marks"],
)
def test_f49_a_hundred_thousand_characters_are_cut_with_a_flag(model, text):
    translations, truncated = translate(model, ["The dog reads.", text])
    assert truncated == [False, True]
    assert translations[0] == translate(model, ["The dog reads."])[0][0]
    # What is done depends on what is left: as many characters, or fewer for the tokens.
    assert translations[1] == translate(model, [text[:MAX_CHARACTERS]])[0][0]
    limit = MAX_TOKENS + 4  # `max_length_offset` of the fixture
    ids = model.translator.tokenizers.target.encode([translations[1].decode()])[0]
    assert len(ids) <= limit * 4  # of bytes that are no character U+FFFD is left, three bytes each


@pytest.mark.slow
def test_f49_the_flag_is_set_where_python_cuts(model):
    encode = model.translator.tokenizers.source.encode
    texts = [" ".join("a" * number) for number in range(1, MAX_TOKENS + 3)]
    expected = [len(row) > MAX_TOKENS - 1 for row in encode(texts)]
    assert set(expected) == {False, True}
    found = []
    for begin in range(0, len(texts), MAX_SENTENCES):
        found += translate(model, texts[begin : begin + MAX_SENTENCES])[1]
    assert found == expected
    cut = [one.is_cut for one in model.translator.n_best(texts, long_lines="cut")]
    assert found == cut


IN_MEMORY = """
import resource, sys
import tensorflow as tf
from keras_transformer.export.versions import load_exported
translate = load_exported(sys.argv[1]).signatures["serving_default"]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
translate(text=tf.constant(["word " * 100] * 32))
before = peak()
for text in ("a" * 100_000, "word " * 20_000, "\U0001f600" * 100_000):
    translate(text=tf.constant([text] * 32))
print(peak() - before)
"""


@pytest.mark.very_slow
def test_f49_a_hundred_thousand_characters_take_no_more_memory_than_the_limit(model):
    done = subprocess.run(
        [sys.executable, "-c", IN_MEMORY, model.path], env=path_to_package(), capture_output=True, check=True
    )
    # 32 texts are 13 MB of bytes, and a few copies.
    assert int(done.stdout) < 200


ODD = {
    "emoji": "dog \U0001f469\u200d\U0001f4bb",
    "right to left": "\u202eكلب\u202c",
    "marks": "a" + "\u0301" * 50,
    "private use": "\ue000\U0010ffff",
    "noncharacter": "\ufffe\uffff",
    "nul": "a\0b",
    "newlines": "a\nb\r\nc\u2028d",
    "names of tokens": "<s> </s> <pad> ⁇ <0x41>",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_f50_odd_characters_give_the_translators_text(model, text):
    (translation,), _ = translate(model, [text])
    assert translation.decode("utf-8") == model.translator.translate([text], long_lines="cut")[0]


@pytest.mark.parametrize(
    "raw", [b"\xff", b"dog \xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80" * 500, bytes(range(256))]
)
@pytest.mark.parametrize("signature", ["serving_default", "translate_nbest", "score", "alignment"])
def test_f51_invalid_utf8_is_replaced_everywhere(model, raw, signature):
    replaced = raw.decode("utf-8", errors="replace")
    function = model.signatures[signature]
    _, arguments = function.structured_input_signature
    answers = [function(**{name: tf.constant([one]) for name in arguments}) for one in (raw, replaced)]
    for name, values in answers[0].items():
        if values.dtype == tf.string:
            [text.decode("utf-8") for text in values.numpy().ravel()]
        if len(raw) < 10:  # where as many are replaced by one as Python replaces
            np.testing.assert_array_equal(values, answers[1][name])


@pytest.mark.slow
def test_f52_a_batch_of_none_gives_none(model):
    empty = tf.constant([], tf.string)
    shapes = {
        "serving_default": {"translation": (0,), "score": (0,), "truncated": (0,), "finished": (0,)},
        "translate_nbest": {"translations": (0, 3), "scores": (0, 3), "finished": (0, 3)},
        "score": {"log_prob": (0,), "num_tokens": (0,)},
        "alignment": {"links": (0,), "weights": (0, 0, 0)},
    }
    for signature, wanted in shapes.items():
        function = model.signatures[signature]
        _, arguments = function.structured_input_signature
        found = function(**dict.fromkeys(arguments, empty))
        assert {name: tuple(found[name].shape) for name in wanted} == wanted, signature
    for shape in ((0, 0), (0, 5)):
        assert model.signatures["translate_ids"](ids=tf.zeros(shape, tf.int32))["ids"].shape == (0, 0)
    assert model.signatures["translate_ids"](ids=tf.zeros((2, 0), tf.int32))["length"].numpy().tolist() == [
        0,
        0,
    ]


@pytest.mark.parametrize("signature", ["serving_default", "translate_nbest", "score", "alignment"])
def test_f53_a_thousand_sentences_are_refused_by_number(model, signature):
    function = model.signatures[signature]
    _, arguments = function.structured_input_signature
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"At most 32 sentences .*\[1000\]|At most 32"):
        function(**dict.fromkeys(arguments, tf.constant(["dog"] * 1000)))


def test_f53_as_many_as_allowed_keep_their_order(model, tools):
    texts = (tools.texts * 4)[:MAX_SENTENCES]
    translations, _ = translate(model, texts)
    assert [text.decode() for text in translations] == model.translator.translate(texts)


def test_f54_short_and_long_together_are_translated_as_alone(model):
    texts = ["a", " ".join(["the dog reads a text"] * 6), "Hund", " ".join("a" * 100)]
    together, truncated = translate(model, texts)
    assert together == [translate(model, [text])[0][0] for text in texts]
    assert truncated == [False, False, False, True]


@pytest.mark.slow
def test_f55_sixty_four_callers_get_their_own_answers(model, tools):
    texts = [f"{text} {number}" for number in range(8) for text in tools.texts]
    assert len(texts) == 64
    expected = [text.encode() for text in model.translator.translate(texts)]
    assert len(set(expected)) > 10
    together = threading.Barrier(len(texts))

    def call(text):
        together.wait()
        return translate(model, [text])[0][0]

    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(call, texts))
    assert found == expected


@pytest.mark.parametrize(
    ("signature", "arguments"),
    [
        ("serving_default", {"text": [1, 2]}),
        ("serving_default", {"text": 1.5}),
        ("serving_default", {"text": [["dog"]]}),
        ("serving_default", {}),
        ("serving_default", {"texts": ["dog"]}),
        ("translate_ids", {"ids": ["dog"]}),
        ("translate_ids", {"ids": [1, 2]}),
        ("translate_ids", {"ids": [[1.5]]}),
        ("score", {"source": ["dog"]}),
    ],
)
def test_f57_wrong_types_shapes_and_names_are_refused(model, signature, arguments):
    arguments = {name: tf.constant(value) for name, value in arguments.items()}
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        model.signatures[signature](**arguments)


@pytest.mark.parametrize("ids", [[[-1]], [[5, 300]], [[2**31 - 1]]])
def test_f57_ids_outside_the_vocabulary_are_refused(model, ids):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`ids` must be at least 0 and below 300"):
        model.signatures["translate_ids"](ids=tf.constant(ids))


def test_f57_sources_and_targets_of_other_numbers_are_refused(model):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="`source` and `target` must have the same length"
    ):
        model.signatures["score"](source=tf.constant(["a", "b"]), target=tf.constant(["a"]))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("alpha", float("nan"), "`alpha` must be finite and at least 0"),
        ("alpha", -0.5, "`alpha` must be finite and at least 0"),
        ("max_length_offset", 0, "`max_length_offset` must be from 1 to"),
        ("max_length_offset", 2**31 - 1, "`max_length_offset` must be from 1 to"),
    ],
)
def test_f59_inputs_out_of_range_are_refused(other_model, inputs, name, value, wanted):
    given = {**inputs, name: tf.constant(value, inputs[name].dtype)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=wanted):
        other_model.signatures["serving_default"](text=tf.constant(["dog"]), **given)


def test_f58_what_one_call_may_cost_is_in_the_card_and_in_the_batching(model):
    card = json.loads((model.path / "assets.extra/model_card.json").read_text())
    assert card["limits"] == {
        "sentences": MAX_SENTENCES,
        "characters": MAX_CHARACTERS,
        "tokens": MAX_TOKENS,
    }
    batching = (model.path / "batching.config").read_text()
    assert f"max_batch_size {{ value: {MAX_SENTENCES} }}" in batching
    assert "max_enqueued_batches" in batching  # F55: a queue that is full turns callers away


def names_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def write_half_a_version(out):
    with new_version([out, out / "ids"]) as new:
        for folder in new.folders:
            (folder / "saved_model.pb").write_bytes(b"half")
        # TensorFlow Serving takes names that are numbers and no others.
        assert names_in(out) == [".1.partial", "ids"]
        assert names_in(out / "ids") == [".1.partial"]
        raise RuntimeError


def test_f61_a_version_is_not_there_before_it_is_whole(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError):
        write_half_a_version(out)
    assert names_in(out) == ["ids"]
    assert names_in(out / "ids") == []


def test_f61_a_killed_export_is_cleaned_up_by_the_next(tmp_path):
    out = tmp_path / "out"
    program = (
        "import os, sys\n"
        "from keras_transformer.export.versions import new_version\n"
        "with new_version([sys.argv[1]]) as new:\n"
        "    (new.folders[0] / 'saved_model.pb').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, out], env=path_to_package()).returncode == -9
    assert names_in(out) == [".1.partial"]
    assert versions(out) == []
    with new_version([out]) as new:
        assert names_in(new.folders[0]) == []
    assert names_in(out) == ["1"]


def path_to_package():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_f61_two_processes_do_not_write_in_one_folder(tmp_path):
    out = tmp_path / "out"
    with new_version([out]), pytest.raises(ValueError, match="another process"), new_version([out]):
        pass
    assert versions(out) == [1]


@pytest.mark.slow
def test_f62_without_tensorflow_text_the_message_names_it(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match="pip install tensorflow-text"):
        load_exported(model.path)
    assert list(load_exported(model.ids_path).signatures) == ["translate_ids"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: flip(path / "saved_model.pb"), r"saved_model\.pb: was changed"),
        (lambda path: flip(path / "variables/variables.data-00000-of-00001"), "data-00000.*was changed"),
        (lambda path: flip(path / "assets.extra/model_card.json"), "model_card.json: was changed"),
        (lambda path: (path / "variables/variables.index").unlink(), "variables.index: is missing"),
        (lambda path: (path / "assets/more.txt").write_text("x"), "assets/more.txt: is not in manifest"),
        (lambda path: (path / "assets/link").symlink_to("/etc/passwd"), "link: a link"),
        (lambda path: (path / "manifest.sha256").unlink(), r"exported model \(manifest.sha256 is missing"),
        (lambda path: (path / "manifest.sha256").write_text("x\n"), "manifest.sha256: empty or damaged"),
        (lambda path: (path / "manifest.sha256").write_text(""), "manifest.sha256: empty or damaged"),
    ],
)
def test_f63_what_was_modified_is_not_loaded(model, tmp_path, change, message):
    copy = shutil.copytree(model.path, tmp_path / "1")
    change(copy)
    with pytest.raises(ValueError, match=message):
        load_exported(copy)


def test_f63_the_manifest_is_what_sha256sum_checks(model):
    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum on this machine")
    command = ["sha256sum", "--check", "--strict", "manifest.sha256"]
    checked = subprocess.run(command, cwd=model.path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    files = [path for path in model.path.rglob("*") if path.is_file()]
    assert checked.stdout.count(": OK") == len(files) - 1


def test_a_run_without_such_weights_is_refused_and_nothing_is_left(run, tmp_path):
    with pytest.raises(ValueError, match="no 'best' weights"):
        export_saved_model(run, tmp_path / "out", checkpoint="best", warmup=False)
    assert not (tmp_path / "out").exists()


ANY_TEXT = strategies.text(strategies.characters(codec="utf-8"), max_size=2000) | strategies.binary(
    max_size=2000
)
PATIENT = hypothesis.settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "40")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


@pytest.mark.slow
@PATIENT
@hypothesis.given(strategies.lists(ANY_TEXT, max_size=4))
def test_any_text_gives_valid_utf8_on_one_line(model, texts):
    texts = [text.encode("utf-8") if isinstance(text, str) else text for text in texts]
    translations, truncated = translate(model, texts)
    assert len(translations) == len(truncated) == len(texts)
    for text, translation in zip(texts, translations, strict=True):
        assert len(translation.decode("utf-8").splitlines()) <= 1
        if not text.strip(b" "):
            assert translation == b""


@PATIENT
@hypothesis.given(strategies.lists(strategies.tuples(ANY_TEXT, ANY_TEXT), max_size=4))
def test_any_pair_is_scored_and_aligned(model, pairs):
    pairs = [[text.encode("utf-8") if isinstance(text, str) else text for text in pair] for pair in pairs]
    sides = [tf.constant([pair[side] for pair in pairs], tf.string) for side in (0, 1)]
    arguments = dict(zip(("source", "target"), sides, strict=True))
    scored = model.signatures["score"](**arguments)
    assert scored["log_prob"].shape == (len(pairs),)
    assert (scored["log_prob"].numpy() <= 0).all()
    aligned = model.signatures["alignment"](**arguments)
    for links, *words in zip(
        aligned["links"].numpy(),
        aligned["source_words"].numpy(),
        aligned["target_words"].numpy(),
        strict=True,
    ):
        for link in links.decode("ascii").split():
            assert all(0 <= int(place) < most for place, most in zip(link.split("-"), words, strict=True))
