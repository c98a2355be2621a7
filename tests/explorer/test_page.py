"""The explorer's page in a real browser. Skipped without Chromium, its driver and the package selenium."""

import base64
import contextlib
import functools
import html
import json
import os
import pathlib
import shutil
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from keras_transformer.explorer import Explorer
from keras_transformer.explorer.page import standalone_page

pytestmark = pytest.mark.very_slow

SENTENCE = "A man is riding a horse through the snow."
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script> \u202eabc\u202c &amp; 'quoted\""
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
CLICK_SAVE = "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Save page').click()"
OFF = {"kind": "cross", "layer": 0, "head": 0}
WAIT = 20  # seconds
SHOWN = 0.00051  # tables have three digits
PICTURES = ("attention-heads", "matrix-*", "lines-*", "beam-search")  # names of files, in the page's order


def chromium():
    """Returns the paths of Chromium and its driver; skips the test without them."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("needs the programs chromium and chromedriver")
    return browser, driver


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
    from selenium.webdriver.chrome.service import Service

    browser, program = chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(program))
    driver.set_script_timeout(120)  # axe-core on a busy machine
    yield driver
    driver.quit()


def numbers(rows):
    """Returns rows of texts as an array of numbers."""
    return np.array([[float(text.replace("−", "-")) for text in row] for row in rows])


class Page:
    """The page in the browser, in the words of the tests."""

    def __init__(self, driver, url, downloads):
        self.driver, self.url, self.downloads = driver, url, downloads

    def open(self, state=None, url=None, width=1400):
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        self.driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(self.downloads)}
        )
        self.driver.get("about:blank")
        self.log()
        text = json.dumps({"version": 1, **state}) if state else ""
        fragment = "#s=" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") if state else ""
        self.driver.get((url or self.url) + fragment)
        if state and state.get("text"):
            self.settled()
        else:
            self.until("return Boolean(document.querySelector('#source'))")
        return self

    def until(self, script, *arguments):
        """Waits until a script returns something true, and returns it."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if found := self.run(script, *arguments):
                return found
            time.sleep(0.03)
        raise AssertionError(f"waited for: {script}")

    def settled(self):
        """Waits until the shown answers are those of the last change."""
        time.sleep(0.3)  # longer than the page waits for more letters
        self.until("""
            return document.querySelector('.token') && !document.querySelector('.busy')
              && !document.body.classList.contains('waiting')""")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def texts(self, selector):
        """Returns the texts of all that a selector finds."""
        script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
        return self.run(script, selector)

    def count(self, selector, within="body"):
        """Returns how many nodes a selector finds, in each of those that another finds."""
        script = """return [...document.querySelectorAll(arguments[0])]
            .map((node) => node.querySelectorAll(arguments[1]).length)"""
        return self.run(script, within, selector)

    def save(self):
        """Saves the page as one file and returns its path."""
        self.run(CLICK_SAVE)
        return self.downloaded("translation-explorer.html")

    def table(self, name):
        """Opens the table of a picture and returns its rows, the head first, as lists of texts."""
        self.click(f'.table-toggle[aria-label="Table: {name}"]')
        script = """const rows = document.querySelectorAll(`[role=region][aria-label="${arguments[0]}"] tr`);
            return [...rows].map((row) => [...row.cells].map((cell) => cell.textContent))"""
        return self.run(script, f"Table: {name}")

    def translation(self, side=0):
        return self.texts(".translation")[side]

    def click(self, selector):
        item = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", item)
        item.click()

    def type(self, selector, text):
        item = self.find(selector)
        item.clear()
        item.send_keys(text)
        self.settled()

    def press(self, *keys):
        """Presses keys where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, selector):
        """Presses Tab until the focus is on what a selector finds."""
        from selenium.webdriver.common.keys import Keys

        for _ in range(100):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"Tab does not reach {selector}")

    def log(self):
        """Returns the addresses that were asked for since the last call."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"] for each in entries if each["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]

    def complaints(self):
        """Returns what the browser's console said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def downloaded(self, pattern):
        """Waits for a file and returns its path."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if found := [path for path in self.downloads.glob(pattern) if path.stat().st_size]:
                return found[0]
            time.sleep(0.05)
        raise AssertionError(f"no file {pattern}")


@pytest.fixture
def page(driver, explorer_server, tmp_path):
    explorer_server.delays.clear()
    explorer_server.refusals.clear()
    page = Page(driver, explorer_server.url, tmp_path)
    page.complaints()
    yield page
    with contextlib.suppress(Exception):
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_translates_while_typing(page, explorer_server):
    page.open()
    page.type("#source", SENTENCE)
    best, *others = explorer_server.ask("search", text=SENTENCE)["hypotheses"]
    assert page.translation() == best["text"]
    assert page.texts(".token .piece") == [*best["pieces"], "</s>"]
    assert all(text[0] in "−0" for text in page.texts(".token .number"))
    assert page.texts(".hypothesis .text") == [each["text"] for each in (best, *others)]
    assert best["text"] in page.texts("#announcements")[0]
    assert page.count(".thumbnail") > [10]
    page.find("#source").send_keys(" It is cold.")
    page.settled()
    assert page.translation() == explorer_server.translation(f"{SENTENCE} It is cold.") != best["text"]
    assert page.complaints() == []


def test_late_answers_are_dropped(page, explorer_server):
    early, late = explorer_server.translation("Early"), explorer_server.translation("Late")
    assert early != late
    page.open()
    explorer_server.delays[:] = [1.5]
    page.find("#source").send_keys("Late")
    page.until("return document.querySelector('.busy')")
    page.find("#source").clear()
    page.type("#source", "Early")
    assert page.translation() == early
    time.sleep(1.6)
    assert page.translation() == early


def test_a_token_shows_its_alternatives_and_one_can_be_forced(page):
    page.open({"text": SENTENCE})
    page.click(".token:nth-child(3)")
    page.run("document.querySelector('.token').dispatchEvent(new PointerEvent('pointerenter'))")
    assert page.texts(".alternatives h3")[0].startswith("Position 3")
    before = page.texts(".token .piece")
    other = page.texts(".alternatives button.row .piece")[0]
    page.click(".alternatives button.row")
    page.settled()
    after = page.texts(".token .piece")
    assert after[:2] == before[:2]
    assert other == after[2] != before[2]
    assert len(page.texts(".translation-card .chip")) == 3
    page.click('.translation-card [data-key="undo"]')
    page.settled()
    assert page.texts(".token .piece") == before
    assert not page.texts(".chip")


def test_a_branch_of_the_tree_is_forced(page):
    page.open({"text": SENTENCE})
    assert page.count(".node.pruned") > [2]
    assert page.count(".node.finished") > [1]
    label = page.find(".node.pruned").get_attribute("aria-label")
    assert "pruned" in label
    assert "score" in label
    page.click(".node.pruned")
    page.settled()
    assert page.texts(".token .piece")[0] == label.split(",")[0]
    assert page.texts("#search .chip bdi") == [label.split(",")[0]]
    page.click("#search .chip")
    page.settled()
    assert not page.texts("#search .chip")


def test_a_head_is_switched_off_and_on(page):
    page.open({"text": SENTENCE})
    before = page.texts(".token .number")
    page.click('[data-key="power"]')
    page.settled()
    assert page.texts(".token .number") != before
    assert page.find('[data-key="power"]').get_attribute("aria-pressed") == "true"
    assert page.count(".cell.off") == [1]
    assert page.texts(".compare tfoot th") == ["Sum"]
    page.run("document.querySelector('.cell:not(.off) .power').click()")
    page.settled()
    assert page.count(".cell.off") == [2]
    page.click('#what-if [data-key="reset"]')
    page.settled()
    assert page.texts(".token .number") == before
    assert page.complaints() == []


def test_an_own_target_is_compared_with_the_translation(page):
    page.open({"text": SENTENCE})
    old = page.texts(".token .number")
    page.type("#target-0", "Ein Mann schläft.")
    assert page.translation() == "Ein Mann schläft."
    assert page.texts(".token .number") != old
    changes = page.texts(".compare tbody td:last-child")
    assert "new" in changes
    assert "gone" in changes
    page.click(".tool-row .tool:nth-child(2)")
    page.settled()
    assert page.texts(".token .number") == old


def test_two_models_stand_side_by_side(page):
    page.open({"text": SENTENCE})
    page.run("""
        const list = document.querySelector('select[name=second]');
        list.value = list.options[2].value;
        list.dispatchEvent(new Event('change'))""")
    page.settled()
    assert len(page.texts(".translation")) == 2
    assert [name[0] for name in page.texts("#translation .side-name")] == ["A", "B"]
    page.run("document.querySelectorAll('[data-key=power]')[1].click()")
    page.settled()
    assert page.count(".off", "#attention .side") == [0, 1]
    link = page.run("return location.hash")
    page.open(url=page.url + link)
    page.settled()
    assert len(page.texts(".translation")) == 2
    assert page.count(".off", "#attention .side") == [0, 1]


def test_a_link_keeps_the_state(page):
    off = [{"kind": "encoder", "layer": 0, "head": 1}]
    view = {"kind": "decoder", "layer": 1, "head": "mean", "queries": [2]}
    page.open({"text": SENTENCE, "settings": {"beam_size": 2, "alpha": 1.5}, "heads_off": off, "view": view})
    shown = page.translation(), page.texts(".detail h3"), page.texts(".token .number")
    assert shown[1] == ["Decoder self-attention: layer 2, mean over heads"]
    assert len(page.texts(".hypothesis")) == 2
    link = page.run("return location.hash")
    page.open(url=page.url + link)
    page.settled()
    assert shown == (page.translation(), page.texts(".detail h3"), page.texts(".token .number"))
    assert page.find("[name=alpha]").get_attribute("value") == "1.5"
    assert len(page.texts(".token-box.chosen")) == 1
    page.open(url=page.url + "#s=nonsense")
    assert page.complaints() == []


def test_all_works_with_the_keyboard_alone(page):
    from selenium.webdriver.common.keys import Keys

    page.open()
    page.tab_to(".skip")
    page.press(Keys.ENTER)
    page.tab_to("#source")
    page.press(*SENTENCE)
    page.settled()
    page.tab_to(".token")
    page.press(Keys.ARROW_RIGHT)
    assert page.texts(".alternatives h3")[0].startswith("Position 2")
    page.tab_to(".alternatives button.row")
    page.press(Keys.ENTER)
    page.settled()
    assert len(page.texts(".translation-card .chip")) == 2
    page.tab_to(".thumbnail")
    page.press(Keys.HOME, "x")
    page.settled()
    assert page.run("return document.activeElement.matches('.thumbnail')")
    assert page.count(".cell.off") == [1]
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ENTER)
    assert page.texts(".detail h3") == ["Encoder self-attention: layer 2, head 2"]
    page.tab_to(".matrix")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert "attends to" in page.texts("#announcements")[0]
    assert "attends to" in page.texts("#attention .readout")[0]
    page.press(Keys.ENTER)
    assert len(page.texts(".token-box.chosen")) == 1
    page.press(Keys.ESCAPE)
    assert len(page.texts(".token-box.chosen")) == 0
    page.tab_to(".token-box")
    page.press(Keys.ARROW_RIGHT, Keys.ENTER)
    assert page.run("return document.activeElement.getAttribute('aria-pressed')") == "true"
    page.tab_to(".node")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    page.settled()
    assert len(page.texts("#search .chip")) == 3
    assert page.run("return document.activeElement.matches('.node')")


def test_hostile_text_is_shown_as_text(page):
    view = {"layer": "<b>", "head": -1}
    page.open({"text": HOSTILE, "target": HOSTILE, "models": ["<b>", {}], "view": view})
    assert page.find("#source").get_attribute("value") == HOSTILE
    assert "<img" in page.translation()
    page.run("document.querySelectorAll('.table-toggle').forEach((button) => button.click())")
    assert page.count("img, main script, b, s") == [0]
    assert page.texts('[aria-label="Table: tokens"] td:nth-child(2)')[-1] == "</s>"
    assert page.complaints() == []


def test_tables_show_the_attention_and_the_beams_of_the_python_api(page, explorer_server):
    explorer = Explorer(explorer_server.models.version("en-de-tatoeba").engine.translator)
    page.open({"text": SENTENCE, "view": {"kind": "encoder", "layer": 2, "head": 1}})
    search = explorer.search({"text": SENTENCE})
    inspection = explorer.inspect({"text": SENTENCE, "target": search["hypotheses"][0]["ids"]})

    (_, *keys), *rows = page.table("matrix")
    assert [query for query, *_ in rows] == keys == [piece["text"] for piece in inspection["source"]]
    encoder = inspection["attention"]["encoder"]
    shape = [encoder[name] for name in ("layers", "heads", "rows", "columns")]
    weights = np.frombuffer(base64.b64decode(encoder["data"]), "<u2").reshape(shape) / 65535
    np.testing.assert_allclose(numbers(row[1:] for row in rows), weights[2, 1], atol=SHOWN)

    # Pooled heads. The rollout is the product of 0.5 A + 0.5 I over the layers, the last one on the left.
    off = {"kind": "encoder", "layer": 1, "head": 0}
    half = [(layer.mean(0) + np.eye(len(keys))) / 2 for layer in weights]
    for head, layer, heads_off, pooled in (
        ("mean", 1, [], weights[1].mean(0)),
        ("max", 1, [], weights[1].max(0)),
        ("mean", "all", [], weights.mean((0, 1))),
        ("mean", 1, [off], weights[1, 1:].mean(0)),
        ("rollout", "all", [], functools.reduce(np.matmul, half[::-1])),
    ):
        page.open(
            {
                "text": SENTENCE,
                "heads_off": heads_off,
                "view": {"kind": "encoder", "layer": layer, "head": head},
            }
        )
        _, *rows = page.table("matrix")
        np.testing.assert_allclose(numbers(row[1:] for row in rows), pooled, atol=2 * SHOWN, err_msg=head)

    page.open({"text": SENTENCE})
    _, *rows = page.table("beam search")
    nodes = [node for node in search["nodes"] if node["parent"] is not None]
    assert [row[:2] for row in rows] == [[str(node["position"] + 1), node["piece"]] for node in nodes]
    expected = [[node[name] for name in ("log_prob", "total", "score")] for node in nodes]
    np.testing.assert_allclose(numbers(row[3:6] for row in rows), expected, atol=SHOWN)
    states = {"live": "kept in the beam", "pruned": "pruned", "finished": "finished hypothesis"}
    assert [row[6] for row in rows if row[6] in states.values()] == [
        states[node["state"]] for node in nodes if node["state"] in states
    ]
    died = [node["died_at"] for node in nodes]
    assert any(died)
    assert [row[7] for row in rows] == ["" if step is None else str(step + 1) for step in died]


def test_no_request_leaves_the_origin(page):
    page.open({"text": SENTENCE})
    page.click('[data-key="power"]')
    page.settled()
    page.click(".svg-save")
    asked = page.log()
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith((page.url, "data:", "blob:", "about:"))] == []


@pytest.mark.parametrize("picture", PICTURES)
def test_every_picture_is_saved_as_a_file(page, picture):
    page.open({"text": SENTENCE})
    number = PICTURES.index(picture)
    page.run("document.querySelectorAll('.svg-save')[arguments[0]].click()", number)
    text = page.downloaded(f"{picture}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall(".//{*}text")) >= 3
    assert "var(" not in text
    assert "class=" not in text


def test_a_saved_page_needs_no_server(page, tmp_path):
    page.open({"text": SENTENCE, "heads_off": [{"kind": "cross", "layer": 0, "head": 0}]})
    shown = page.translation(), page.texts(".token .number"), page.texts(".compare td")
    moved = shutil.copy(page.save(), tmp_path / "moved.html")
    page.open(url=pathlib.Path(moved).as_uri())
    page.settled()
    assert shown == (page.translation(), page.texts(".token .number"), page.texts(".compare td"))
    page.click(".hypothesis:nth-child(2)")
    page.settled()
    assert page.translation() != shown[0]
    page.click(".node.pruned")
    page.until("return document.querySelector('.problem').textContent.includes('saved page')")
    assert not page.texts("#search .chip")
    assert [url for url in page.log() if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    assert page.complaints() == []


def test_a_saved_page_of_two_models_shows_what_was_on_the_screen_when_it_was_saved(page, explorer_server):
    page.open({"text": SENTENCE, "models": ["en-de-tatoeba", "tiny"], "heads_off": [OFF]})
    # The link has what the reader chose, no answers.
    assert 100 < page.run("return location.hash.length") < 1000
    shown = page.texts(".translation"), page.texts(".token .number"), page.texts(".compare td")
    explorer_server.delays[:] = [1.0]  # inspections of other hypotheses, which the page keeps
    page.run(CLICK_SAVE)
    page.find("#source").send_keys(" It is cold.")
    saved = page.downloaded("translation-explorer.html")
    page.open(url=saved.as_uri())
    page.settled()
    assert (page.texts(".translation"), page.texts(".token .number"), page.texts(".compare td")) == shown
    assert page.complaints() == []


def test_a_page_that_would_be_too_large_is_not_saved(page):
    page.open({"text": SENTENCE, "models": ["large"]})
    page.run("""const stringify = JSON.stringify;
        JSON.stringify = (value) => stringify(value) + (value?.nodes ? ' '.repeat(7_600_000) : '')""")
    page.run(CLICK_SAVE)
    page.until("return document.querySelector('.problem').textContent.includes('too large')")


def test_another_link_in_the_same_tab_changes_all_fields(page):
    def fields():
        return [page.find(f"input[name={name}]").get_attribute("value") for name in ("beam_size", "alpha")]

    page.open({"text": SENTENCE, "settings": {"beam_size": 2, "alpha": 0.3}})
    assert fields() == ["2", "0.3"]
    state = {"version": 1, "text": "It is cold.", "settings": {"beam_size": 3, "alpha": 1.1}}
    fragment = base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")
    page.run("location.hash = arguments[0]", f"s={fragment}")
    page.settled()
    assert fields() == ["3", "1.1"]
    assert page.find("#source").get_attribute("value") == "It is cold."
    page.run("location.hash = 's=nonsense'")
    page.settled()
    assert page.find("#source").get_attribute("value") == "It is cold."


def test_a_beam_is_a_whole_number(page):
    page.open({"text": SENTENCE})
    field = page.find("input[name=beam_size]")
    page.run("arguments[0].value = '2.6'; arguments[0].dispatchEvent(new Event('change'))", field)
    assert field.get_attribute("value") == "3"


def test_without_a_model_to_show_the_page_says_so(page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(standalone_page({"answers": {"models": []}}), encoding="utf-8")
    page.open(url=path.as_uri())
    assert "The explorer shows run folders" in page.texts(".problem")[0]
    assert page.complaints() == []


def test_a_saved_page_works_in_a_frame_of_a_notebook(page, tmp_path):
    page.open({"text": SENTENCE})
    shown = page.translation()
    saved = html.escape(page.save().read_text(encoding="utf-8"))
    frame = (
        f'<iframe srcdoc="{saved}" sandbox="allow-scripts allow-downloads" width="900" height="900"></iframe>'
    )
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{frame}", encoding="utf-8")
    page.driver.get(notebook.as_uri())
    page.driver.switch_to.frame(0)
    page.settled()
    assert page.translation() == shown
    page.click(".hypothesis:nth-child(3)")
    page.settled()
    assert page.translation() != shown
    assert page.complaints() == []
    page.driver.switch_to.default_content()


@pytest.mark.parametrize(
    ("refusals", "message"),
    [
        ([(400, "text has a word that no one likes")], "text has a word that no one likes"),
        ([(404, "a model of exports only")], "a model of exports only"),
        ([(413, "no")], "too long"),
        ([(500, "the model broke")], "the model broke"),
        ([(429, "no")] * 4, "The server is busy. Asking again"),
        ([(503, "being loaded")] * 4, "being loaded. Asking again"),
    ],
)
def test_errors_of_the_server_are_told(page, explorer_server, refusals, message):
    page.open()
    explorer_server.refusals[:] = refusals
    page.find("#source").send_keys("Hello there")
    page.until("return document.querySelector('.problem').textContent.includes(arguments[0])", message)
    explorer_server.refusals.clear()
    page.find("#source").send_keys(" again")
    page.settled()
    assert page.find(".problem").get_attribute("hidden") is not None


def test_a_busy_server_is_asked_again(page, explorer_server):
    page.open()
    explorer_server.refusals[:] = [(429, "no")]
    page.find("#source").send_keys("Hello there")
    page.settled()
    page.until("return document.querySelector('.token')")
    assert page.translation()
    assert page.find(".problem").get_attribute("hidden") is not None


def test_one_of_two_models_is_shown_although_the_other_fails(page, explorer_server):
    page.open({"text": "Early", "models": ["en-de-tatoeba", "tiny"]})
    explorer_server.refusals[:] = [(400, "the first one fails")]
    page.find("#source").send_keys(" birds")
    page.until("return document.querySelector('.problem').textContent.includes('the first one fails')")
    expected = explorer_server.ask("search", model="tiny", text="Early birds")["hypotheses"][0]["text"]
    page.until("return document.querySelectorAll('.translation')[1].textContent === arguments[0]", expected)


def test_a_lost_connection_is_told(page, explorer_server):
    page.open({"text": SENTENCE})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    try:
        page.find("#source").send_keys(" It is cold.")
        page.until("return document.querySelector('.problem').textContent.includes('No connection')")
    finally:
        online = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", online)
    page.until("""
        const retry = document.querySelector('.problem button');
        if (retry) retry.click();
        return document.querySelector('.problem').hidden && !document.querySelector('.busy')""")
    assert page.translation() == explorer_server.translation(f"{SENTENCE} It is cold.")


def test_what_is_too_long_is_told_before_it_is_sent(page):
    page.open({"text": ""})
    page.run("document.querySelector('#source').value = 'x'.repeat(2001)")
    page.find("#source").send_keys("y")
    page.until("return document.querySelector('.problem').textContent.includes('2000 bytes')")
    assert not any("search" in url for url in page.log())


@pytest.mark.parametrize("second", [[], ["tiny"]])
def test_a_narrow_screen_does_not_scroll_sideways(page, second):
    text = SENTENCE + " Donaudampfschifffahrtsgesellschaftskapitän" * 3
    page.open({"text": text, "models": ["en-de-tatoeba", *second]}, width=360)
    page.run("document.querySelectorAll('.table-toggle').forEach((button) => button.click())")
    assert page.run("return document.documentElement.scrollWidth") <= 360


def faults(page):
    """Returns the serious and critical faults that axe-core finds."""
    page.run(pathlib.Path(os.environ["AXE_CORE"]).read_text(encoding="utf-8"))
    found = page.driver.execute_async_script("axe.run(document).then(arguments[0])")["violations"]
    grave = [fault for fault in found if fault["impact"] in ("serious", "critical")]
    return [(fault["id"], [node["html"][:160] for node in fault["nodes"]]) for fault in grave]


@pytest.mark.skipif("AXE_CORE" not in os.environ, reason="needs axe-core: AXE_CORE=path of axe.min.js")
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_no_serious_fault(page, colours):
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": colours}]}
    )
    page.open()
    assert faults(page) == []
    off = [{"kind": "cross", "layer": 0, "head": 0}, {"kind": "encoder", "layer": 1, "head": 0}]
    page.open(
        {"text": SENTENCE, "heads_off": off, "models": ["en-de-tatoeba", "tiny"], "view": {"queries": [1]}}
    )
    page.run("document.querySelectorAll('.table-toggle').forEach((button) => button.click())")
    assert faults(page) == []
    page.open({"text": SENTENCE, "prefix": [], "target": "Ein Mann schläft."}, width=360)
    assert faults(page) == []


def test_redraws_are_measured(page, explorer_server):
    text = (
        SENTENCE
        + " The children are playing in the garden, and the old man reads a long book about the sea, "
        "which his daughter gave him last year."
    )
    assert 38 <= len(explorer_server.ask("search", model="large", text=text)["source"]) <= 42
    page.open({"text": text, "models": ["large"]})
    times = page.run("""
        const spent = {};
        const measure = (name, act) => {
          const start = performance.now();
          act();
          document.body.getBoundingClientRect();
          spent[name] = performance.now() - start;
        };
        const at = (selector, i) => document.querySelectorAll(selector)[i];
        const enter = new PointerEvent('pointerenter');
        measure('hover a token', () => at('.token', 7).dispatchEvent(enter));
        measure('hover a key', () => at('.token-box', 9).dispatchEvent(enter));
        measure('select a token', () => at('.token-box', 50).dispatchEvent(new MouseEvent('click')));
        measure('choose a head', () => at('.thumbnail', 70).click());
        measure('choose the rollout', () => at('[data-key="encoder-all-rollout"]', 0).click());
        measure('point at a node', () => at('.node', 60).dispatchEvent(enter));
        return spent""")
    page.click('[data-key="encoder-0-0"]')
    page.click('[data-key="power"]')
    page.settled()
    script = (
        "return performance.getEntriesByType('measure').slice(-6).map((each) => [each.name, each.duration])"
    )
    times |= {f"after a switch, {name}": duration for name, duration in page.run(script)}
    for name, spent in times.items():
        print(f"{name}: {spent:.0f} ms")
