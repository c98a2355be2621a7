"""Settings of the documentation: `make docs`."""

import importlib
import inspect
import os
import pathlib
import re
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras_transformer  # noqa: E402  (the path comes first)

project = "keras_transformer"
copyright = "the authors of keras_transformer, Apache-2.0"
version = release = keras_transformer.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"keras_transformer {version}"
html_copy_source = False
# Blocks without a language are shell commands or tables. Docstrings have code in single backticks.
highlight_language = "text"
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(keras\.src|tensorflow|numpy)\..*")]

myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_ambiguous"]

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "none"
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
napoleon_attr_annotations = False  # fields of a NamedTuple are `object`
napoleon_custom_sections = [
    ("Call arguments", "params_style"),
    ("Input", "notes_style"),
    ("Output", "notes_style"),
]


TABLES = {"PRESETS": "keras_transformer.config.presets"}


def public_names():
    """Returns a Markdown table: every name of `keras_transformer`, with its reference and first sentence."""
    rows = ["| `from keras_transformer import` | |", "|---|---|"]
    for name in keras_transformer.__all__:
        found = getattr(keras_transformer, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            where, text = f"{found.__module__}.{name}", found.__doc__
        else:  # a table: its module tells of it
            where = TABLES[name]
            text = importlib.import_module(where).__doc__
        first = " ".join(text.strip().partition("\n\n")[0].split())
        rows.append(f"| {{py:obj}}`{name} <{where}>` | {first} |")
    return "\n".join(rows)


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


def skips_field(app, what, name, obj, skip, options):
    """Skips the fields of a NamedTuple, which its docstring describes."""
    return True if str(obj.__doc__).startswith("Alias for field number") else None


def arguments(app, what, name, obj, options, signature, returned):
    """Shows the signature of `__init__` for Keras classes, whose `__new__` accepts anything."""
    if what == "class" and signature == "(*args, **kwargs)":
        of_call = inspect.signature(obj.__init__)
        own = [one for one in of_call.parameters.values() if one.name != "self"]
        return str(of_call.replace(parameters=own)), returned
    return None


def setup(app):
    """Registers the event handlers with Sphinx."""
    app.connect("autodoc-skip-member", skips_field)
    app.connect("autodoc-process-signature", arguments)
    app.connect("autodoc-process-docstring", plain_markup, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", colons, priority=600)


COLON = "\0"
myst_substitutions = {"public_names": public_names()}
