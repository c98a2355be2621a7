"""The commands, links and code blocks of README.md and docs/*.md, found as a reader would find them."""

import pathlib
import re
import shlex

from keras_transformer.config.programs import SCRIPTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {door.removesuffix(".py"): program for program, door in SCRIPTS.items()}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]

_FENCED = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENDS = {"|", "||", "&&", ";", "&", "<", ">", ">>"}


def blocks(text, language):
    """Returns the fenced blocks of a language, in order."""
    return [body for found, body in _FENCED.findall(text) if found == language]


def prose(text):
    """Returns a page without its code blocks."""
    return "\n".join(line for line in _FENCED.sub("", text).splitlines() if not line.startswith("    "))


def shell_lines(text):
    """Returns the lines of a page's indented blocks, those that go on in the next one joined."""
    shown = [line.strip() for line in _FENCED.sub("", text).splitlines() if line.startswith("    ")]
    return "\n".join(shown).replace("\\\n", " ").splitlines()


def program_calls(text):
    """Returns (program, arguments) of every call of a program, in blocks and in prose.

    The program is a sub-command of `keras-transformer`, or the name of a file in `pipelines/` that has none.
    """
    calls = []
    inline = re.findall(
        r"`((?:python pipelines/|keras-transformer [a-z])[^`]+)`", " ".join(prose(text).split("\n"))
    )
    for line in [*shell_lines(text), *inline]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        for number, word in enumerate(words):
            if door := re.fullmatch(r"pipelines/(\w+)\.py", word):
                program, arguments = PROGRAMS.get(door[1], door[1]), words[number + 1 :]
            elif word == "keras-transformer" and not words[number + 1].startswith("-"):
                program, arguments = words[number + 1], words[number + 2 :]
            else:
                continue
            end = next((at for at, one in enumerate(arguments) if one in _ENDS), len(arguments))
            calls.append((program, [one for one in arguments[:end] if one != "..."]))
    return calls


def anchor(heading):
    """Returns what GitHub and MyST call a heading."""
    heading = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def links(text):
    """Returns the targets of all links and pictures of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCED.sub("", text))
