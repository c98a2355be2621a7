"""Which Python runs which peer: one that a variable names, or one that is made under `.venv-bench/`."""

import os
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-bench"
# Environments, and the newest Python that the libraries in them have been released for.
NEWEST_PYTHON = {
    "torch": (3, 13),
    "opennmt_tf": (3, 11),
    "tf_models": (3, 12),
    "kerashub": (3, 13),
    "joeynmt": (3, 11),
}
# Indexes beside pip's own, of smaller builds for CPUs; the same versions are on PyPI.
EXTRA_INDEX = {"torch": "https://download.pytorch.org/whl/cpu"}
_SECONDS_TO_ANSWER = 10
# Some gigabytes; what takes longer will not end.
_SECONDS_TO_INSTALL = 3600
# The peer that is this package as another checkout has it.
BEFORE = "before"
# Peers whose environment is not named as they are; ours run where this program does.
ENVIRONMENT_OF = {
    BEFORE: "ours",
    "marian": "torch",
    "ctranslate2": "torch",
    "ours": "ours",
    "ours_jax": "ours",
    "ours_saved_model": "ours",
    "ours_ctranslate2": "ours",
}


def environment_of(peer):
    """The name of a peer's environment.

    Args:
        peer: str, `NAME` or `NAME:VARIANT`.

    Returns:
        str, `"ours"` or a key of `NEWEST_PYTHON`.
    """
    name = peer.partition(":")[0]
    return ENVIRONMENT_OF.get(name, name)


def variable_of(environment):
    """Returns the variable that names the Python of an environment: `PEER_TORCH` of `torch`."""
    return f"PEER_{environment.upper()}"


def python_of(environment, *, folder=FOLDER):
    """The Python of an environment.

    Args:
        environment: str, `"ours"` or a key of `NEWEST_PYTHON`.
        folder: `pathlib.Path`, where environments are made.

    Returns:
        str, a path.

    Raises:
        ValueError: there is none.
    """
    named = os.environ.get(variable_of(environment))
    if named:
        return named
    if environment == "ours":
        return sys.executable
    made = folder / environment / "bin" / "python"
    if (folder / environment / ".installed").exists():
        return str(made)
    raise ValueError(f"no environment: `make bench` makes it, or {variable_of(environment)} names a Python")


def install(environment, *, folder=FOLDER, run=subprocess.run, limit=_SECONDS_TO_INSTALL):
    """Makes an environment from its requirements, unless it is there or a variable names one.

    Args:
        environment: str, a key of `NEWEST_PYTHON`.
        folder: `pathlib.Path`, where it is made.
        run: as `subprocess.run`.
        limit: seconds until each of its commands is given up.

    Raises:
        ValueError: no Python is old enough, or a requirement cannot be installed, or not in time.
    """
    target = folder / environment
    if os.environ.get(variable_of(environment)) or (target / ".installed").exists():
        return
    requirements = pathlib.Path(__file__).parent / f"requirements-{environment}.txt"
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    # pip would ask an index that is silent six times for each package, a quarter of a minute each.
    pip += ["--timeout", "15", "--retries", "1", *_extra_index(environment)]
    commands = [
        [_base_python(NEWEST_PYTHON[environment]), "-m", "venv", "--clear", str(target)],
        [*pip, "-r", str(requirements)],
    ]
    # Some ask for more than they need here, or for what contradicts the rest.
    alone = requirements.with_name(f"requirements-{environment}-no-deps.txt")
    if alone.exists():
        commands.append([*pip, "--no-deps", "-r", str(alone)])
    for command in commands:
        try:
            done = run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            reason = f"no end within {limit:,.0f} s"
        else:
            reason = (
                (done.stderr.strip().splitlines() or ["no reason given"])[-1] if done.returncode else None
            )
        if reason:
            raise ValueError(
                f"{environment} cannot be installed: {reason}. {variable_of(environment)} may name a Python "
                "that has the libraries"
            )
    (target / ".installed").touch()


def _extra_index(environment):
    """Returns pip's options for the index of an environment, if it has one that answers."""
    index = EXTRA_INDEX.get(environment)
    if not index:
        return []
    if answers(index):
        return ["--extra-index-url", index]
    print(
        f"{index} does not answer within {_SECONDS_TO_ANSWER} s: {environment} is taken from PyPI",
        file=sys.stderr,
        flush=True,
    )
    return []


def answers(url, seconds=_SECONDS_TO_ANSWER):
    """Whether a server says anything at all within some seconds.

    Args:
        url: str.
        seconds: float.
    """
    try:
        with urllib.request.urlopen(url, timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return True  # it is there, whatever it thinks of the question
    except (OSError, ValueError):
        return False


def _base_python(newest):
    if sys.version_info[:2] <= newest:
        return sys.executable
    name = "python{}.{}".format(*newest)
    found = shutil.which(name)
    if not found:
        raise ValueError(f"{name} is needed and not on the path")
    return found
