"""The floor plan: who may import whom, and what may not stand anywhere."""

import ast
import graphlib
import importlib.util
import inspect
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "keras_transformer"

# Lowest first. A folder imports from lower floors only. CONTRIBUTING.md has the same line.
PLAN = (
    "config files < text model < tokenizers evaluation analysis < batches checkpoints < translation"
    " < training export explorer < serving < cli"
)
FLOOR = {folder: number for number, floor in enumerate(PLAN.split("<")) for folder in floor.split()}
TENSORFLOW = {"tensorflow", "tensorflow_text"}
DATA = ("text.", "tokenizers.", "batches.")


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if path.name[:2] != "__"}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
PACKAGES = sorted({PACKAGE, *(path.parent for path in PACKAGE.rglob("*.py"))})
# The training step and its helpers; the rest of `model` imports without TensorFlow, and runs on JAX.
TRAINING_STEP = {
    f"model.{name}"
    for name in (
        "keras_objectives",
        "keras_workarounds",
        "recomputation",
        "step_metrics",
        "train_step",
        "weight_update",
    )
}
MODEL_SIDE = sorted(
    {name for name in FILES if name.startswith(("config.", "model."))} - TRAINING_STEP
    | {
        f"translation.{name}"
        for name in ("search", "hypotheses", "rules", "constraints", "phrases", "tree_grammar")
    }
)


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
    return found - {""}  # the package itself


def has_docstring(node):
    """Whether a definition is documented; a class of settings has its docstring from its decorator."""
    decorators = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
    return "section" in decorators or ast.get_docstring(node)


def public_definitions(tree, prefix=""):
    """Classes and functions whose name says that they are for others, methods included."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, f"{prefix}{node.name}.")


def load_module(path):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def folder_of(module):
    return module.partition(".")[0]


def test_every_folder_has_its_floor():
    assert set(FLOOR) == {folder_of(module) for module in FILES}
    assert PLAN in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_picture_of_the_house_is_that_of_the_imports():
    house = load_module(ROOT / "docs" / "house.py")
    assert house.floors(house.imports()) == FLOOR
    assert house.draw() == house.PICTURE.read_text(encoding="utf-8"), "run: python docs/house.py"


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_folder_imports_from_lower_floors_only(module):
    for target in own_imports(TREES[module]):
        assert target in FILES, f"{module} imports {target}, which is no module"
        if folder_of(target) != folder_of(module):
            assert FLOOR[folder_of(target)] < FLOOR[folder_of(module)], f"{module} must not import {target}"


@pytest.mark.parametrize("folder", sorted(FLOOR))
def test_the_modules_of_a_folder_import_each_other_in_no_circle(folder):
    imports = {
        module: {target for target in own_imports(TREES[module]) if folder_of(target) == folder}
        for module in FILES
        if folder_of(module) == folder
    }
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError


def test_every_floor_is_as_low_as_its_imports_allow():
    for folder, floor in FLOOR.items():
        below = {folder_of(t) for m in FILES if folder_of(m) == folder for t in own_imports(TREES[m])} - {
            folder
        }
        assert floor == max((FLOOR[each] + 1 for each in below), default=0), folder


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
    # Kernels have a plain form, too; and each replica draws its own dropout.
    others = {each for each in found if not each[0].startswith("model.kernels.")}
    assert others == {("model.layers.basics", "_fold_in_replica")}


@pytest.mark.parametrize("module", sorted(m for m in FILES if folder_of(m) == "config"))
def test_settings_import_the_standard_library_only(module):
    roots = {name.split(".")[0] for name in imported(ast.walk(TREES[module]))}
    allowed = {"keras_transformer"} | ({"yaml"} if module == "config.files" else set())
    assert roots <= sys.stdlib_module_names | allowed


@pytest.mark.parametrize(
    "module", sorted(m for m in FILES if folder_of(m) in ("text", "tokenizers", "batches"))
)
def test_data_imports_no_keras(module):
    roots = {name.split(".")[0] for name in imported(ast.walk(TREES[module]))}
    assert "keras" not in roots


def test_no_private_part_of_keras_or_tensorflow_is_imported():
    for module, tree in TREES.items():
        for name in imported(ast.walk(tree)):
            assert not name.startswith(("keras.src", "tensorflow.python")), module


def test_every_folder_is_a_package_with_a_docstring():
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
        "on_train_begin", "on_train_batch_begin", "on_train_batch_end", "on_train_end",
        "on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end",
    }  # fmt: skip
    missing = [
        name
        for name, node in public_definitions(TREES[module])
        if not has_docstring(node) and name.split(".")[-1] not in known
    ]
    assert missing == []


@pytest.mark.parametrize("module", sorted(FILES))
def test_nothing_evaluates_what_it_reads(module):
    forbidden_modules = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
    tree = TREES[module]
    if module == "config.files":  # composes nodes of text and constructs nothing
        forbidden_modules -= {"yaml"}
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used = {name for name in used if name.startswith("yaml.")}
        nodes = {f"yaml.{kind}Node" for kind in ("Mapping", "Scalar", "Sequence")}
        assert used == nodes | {"yaml.compose", "yaml.BaseLoader", "yaml.YAMLError"}
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


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_every_public_name_is_found_where_it_is_said_to_be(folder):
    for module in FILES:
        importlib.import_module(f"keras_transformer.{module}")
    package = importlib.import_module(".".join(folder.relative_to(ROOT).parts))
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        found = getattr(package, name)
        assert not inspect.ismodule(found), name  # a module hides a name that is spelled as itself
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__name__ == name
            assert found.__module__.startswith("keras_transformer.")


def test_an_unknown_public_name_is_an_error():
    package = importlib.import_module("keras_transformer")
    with pytest.raises(AttributeError, match="'Translater'"):
        _ = package.Translater


def test_only_one_function_asks_for_the_affinity_that_some_systems_lack():
    found = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "sched_getaffinity"
    }
    assert found == {"config.cores"}
