"""Progress of a translation on standard error: every line once."""

import pytest

from keras_transformer.cli import line_translation
from keras_transformer.cli.line_translation import TranslationProgress
from keras_transformer.translation.texts import BLANK, NBest


def printed(capsys):
    """What stands before the first bar of each line; what a terminal overwrites counts."""
    text = capsys.readouterr().err
    assert text.endswith("\n")
    text = text.replace("\r\x1b[K", "\n")
    return [line.partition(" |")[0] for line in text.splitlines() if line]


@pytest.fixture
def at_once(monkeypatch):
    """Every chunk is due for a line."""
    monkeypatch.setattr(line_translation, "_SECONDS_BETWEEN_LINES", {True: 0, False: 0})


def add(progress, *numbers):
    for number in numbers:
        progress.add(["a"] * number, [NBest([BLANK], [], 0, False)] * number)


def test_the_last_line_comes_once(at_once, capsys):
    progress = TranslationProgress(10)
    add(progress, 2, 3)
    progress.finish()
    assert printed(capsys) == ["2 lines", "5 lines"]


@pytest.mark.parametrize("terminal", [False, True])
def test_what_was_not_told_yet_is_told_at_the_end(terminal, monkeypatch, at_once, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    progress = TranslationProgress(10)
    add(progress, 2)
    with monkeypatch.context() as patch:
        patch.setattr(line_translation, "_SECONDS_BETWEEN_LINES", {True: 999, False: 999})
        add(progress, 3)
    progress.finish()
    assert printed(capsys) == ["2 lines", "5 lines"]


def test_a_terminal_shows_the_last_line_and_ends_it(monkeypatch, at_once, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = TranslationProgress(10)
    add(progress, 2, 3)
    progress.finish()
    assert printed(capsys) == ["2 lines", "5 lines"]


def test_the_progress_of_a_part_names_it(at_once, capsys):
    progress = TranslationProgress(10, part="part 2 of 3")
    add(progress, 2)
    progress.finish()
    assert printed(capsys) == ["part 2 of 3"]
