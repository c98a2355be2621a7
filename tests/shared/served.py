"""A server in a process of its own, and a tiny run to serve."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
from processes import PATIENCE, ROOT, environment
from tiny_runs import TEXTS

from keras_transformer.config.settings import Config, DataConfig, ModelConfig, SearchConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.translation.translator import Translator

SENTENCES = ["The dog reads a text.", "", "Ein Hund und ein Text", "a b c d e f g h i j", "größer"]


class Served:
    """A server in a process, as a context manager; ends at the latest with the block.

    Args:
        arguments: of the command line.
        program: the command without its arguments.
        ready: whether to wait until its models are loaded.
    """

    def __init__(self, log, *arguments, program=(ROOT / "pipelines" / "serve.py",), ready=True):
        self._log, self._ready = log, ready
        self._command = [sys.executable, *program, *arguments, "--port", "0", "--no-explorer"]

    def __enter__(self):
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                list(map(str, self._command)), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests' / 'shared'}"),
            )  # fmt: skip
        try:
            pattern = r"listening on (\S+)"
            self.wait_for(lambda: re.search("ready after" if self._ready else pattern, self.log))
            self.address = re.search(pattern, self.log)[1]
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()

    @property
    def log(self):
        return self._log.read_text(encoding="utf-8")

    @property
    def records(self):
        """The lines of JSON in the log."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def wait_for(self, condition):
        limit = time.monotonic() + PATIENCE
        while not condition():
            if self._process.poll() is not None or time.monotonic() > limit:
                raise AssertionError(f"ended, or it did not come: {self.log}")
            time.sleep(0.01)

    def send(self, number):
        self._process.send_signal(number)

    def end(self):
        """Returns the exit code."""
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {self.log}") from None

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def post(self, path, values):
        """Returns (status, values of the answer)."""
        request = urllib.request.Request(self.address + path, json.dumps(values).encode())
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def rows(self, name, texts, **settings):
        status, answer = self.post(f"/v1/models/{name}:predict", {"instances": texts, **settings})
        assert status == 200, answer
        return answer["predictions"]


def tiny_translator():
    """A `Translator` with random weights, and the `Config` of its run."""
    tokenizer = SubwordTokenizer.train(TEXTS * 3, vocab_size=300)
    sizes = {"source_vocab_size": tokenizer.vocab_size, "target_vocab_size": tokenizer.vocab_size}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2}
    sizes |= {"tie_embeddings": "none", "output_bias": True}
    config = Config(
        model=ModelConfig(**sizes),
        data=DataConfig(source="en", target="de", vocab_size=300, max_length=41),
        search=SearchConfig(beam_size=3, max_length_offset=5, max_source_length=41),
    )
    model = Transformer(config.model)
    rng = np.random.default_rng(4)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 1.0, weight.shape))
    bias = [-20.0 if kind == "byte" else 0.0 for kind, _ in tokenizer.entries]
    model.output_bias.assign(bias)
    return Translator(model, tokenizer, config.search, target_language="de"), config


def assert_same_rows(rows, expected):
    """Asserts that rows of an answer are those of a list of `NBest`."""
    assert [row["translation"] for row in rows] == [result.best.text for result in expected]
    for name in ("score", "log_prob"):
        np.testing.assert_allclose(
            [row[name] for row in rows], [getattr(result.best, name) for result in expected], rtol=1e-4
        )
    assert [row["finished"] for row in rows] == [result.best.finished for result in expected]
