"""TensorFlow Datasets: sets that its own tools wrote, and downloads that fail in every way."""

import hashlib
import http.server
import importlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer.text import tfds as ours
from keras_transformer.text.datasets import load_corpus, load_split, open_dataset
from keras_transformer.text.lines import DataError

pytestmark = pytest.mark.slow

tfds = pytest.importorskip("tensorflow_datasets")
ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = {"train": 250, "validation": 20, "test": 30}
CONTENT = "".join(f"line {i}\tZeile {i}\n" for i in range(5)).encode()


def run(*arguments):
    """Runs a program in a fresh process; returns what it printed."""
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


def write_corpus(folder):
    folder.mkdir()
    for split, size in SIZES.items():
        for language, verb in (("en", "sees"), ("de", "sieht")):
            lines = [f"{split} {verb}\\n{i} 2\u20282" for i in range(size)]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data_dir with `wmt14_translate/de-en`, written by TensorFlow Datasets in another process."""
    data_dir = tmp_path_factory.mktemp("prepared")
    corpus = write_corpus(tmp_path_factory.mktemp("text") / "corpus")
    printed = run("tests/text/write_wmt14.py", data_dir, corpus).stdout
    assert "wmt14_translate/de-en/1.0.0 {'train': 250, 'validation': 20, 'test': 30}" in printed
    return data_dir


NAMES = (
    "wmt14_translate/de-en",
    "wmt14_translate/en-de",
    "wmt14_translate",
    "wmt14_translate/de-en:1.0.0",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_prepared_set_is_found_under_each_of_its_names(prepared, name):
    dataset = open_dataset(name, "en", "de", data_dir=prepared)
    assert set(dataset.splits) == set(SIZES)
    assert json.loads(json.dumps(dataset.fingerprint("test"))) == {
        "name": "wmt14_translate/de-en",
        "version": "1.0.0",
        "split": "test",
        "num_examples": 30,
    }


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en")])
def test_all_pairs_come_in_the_order_in_which_they_are_stored(prepared, source, target):
    builder = tfds.builder("wmt14_translate/de-en", data_dir=prepared)
    # The files themselves, read by TensorFlow's own parser.
    tf = importlib.import_module("tensorflow")
    stored = []
    for path in builder.info.splits["train"].filepaths:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            stored.append([feature[side].bytes_list.value[0].decode() for side in (source, target)])
    assert len(stored) == 250
    pairs = load_split("wmt14_translate/de-en", "train", source, target, data_dir=prepared)
    expected = [[text.replace("\n", " ").replace("\u2028", " ") for text in pair] for pair in stored]
    assert list(map(list, zip(*pairs, strict=True))) == expected


def test_blocks_have_the_size_asked_for(prepared):
    dataset = open_dataset("wmt14_translate/de-en", "en", "de", data_dir=prepared)
    blocks = list(dataset.blocks("train", 100))
    assert [len(block.source) for block in blocks] == [100, 100, 50]
    assert [block.first_line for block in blocks] == [1, 101, 201]
    whole = next(dataset.blocks("train"))
    assert [line for block in blocks for line in block.source] == whole.source
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in whole.source + whole.target)


def test_a_corpus_takes_its_splits_from_a_set(prepared):
    corpus = load_corpus("wmt14_translate/de-en", "en", "de", data_dir=prepared)
    assert corpus.sizes == (250,)
    assert len(corpus.validation.source) == 20
    assert len(corpus.test.source) == 30
    assert corpus.test_name == "test"
    assert sorted(corpus.test.target)[0] == "test sieht 0 2 2"


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("wmt14_tranlate/de-en", "en-de", r"wmt14_tranlate/de-en: no such folder.*: wmt14_translate,"),
        ("wmt14_translate/de-xx", "de-xx", "no config 'de-xx'. Choose from: .*de-en"),
        ("wmt14_translate", "de-fr", "no config for de and fr. Choose from: cs-en, de-en"),
        ("wmt14_translate/de-en", "en-fr", "the languages are de, en. Received: 'en' and 'fr'"),
        ("wmt14_translate/de-en:9.9.9", "en-de", "wmt14_translate/de-en:9.9.9: .*9.9.9"),
        ("mnist", "en-de", "mnist: its examples are not texts in two languages"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_in_one_line(prepared, name, languages, message):
    with pytest.raises(DataError, match=message) as info:
        open_dataset(name, *languages.split("-"), data_dir=prepared)
    assert "\n" not in str(info.value)


def test_an_unknown_split_is_refused_with_the_known_ones(prepared):
    with pytest.raises(
        DataError, match=r"no split 'dev2'. Choose from: train, validation, test|from: .*test"
    ):
        load_split("wmt14_translate/de-en", "dev2", "en", "de", data_dir=prepared)


@pytest.mark.parametrize("damage", ["bit", "cut"])
def test_a_damaged_file_is_refused_by_name(prepared, tmp_path, damage):
    folder = tmp_path / "wmt14_translate" / "de-en" / "1.0.0"
    folder.mkdir(parents=True)
    for path in (prepared / "wmt14_translate" / "de-en" / "1.0.0").iterdir():
        content = bytearray(path.read_bytes())
        if path.name.endswith("train.tfrecord-00001-of-00003"):
            content[len(content) // 2] ^= 1
            content = content[:-7] if damage == "cut" else content
        (folder / path.name).write_bytes(content)
    with pytest.raises(DataError, match="train.tfrecord-00001-of-00003: cannot be read") as info:
        load_split("wmt14_translate/de-en", "train", "en", "de", data_dir=tmp_path)
    assert "\n" not in str(info.value)


def test_without_the_library_the_refusal_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(DataError, match=r"pip install 'keras-transformer-translation\[data\]"):
        open_dataset("wmt14_translate/de-en", "en", "de")


SETTINGS = (
    "model.num_encoder_layers=1 model.num_decoder_layers=1 model.d_model=16 model.d_ff=24 model.num_heads=2 "
    "data.vocab_size=300 data.max_length=60 data.batch_tokens=640 training.max_steps=4 "
    "training.log_every_steps=2 training.validate_every_steps=4 training.validation_sentences=2 "
    "search.max_length_offset=4"
)


@pytest.mark.very_slow
def test_a_model_is_trained_on_a_set_and_scored_in_fresh_processes(prepared, tmp_path):
    names = ["--dataset", "wmt14_translate/de-en", "--data-dir", prepared]
    settings = [part for setting in SETTINGS.split() for part in ("--set", setting)]
    trained = run(
        "pipelines/train_wmt.py", *names, "--source", "en", "--target", "de",
        "--run-dir", tmp_path / "run", *settings,
    )  # fmt: skip
    assert "250 training pairs" in trained.stdout
    assert "step       4/4 | loss " in trained.stdout
    assert trained.stderr == ""
    scored = run("pipelines/evaluate_wmt.py", tmp_path / "run", "--beam-size", "1", "--json")
    assert json.loads(scored.stdout)["num_lines"] == 30
    assert "translating 30 lines of wmt14_translate/de-en test" in scored.stderr


class TinyTranslate(tfds.core.GeneratorBasedBuilder):
    """Downloads one file from `TinyTranslate.url`."""

    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en", version="1.0.0")]
    url = ""
    url_infos = None

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(dl_manager.download(self.url))}

    def _generate_examples(self, path):
        for i, line in enumerate(path.read_text().splitlines()):
            yield i, dict(zip(("en", "de"), line.split("\t"), strict=True))


class HandMadeTranslate(TinyTranslate):
    """Wants a file that only people can get."""

    MANUAL_DOWNLOAD_INSTRUCTIONS = "Ask the authors for\npairs.tsv"

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(dl_manager.manual_dir / "pairs.tsv")}


class Server:
    """A server on this machine that answers as its `answers` say, the last one for ever."""

    def __init__(self):
        self.answers = []
        self.num_asked = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # noqa: N802
                outer.num_asked += 1
                outer.answer(self, outer.answers[min(outer.num_asked, len(outer.answers)) - 1])

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/get/pairs.tsv"

    def answer(self, handler, answer):
        handler.send_response(answer if isinstance(answer, int) else 200)
        content = CONTENT.replace(b"Zeile", b"Zelle") if answer == "other content" else CONTENT
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:20] if answer == "cut" else content)
        handler.close_connection = True

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch):
    server = Server()
    checksums = importlib.import_module("tensorflow_datasets.core.download.checksums")
    size, digest = len(CONTENT), hashlib.sha256(CONTENT).hexdigest()
    info = checksums.UrlInfo(size=size, checksum=digest, filename="pairs.tsv")
    monkeypatch.setattr(TinyTranslate, "url", server.url)
    monkeypatch.setattr(TinyTranslate, "url_infos", {server.url: info})
    monkeypatch.setattr(ours, "WAIT_SECONDS", (0, 0))
    yield server
    server.close()


def load_tiny(data_dir, **more):
    pairs = load_split("tiny_translate/de-en", "train", "en", "de", data_dir=data_dir, **more)
    return sorted(zip(*pairs, strict=True))


TINY = [(f"line {i}", f"Zeile {i}") for i in range(5)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (404, ["HTTP code: 404"]),
        ("cut", ["IncompleteRead"]),
        ("other content", ["wrong checksum"]),
    ],
)
def test_a_download_that_fails_thrice_is_refused_with_the_way_round(server, tmp_path, answer, words):
    server.answers = [answer]
    with pytest.raises(DataError) as info:
        load_tiny(tmp_path)
    message = str(info.value)
    assert server.num_asked == 3
    manual_dir = tmp_path / "downloads" / "manual"
    advice = f"download of {server.url} failed 3 times", f"put it into {manual_dir} as pairs.tsv"
    if answer == "cut":  # the library does not say of which address
        advice = ("download of a file failed 3 times", "Run the same command again later")
    for word in (*words, *advice):
        assert word in message
    assert "\n" not in message
    assert not (tmp_path / "tiny_translate" / "de-en" / "1.0.0").exists()
    # What it left takes no part in the next try, which finds the file where the message said.
    manual_dir.mkdir()
    (manual_dir / "pairs.tsv").write_bytes(CONTENT)
    assert load_tiny(tmp_path) == TINY
    assert server.num_asked == 3


def test_a_download_that_fails_ends_the_program_with_one_line(server, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "pipelines"))
    train_wmt = importlib.import_module("keras_transformer.cli.train")
    server.answers = [404]
    arguments = ["--dataset", "tiny_translate/de-en", "--data-dir", str(tmp_path / "data")]
    assert train_wmt.main([*arguments, "--run-dir", str(tmp_path / "run")]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith(
        "keras-transformer train: tiny_translate/de-en: download of http://"
    )
    assert captured.out == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("answers", [[404, "cut", "good"], ["other content", 404, "good"], ["good"]])
def test_a_download_that_fails_twice_is_tried_again(server, tmp_path, answers):
    server.answers = answers
    assert load_tiny(tmp_path) == TINY
    assert server.num_asked == len(answers)
    assert load_tiny(tmp_path) == TINY  # from the prepared files
    assert server.num_asked == len(answers)


def test_waits_before_it_tries_again(server, tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "WAIT_SECONDS", (2, 10))
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    server.answers = [404]
    with pytest.raises(DataError):
        load_tiny(tmp_path)
    assert [seconds for seconds in waits if seconds in (2, 10)] == [2, 10]


def test_a_file_got_by_hand_is_checked_and_never_asked_of_the_server(server, tmp_path):
    server.answers = ["good"]
    manual_dir = tmp_path / "by hand"
    manual_dir.mkdir()
    (manual_dir / "pairs.tsv").write_bytes(CONTENT[:-3])
    with pytest.raises(DataError, match=r"by hand/pairs.tsv, has wrong checksum.*Replace that file") as info:
        load_tiny(tmp_path / "data", manual_dir=manual_dir)
    assert "\n" not in str(info.value)
    (manual_dir / "pairs.tsv").write_bytes(CONTENT)
    assert load_tiny(tmp_path / "data", manual_dir=manual_dir) == TINY
    assert server.num_asked == 0


@pytest.mark.usefixtures("server")
def test_a_set_that_only_people_can_get_says_how(tmp_path):
    with pytest.raises(DataError, match="Manual directory .*manual.* Ask the authors for pairs.tsv") as info:
        open_dataset("hand_made_translate/de-en", "en", "de", data_dir=tmp_path)
    assert "\n" not in str(info.value)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "pairs.tsv").write_bytes(CONTENT)
    dataset = open_dataset(
        "hand_made_translate/de-en", "en", "de", data_dir=tmp_path, manual_dir=tmp_path / "m"
    )
    assert dataset.fingerprint("train")["num_examples"] == 5


def test_without_a_network_the_file_that_failed_is_named(tmp_path, monkeypatch):
    requests = importlib.import_module("requests")

    def send(adapter, request, **more):
        raise requests.ConnectionError("no network", request=request)

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    monkeypatch.setattr(ours, "WAIT_SECONDS", (0, 0))
    with pytest.raises(
        DataError, match=r"download of http\S+/(\S+) failed 3 times: no network .*as \1,"
    ) as info:
        open_dataset("wmt14_translate/de-en", "en", "de", data_dir=tmp_path)
    assert "\n" not in str(info.value)
