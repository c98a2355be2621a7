"""README and docs/: commands that work, links that lead somewhere, code that runs, a clean build."""

import ast
import dataclasses
import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import readme_commands as found
import tensorflow as tf

import keras_transformer
from keras_transformer.cli.main import program_module
from keras_transformer.config.presets import PRESETS
from keras_transformer.config.programs import SCRIPTS
from keras_transformer.config.settings import Config, ModelConfig, override

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load(path):
    """A Python file that is in no package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in found.PAGES}
CALLS = [(page, *call) for page, text in TEXTS.items() for call in found.program_calls(text)]


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        (
            "    a | python pipelines/x.py R 'b c' > f | python pipelines/y.py",
            [("x", ["R", "b c"]), ("y", [])],
        ),
        ("    python pipelines/x.py --a \\\n        b  # why", [("x", ["--a", "b"])]),
        ("    keras-transformer x --a | keras-transformer y", [("x", ["--a"]), ("y", [])]),
        ("    keras-transformer --help", []),
        ("    python pipelines/train_wmt.py", [("train", [])]),
        ("Say `keras-transformer x --a`.", [("x", ["--a"])]),
        ("    V='{}' python pipelines/x.py ... --a 1 && true", [("x", ["--a", "1"])]),
        ("Say `python pipelines/x.py\nA` and `pipelines/x.py`.", [("x", ["A"])]),
        ("```python\npipelines/x.py\n```\n\npipelines/x.py", []),
    ],
)
def test_calls_are_found(line, calls):
    assert found.program_calls(line) == calls


def test_readme_shows_every_program():
    assert {program for page, program, _ in CALLS if page == "README.md"} == SCRIPTS.keys()
    rows = re.findall(r"(?m)^\| `([\w-]+)` \| `(\w+\.py)` \|", TEXTS["docs/programs.md"])
    assert rows == list(SCRIPTS.items())


@pytest.mark.parametrize(("page", "program", "arguments"), CALLS)
def test_every_command_is_one_that_its_program_takes(page, program, arguments):
    module = program_module(program)
    args = module.parse_args(arguments)
    if program == "train" and "$" not in (args.preset or "demo"):
        override(PRESETS.get(args.preset or "demo", PRESETS["small"]), args.set)  # or `auto`
    if program == "prepare":
        override(Config(), args.set)


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_leads_somewhere(page):
    for link in found.links(TEXTS[page]):
        if re.match(r"https?://", link):
            continue
        path, _, fragment = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.resolve().is_relative_to(ROOT), link
        assert target.exists(), link
        if fragment:
            text = re.sub(r"(?ms)^```.*?^```$", "", target.read_text(encoding="utf-8"))
            headings = re.findall(r"(?m)^#+ (.+)$", text)
            assert fragment in map(found.anchor, headings), link


def definitions(path):
    """Names of the classes, functions and methods (`Class.method`) of a Python file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))


def test_every_stop_of_the_tour_is_a_class_or_function_of_its_file():
    tour = TEXTS["docs/tour.md"]
    stops = re.findall(r"\[`([\w.]+)`\]\(\.\./(keras_transformer/[\w/]+\.py)\)", tour)
    assert len(stops) == len(found.links(tour)) >= 30
    for name, path in stops:
        assert name in definitions(ROOT / path), (name, path)


def test_links_to_issues_say_where_they_lead():
    for text in TEXTS.values():
        for shown, repository, number in re.findall(
            r"\[([^\]]+#\d+)\]\(https://github.com/([^/]+/[^/]+)/(?:issues|pull)/(\d+)\)", text
        ):
            assert shown == f"{repository}#{number}"


# Their callbacks were tried with mlflow 3.17 and wandb 0.31.
NOT_INSTALLED = {"mlflow", "wandb"}


@pytest.mark.parametrize("page", TEXTS)
def test_python_blocks_compile_and_import_what_there_is(page):
    for block in found.blocks(TEXTS[page], "python"):
        for node in ast.walk(ast.parse(block)):
            names = [alias.name for alias in getattr(node, "names", [])]
            if isinstance(node, ast.ImportFrom) and node.module.startswith("keras_transformer"):
                module = importlib.import_module(node.module)
                assert [name for name in names if not hasattr(module, name)] == []
            elif isinstance(node, ast.Import):
                for name in set(names) - NOT_INSTALLED:
                    importlib.import_module(name)


@pytest.mark.parametrize("page", TEXTS)
def test_every_setting_that_is_named_exists(page):
    sections = {field.name: field.type for field in dataclasses.fields(Config())}
    pattern = rf"(?<![\w./-])({'|'.join(sections)})\.([a-z_0-9]+)\b(?!\()"
    for code in re.findall(r"`([^`\n]+)`", TEXTS[page]) + found.shell_lines(TEXTS[page]):
        for section, name in re.findall(pattern, code):
            if name not in ("py", "en", "de", "fr", "keras", "weights", "config", "npz"):
                assert hasattr(getattr(Config(), section), name), f"{section}.{name}"


@pytest.mark.parametrize("page", TEXTS)
def test_every_preset_that_is_named_exists(page):
    for name in re.findall(r"`((?:table3|t2t)_\w+(?:\.\d)?)`", TEXTS[page]):
        assert name in PRESETS


def rows_of_choices():
    """(options, our values, Tensor2Tensor's values) of each row of the tables of choices."""
    for line in TEXTS["docs/choices.md"].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        options = re.findall(r"`([a-z]+\.[a-z_0-9]+)`", cells[-1])
        options = [option for option in options if not option.endswith(".py")]
        if len(cells) == 5 and options:
            yield options, *(re.findall(r"`([^`]+)`", cell) for cell in cells[2:4])


@pytest.mark.parametrize(("options", "ours", "theirs"), list(rows_of_choices()))
def test_choices_are_those_of_the_code(options, ours, theirs):
    assert len(ours) >= len(options)
    t2t = PRESETS["t2t_base"]
    for config, values in ((Config(), ours), (t2t, theirs or ours)):
        for option, value in zip(options, values, strict=False):
            assert override(config, [f"{option}={value.replace(',', '')}"]) == config


def test_what_tensor2tensor_had_in_the_papers_week_is_not_called_the_same():
    rows = [line.split(" | ") for line in TEXTS["docs/choices.md"].splitlines()]
    theirs = {row[0].strip("| "): row[3] for row in rows if len(row) == 5}
    assert "first public commit" in theirs["biases of the attention's projections"]
    assert "first public commit" in theirs["initial W^Q, W^K, W^V"]
    # Glorot's limit is sqrt(6 / (fan_in + fan_out)): d -> 3 d, and d -> 2 d, beside d -> d.
    factors = " and ".join(f"{(2 / fans) ** 0.5:.2f}" for fans in (1 + 3, 1 + 2))
    assert f"{factors} times those of separate" in TEXTS["docs/choices.md"]


def test_learning_rates_of_other_toolkits_are_converted_to_scales():
    page = TEXTS["docs/coming_from.md"]
    for peak, warmup in ((0.0007, 4_000), (0.0003, 16_000)):
        scale = peak * (512 * warmup) ** 0.5
        schedule = keras_transformer.TransformerSchedule(512, warmup, scale=scale)
        assert float(schedule(warmup - 1)) == pytest.approx(peak, rel=1e-3)
        assert f"{scale:.3f}" in page


def test_every_choice_of_the_model_has_its_row():
    listed = {option for options, *_ in rows_of_choices() for option in options}
    sizes = {"model.source_vocab_size", "model.target_vocab_size"}
    assert {f"model.{field.name}" for field in dataclasses.fields(ModelConfig)} - sizes <= listed
    differ = {
        name for name, *_ in keras_transformer.config.settings.differences(Config(), PRESETS["t2t_base"])
    }
    assert differ - sizes <= listed


@pytest.mark.slow
def test_the_examples_of_extending_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *examples, _ = found.blocks(TEXTS["docs/extending.md"], "python")  # the last trains: see below
    names = {"__name__": "extending"}
    for example in examples:
        exec(compile(example, "extending.md", "exec"), names)
    layer = names["GatedFeedForward"](3)
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    out = layer(x).numpy()
    inner, outer = layer.inner, layer.outer
    weights = (inner.kernel, inner.bias, outer.kernel, outer.bias, layer.gate.kernel)
    w1, b1, w2, b2, v = (weight.numpy() for weight in weights)
    np.testing.assert_allclose(out, (np.maximum(0, x @ w1 + b1) * (x @ v)) @ w2 + b2, rtol=1e-5, atol=1e-6)
    text = "Ä\tb 𝄞"
    assert names["tokenizer"].encode([text]) == [[byte + 4 for byte in text.encode()]]


@pytest.mark.very_slow
def test_the_whole_of_extending_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "extending"}
    for example in found.blocks(TEXTS["docs/extending.md"], "python"):
        exec(compile(example, "extending.md", "exec"), names)
    assert isinstance(names["translation"], str)


@pytest.mark.very_slow
def test_the_example_of_fit_runs(capsys):
    (example,) = found.blocks(TEXTS["README.md"], "python")
    assert example in TEXTS["docs/python.md"]
    assert "planner, epochs=10)" in example
    example = example.replace("planner, epochs=10)", "planner).take(3)")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines()[-1].startswith("[")


@pytest.mark.slow
def test_the_examples_with_keras_hub_run(tmp_path, monkeypatch):
    pytest.importorskip("keras_hub")
    monkeypatch.chdir(tmp_path)
    tokenizers, layers = found.blocks(TEXTS["docs/keras_hub.md"], "python")
    for longer, shorter in (("corpus.train", "corpus.validation"), ("1000", "250")):
        assert longer in tokenizers
        tokenizers = tokenizers.replace(longer, shorter)
    names = {}
    exec(compile(tokenizers, "keras_hub.md", "exec"), names)
    theirs, text = names["theirs"], "Monday, 3 hours ago"
    wanted = [theirs.id_to_token(int(number)) for number in theirs(text)]
    assert keras_transformer.load_tokenizer("hub.model").pieces([text]) == [wanted]
    exec(compile(layers, "keras_hub.md", "exec"), names)
    for before, after in zip(names["theirs"].weights, names["back"].weights, strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.slow
def test_the_road_of_the_data_and_the_service_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    for split, number in (("train", 300), ("valid", 5)):
        for language, word in (("en", "tree"), ("de", "Baum")):
            text = "".join(f"{word} {i} {word * (i % 7)}\n" for i in range(number))
            (tmp_path / "raw" / f"{split}.{language}").write_text(text)
    road, _, service, _ = found.blocks(TEXTS["docs/data.md"], "python")
    for longer, shorter in (
        ('kt.preset("demo")', 'override(kt.preset("demo"), ["data.dataset=raw", "data.vocab_size=290"])'),
        ('prepare(config, "prepared/demo")', 'prepare(config, "corpus", num_workers=1)'),
        ("batch_tokens=25_000", "batch_tokens=2_000"),
        ("start=137", "start=5"),
    ):
        assert longer in road
        road = road.replace(longer, shorter)
    names = {"override": override}
    exec(compile(road, "data.md", "exec"), names)
    here = [labels.tolist() for _, labels in names["dataset"].as_numpy_iterator()]
    assert len(here) > 10
    exec(compile(service, "data.md", "exec"), names)
    there = [labels.tolist() for _, labels in names["dataset"].as_numpy_iterator()]
    assert there == here  # of one worker, in order
    kind = names["service"]
    second = kind.WorkerServer(kind.WorkerConfig(names["dispatcher"].target.split("//")[1]))
    there = [labels.tolist() for _, labels in names["dataset"].as_numpy_iterator()]
    assert sorted(there) == sorted(here)
    del second


@pytest.mark.slow
def test_pairs_from_python_become_a_corpus_and_a_stream(tmp_path, monkeypatch, config, tokenizer):
    monkeypatch.chdir(tmp_path)
    _, written, _, streamed = found.blocks(TEXTS["docs/data.md"], "python")
    model = keras_transformer.Transformer(config.model)
    model.compile("adam", keras_transformer.LabelSmoothedCrossEntropy(0.1))
    names = {"kt": keras_transformer, "tf": tf, "frame": {"en": ["a"], "de": ["A"]}, "tokenizer": tokenizer}
    names |= {"model": model}
    exec(compile(written, "data.md", "exec"), names)
    corpus = keras_transformer.load_corpus("corpus", "en", "de")
    assert corpus.train == (["three hours ago"], ["vor drei Stunden"])
    assert corpus.validation == (["a"], ["A"])
    assert "steps_per_epoch=1000, epochs=10" in streamed
    streamed = streamed.replace("steps_per_epoch=1000, epochs=10", "steps_per_epoch=2")
    streamed = streamed.replace("batch_tokens=25_000", "batch_tokens=2_048, shuffle_pairs=9")
    one = list(names["pairs"]())
    names["pairs"] = lambda: iter(one * 300)
    exec(compile(streamed, "data.md", "exec"), names)
    assert model.optimizer.iterations.numpy() == 2


def test_the_overview_is_drawn_of_what_there_is(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    overview = load(ROOT / "docs/overview.py")
    figure = overview.overview()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = [text for text in axes.texts if text.get_text()]
    named = {word for text in texts for word in text.get_text().split() if word.endswith(".py")}
    assert set(SCRIPTS.values()) - named == {
        "translate_ctranslate2.py", "parse.py", "back_translate.py", "distil.py",
    }  # fmt: skip
    assert named <= set(SCRIPTS.values())
    boxes = [text.get_window_extent() for text in texts]
    for number, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, texts[number]
        for other, also in enumerate(boxes[:number]):
            assert not box.overlaps(also), (texts[number].get_text(), texts[other].get_text())
    assert len(overview.LINKS) == 7
    source, target = overview.SOURCE.split(), overview.TARGET.split()
    assert {(source[i], target[j]) for i, j in overview.LINKS} >= {("man", "Mann"), ("horse", "Pferd")}
    assert len(overview.IDS) == len(source)


@pytest.mark.slow
def test_the_documentation_is_built_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(ROOT / "docs"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DOCS_REPOSITORY", None)
    built = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert built.returncode == 0, built.stderr
    pages = {str(page.relative_to(tmp_path)): page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    for name in keras_transformer.__all__:
        assert name in pages["api/index.html"]
    described = re.findall(r'<dt [^>]*id="(keras_transformer[\w.]+)"', "".join(pages.values()))
    assert len(described) == len(set(described))
    public = set(public_objects())
    assert public <= set(described)
    assert [one for one in described if not {one, one.rpartition(".")[0]} & public] == []
    check_pages_need_no_other_host(tmp_path, pages)
    for name in (path.stem for path in (ROOT / "notebooks").glob("0*.py")):
        page = pages[f"notebooks/{name}.html"]
        assert "colab" not in page
        assert 'class="output' in page
        assert "_downloads/" in page
    assert "<mfrac>" in pages["notebooks/01_the_paper.html"]
    assert re.search(r"highlight-bash.*\n?.*python", pages["index.html"])


def public_objects():
    """Yields the paths of the classes and functions that the folders export, but for the programs."""
    for folder in load(ROOT / "docs/conf.py").folders():
        package = importlib.import_module(folder)
        for name in getattr(package, "__all__", ()):
            if folder != "keras_transformer.cli" and callable(getattr(package, name)):
                yield f"{folder}.{name}"


def check_pages_need_no_other_host(folder, pages):
    """Links are allowed, but nothing that a browser loads by itself; pictures have texts."""
    for name, page in pages.items():
        for tag in re.findall(r"<(?:script|link|img|iframe|source|object)\b[^>]*>", page):
            assert not re.search(r'(?:src|href|data)="(?:https?:)?//', tag), (name, tag)
            named = not tag.startswith("<img") or 'class="toggler"' in tag  # which is in the index of modules
            assert named or re.search(r'alt="[^"]{10,}"', tag), (name, tag)
    for sheet in folder.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), (
            sheet
        )


def test_a_notebook_has_a_button_for_colab_if_the_repository_is_known(monkeypatch):
    monkeypatch.setenv("DOCS_REPOSITORY", "someone/fork")
    settings = load(ROOT / "docs/conf.py")
    colab = "https://colab.research.google.com/github/someone/fork/blob/main/notebooks/01_the_paper.ipynb"
    assert f"]({colab})" in settings.doors("01_the_paper.ipynb")
    source = settings.site_links("[x](../keras_transformer/model/loss.py)")
    assert source == "[x](https://github.com/someone/fork/blob/main/keras_transformer/model/loss.py)"
    monkeypatch.delenv("DOCS_REPOSITORY")
    settings = load(ROOT / "docs/conf.py")
    assert "colab" not in settings.doors("01_the_paper.ipynb")
    assert settings.site_links(source) == source
    monkeypatch.setenv("DOCS_REPOSITORY", "https://github.com/someone/fork")
    with pytest.raises(ValueError, match="owner/name"):
        load(ROOT / "docs/conf.py")


@pytest.mark.parametrize(
    ("block", "is_command"),
    [
        ("make demo", True),
        (". .venv/bin/activate", True),
        ("CUDA_VISIBLE_DEVICES=1 python pipelines/train_wmt.py", True),
        ("source      Niger", False),
        ("makes", False),
        ("preset: tiny", False),
    ],
)
def test_shell_commands_are_told_from_other_blocks(block, is_command):
    assert bool(load(ROOT / "docs/conf.py").COMMAND.match(block)) == is_command
