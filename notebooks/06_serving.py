# %% [markdown]
# # From a run to a served translator
#
# **Question:** how do you deploy the model of a finished run, without Python, Keras or this package,
# and how fast is it then?
#
# **Prerequisites:** `python pipelines/translate.py RUN`. [Searching](05_searching.ipynb) explains the
# search settings that are fixed in the export.
#
# **Time:** about two minutes on two CPU cores, and `pip install -e '.[notebooks,ctranslate2]'`.
#
# As it is, it runs with the model that comes with the package. The stored output is from a run on Multi30k;
# `make notebooks RUN=...` uses yours.

# %%
# %matplotlib inline
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import tensorflow as tf
from IPython.display import Markdown

from keras_transformer import RunFolder, Translator, corpus_scores, export_saved_model, load_exported
from keras_transformer.analysis.plots import speed_bars
from keras_transformer.config.settings import replace
from keras_transformer.export.ctranslate2 import CTranslate2Translator, export_ctranslate2
from keras_transformer.export.serving import ServingSettings, curl_command, docker_command
from keras_transformer.text.datasets import load_split
from keras_transformer.text.lines import read_lines

QUICK = "QUICK" in os.environ  # the tests' small setting
RUN = os.environ.get("RUN") or "en-de-tatoeba"  # a run, or the package's model
tf.config.threading.set_intra_op_parallelism_threads(1)  # each core has a batch of its own
tf.get_logger().setLevel("ERROR")  # it names every folder that it writes

# %%
run = RunFolder(RUN)
if os.environ.get("TEXT"):
    sources, references = read_lines(os.environ["TEXT"]), read_lines(os.environ["REFERENCE"])
elif RUN == "en-de-tatoeba":
    sources, references = read_lines("sentences.en"), read_lines("sentences.de")
else:
    data = run.config.data
    with contextlib.chdir(".."):  # a run names its corpus as the program was told, from there
        sources, references = load_split(data.dataset, "test", data.source, data.target)
COUNT, ROUNDS = (8, 1) if QUICK else (400, 5)
sources, references = sources[:COUNT], references[:COUNT]
temporary = tempfile.TemporaryDirectory()
folder = pathlib.Path(temporary.name) / "served"

# %% [markdown]
# ## Export
#
# A SavedModel is a TensorFlow graph with weights: tokenizer, beam search with its caches, and
# detokenizer. The search settings and the limits of a call are fixed at export. (The length penalty is
# $|Y|^{\alpha}$ here, because we compare with CTranslate2 below, which has no other.)
#
# On the command line: `python pipelines/export_model.py RUN served --length-penalty average
# --max-sentences 128`.

# %%
search = replace(run.config.search, beam_size=4, alpha=0.6, length_penalty="average", n_best=1)
settings = ServingSettings(search=search, max_sentences=128, max_characters=400)
exported = export_saved_model(RUN, folder, settings=settings, name="translator")
for path in sorted(folder.rglob("*")):
    if path.is_file():
        print(f"{path.stat().st_size:12,}  {path.relative_to(folder.parent)}")

# %% [markdown]
# `1` is the version number; the next export makes `2`. The folder appears when all its files are
# complete, so a server that watches `served` never loads half a model. `served/ids` holds a second,
# small SavedModel with ids as input and output and no tokenizer.
#
# The export contains a model card:

# %%
Markdown((exported.path / "assets.extra" / "model_card.md").read_text(encoding="utf-8"))

# %% [markdown]
# ## Loading without this package
#
# A new process imports only TensorFlow and the operations of TensorFlow Text. It prints inputs and
# outputs of each signature and calls it.

# %%
STRANGER = """
import json, sys
import tensorflow as tf
import tensorflow_text  # registers the operations of the tokenizer

model = tf.saved_model.load(sys.argv[1])
calls = json.load(sys.stdin)
for name, arguments in calls.items():
    signature = model.signatures[name]
    found = signature(**{key: tf.constant(value) for key, value in arguments.items()})
    print(name)
    for key, value in sorted(found.items()):
        value = value.numpy().ravel()[:4].tolist()
        print(f"    {key:16} {found[key].dtype.name:8} {str(found[key].shape):12}",
              [one.decode() if isinstance(one, bytes) else one for one in value])
strangers = {"keras_transformer", "sentencepiece"} & set(sys.modules)
print("of this package and SentencePiece imported:", strangers or "nothing")
"""
translator = Translator.load(RUN, threads=2)
two = sources[:2]
ids = [
    [*row, translator.tokenizers.source.special.eos] for row in translator.tokenizers.source.encode(two[:1])
]
pairs = {"source": two, "target": references[:2]}
calls = {
    "serving_default": {"text": two},
    "translate_nbest": {"text": two[:1]},
    "translate_ids": {"ids": ids},
    "score": pairs,
    "alignment": pairs,
}
print(*two, "", sep="\n")
answer = subprocess.run(
    [sys.executable, "-c", STRANGER, str(exported.path)],
    input=json.dumps(calls),
    capture_output=True,
    text=True,
    check=True,
    env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
)
print(answer.stdout)

# %% [markdown]
# Is it the same translator? Same search, same weights:

# %%
served = load_exported(folder)  # checks the SHA-256 of every file first; `tf.saved_model.load` does not
LINES = settings.max_sentences


def ask(lines):
    """Sends texts to the SavedModel as two callers would."""
    batches = [lines[begin : begin + LINES] for begin in range(0, len(lines), LINES)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = pool.map(
            lambda batch: served.signatures["serving_default"](text=tf.constant(batch)), batches
        )
        found = [answer["translation"].numpy() for answer in answers]
    return [text.decode() for text in itertools.chain.from_iterable(found)]


own = {"beam_size": 4, "alpha": 0.6, "length_penalty": "average"}
translations = {"Translator": translator.translate(sources, **own), "SavedModel": ask(sources)}
same = sum(map(str.__eq__, *translations.values()))
print(f"{same} of {len(sources)} translations are the same")
assert same >= 0.99 * len(sources)  # rounding may part two that are as probable

# %% [markdown]
# ## Served
#
# TensorFlow Serving is a program that loads such folders and answers over HTTP (port 8501) and gRPC
# (8500). These are the commands that `export_model.py` prints, for `served` in the current folder;
# `batching.config`, in the model's folder, lets the server combine calls.
# [`examples/serving_client.py`](../examples/serving_client.py) sends a stream of lines.

# %%
docker = docker_command(folder, exported.name, version=exported.version, batching=True)
print(docker.replace(str(folder), '"$PWD"/served'), curl_command(exported.name), sep="\n\n")

# %% [markdown]
# ## CTranslate2
#
# [CTranslate2](https://github.com/OpenNMT/CTranslate2) is the fastest engine on CPUs. It can store and
# multiply matrices as 8-bit integers with one scale per row.

# %%
fast = {}
for quantization in ("float32", "int8"):
    path = export_ctranslate2(run, folder.parent / quantization, quantization=quantization)
    fast[quantization] = CTranslate2Translator(path, inter_threads=2, intra_threads=1)
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"{quantization:8} {size / 1e6:6.1f} MB")

# %% [markdown]
# ## How fast
#
# The systems take turns to translate the same sentences, after one warm-up round, with two batches in
# parallel on one core each. Other load on the machine affects all of them equally in the long run; the
# range over the rounds shows how much there was.

# %%
systems = {
    "Translator": lambda: translator.translate(sources, **own),
    "SavedModel": lambda: ask(sources),
    "CTranslate2, float32": lambda: fast["float32"].translate(sources, **own),
    "CTranslate2, int8": lambda: fast["int8"].translate(sources, **own),
}
speeds = {name: [] for name in systems}
for number in range(ROUNDS + 1):
    for name, translate in systems.items():
        begin = time.perf_counter()
        translations[name] = translate()
        if number:
            speeds[name].append(len(sources) / (time.perf_counter() - begin))
speed_bars(speeds)

# %% [markdown]
# How much quality do the integers cost?

# %%
for name, texts in translations.items():
    bleu = corpus_scores(texts, references, target_language=run.config.data.target).bleu
    same = sum(map(str.__eq__, texts, translations["Translator"]))
    print(f"{name:22} BLEU {bleu:5.2f}   {same} of {len(texts)} as the Translator's")

# %% [markdown]
# ## Limits and bad input
#
# A server receives input from anyone, so the graph itself limits each call:

# %%
serve = served.signatures["serving_default"]


def refusal(function, **arguments):
    """The line by which a call is refused."""
    try:
        function(**arguments)
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        lines = str(error).replace(str(folder), "served").splitlines()
        line = next(line for line in lines if "assertion failed" in line or line.startswith("served"))
        return line.strip().removeprefix("assertion failed: ")
    raise AssertionError("not refused")


print(refusal(serve, text=tf.constant(["a"] * (LINES + 1))))
print(refusal(served.signatures["score"], source=tf.constant(["a", "b"]), target=tf.constant(["a"])))

# %% [markdown]
# A text that is too long is cut and flagged, a blank one has a blank translation, and bytes that are
# not UTF-8 become U+FFFD. Other texts in the same call are not affected:

# %%
found = serve(text=tf.constant([sources[0], "", b"\xff\xfe", " ".join([sources[0]] * 50)]))
for name in ("translation", "truncated", "finished"):
    print(
        f"{name:12}",
        [one.decode()[:40] if isinstance(one, bytes) else one for one in found[name].numpy().tolist()],
    )
assert found["translation"].numpy()[0].decode() == translations["SavedModel"][0]
assert found["truncated"].numpy().tolist() == [False, False, False, True]

# %% [markdown]
# A file that was modified after the export is detected before anything is executed:

# %%
fingerprint = exported.path / "fingerprint.pb"
fingerprint.write_bytes(fingerprint.read_bytes() + b"!")
print(refusal(load_exported, path=folder))
temporary.cleanup()

# %% [markdown]
# **What to read next:** "Serve" in the [README](../README.md) has the commands,
# [docs/serving.md](../docs/serving.md) all signatures, limits and flags, and
# [docs/results.md](../docs/results.md) measurements on an idle machine.
