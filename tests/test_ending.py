"""Programs end at once with the right exit code, whatever is left to tidy up."""

import os
import pathlib
import subprocess
import sys

import pytest

from keras_transformer.cli.main import program_module
from keras_transformer.config.programs import SCRIPTS

ROOT = pathlib.Path(__file__).resolve().parents[1]
LARGE_OUTPUT = 100_000
# What makes Python's own end take its time. `tensorflow` is only looked for, never used.
LEFT_OVER = """
import sys, threading, time, types
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
threading.Thread(target=time.sleep, args=(1000,)).start()
class Slow:
    def __del__(self):
        time.sleep(1000)
slow = Slow()
"""


def call(main, before="", shell="", **environment):
    """Runs a program whose `main` has this body; `shell` redirects its streams."""
    # Unbuffered, output fails where it is printed.
    environment = {**os.environ, "PYTHONUNBUFFERED": "", **environment}
    body = "\n".join(f"    {line}" for line in main.splitlines())
    text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{before}\n"
    text += f"from keras_transformer.cli.process import run\ndef main():\n{body}\nrun(main)\n"
    command = ["bash", "-c", f'exec "$@" {shell}', "bash", sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def test_a_package_that_is_not_installed_is_named_with_the_remedy():
    """As with the Python of the system, before the environment is activated."""
    program = ROOT / "pipelines" / "train_wmt.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-S", program, "--run-dir", "x"],
        capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("train_wmt.py: numpy is not installed in this Python (")
    assert "pip install -e ." in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("main", "code"),
    [
        ("return 0", 0),
        ("return 5", 5),
        ("sys.exit(143)", 143),
        ("sys.exit()", 0),
        ("raise KeyboardInterrupt", 130),
        ("raise RuntimeError('an error')", 1),
    ],
)
def test_it_ends_with_its_code_and_waits_for_nothing(main, code):
    ended = call(f"print('x' * {LARGE_OUTPUT})\nprint('err', file=sys.stderr)\n{main}", LEFT_OVER)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "x" * LARGE_OUTPUT + "\n"
    assert ended.stderr.startswith("err\n")
    assert ("RuntimeError: an error" in ended.stderr) == (code == 1)


def test_what_an_error_refers_to_is_not_freed_before_the_end():
    before = (
        f"{LEFT_OVER}\nfrom keras_transformer.cli.process import keep_reference\n"
        "def fail():\n    model = Slow()\n    raise ValueError(model)"
    )
    work = "try:\n    fail()\nexcept ValueError as error:\n    keep_reference(error)\n    return 5"
    ended = call(work, before)
    assert (ended.returncode, ended.stderr) == (5, "")


@pytest.mark.parametrize("library", ["tensorflow", "ctranslate2"])
@pytest.mark.parametrize("main", ["stop()", "return exit_code('x', stop)"])
def test_what_ctrl_c_interrupts_is_not_freed_before_the_end(main, library):
    """CTranslate2 first translates all that it has been given."""
    before = (
        f"{LEFT_OVER.replace('tensorflow', library)}\nfrom keras_transformer.cli.process import exit_code\n"
        "def stop():\n    model = Slow()\n    raise KeyboardInterrupt"
    )
    ended = call(main, before)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_what_is_registered_for_the_end_is_done():
    before = f"{LEFT_OVER}\nimport atexit\natexit.register(print, 'last words')"
    assert call("return 0", before).stdout == "last words\n"


def test_what_is_registered_for_the_end_is_not_waited_for_long():
    before = f"{LEFT_OVER}\nimport atexit\natexit.register(time.sleep, 1000)"
    ended = call("print('out')\nreturn 3", before)
    assert (ended.returncode, ended.stdout) == (3, "out\n")


def test_without_tensorflow_python_ends_as_it_does():
    ended = call("return 3", "import threading\nthreading.Thread(target=print, args=('thread',)).start()")
    assert (ended.returncode, ended.stdout) == (3, "thread\n")


@pytest.mark.parametrize("before", ["", LEFT_OVER], ids=["without", "with TensorFlow"])
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-", "2> >(true)"])
def test_standard_error_that_takes_nothing_changes_nothing(stderr, before):
    printing = "for _ in range(300):\n    print('progress', file=sys.stderr)\n" if "&-" not in stderr else ""
    ended = call(f"{printing}print('result')\nreturn 0", before, stderr)
    assert (ended.returncode, ended.stdout) == (0, "result\n")


@pytest.mark.parametrize("before", ["", LEFT_OVER], ids=["without", "with TensorFlow"])
@pytest.mark.parametrize("code", [0, 2])
def test_output_that_cannot_be_written_is_told(code, before):
    ended = call(f"print('result')\nreturn {code}", before, ">/dev/full")
    assert ended.returncode == (code or 3)
    assert code or ended.stderr.startswith("-c: standard output: no space left on device. Free disk space")
    ended = call("print('result')\nreturn 0", before, ">&-")
    assert ended.returncode == 0, ended.stderr
    at_once = call(f"print('result')\nreturn {code}", before, ">/dev/full", PYTHONUNBUFFERED="1")
    assert at_once.returncode == 3
    assert at_once.stderr.startswith("-c: standard output: no space left on device. Free disk space")


@pytest.mark.parametrize(("program", "door"), SCRIPTS.items())
def test_a_file_in_pipelines_opens_its_program_and_no_more(program, door):
    text = (ROOT / "pipelines" / door).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 12
    assert text.endswith(f'\nif __name__ == "__main__":\n    run_script("{program}")\n')
    assert callable(program_module(program).main)
