"""The floor plan: who may import whom, and what may not stand anywhere."""

import ast
import importlib
import inspect
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "keras_transformer"

# Lowest first. A module imports from lower floors only: never its own floor's.
FLOORS = [
    {
        "config",
        "files",
        "version",
    },
    {
        "ablation",
        "alignment",
        "arrays",
        "data.duplicates",
        "data.encoding_damage",
        "data.inspection",
        "data.locale_text",
        "data.planning",
        "data.sampling",
        "data.scripts",
        "data.sequences",
        "data.text",
        "data.tokenizer_base",
        "export.chunks",
        "export.facts",
        "export.manifest",
        "export.model_card",
        "export.serving_files",
        "export.settings",
        "export.uninterrupted",
        "export.versions",
        "export.warmup",
        "heads",
        "ibm1",
        "layers.ids",
        "losses",
        "masks",
        "moses_text",
        "output_formats",
        "plotting.style",
        "presets",
        "processed_text",
        "schedules",
        "setting_texts",
        "training.clock",
        "training.early_stopping",
        "training.errors",
        "training.events",
        "training.memory",
        "training.notes",
        "training.optimizers",
        "training.progress",
        "training.rendezvous",
        "training.resuming",
        "training.updating",
        "translation",
        "translation_progress",
    },
    {
        "data.archives",
        "data.batching",
        "data.cldr_kinds",
        "data.cleaning_report",
        "data.languages",
        "data.parallel",
        "data.tokenizer",
        "data.wordpiece_learning",
        "evaluation",
        "export.forcing",
        "export.loading",
        "forced",
        "layers.projection",
        "line_stream",
        "long_lines",
        "metrics",
        "plotting.attention",
        "plotting.complexity",
        "plotting.corpus",
        "plotting.equations",
        "plotting.fit",
        "plotting.heads",
        "plotting.quality",
        "plotting.scaling",
        "plotting.search",
        "plotting.speed",
        "plotting.training",
        "projected_loss",
        "score_lines",
        "search_rules",
        "standard_sets",
        "training.crash",
        "training.given",
        "training.signals",
        "training.standard_losses",
        "training.summary",
        "training.tensor_files",
    },
    {
        "data.cldr",
        "data.cleaning",
        "data.folders",
        "data.looking",
        "data.portions",
        "data.sampled",
        "data.service",
        "data.streaming",
        "data.tfds",
        "data.wordpiece",
        "layers.dropout",
        "layers.embedding",
        "layers.normalization",
        "measures",
        "search",
        "training.averaging",
        "training.best",
        "training.checkpoints",
        "training.preflight",
        "training.standard_metrics",
        "training.steering",
        "training.validation",
        "translation_details",
    },
    {
        "comparison",
        "data.feeding",
        "data.progress",
        "data.sources",
        "data.vocabulary",
        "decoding",
        "layers.attention",
        "layers.feed_forward",
        "layers.residual",
        "training.final",
        "training.placement",
        "training.recomputation",
    },
    {
        "complexity",
        "data.corpus",
        "data.prepared",
        "export.ctranslate2_translator",
        "export.translating",
        "layers.transformer_layer",
        "training.initial_weights",
        "training.position",
        "training.step",
    },
    {
        "data.sharding",
        "data.training_data",
        "export.ctranslate2",
        "layers.decoder",
        "layers.encoder",
    },
    {
        "data.preparing",
        "model",
    },
    {
        "export.keras_formats",
        "training.run_folder",
    },
    {
        "export.saved_model",
        "scoring",
        "training.opening",
        "translator",
    },
    {
        "training.fitting",
    },
    {
        "training.run",
    },
]
FLOOR = {module: number for number, floor in enumerate(FLOORS) for module in floor}
# Imports without TensorFlow, and so runs on JAX.
MODEL_SIDE = sorted(
    {"config", "version", "presets", "arrays", "masks", "losses", "metrics", "schedules", "search", "model"}
    | {module for module in FLOOR if module.startswith("layers.")}
)
STANDARD_LIBRARY_ONLY = ("config", "version")
TENSORFLOW = {"tensorflow", "tensorflow_text"}


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
PACKAGES = sorted({PACKAGE, *(path.parent for path in PACKAGE.rglob("*.py"))})


def imported(nodes):
    """Full names of all that a list of syntax nodes imports."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_imports(tree):
    """Modules of this package that a module imports, wherever in the file."""
    found = set()
    for name in imported(ast.walk(tree)):
        first, _, rest = name.partition(".")
        if first == "keras_transformer":
            found.add(rest if rest in FILES else rest.rpartition(".")[0])
    return found


def public_definitions(tree, prefix=""):
    """Classes and functions whose name says that they are for others, methods included."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, f"{prefix}{node.name}.")


def test_every_module_has_its_floor():
    assert set(FLOOR) == set(FILES)
    assert sum(map(len, FLOORS)) == len(FLOOR)


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_module_imports_from_lower_floors_only(module):
    for target in own_imports(TREES[module]):
        assert target in FLOOR, f"{module} imports {target}, which is no module"
        assert FLOOR[target] < FLOOR[module], f"{module} must not import {target}"


def test_every_floor_is_as_low_as_its_imports_allow():
    for module, tree in TREES.items():
        lowest = max((FLOOR[target] + 1 for target in own_imports(tree)), default=0)
        assert FLOOR[module] - lowest in (0, 1), f"{module} could stand on floor {lowest}"


@pytest.mark.parametrize("module", MODEL_SIDE)
def test_the_model_side_imports_without_tensorflow(module):
    roots = {name.split(".")[0] for name in imported(TREES[module].body)}
    assert not roots & TENSORFLOW


def test_few_functions_of_the_model_side_import_tensorflow():
    found = [
        (module, function.name)
        for module in MODEL_SIDE
        for function in ast.walk(TREES[module])
        if isinstance(function, ast.FunctionDef)
        and {name.split(".")[0] for name in imported(ast.walk(function))} & TENSORFLOW
    ]
    assert sorted(found) == [
        ("arrays", "gathered"),
        ("arrays", "picked"),
        ("arrays", "product_transposed"),
        ("layers.dropout", "_fold_in_replica"),
        ("layers.dropout", "_kept"),
        ("layers.embedding", "gradient_added_once"),
        ("layers.normalization", "_read"),
        ("layers.projection", "_product"),
        ("layers.projection", "add_bias"),
        ("losses", "_add_at"),
    ]


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_the_ground_floor_imports_the_standard_library_only(module):
    roots = {name.split(".")[0] for name in imported(ast.walk(TREES[module]))}
    assert roots <= sys.stdlib_module_names


@pytest.mark.parametrize("module", sorted(m for m in FILES if m.startswith("data.")))
def test_data_imports_no_keras(module):
    roots = {name.split(".")[0] for name in imported(ast.walk(TREES[module]))}
    assert "keras" not in roots


def test_no_private_part_of_keras_or_tensorflow_is_imported():
    for module, tree in TREES.items():
        for name in imported(ast.walk(tree)):
            assert not name.startswith(("keras.src", "tensorflow.python")), module


def test_every_folder_is_a_package_with_a_docstring():
    assert len(PACKAGES) == 6
    for folder in PACKAGES:
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), folder


@pytest.mark.parametrize("module", sorted(FILES))
def test_everything_public_has_a_docstring(module):
    assert ast.get_docstring(TREES[module])
    # What Keras calls by itself is documented by Keras; so are its arguments.
    known = {
        "build", "call", "compute_mask", "compute_output_shape", "compute_output_spec", "from_config",
        "get_build_config", "get_compile_config", "get_config", "compile_from_config", "metrics",
        "result", "train_step", "test_step", "on_epoch_begin", "on_epoch_end",
        "on_train_begin", "on_train_batch_end", "on_train_end",
    }  # fmt: skip
    missing = [
        name
        for name, node in public_definitions(TREES[module])
        if not ast.get_docstring(node) and name.split(".")[-1] not in known
    ]
    assert missing == []


@pytest.mark.parametrize("module", sorted(FILES))
def test_nothing_evaluates_what_it_reads(module):
    forbidden_modules = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
    tree = TREES[module]
    assert not {name.split(".")[0] for name in imported(ast.walk(tree))} & forbidden_modules
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            assert called not in ("eval", "exec", "compile", "__import__"), node.lineno
        if isinstance(node, ast.keyword):
            assert node.arg not in ("safe_mode", "shell"), node.lineno
            if node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", node.lineno


def test_nothing_silences_warnings():
    for module, tree in TREES.items():
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not names & {"filterwarnings", "simplefilter"}, module


def test_every_public_name_is_found_where_it_is_said_to_be():
    package = importlib.import_module("keras_transformer")
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        found = getattr(package, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__name__ == name
            assert found.__module__.startswith("keras_transformer.")


def test_an_unknown_public_name_is_an_error():
    package = importlib.import_module("keras_transformer")
    with pytest.raises(AttributeError, match="'Translater'"):
        _ = package.Translater


def test_contributing_lists_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    missing = [path.name for path in FILES.values() if path.name not in text]
    assert missing == []
