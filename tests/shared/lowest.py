"""Prints pip constraints with the lowest versions that setup.cfg allows: `make test-lowest`."""

import configparser
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def constraints():
    """Returns a sorted list of str such as `"keras==3.10"`, one for each requirement with a lower bound."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    lists = [settings["options"]["install_requires"], *settings["options.extras_require"].values()]
    found = re.findall(r"(?m)^([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)", "\n".join(lists))
    return sorted({f"{name}=={version}" for name, version in found})


if __name__ == "__main__":
    print("\n".join(constraints()))
