"""The progress bar on a real pseudo-terminal: what a screen shows, and that lines stay whole."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import keras
import pytest
from processes import PROGRAM, SETTINGS, Process, environment, write_corpus

from keras_transformer.config.console import PACKAGE
from keras_transformer.model.optimizer import TransformerSchedule
from keras_transformer.training import fit as fitting
from keras_transformer.training.progress import Clock, Events, Progress, ProgressBar

COLUMNS, STEPS, EVERY = 100, 6, 3
LENGTHS = [((3, 5), (4, 2)), ((6,), (3,)), ((2, 2, 4), (1, 7, 2))]
BAR = re.compile(
    r"(\d+)/6 (\d+) % [█▏▎▍▌▋▊▉ ]+ loss \d\.\d{3} \| lr \d\.\d\de-\d\d"
    r"( \| [\d,]+ target tokens/s \| [\d.]+ (s|min) left)?"
)


class Screen:
    """A terminal of `COLUMNS` columns that understands carriage returns and `ESC [K`."""

    def __init__(self, data):
        self.lines, self.bars = [""], []
        column = 0
        for part in re.findall(r"\r|\n|\x1b\[K|[^\r\n\x1b]+|\x1b", data.replace("\r\n", "\n")):
            line = self.lines[-1]
            if part == "\r":
                if line.strip() and line not in self.bars:
                    self.bars.append(line)
                column = 0
            elif part == "\n":
                self.lines[-1] = line.rstrip()
                self.lines.append("")
                column = 0
            elif part == "\x1b[K":
                self.lines[-1] = line[:column]
            else:
                assert part != "\x1b", "an unknown control sequence"
                self.lines[-1] = line[:column].ljust(column) + part + line[column + len(part) :]
                column += len(part)


class Terminal:
    """A pseudo-terminal; `file` is what a program writes to."""

    def __init__(self):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        self.file = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self._data = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        try:
            while data := os.read(self.master, 65536):
                self._data += data
        except OSError:  # the last writer has closed it
            pass

    def close(self):
        """Returns all that was written."""
        self.file.close()
        self._reader.join()
        os.close(self.master)
        return self._data.decode("utf-8")


@pytest.fixture
def progress(tiny, tmp_path):
    run, schedule = tiny.Run(tmp_path / "run"), TransformerSchedule(12, 3)
    return Progress(
        run, Clock(), Events(run), schedule, log_every_steps=EVERY, max_steps=STEPS, max_minutes=0
    )


@pytest.mark.slow
def test_a_terminal_shows_a_bar_below_whole_lines(tiny, progress, monkeypatch):
    printing = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: print(f"begin {batch}"),
        on_train_batch_end=lambda batch, logs: print(f"end {batch}", file=sys.stderr),
    )
    batches = [tiny.batch(number, *LENGTHS[number % 3]) for number in range(STEPS)]
    model, terminal = tiny.model(tiny.config()), Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.file)
        patch.setattr(sys, "stderr", terminal.file)
        callbacks = fitting._CallbacksAcrossFits([progress, printing], add_history=True, model=model)
        callbacks.bar = bar = ProgressBar(progress)
        model.fit(tiny.stream(batches), steps_per_epoch=STEPS, shuffle=False, verbose=0, callbacks=callbacks)
        bar.close()
    screen = Screen(terminal.close())
    logged = [line for line in screen.lines if line.startswith("step")]
    assert [line.split(" | ")[0].split() for line in logged] == [["step", "3/6"], ["step", "6/6"]]
    assert all(line.endswith(" left") for line in logged)
    others = [line for line in screen.lines if line not in logged]
    assert others == [f"{when} {batch}" for batch in range(STEPS) for when in ("begin", "end")] + [""]
    assert screen.bars[0].split() == ["0/6", "0", "%"]
    found = [BAR.fullmatch(bar.rstrip()) for bar in screen.bars[1:]]
    assert [(match[1], match[2]) for match in found] == [(str(n), f"{100 * n / 6:.0f}") for n in range(1, 6)]
    assert [bool(match[3]) for match in found] == [False, True, True, True, True]  # the first step compiles
    assert max(map(len, screen.bars)) <= COLUMNS


@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("err", [True, False])
@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
@pytest.mark.parametrize("writes", [True, False])
def test_a_bar_needs_a_terminal_and_messages(progress, monkeypatch, out, err, level, writes):
    terminal, file = Terminal(), io.StringIO()
    PACKAGE.setLevel(level)
    progress.step, progress.run.writes = 1, writes
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.file if out else file)
        patch.setattr(sys, "stderr", terminal.file if err else file)
        bar = ProgressBar(progress)
        bar.show()
        bar.close()
    shown = "1/6 17 %" in terminal.close()
    assert shown == (out and err and level == logging.INFO and writes)
    assert file.getvalue() == ""


@pytest.mark.very_slow
def test_the_program_shows_a_bar_on_a_terminal_and_none_in_a_file(tmp_path):
    corpus = write_corpus(tmp_path, 200)
    arguments = ["--dataset", corpus, "--source", "en", "--target", "de", "--preset", "tiny"]
    changed = {"training.max_steps": 10, "training.log_every_steps": 2}
    piped = Process(tmp_path / "piped", changed, arguments)
    assert piped.end() == 0
    assert not re.search(r"[\r\x1b]", piped.out + piped.err)
    terminal = Terminal()
    command = [sys.executable, PROGRAM, "--run-dir", tmp_path / "run", *arguments]
    for name, value in {**SETTINGS, **changed}.items():
        command += ["--set", f"{name}={value}"]
    ended = subprocess.run(
        list(map(str, command)), stdout=terminal.file, stderr=terminal.file, env=environment(), check=False
    )
    screen = Screen(terminal.close())
    assert ended.returncode == 0
    assert any(re.match(r"9/10 90 % █+.* left$", bar.rstrip()) for bar in screen.bars)

    def without_figures(lines):
        return sorted(
            re.sub(r"[\d,]+ target tokens/s \| .* left|took \d+ s", "", line.replace("/piped", "/run"))
            for line in lines
        )

    assert without_figures(screen.lines[:-1]) == without_figures((piped.out + piped.err).splitlines())
