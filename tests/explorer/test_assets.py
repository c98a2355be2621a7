"""The rules of the page's files: what a strict Content-Security-Policy and the page as one file ask for."""

import collections
import pathlib
import re

import pytest

ASSETS = pathlib.Path(__file__).parents[2] / "keras_transformer" / "explorer" / "assets"
MODULES = sorted(ASSETS.glob("*.js"))
IMPORT = re.compile(r'import \{ (\w+(?:, \w+)*) \} from "\./([\w]+\.js)";')
TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function\*?|const|let|var|class) (\w+)", re.MULTILINE)
EXPORT = re.compile(r"^export (?:async function|function|const|class) (\w+)", re.MULTILINE)
FORBIDDEN = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "import.meta",
    "import(", "export default", "export {", "srcdoc", 'setAttribute("style"', "XMLHttpRequest", "WebSocket",
    "sendBeacon", "EventSource",
)  # fmt: skip
NAMESPACE = "http://www.w3.org/2000/svg"


def text_of(path):
    return path.read_text(encoding="utf-8")


def imports(path):
    """Returns a list of (names, module) of a module's imports."""
    return [(found[1].split(", "), found[2]) for found in IMPORT.finditer(text_of(path))]


def reached(name, found):
    """Adds to `found` the names of the modules that a module needs."""
    if name not in found:
        found.add(name)
        for _, other in imports(ASSETS / name):
            reached(other, found)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_can_be_joined(path):
    lines = text_of(path).splitlines()
    first = next((i for i, line in enumerate(lines) if not line.startswith("import ")), len(lines))
    for line in lines[:first]:
        assert IMPORT.fullmatch(line), line
    assert not [line for line in lines[first:] if re.match(r"\s*import\b", line)]
    for line in lines:
        assert not line.startswith("export ") or EXPORT.match(line), line
    for names, module in imports(path):
        assert set(names) <= set(EXPORT.findall(text_of(ASSETS / module))), module


def test_top_level_names_are_unique():
    names = collections.Counter(name for path in MODULES for name in TOP_LEVEL.findall(text_of(path)))
    assert [name for name, count in names.items() if count > 1] == []
    for path in MODULES:
        assert not re.search(r"^(?:export )?(?:const|let|var) [\[{]", text_of(path), re.MULTILINE), path.name


def test_imports_have_no_circle():
    waiting = {path.name: {module for _, module in imports(path)} for path in MODULES}
    while waiting:
        ready = {name for name, needed in waiting.items() if not needed & waiting.keys()}
        assert ready, f"circle among {sorted(waiting)}"
        waiting = {name: needed for name, needed in waiting.items() if name not in ready}


def test_every_module_is_used():
    assert reached("main.js", set()) == {path.name for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_all_imported_names_are_used(path):
    text = text_of(path)
    for names, _ in imports(path):
        assert [name for name in names if len(re.findall(rf"\b{name}\b", text)) < 2] == []


@pytest.mark.parametrize("path", sorted(ASSETS.iterdir()), ids=lambda path: path.name)
def test_files_are_safe_and_ask_no_other_server(path):
    text = text_of(path)
    assert [word for word in FORBIDDEN if word in text] == []
    assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.", text.replace(NAMESPACE, "")), path.name
    assert "</script" not in text or path.suffix == ".html"
    assert len(text.splitlines()) <= (450 if path.suffix == ".css" else 350)


def test_page_links_one_style_sheet_and_one_script():
    page = text_of(ASSETS / "explorer.html")
    assert re.findall(r'<link rel="stylesheet" href="([^"]*)">', page) == ["explorer/assets/explorer.css"]
    assert re.findall(r"<script[^>]*>", page) == [
        '<script type="application/json" id="state">',
        '<script type="module" src="explorer/assets/main.js">',
    ]
    assert '<script type="application/json" id="state">null</script>' in page
    assert not re.search(r"\s(?:style|on\w+)=", page)
    assert "@import" not in text_of(ASSETS / "explorer.css")
    assert "url(" not in text_of(ASSETS / "explorer.css")
