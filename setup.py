"""Long description of the package: README.md without links and pictures that lead into the repository.

Everything else is in setup.cfg. A package index shows the README alone, where relative links lead nowhere.
"""

import pathlib
import re

import setuptools

README = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def without_relative_links(text):
    """Drops pictures, and keeps of links their text, if their targets have no scheme."""
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setuptools.setup(
    long_description=without_relative_links(README), long_description_content_type="text/markdown"
)
