"""The page as one file: what a browser needs is in it, no text leaves its place, and nothing is asked for."""

import base64
import hashlib
import html
import html.parser
import json
import re

import pytest
from tiny_explorers import HOSTILE, TEXTS, tiny_translator

from keras_transformer import explore
from keras_transformer.explorer import Exploration, Explorer, InvalidRequestError, page, standalone_page

HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Explorer</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="explorer/assets/explorer.css">
</head>
<body>
<main id="main"></main>
<script type="application/json" id="state">null</script>
<script type="module" src="explorer/assets/main.js"></script>
</body>
</html>
"""
FILES = {
    "explorer.html": HTML,
    "explorer.css": 'main { color: #123456; content: "\\2581"; }\n',
    "main.js": 'import { a } from "./a.js";\nimport { b } from "./b.js";\n\nconst out = a + b;\n',
    "a.js": 'import { square } from "./b.js";\n\nexport const a = square(2);\n',
    "b.js": "export const b = 5;\n\nexport function square(x) {\n  return x * x;\n}\nexport class Shape {}\n",
}


@pytest.fixture
def assets(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(page, "ASSETS", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def explorer():
    return Explorer(tiny_translator(), "tiny")


class Parsed(html.parser.HTMLParser):
    """The tags of a page, and the texts of its scripts and styles, as HTML defines their ends."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.texts.append((dict(attributes).get("type", tag), ""))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            kind, text = self.texts[-1]
            self.texts[-1] = kind, text + data

    def text(self, kind):
        (found,) = [text for one, text in self.texts if one == kind]
        return found


def state_of(text):
    return json.loads(Parsed(text).text("application/json"))


def test_modules_are_joined_after_those_that_they_import(assets):
    script = Parsed(standalone_page(None)).text("module")
    expected = [
        "const b = 5;", "function square(x) {", "return x * x;", "}", "class Shape {}",
        "const a = square(2);", "const out = a + b;",
    ]  # fmt: skip
    assert [line.strip() for line in script.splitlines() if line] == expected


def test_the_policy_allows_the_script_and_the_style_of_the_page_alone(assets):
    text = standalone_page({"version": 1})
    parsed = Parsed(text)
    (policy,) = [one["content"] for tag, one in parsed.tags if one.get("http-equiv")]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    for name, kind in (("script-src", "module"), ("style-src", "style")):
        digest = hashlib.sha256(parsed.text(kind).encode()).digest()
        assert directives.pop(name) == f"'sha256-{base64.b64encode(digest).decode()}'"
    nothing = dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
    assert directives == {**nothing, "img-src": "data: blob:"}
    tags = [tag for tag, _ in parsed.tags]
    assert text.index("http-equiv") < 1024
    assert tags.index("meta") < min(tags.index("style"), tags.index("script"))


def test_the_page_names_no_other_file(assets):
    for tag, attributes in Parsed(standalone_page(None)).tags:
        assert not attributes.keys() & {"src", "action", "style", "onclick", "onload"}, tag
        assert attributes.get("href", "data:,") == "data:,"


@pytest.mark.parametrize("text", [*HOSTILE, page.SCRIPT, page.DATA], ids=lambda text: ascii(text[:20]))
def test_any_text_in_the_state_stays_there(assets, text):
    plain = Parsed(standalone_page({"text": "a", "answers": {}}))
    state = {"text": text, "answers": {"searches": {text: [text]}}}
    found = standalone_page(state)
    assert state_of(found) == state
    assert Parsed(found).tags == plain.tags
    assert "\u2028" not in found
    found.encode()


@pytest.mark.parametrize("state", [3, [], "text", {"a": float("nan")}, {"a": {1, 2}}], ids=str)
def test_a_state_is_a_json_object(assets, state):
    with pytest.raises(InvalidRequestError, match="`state` must"):
        standalone_page(state)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.js", 'import x from "./b.js";\n', "a.js: this import or export cannot be joined: import x from"),
        ("a.js", 'import { b as c } from "./b.js";\n', "cannot be joined: import { b as c }"),
        ("a.js", "export default 3;\n", "cannot be joined: export default 3;"),
        ("a.js", "export let a = 3;\n", "cannot be joined: export let a"),
        ("a.js", 'const a = await import("./b.js");\n', "cannot be joined: const a"),
        ("a.js", "const a = import.meta.url;\n", "cannot be joined: const a"),
        ("a.js", "export const a = 1;\nfunction square() {}\n", "several modules define square"),
        ("a.js", 'export const a = "</script>";\n', "may contain"),
        ("explorer.css", "/* </style> */", "may contain"),
        ("explorer.html", HTML.replace("module", "text"), "expected once: <script type="),
        ("explorer.html", HTML + HTML, "expected once: <meta charset"),
    ],
)  # fmt: skip
def test_files_that_break_the_rules_are_named(assets, name, text, message):
    (assets / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        standalone_page(None)


@pytest.mark.slow
def test_a_page_has_the_answers_to_what_it_asks_at_first(assets, explorer):
    head = {"kind": "cross", "layer": 1, "head": 0}
    exploration = explore(explorer, TEXTS[0], beam_size=2, alpha=1, heads_off=[head], prefix=[270])
    state = state_of(standalone_page(exploration.state))
    assert state == exploration.state
    answers = state.pop("answers")
    assert answers["models"] == [explorer.model()]
    assert state == {
        "version": 1, "models": ["tiny"], "text": TEXTS[0], "settings": {"beam_size": 2, "alpha": 1},
        "prefix": [270], "heads_off": [head], "target": None, "view": {},
    }  # fmt: skip
    asked = {"model": "tiny", "text": TEXTS[0], "beam_size": 2, "alpha": 1}
    changed = {**asked, "prefix": [270], "heads_off": [head]}
    keys = [json.dumps(body, separators=(",", ":")) for body in (changed, asked)]
    assert list(answers["searches"]) == keys
    targets = []
    for key in keys:
        answer, expected = answers["searches"][key], explorer.search(json.loads(key))
        assert answer | {"milliseconds": 0} == expected | {"milliseconds": 0}
        targets += [one["ids"] for one in answer["hypotheses"]]
    bodies = [
        {"model": "tiny", "text": TEXTS[0], "target": target, **off}
        for target in targets
        for off in ({"heads_off": [head]}, {})
    ]
    assert set(answers["inspections"]) == {json.dumps(body, separators=(",", ":")) for body in bodies}
    for key, answer in answers["inspections"].items():
        assert answer["target"][0]["id"] == json.loads(key)["target"][0]


@pytest.mark.slow
def test_a_state_without_answers_gets_those_of_explorers(assets, explorer):
    settings = {"beam_size": 1, "alpha": 0.6}
    state = {"models": ["tiny"], "text": TEXTS[1], "settings": settings, "target": TEXTS[2]}
    found = state_of(standalone_page(state, [explorer]))
    assert {key: found[key] for key in state} == state
    targets = [json.loads(key)["target"] for key in found["answers"]["inspections"]]
    (search,) = found["answers"]["searches"].values()
    assert targets == [TEXTS[2], search["hypotheses"][0]["ids"]]
    with pytest.raises(InvalidRequestError, match="`models` names 'other'; there is tiny"):
        standalone_page({**state, "models": ["other"]}, [explorer])


@pytest.mark.slow
def test_two_models_and_a_file(assets, explorer, tmp_path):
    other = tiny_translator(seed=5)
    exploration = explore(explorer, "Ein <b>Hund</b>", other, beam_size=1)
    assert exploration.state["models"] == ["tiny", "other"]
    assert {answer["model"] for answer in exploration.state["answers"]["searches"].values()} == {
        "tiny",
        "other",
    }
    exploration.save(tmp_path / "page.html")
    assert state_of((tmp_path / "page.html").read_text(encoding="utf-8")) == exploration.state
    with pytest.raises(ValueError, match="different names"):
        explore(explorer, "a", explorer)


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(assets):
    exploration = Exploration({"version": 1, "text": '<b> & "quoted"'})
    ((tag, attributes),) = Parsed(exploration._repr_html_()).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == standalone_page(exploration.state)
    assert attributes["sandbox"] == "allow-scripts allow-downloads"


@pytest.mark.parametrize(
    ("text", "search", "message"),
    [
        (" ", {}, "`text` is blank"),
        ("a", {"beam_size": 17}, "`beam_size` must be a whole number from 1 to 16"),
        ("a", {"beams": 3}, "Unknown setting 'beams'. Known: beam_size, alpha, prefix, heads_off"),
    ],
)
def test_a_wrong_setting_is_named(explorer, text, search, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        explore(explorer, text, **search)


@pytest.mark.skipif(not (page.ASSETS / "explorer.html").exists(), reason="needs the page in explorer/assets")
def test_the_page_of_the_package_is_joined():
    parsed = Parsed(standalone_page({"version": 1}))
    assert re.search(r"^function \w+\(", parsed.text("module"), re.MULTILINE)
    assert not re.search(r"^(import|export)\b", parsed.text("module"), re.MULTILINE)
