"""Settings of the documentation: `make docs`.

The pages request nothing from other hosts, so that they can be read offline. `DOCS_REPOSITORY=owner/name`, a
repository on GitHub, adds links to it: source files, and the notebooks in Colab.
"""

import importlib
import inspect
import json
import os
import pathlib
import pkgutil
import re
import sys

from docutils import nodes
from docutils.utils.math import latex2mathml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import keras_transformer  # noqa: E402  (the path comes first)
from keras_transformer.cli.process import import_quietly  # noqa: E402

import_quietly()

project = "keras_transformer"
copyright = "the authors of keras_transformer, Apache-2.0"
version = release = keras_transformer.__version__
REPOSITORY = os.environ.get("DOCS_REPOSITORY", "")
if not re.fullmatch(r"([\w.-]+/[\w.-]+)?", REPOSITORY):
    raise ValueError(f"DOCS_REPOSITORY must be owner/name, a repository on GitHub. Received: {REPOSITORY!r}")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"keras_transformer {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_math_renderer = "mathml"
# Indented blocks are text, or shell commands (`shell_commands`). Docstrings have code in single backticks.
highlight_language = "text"
default_role = "code"
nitpicky = True
# The last two are in annotations only.
nitpick_ignore_regex = [("py:.*", r"(keras\.src|tensorflow|numpy|collections\.abc)\..*|.*\.DepthScale")]
copybutton_selector = "div.highlight-bash pre, div.highlight-python pre"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["substitution", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_ambiguous"]
nb_execution_mode = "off"  # the pages show the stored outputs
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # model cards have tables
nb_render_image_options = {"alt": "The figure that the code above draws"}

add_module_names = False
maximum_signature_line_length = 80
autodoc_default_options = {"members": True, "inherited-members": True}
autodoc_inherit_docstrings = False
autodoc_typehints = "none"
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
napoleon_attr_annotations = False  # fields of a NamedTuple are `Any`
napoleon_custom_sections = [
    ("Call arguments", "params_style"),
    ("Input", "notes_style"),
    ("Output", "notes_style"),
]

COLON = "\0"
TABLES = {"PRESETS": "keras_transformer.config.presets"}
# What the first line of a block of shell commands begins with: a setting of the environment, or a program.
PROGRAMS = (
    r"\.|cat|cd|curl|docker|echo|for|git|keras-transformer|make|mkdir|pip|printf|python3?|tensorboard|wsl"
)
COMMAND = re.compile(rf"([A-Z_]+=\S* )*({PROGRAMS}) ")


def folders():
    """Returns the names of the folders of the package, an inner one before its parent."""
    found = pkgutil.walk_packages(keras_transformer.__path__, "keras_transformer.")
    return [one.name for one in found if one.ispkg][::-1]


def public_names():
    """Returns a Markdown table: every name of `keras_transformer`, with its reference and first sentence."""
    rows = ["| `from keras_transformer import` | |", "|---|---|"]
    exported = {folder: getattr(importlib.import_module(folder), "__all__", ()) for folder in folders()}
    for name in keras_transformer.__all__:
        found = getattr(keras_transformer, name)
        folder = next(folder for folder, names in exported.items() if name in names)
        if inspect.isclass(found) or inspect.isfunction(found):
            where, text = f"{folder}.{name}", found.__doc__
        else:  # a table: its module tells of it
            where, text = folder, importlib.import_module(TABLES[name]).__doc__
        first = " ".join(text.strip().partition("\n\n")[0].split())
        rows.append(f"| {{py:obj}}`{name} <{where}>` | {first} |")
    return "\n".join(rows)


def site_links(text):
    """Returns a page with links that hold in the site, from one with links that hold in the repository."""
    text = text.replace("](../notebooks/", "](notebooks/")
    if REPOSITORY:
        source = rf"](https://github.com/{REPOSITORY}/blob/main/\1/"
        text = re.sub(r"\]\((?:\.\./)+(keras_transformer|examples)/", source, text)
    return text


def page_links(app, page, content):
    """Changes the links of a page, in place."""
    content[0] = site_links(content[0])


def copy_notebooks(app, config):
    """Writes the notebooks into `docs/notebooks/`, with links that hold there and those to run them."""
    folder = HERE / "notebooks"
    folder.mkdir(exist_ok=True)
    paths = sorted((HERE.parent / "notebooks").glob("*.ipynb"))
    for stale in {path.name for path in folder.glob("*.ipynb")} - {path.name for path in paths}:
        (folder / stale).unlink()
    for path in paths:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = (
                    "".join(cell["source"])
                    .replace("](../docs/", "](../")
                    .replace("](../README.md", "](../index.md")
                )
                cell["source"] = site_links(text.replace("](../examples/", "](../../examples/"))
        title, _, rest = notebook["cells"][0]["source"].partition("\n")
        notebook["cells"][0]["source"] = f"{title}\n\n{doors(path.name)}\n{rest}"
        text, copy = json.dumps(notebook), folder / path.name
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:  # else it is not read again
            copy.write_text(text, encoding="utf-8")


def doors(name):
    """Returns the links with which a reader runs a notebook."""
    download = f"{{download}}`{name} <../../notebooks/{name}>`"
    if not REPOSITORY:
        return f"Download {download}."
    colab = f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{name}"
    install = (
        f"%pip install 'keras-transformer-translation[data,plots] @ git+https://github.com/{REPOSITORY}'"
    )
    return f"[Open in Colab]({colab}), where `{install}` comes first, or download {download}."


def shell_commands(app, doctree):
    """Marks the blocks of shell commands, which get colours and a button that copies them."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language", "none") == "none" and COMMAND.match(block.astext()):
            block["language"] = "bash"


def mathml(display):
    """Returns the function that writes a formula as MathML, which browsers draw without a script."""

    def visit(writer, node):
        formula = latex2mathml.tex2mathml(node.astext().replace(r"\dots", r"\ldots"), as_block=display)
        writer.body.append(f'<div class="math">{formula}</div>' if display else formula)
        raise nodes.SkipNode

    return visit


def plain_markup(app, what, name, obj, options, lines):
    """Converts the Markdown in docstrings to reStructuredText, in place."""
    new, fenced = [], False
    for line in lines:
        if line.strip().startswith("```"):
            new += [""] if fenced else [".. code-block:: python", ""]
            fenced = not fenced
        elif fenced:
            new.append(f"    {line}")
        else:
            new.append(re.sub(r"(?<!`)(`[^`]+`)(?=\w)", r"\1\\ ", line))  # `Block`s
    if what in ("attribute", "property"):  # napoleon takes what stands before a colon for a type
        new = [line.replace(":", COLON) for line in new]
    lines[:] = new


def colons(app, what, name, obj, options, lines):
    """Restores the colons of properties, which napoleon must not see."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def skips_member(app, what, name, obj, skip, options):
    """Skips what a class inherits from others than this package's, and the fields of a NamedTuple."""
    function = getattr(obj, "fget", obj)
    owner = getattr(function, "__objclass__", function)  # the class of `tuple.count`
    module = getattr(owner, "__module__", "keras_transformer") or ""
    foreign = not module.startswith("keras_transformer")
    return True if foreign or str(obj.__doc__).startswith("Alias for field number") else None


def arguments(app, what, name, obj, options, signature, returned):
    """Shows the signature of `__init__` for Keras classes, whose `__new__` accepts anything."""
    if what == "class" and signature == "(*args, **kwargs)":
        of_call = inspect.signature(obj.__init__)
        own = [one for one in of_call.parameters.values() if one.name != "self"]
        return str(of_call.replace(parameters=own)), returned
    return None


def setup(app):
    """Registers the event handlers with Sphinx."""
    app.add_html_math_renderer("mathml", (mathml(display=False), None), (mathml(display=True), None))
    app.connect("config-inited", copy_notebooks)
    app.connect("source-read", page_links)
    app.connect("doctree-read", shell_commands)
    app.connect("autodoc-skip-member", skips_member)
    app.connect("autodoc-process-signature", arguments)
    app.connect("autodoc-process-docstring", plain_markup, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", colons, priority=600)


myst_substitutions = {"public_names": public_names()}
