"""What the package needs and what is optional: requirements, imports, and the programs without any extra."""

import ast
import configparser
import functools
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from lowest import constraints

from keras_transformer.config.extras import DISTRIBUTION, MissingExtraError, install, needs

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "keras_transformer").rglob("*.py"))
# Import names of what the extras for users install.
OPTIONAL = (
    "babel", "ctranslate2", "datasets", "ftfy", "httptools", "importlib_resources", "IPython", "jupytext",
    "keras_hub", "matplotlib", "multipart", "nbclient", "num2words", "prometheus_client", "py3langid",
    "python_multipart", "starlette", "tensorflow_datasets", "tensorflow_serving", "uvicorn",
)  # fmt: skip
WITHOUT_EXTRAS = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def requirements():
    """{extra: set of canonical names}, those of the package itself as ""; extras within extras resolved."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    lists = {"": settings["options"]["install_requires"], **settings["options.extras_require"]}
    found = {extra: set() for extra in lists}
    for extra, text in lists.items():
        for line in filter(None, text.splitlines()):
            name, inner = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line).groups()
            if canonical(name) == DISTRIBUTION:
                found[extra] |= set().union(*(found[one] for one in inner.split(",")))
            elif not line.startswith("#"):
                found[extra].add(canonical(name))
    return found


def third_party_imports(tree, extra=""):
    """(root of the imported name, extra that `needs` names around it) of each import of another's package."""
    for node in ast.iter_child_nodes(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        roots = {name.partition(".")[0] for name in names}
        yield from ((root, extra) for root in roots - sys.stdlib_module_names - {"keras_transformer"})
        inner = extra
        if isinstance(node, ast.With) and ast.unparse(node.items[0].context_expr).startswith("needs("):
            inner = node.items[0].context_expr.args[0].value
        yield from third_party_imports(node, inner)


def test_what_is_imported_is_required_by_the_package_or_by_the_extra_that_is_named():
    distributions = importlib.metadata.packages_distributions()
    imports = {
        (root, extra)
        for path in FILES
        for root, extra in third_party_imports(ast.parse(path.read_text(encoding="utf-8")))
        if path.parent.name != "plots"  # its __init__ has the one import for all
    }
    assert ("babel", "data") in imports
    assert ("tensorflow", "") in imports
    for root, extra in imports - {("jax", "")}:  # only where it is Keras' backend
        required = requirements()[""] | requirements()[extra]
        assert required & set(map(canonical, distributions[root])), (root, extra)


def test_what_extras_install_is_blocked_below():
    distributions = importlib.metadata.packages_distributions()
    blocked = {canonical(name) for root in OPTIONAL for name in distributions.get(root, ())}
    for extra in ("data", "hf", "plots", "serving", "serve", "ctranslate2", "keras-hub"):
        assert requirements()[extra] <= blocked, extra
    assert not requirements()[""] & blocked


def test_the_extra_all_has_what_the_others_for_users_have():
    others = requirements().keys() - {"", "all", "gpu", "beam", "docs", "test"}
    assert requirements()["all"] == set().union(*(requirements()[extra] for extra in others))


@pytest.mark.slow
def test_every_extra_that_a_message_names_exists():
    named = [
        node.args[0].value
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("needs", "install")
        if isinstance(node.args[0], ast.Constant)
    ]
    assert len(named) >= 8
    assert set(named) <= requirements().keys()


def test_every_requirement_of_users_has_a_lowest_version_to_test():
    lowest = {canonical(line.partition("==")[0]) for line in constraints()}
    assert lowest >= set().union(*(requirements()[extra] for extra in ("", "data", "plots", "serving")))
    assert {"keras==3.10", "tensorflow==2.20"} <= set(constraints())


def test_the_distribution_is_called_as_setup_cfg_says():
    assert f"\nname = {DISTRIBUTION}\n" in (ROOT / "setup.cfg").read_text(encoding="utf-8")
    assert install("data") == "pip install 'keras-transformer-translation[data]'"


def test_a_missing_package_names_feature_reason_and_extra():
    with pytest.raises(MissingExtraError) as caught, needs("plots", "A plot"):
        import no_such_package  # noqa: F401
    assert str(caught.value) == (
        "A plot needs the extra 'plots' (No module named 'no_such_package'): "
        "pip install 'keras-transformer-translation[plots]'"
    )
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, ValueError)  # so a program ends with one line


def test_programs_say_that_another_package_of_the_same_import_name_took_its_place(tmp_path):
    package = tmp_path / "keras_transformer"
    shutil.copytree(ROOT / "keras_transformer/cli", package / "cli")
    shutil.copy(ROOT / "keras_transformer/__main__.py", package)
    (package / "__init__.py").write_text("__version__ = '0.40.0'\n")
    command = [sys.executable, "-m", "keras_transformer", "train"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"{package / '__init__.py'} is another package's `keras_transformer`. Uninstall" in ended.stderr


def run_without_extras(folder, code):
    """Runs Python code where no optional package can be imported; returns standard output and error."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path):
    """A folder with a folder `corpus` of parallel text."""
    (tmp_path / "corpus").mkdir()
    for split, number in (("train", 300), ("valid", 5), ("test", 3)):
        for language, word in (("en", "tree"), ("de", "Baum")):
            text = "".join(f"{word} {i} {word * (i % 5)}\n" for i in range(number))
            (tmp_path / f"corpus/{split}.{language}").write_text(text)
    return tmp_path


REFUSED = {
    "train --run-dir new": "data",
    "train --dataset wmt14_translate/de-en --source en --target de --run-dir new": "data",
    "train --dataset hf:a/b --source en --target de --preset tiny --run-dir new": "hf",
    "prepare corpus new --source en --target de --set cleaning.drop_damaged=true": "data",
    "prepare corpus new --source en --target de --set cleaning.max_foreign_letters=0.5": "data",
    "prepare corpus new --source en --target de --plot new.png": "plots",
    "translate-ctranslate2 corpus": "ctranslate2",
    "export corpus new --format ctranslate2": "ctranslate2",
    "serve corpus": "serve",
}


@pytest.mark.slow
def test_a_feature_without_its_extra_ends_in_one_line_that_names_it(folder):
    code = """
from keras_transformer.cli.main import program_module
for line in LINES:
    program, *arguments = line.split()
    assert program_module(program).main(arguments) == 2, line
"""
    out, error = run_without_extras(folder, code.replace("LINES", str(list(REFUSED))))
    assert out == ""
    for line, (called, extra) in zip(error.splitlines(), REFUSED.items(), strict=True):
        assert line.startswith(f"keras-transformer {called.split()[0]}: ")
        assert line.endswith(f": {install(extra)}"), called
    assert [path.name for path in folder.iterdir()] == ["corpus"]


@pytest.mark.very_slow
def test_without_extras_a_corpus_in_a_folder_becomes_an_exported_model(folder):
    code = """
from keras_transformer.cli import evaluate, export, score, train, translate
settings = (
    "training.max_steps=4", "training.checkpoint_every_steps=2", "training.warmup_steps=2",
    "training.validation_sentences=2", "model.num_encoder_layers=1", "model.num_decoder_layers=1",
    "model.d_model=16", "model.d_ff=32", "model.num_heads=2", "data.batch_tokens=400", "data.max_length=40",
    "data.vocab_size=300", "search.max_length_offset=4",
)
chosen = [one for setting in settings for one in ("--set", setting)]
corpus = ["--dataset", "corpus", "--source", "en", "--target", "de", "--preset", "tiny"]
assert train.main([*corpus, "--run-dir", "run", *chosen]) == 0
assert translate.main(["run", "--input", "corpus/test.en", "--output", "ours.de"]) == 0
assert evaluate.main(["run", "--beam-size", "1"]) == 0
assert score.main(["run", "--source", "corpus/test.en", "--target", "corpus/test.de"]) == 0
assert export.main(["run", "served"]) == 0
assert export.main(["run", "exported", "--format", "keras"]) == 0
"""
    out, error = run_without_extras(folder, code)
    assert f"note: without warm-up requests, which need: {install('serving')}" in out
    assert "Traceback" not in error
    assert (
        "Identifying the language of a text needs the extra 'data' (No module named 'babel'): pip"
        in out + error
    )
    assert len((folder / "ours.de").read_text().splitlines()) == 3
    assert (folder / "served/1/saved_model.pb").is_file()
    assert not (folder / "served/1/assets.extra/tf_serving_warmup_requests").exists()
