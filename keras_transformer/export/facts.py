"""What an exported model says of itself, in `keras_transformer.json` beside it."""

import dataclasses
import json
import pathlib

from keras_transformer import __version__
from keras_transformer.config.settings import replace

FACTS = "keras_transformer.json"


def with_search(config, search):
    """Returns a `Config` with other settings of search.

    Args:
        config: `Config`.
        search: dict, name -> value; or `None`.

    Raises:
        ValueError: a setting that is refused.
    """
    return replace(config, search=replace(config.search, **(search or {})))


def write_facts(folder, kind, config, *, weights, versions, **more):
    """Writes what somebody needs who has the folder and not the run.

    Of the run's settings it has those of the model and of search, and the languages: neither
    time nor place, nor where the text came from.

    Args:
        folder: an existing folder.
        kind: str, the format.
        config: `Config` of the run.
        weights: name of the weights.
        versions: dict, library -> version.
        **more: what else belongs there.
    """
    facts = {
        "format": kind,
        "weights": weights,
        "languages": {"source": config.data.source, "target": config.data.target},
        "model": dataclasses.asdict(config.model),
        "search": dataclasses.asdict(config.search),
        "made_with": {"keras_transformer": __version__, **versions},
        **more,
    }
    (pathlib.Path(folder) / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def read_facts(folder, kinds):
    """Returns the dict that `write_facts` wrote.

    Args:
        folder: its path.
        kinds: the formats which it may be of.

    Raises:
        ValueError: no such file, or of another format.
    """
    path = pathlib.Path(folder) / FACTS
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        kind = facts["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: not an exported model, or damaged ({error}). Export it with export_model.py"
        ) from error
    if kind not in kinds:
        raise ValueError(f"{path}: the model's format must be {' or '.join(kinds)}. Received: {kind!r}")
    return facts
