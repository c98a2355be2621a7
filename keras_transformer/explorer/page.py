"""The explorer's page as one file that needs no server and asks nothing of any."""

import base64
import hashlib
import html
import json
import pathlib
import re
from typing import Any

from keras_transformer.config.types import PathLike
from keras_transformer.explorer.checks import InvalidRequestError
from keras_transformer.explorer.explorer import Explorer
from keras_transformer.files import write_text
from keras_transformer.translation.translator import Translator

ASSETS = pathlib.Path(__file__).with_name("assets")
# The page's tags that name its files, and the place of its data.
CHARSET = '<meta charset="utf-8">'
STYLE = '<link rel="stylesheet" href="explorer/assets/explorer.css">'
SCRIPT = '<script type="module" src="explorer/assets/main.js"></script>'
DATA = '<script type="application/json" id="state">null</script>'
HEIGHT = 900  # of the page in a notebook, in pixels

_IMPORT = re.compile(r'^import \{\s*\w+(?:,\s*\w+)*,?\s*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function\b|const\b|class\b)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*|^.*\bimport(?:\.meta|\().*", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:async )?(?:function\*?|const|let|var|class) (\w+)", re.MULTILINE)


def standalone_page(state: dict | None, explorers: list[Explorer] | None = None) -> str:
    """Returns the page with its style, its scripts and a state in one text of HTML.

    A Content-Security-Policy in the page allows these scripts alone, and no request.

    Args:
        state: dict of JSON values, what the page shows: `models` (one or two names), `text`, `settings`, and
            `answers` to its requests; or `None`.
        explorers: list of `Explorer`, which add the answers that the state's text, settings and changes need;
            or `None`.

    Raises:
        InvalidRequestError: the state is no JSON object, or an explorer refuses its text or settings.
        ValueError: a file of the page breaks the rules by which the scripts are joined.
    """
    if not (state is None or isinstance(state, dict)):
        raise InvalidRequestError("`state` must be a JSON object")
    if explorers:
        state = {**(state or {}), "answers": _answers(state or {}, explorers)}
    try:
        data = json.dumps(state, allow_nan=False, separators=(",", ":"))  # ASCII: line separators are escaped
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequestError("`state` must hold values of JSON only") from None
    for character in "<>&":  # no text can end the tag
        data = data.replace(character, f"\\u{ord(character):04x}")
    style = (ASSETS / "explorer.css").read_text(encoding="utf-8")
    script = _bundle("main.js")
    if re.search(r"</style|</script|<!--", style + script, re.IGNORECASE):
        raise ValueError(f"{ASSETS}: no style or script may contain `</style`, `</script` or `<!--`")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = (ASSETS / "explorer.html").read_text(encoding="utf-8")
    for old, new in (
        (CHARSET, f'{CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        (STYLE, f"<style>{style}</style>"),
        (DATA, DATA.replace("null", data)),
        (SCRIPT, f'<script type="module">{script}</script>'),
    ):
        if page.count(old) != 1:
            raise ValueError(f"{ASSETS / 'explorer.html'}: expected once: {old}")
        page = page.replace(old, new)
    return page


class Exploration:
    """A page about one sentence, with all its answers; a notebook shows it below the cell.

    Attributes:
        state: dict of JSON values, as in `standalone_page`.
    """

    def __init__(self, state: dict) -> None:
        self.state = state

    def save(self, path: PathLike) -> pathlib.Path:
        """Writes the page, one file of HTML for any browser; returns its path."""
        path = pathlib.Path(path)
        write_text(path, standalone_page(self.state))
        return path

    def _repr_html_(self):
        page = html.escape(standalone_page(self.state))
        # Sandboxed: the page runs apart from the notebook.
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" width="100%" height="{HEIGHT}" '
            'frameborder="0" title="Translation explorer"></iframe>'
        )


def explore(
    translator: Translator | Explorer,
    text: str,
    other: Translator | Explorer | None = None,
    **search: Any,
) -> Exploration:
    """Shows the beam search and the attention of a sentence, in a notebook or as a file of HTML.

    Args:
        translator: a `Translator` of one model, or an `Explorer`, which need not be compiled again.
        text: str, one sentence.
        other: a second model, shown beside the first; or `None`.
        **search: `beam_size`, `alpha`, `prefix` (target ids) and `heads_off`, as in `Explorer.search`.

    Returns:
        `Exploration`: the last value of a cell is shown; `save("page.html")` writes a file.

    Raises:
        InvalidRequestError: a `ValueError`; the text is blank or too long, or a setting is wrong.
        ValueError: a translator has several models, or parses.
    """
    explorers = [
        each if isinstance(each, Explorer) else Explorer(each, name)
        for each, name in ((translator, "model"), (other, "other"))
        if each is not None
    ]
    names = [each.name for each in explorers]
    if len(set(names)) < len(names):
        raise ValueError(f"Two explorers need different names. Received: {names}")
    first = explorers[0].model()
    changes = {name: search.pop(name, []) for name in ("prefix", "heads_off")}
    settings = {name: search.pop(name, first[name]) for name in ("beam_size", "alpha")}
    if search:
        known = ", ".join((*settings, *changes))
        raise InvalidRequestError(f"Unknown setting {next(iter(search))!r}. Known: {known}")
    state = {
        "version": 1,
        "models": names,
        "text": text,
        "settings": settings,
        **changes,
        "target": None,
        "view": {"second": changes} if other is not None else {},
    }
    return Exploration({**state, "answers": _answers(state, explorers)})


def _answers(state, explorers):
    """Returns the answers to all that a page with this state asks at first, and those of `state`."""
    given = state.get("answers") or {}
    searches, inspections = dict(given.get("searches", {})), dict(given.get("inspections", {}))
    by_name = {each.name: each for each in explorers}
    sides = [state, (state.get("view") or {}).get("second") or {}]
    for name, side in zip(state.get("models") or list(by_name)[:1], sides, strict=False):
        if name not in by_name:
            raise InvalidRequestError(f"`models` names {name!r}; there is {', '.join(by_name)}")
        base = {"model": name, "text": state.get("text", "")}
        changed = {key: side[key] for key in ("prefix", "heads_off") if side.get(key)}
        heads = {key: value for key, value in changed.items() if key == "heads_off"}
        targets = [] if side.get("target") is None else [side["target"]]
        for changes in (changed, {}):  # the page compares with the unchanged model
            request = {**base, **state.get("settings", {}), **changes}
            answer = _ask(by_name[name].search, request, searches)
            targets += [one["ids"] for one in answer["hypotheses"]]
        for target in targets:
            for off in (heads, {}):
                _ask(by_name[name].inspect, {**base, "target": target, **off}, inspections)
    return {"models": [each.model() for each in explorers], "searches": searches, "inspections": inspections}


def _ask(method, request, answers):
    """Returns the answer to a request, from `answers` if it is there."""
    key = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
    if key not in answers:
        answers[key] = method(request)
    return answers[key]


def _bundle(name):
    """Returns a module and all those that it imports as one script, each after those that it imports."""
    texts = {}

    def add(name):
        texts[name] = ""  # being read: modules may import each other in a circle
        path = ASSETS / name
        text = path.read_text(encoding="utf-8")
        for imported in _IMPORT.findall(text):
            if imported not in texts:
                add(imported)
        text = _EXPORT.sub("", _IMPORT.sub("", text))
        if left := _LEFT.search(text):
            raise ValueError(f"{path}: this import or export cannot be joined: {left[0].strip()}")
        del texts[name]  # now at the end
        texts[name] = text

    add(name)
    names = [found for text in texts.values() for found in _TOP_LEVEL.findall(text)]
    if twice := sorted({found for found in names if names.count(found) > 1}):
        raise ValueError(f"{ASSETS}: several modules define {', '.join(twice)}")
    return "".join(texts.values())


def _hash(text):
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
