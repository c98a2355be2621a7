"""Which Python runs which peer: one that a variable names, or one that is made under `.venv-bench/`."""

import os
import pathlib
import shutil
import subprocess
import sys

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
# Peers whose environment is not named as they are; ours run where this program does.
ENVIRONMENT_OF = {
    "marian": "torch",
    "ctranslate2": "torch",
    "ours": "ours",
    "ours_saved_model": "ours",
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


def install(environment, *, folder=FOLDER, run=subprocess.run):
    """Makes an environment from its requirements, unless it is there or a variable names one.

    Args:
        environment: str, a key of `NEWEST_PYTHON`.
        folder: `pathlib.Path`, where it is made.
        run: as `subprocess.run`.

    Raises:
        ValueError: no Python is old enough, or a requirement cannot be installed.
    """
    target = folder / environment
    if os.environ.get(variable_of(environment)) or (target / ".installed").exists():
        return
    requirements = pathlib.Path(__file__).parent / f"requirements-{environment}.txt"
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    commands = [
        [_base_python(NEWEST_PYTHON[environment]), "-m", "venv", "--clear", str(target)],
        [*pip, "-r", str(requirements)],
    ]
    # Some ask for more than they need here, or for what contradicts the rest.
    alone = requirements.with_name(f"requirements-{environment}-no-deps.txt")
    if alone.exists():
        commands.append([*pip, "--no-deps", "-r", str(alone)])
    for command in commands:
        done = run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ValueError(f"{environment} cannot be installed: {reason}")
    (target / ".installed").touch()


def _base_python(newest):
    if sys.version_info[:2] <= newest:
        return sys.executable
    name = "python{}.{}".format(*newest)
    found = shutil.which(name)
    if not found:
        raise ValueError(f"{name} is needed and not on the path")
    return found
