"""Messages of the package: shown by default, and left to `logging` where that is configured."""

import logging
import subprocess
import sys

import pytest

from keras_transformer.config.console import PACKAGE, console

MODULE = logging.getLogger("keras_transformer.training.fit")
LEVELS = {
    logging.root: logging.WARNING,
    PACKAGE: logging.NOTSET,
    logging.getLogger("keras_transformer.training"): logging.NOTSET,
}


@pytest.fixture
def unconfigured(monkeypatch):
    """Function that takes away the handlers of pytest: logging is then as a new Python process has it."""

    def take_away():  # in the test itself, because pytest adds handlers after the fixtures
        monkeypatch.setattr(logging.root, "handlers", [])
        monkeypatch.setattr(PACKAGE, "handlers", [])
        PACKAGE.setLevel(logging.NOTSET)

    yield take_away
    for logger, level in LEVELS.items():
        logger.setLevel(level)


@pytest.fixture
def log(tmp_path):
    """A handler that writes to a file, and the file."""
    handler = logging.FileHandler(tmp_path / "log")
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    yield handler, tmp_path / "log"
    handler.close()


def say():
    MODULE.debug("detail")
    MODULE.info("100 % done")
    MODULE.warning("note: slow")


def test_lines_are_shown_bare_notes_on_standard_error(unconfigured, capsys):
    unconfigured()
    with console():
        say()
    assert capsys.readouterr() == ("100 % done\n", "note: slow\n")
    assert (PACKAGE.handlers, PACKAGE.level, PACKAGE.propagate) == ([], logging.NOTSET, True)


@pytest.mark.parametrize("name", [None, "keras_transformer"])
def test_with_a_handler_they_go_there_alone(unconfigured, capsys, log, name):
    unconfigured()
    logger = logging.getLogger(name)
    logger.addHandler(log[0])
    with console():
        say()
    assert capsys.readouterr() == ("", "")
    assert log[1].read_text() == "INFO 100 % done\nWARNING note: slow\n"


@pytest.mark.parametrize(
    ("name", "level", "out", "err"),
    [
        ("keras_transformer", logging.WARNING, "", "note: slow\n"),
        ("keras_transformer", logging.ERROR, "", ""),
        ("keras_transformer", logging.DEBUG, "detail\n100 % done\n", "note: slow\n"),
        (None, logging.ERROR, "", ""),
        ("keras_transformer.training", logging.ERROR, "", ""),
    ],
)
def test_a_level_of_the_user_is_kept(unconfigured, capsys, name, level, out, err):
    unconfigured()
    logger = logging.getLogger(name)
    logger.setLevel(level)
    with console():
        say()
        assert logger.level == level
    assert capsys.readouterr() == (out, err)


def test_programs_show_them_whatever_the_handlers_and_once(unconfigured, capsys, log):
    unconfigured()
    logging.root.addHandler(log[0])
    with console(always=True), console(), console(always=True):
        say()
    assert capsys.readouterr() == ("100 % done\n", "note: slow\n")
    assert log[1].read_text() == ""


def test_a_handler_that_appears_meanwhile_shows_nothing_twice(unconfigured, capsys):
    unconfigured()
    with console():
        logging.basicConfig()
        say()
    assert capsys.readouterr() == ("100 % done\n", "note: slow\n")


def test_what_tensorflow_configures_does_not_change_the_next_call(unconfigured, capsys):
    unconfigured()
    for _ in range(2):
        with console():
            logging.basicConfig()  # as absl does when a checkpoint is saved
            say()
        assert capsys.readouterr() == ("100 % done\n", "note: slow\n")
    with console():
        logging.basicConfig(format="mine: %(message)s")
    say()
    assert capsys.readouterr() == ("", "mine: note: slow\n")


def test_a_line_that_cannot_be_written_is_an_error(unconfigured, monkeypatch):
    unconfigured()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with console(), pytest.raises(OSError, match="No space left"):
            say()
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()


@pytest.mark.slow
def test_the_package_configures_nothing_when_it_is_imported():
    code = (
        "import logging, keras_transformer.batches.preparing as module;"
        "package = logging.getLogger('keras_transformer');"
        "assert not package.handlers and not package.level and package.propagate;"
        "module.logger.info('progress'); module.logger.warning('note')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[-1] == "note"
    assert "progress" not in ended.stderr
