"""Synthetic corpora: which pairs are kept, what is added, and what an interruption leaves."""

import dataclasses
import itertools
import json
import shutil
import threading
import time

import pytest
import sacrebleu

from keras_transformer.config.sections import CleaningConfig, SearchConfig
from keras_transformer.evaluation.bleu import bleu_scorer
from keras_transformer.text.cleaning import Cleaner
from keras_transformer.text.lines import DataError
from keras_transformer.text.noise import Noise
from keras_transformer.text.synthetic import MANIFEST, read_manifest
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.translation import synthetic
from keras_transformer.translation.synthetic import (
    Side,
    SyntheticCorpus,
    monolingual_cleaner,
    monolingual_lines,
    nearest,
)

CLEANING = CleaningConfig(
    drop_identical=True, drop_duplicates=True, max_length_ratio=1.5, max_foreign_letters=0.5
)
LINES = ["Der Hund liest.", "Ein Hund und ein Text.", "Der Text.", "Und?", "Ein Text und ein Hund."]
TRANSLATIONS = ["The dog reads.", "A dog and a text.", "", "Und?", "A text and a dog " * 5 + "."]


class Words:
    """Tokens are words."""

    def encode(self, texts):
        return [text.split() for text in texts]


WORDS = Tokenizers(Words(), Words())


def corpus(folder, **settings):
    settings = {"program": "back-translate", "tag": "<BT>", "interpolate": False} | settings
    return SyntheticCorpus(folder, settings)


def collected(folder, lines=LINES, references=None, translations=TRANSLATIONS, **settings):
    """A corpus whose lines were translated."""
    made = corpus(folder, **settings)
    made.collect(lambda counts: zip(lines, references or [""] * len(lines), strict=True))
    made.translations.write_text("".join(f"{text}\n" for text in translations))
    return made


def written(made, side=Side(True, "<BT>"), **options):
    """Sources and targets of the written corpus."""
    cleaner = Cleaner(options.pop("cleaning", CLEANING), "en", "de", max_length=9)
    made.write(side, cleaner, WORDS, ("en", "de"), **options)
    return [(made.folder / f"train.{name}").read_text().split("\n")[:-1] for name in ("en", "de")]


def test_pairs_are_filtered_and_tagged(tmp_path):
    made = collected(tmp_path / "out")
    assert written(made) == [["<BT> The dog reads.", "<BT> A dog and a text."], LINES[:2]]
    # An empty translation, a copy, and a translation of 5 * 5 + 2 tokens.
    dropped = {name: number for name, number in made.manifest["pairs"]["dropped"].items() if number}
    assert dropped == {"empty": 1, "identical": 1, "long": 1}
    assert made.manifest["counts"]["lines translated"] == 5
    assert made.manifest["tags"] == ["<BT>"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert read_manifest(made.folder) == made.manifest


def test_the_other_way_round_the_translation_is_the_target(tmp_path):
    made = collected(tmp_path / "out", ["a dog", "a dog"], None, ["ein Hund", "der Hund"])
    assert written(made, Side(False), cleaning=CleaningConfig()) == [
        ["a dog", "a dog"],
        ["ein Hund", "der Hund"],
    ]
    assert made.manifest["tags"] == []


def test_noise_is_that_of_the_number_of_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "_BLOCK", 3)
    noise = Noise(drop=0.3, replace=0.3, shuffle=2, seed=7, filler="<BLANK>")
    lines = [f"Zeile {number} von zehn Zeilen" for number in range(10)]
    texts = [f"line {number} of ten lines" if number != 4 else "" for number in range(10)]
    made = collected(tmp_path / "out", lines, None, texts)
    source, target = written(made, Side(True, "<BT>", noise))
    kept = [number for number in range(10) if number != 4]
    assert source == [f"<BT> {noise.apply(texts[number], number)}" for number in kept]
    assert target == [lines[number] for number in kept]
    assert made.manifest["tags"] == ["<BT>", "<BLANK>"]


def test_of_several_translations_the_nearest_is_taken(tmp_path):
    references = ["the cat sat on the mat", "a dog ran away", "xyz"]
    n_best = ["the cat is here", "the cat sat on a mat", "", "dogs", "a dog", "a dog ran", "one two", "", ""]
    made = collected(tmp_path / "out", ["1", "2", "3"], references, n_best, interpolate=True)
    _, target = written(made, Side(False), cleaning=CleaningConfig(), n_best=3)
    assert target == ["the cat sat on a mat", "a dog ran", "one two"]


def test_the_nearest_has_the_highest_sentence_bleu():
    words = ["a", "dog", "ran", "home"]
    hypotheses = [" ".join(some) for number in (1, 2, 3) for some in itertools.permutations(words, number)]
    for reference in ("a dog ran home", "home ran a dog", "a dog"):
        scores = [sacrebleu.sentence_bleu(text, [reference]).score for text in hypotheses]
        best = hypotheses[scores.index(max(scores))]  # the first of several
        assert nearest(hypotheses, reference, bleu_scorer("en", effective_order=True).sentence_score) == best
    # Of equal ones, the one that the model ranks first.
    score = bleu_scorer("en", effective_order=True).sentence_score
    assert nearest(["x y", "y z"], "a b", score) == "x y"
    assert nearest(["", " ", "y z"], "a b", score) == "y z"
    assert nearest(["", ""], "a b", score) == ""


def test_lines_are_filtered_before_they_are_translated(tmp_path):
    first, second = tmp_path / "a.de", tmp_path / "b.de"
    first.write_text("Der Hund.\n\n  \nДля всех собак.\nDer Hund.\n" + "lang " * 9 + "\n", encoding="utf-8")
    second.write_text("Und Text\nDer Hund. \n", encoding="utf-8")
    counts = {}
    cleaner = monolingual_cleaner(CLEANING, "de", 9)
    found = list(monolingual_lines([first, second], cleaner, Words(), counts, on_bad_utf8="refuse"))
    assert found == [("Der Hund.", ""), ("Und Text", "")]
    dropped = {name: number for name, number in counts["dropped before translation"].items() if number}
    assert (counts["lines read"], dropped) == (8, {"empty": 2, "script": 1, "long": 1, "duplicate": 2})
    cleaner = monolingual_cleaner(CleaningConfig(drop_empty=False), "de", 99)
    found = list(monolingual_lines([first, second], cleaner, Words(), {}, on_bad_utf8="refuse"))
    assert len(found) == 6  # only blank lines are always dropped
    for path in (first, second):
        path.write_text("")
    with pytest.raises(DataError, match=rf"^{first}, {second}: no line\. Give text with lines$"):
        list(monolingual_lines([first, second], cleaner, Words(), {}, on_bad_utf8="refuse"))


def test_nothing_left_is_an_error_and_leaves_no_corpus(tmp_path):
    made = collected(tmp_path / "out", ["a"], None, ["a"])
    with pytest.raises(
        DataError,
        match=r"all pairs \(1 read, both sides identical: 1\).*drop_identical, and delete .*out.progress",
    ):
        written(made)
    assert not made.folder.exists()
    other = corpus(tmp_path / "other")

    def read(counts):
        counts |= {"lines read": 3, "dropped before translation": {"empty": 3, "long": 0}}
        return iter(())

    with pytest.raises(DataError, match=r"to translate \(3 read, a side is blank: 3\). Check the text$"):
        other.collect(read)
    assert not (other.progress / "collected.json").exists()


def test_lines_are_collected_once(tmp_path):
    made = collected(tmp_path / "out")
    before = made.text.read_bytes()
    assert corpus(tmp_path / "out").collect(lambda counts: pytest.fail("again")) == {"lines translated": 5}
    assert made.text.read_bytes() == before
    interrupted = corpus(tmp_path / "second")

    def read(counts):
        yield "one", ""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted.collect(read)
    assert not interrupted.text.exists()
    assert interrupted.collect(lambda counts: iter([("two", "")])) == {"lines translated": 1}
    assert interrupted.text.read_text() == "two\n"


def test_other_settings_are_refused(tmp_path):
    search = {"beam_size": 4, "alpha": 0.6}
    collected(tmp_path / "out", models=["a"], inputs=[1], method="beam", search=search)
    same = {"models": ["a"], "inputs": [1], "method": "beam", "search": search}
    corpus(tmp_path / "out", **same)
    with pytest.raises(
        DataError, match="out.progress: was begun with program='back-translate', not 'distil'"
    ):
        corpus(tmp_path / "out", **same | {"program": "distil", "cleaning": 1})
    for changes, said in (
        ({"method": "sampling"}, "out.progress: was begun with method='beam', not 'sampling'"),
        (
            {"search": {"beam_size": 4, "alpha": 0.1}},
            "out.progress: was begun with search.alpha=0.6, not 0.1",
        ),
        ({"models": ["b"]}, "was begun with another model, or other weights"),
        ({"inputs": [2]}, "was begun with other text"),
        ({"tag": ""}, "was begun with tag='<BT>', not ''"),
    ):
        with pytest.raises(DataError, match=f"{said}. Use the same, or choose another folder"):
            corpus(tmp_path / "out", **same | changes)
    made = corpus(tmp_path / "out", **same)
    written(made)
    with pytest.raises(DataError, match="out: was begun with method='beam', not 'sampling'"):
        corpus(tmp_path / "out", **same | {"method": "sampling"})
    assert written(corpus(tmp_path / "out", **same))  # complete: nothing is written again


def test_what_an_earlier_version_began_is_continued(tmp_path):
    """Its settings lack those that were added since, which have their defaults."""
    now = {"search": dataclasses.asdict(SearchConfig()), "cleaning": dataclasses.asdict(CLEANING)}
    begun = {section: dict(values) for section, values in now.items()}
    del begun["search"]["coverage_penalty"], begun["search"]["mbr"], begun["cleaning"]["drop_damaged"]
    collected(tmp_path / "out", **begun)
    made = corpus(tmp_path / "out", engine="tensorflow", **now)
    search = now["search"] | {"mbr": True}
    with pytest.raises(DataError, match="was begun with search.mbr=False, not True"):
        corpus(tmp_path / "out", **now | {"search": search})
    cleaning = now["cleaning"] | {"drop_damaged": True}
    with pytest.raises(DataError, match="was begun with cleaning.drop_damaged=False, not True"):
        corpus(tmp_path / "out", **now | {"cleaning": cleaning})
    assert written(made)


class Other:
    """Another process, here a thread, that makes the same corpus: its lock is held while it collects."""

    def __init__(self, made):
        self.collects, self.goes_on = threading.Event(), threading.Event()

        def read(counts):
            self.collects.set()
            self.goes_on.wait(60)
            yield from zip(LINES, [""] * len(LINES), strict=True)

        def work():
            made.collect(read)

        self.thread = threading.Thread(target=work)
        self.thread.start()
        assert self.collects.wait(60)


def waiting(made, other):
    """What `made.collect` returns or raises that began while the other process collects."""
    found = []

    def work():
        try:
            found.append(made.collect(lambda counts: pytest.fail("collected twice")))
        except DataError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)
    assert not found  # it waits
    other.goes_on.set()
    thread.join(60)
    other.thread.join(60)
    return found[0]


def test_a_process_that_waits_gets_the_lines_of_the_other(tmp_path):
    made = corpus(tmp_path / "out")
    assert waiting(made, Other(corpus(tmp_path / "out"))) == {"lines translated": 5}
    assert made.text.read_text().split("\n")[:-1] == LINES


def test_a_process_with_other_settings_that_waits_is_refused(tmp_path):
    made = corpus(tmp_path / "out", tag="")  # nothing is there yet that could differ
    error = waiting(made, Other(corpus(tmp_path / "out")))
    assert "out.progress: was begun with tag='<BT>', not ''" in str(error)


def test_a_process_that_waits_goes_on_after_the_other_has_failed(tmp_path):
    """The other one finds no line and removes the folder, with the lock file that is waited for."""
    made, other, found = corpus(tmp_path / "out"), corpus(tmp_path / "out"), []

    def work():
        found.append(made.collect(lambda counts: iter([("two", "")])))

    thread = threading.Thread(target=work)

    def read(counts):
        thread.start()
        time.sleep(0.3)
        yield from ()

    with pytest.raises(DataError, match="no line is left"):
        other.collect(read)
    thread.join(60)
    assert found == [{"lines translated": 1}]
    assert made.text.read_text() == "two\n"


@pytest.mark.parametrize("settings", [{}, {"tag": ""}])
def test_a_process_that_waits_until_the_corpus_is_complete(tmp_path, settings):
    made, waits = corpus(tmp_path / "out", **settings), corpus(tmp_path / "out")
    with waits._lock():  # so the lock file that `made` opens is that which `complete` removes
        found = []

        def work():
            try:
                found.append(made.collect(lambda counts: pytest.fail("collected again")))
            except DataError as error:
                found.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.3)
        other = collected(tmp_path / "elsewhere")
        written(other)
        other.folder.rename(waits.folder)
        shutil.rmtree(waits.progress)
    thread.join(60)
    if settings:
        assert "out: was begun with tag='<BT>', not ''" in found[0]
    else:
        assert found == [{"lines translated": 5}]
        made.remove_progress()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_only_its_own_leftovers_are_removed(tmp_path):
    for name in (".out.0a1b2c3d.tmp", ".out.noise.0a1b2c3d.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / ".out.00000000.tmp").touch()  # a file: of `translate --output out`
    written(collected(tmp_path / "out"))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".out.00000000.tmp", ".out.noise.0a1b2c3d.tmp", "out"]


def test_other_folders_and_damage_are_refused(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    with pytest.raises(DataError, match="used: exists and is not an empty folder. Choose a new folder"):
        corpus(tmp_path / "used")
    (tmp_path / "mine.progress").mkdir()
    (tmp_path / "mine.progress/thesis.txt").touch()
    with pytest.raises(DataError, match=r"mine.progress: holds thesis.txt, not of this corpus. Move it"):
        corpus(tmp_path / "mine")
    assert (tmp_path / "mine.progress/thesis.txt").exists()
    (tmp_path / "empty").mkdir()
    made = collected(tmp_path / "empty")
    damaged = shutil.copytree(made.progress, tmp_path / "other.progress")
    (damaged / "collected.json").write_text("{")
    with pytest.raises(DataError, match="collected.json: not JSON .*Delete .*other.progress"):
        corpus(tmp_path / "other")
    written(made)
    path = made.folder / MANIFEST
    for content, said in (
        ('{"format": 3}', "the format is not"),
        ("[]", "not a JSON object"),
        (path.read_text().replace("<BT>", "<XX>"), "its content does not match its checksum"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=said):
            corpus(tmp_path / "empty")


def test_a_truncated_translation_is_refused(tmp_path):
    made = collected(tmp_path / "out", translations=TRANSLATIONS[:3])
    with pytest.raises(DataError, match="translations.txt: too few lines. Delete .*out.progress"):
        written(made)
    assert not made.folder.exists()


def test_settings_may_hold_tuples(tmp_path):
    collected(tmp_path / "out", inputs=(1, 2))
    assert corpus(tmp_path / "out", inputs=(1, 2)).settings["inputs"] == [1, 2]
    assert json.loads((tmp_path / "out.progress/collected.json").read_text())["settings"]["inputs"] == [1, 2]
