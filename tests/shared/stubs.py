"""Writes `__init__.pyi` of each folder of the package, with the names that it imports at first use.

python tests/shared/stubs.py
"""

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "keras_transformer"
# What else the package itself has.
ROOT_NAMES = """
__version__: str

def lazy_names(package: str, modules: dict[str, tuple[str, ...]]) -> Any: ...
"""


def lazy_names(folder):
    """Returns a dict of the names of a folder to the module that defines each, as `model.layers.masks`."""
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    tables = [call.args[1] for call in calls if ast.unparse(call.func).endswith("lazy_names")]
    found = {}
    for module, names in (ast.literal_eval(tables[0]) if tables else {}).items():
        path = folder.joinpath(*module.split("."))
        inner = lazy_names(path) if (path / "__init__.py").is_file() else {}
        dotted = ".".join(path.relative_to(PACKAGE.parent).parts)
        found |= {name: inner.get(name, dotted) for name in names}
    return found


def stub(folder):
    """Returns the text of a folder's `__init__.pyi`."""
    found = lazy_names(folder)
    lines = ["from typing import Any", ""] if folder == PACKAGE else []
    lines += sorted(f"from {module} import {name} as {name}" for name, module in found.items())
    lines += ROOT_NAMES.splitlines() if folder == PACKAGE else []
    return "\n".join([*lines, "", "__all__ = [", *(f'    "{name}",' for name in sorted(found)), "]", ""])


def folders():
    """Returns the package and its folders, those whose names are imported at first use."""
    return [path.parent for path in sorted(PACKAGE.rglob("__init__.py")) if lazy_names(path.parent)]


if __name__ == "__main__":
    for each in folders():
        (each / "__init__.pyi").write_text(stub(each), encoding="utf-8")
