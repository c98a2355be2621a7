"""The two descriptions beside an exported model.

The model card of a SavedModel: languages, data, scores, sizes, limits, licences. For the other formats
`keras_transformer.json`: the settings needed to use the model without its run.
"""

import dataclasses
import json
import pathlib

from keras_transformer import __version__
from keras_transformer.config import programs
from keras_transformer.config.settings import replace

FACTS = "keras_transformer.json"

CARD = "assets.extra/model_card.json"
TEXT = "assets.extra/model_card.md"
NOT_STATED = "not stated"


def make_card(run, settings, *, name, weights, num_parameters, versions, licences):
    """Describes an exported model, from what its run knows.

    It has neither a time nor a place of this machine: the same run gives the same card.

    Args:
        run: `RunFolder`.
        settings: `ServingSettings`.
        name: str, of the model on the server.
        weights: name of the weights.
        num_parameters: int.
        versions: dict, library -> version.
        licences: dict with `model` and `data`; `None` for what is not stated.

    Returns:
        dict that JSON can hold.
    """
    config = run.config
    history = run.read_history()
    trained = [record for record in history if record["kind"] in ("train", "validation")]
    # Training scores what it delivers; nothing is known of others. Earlier versions delivered the average.
    delivered = [record["weights"] for record in history if record["kind"] == "final"] or ["averaged"]
    is_scored = weights in ("final", delivered[-1])
    tests = [record for record in history if record["kind"] == "test" and is_scored]
    tests = {record["split"]: record for record in tests}  # a run that went on was tested again
    corpus = run.path / "corpus.sha256"
    search = dataclasses.asdict(settings.search)
    for useless in ("sampling", "temperature", "top_k", "top_p", "seed", "long_lines"):
        del search[useless]
    return {
        "name": name,
        "task": "machine translation",
        "languages": {"source": config.data.source, "target": config.data.target},
        "data": {
            "dataset": [_public(part) for part in config.data.dataset.split(",")],
            "sha256": corpus.read_text(encoding="utf-8").split()[0] if corpus.exists() else None,
        },
        "training": {key: trained[-1].get(key) for key in ("step", "minutes")} if trained else {},
        "weights": {"name": weights, "parameters": num_parameters, "frozen": settings.frozen},
        "scores": list(tests.values()),
        "model": dataclasses.asdict(config.model),
        "search": {**search, "n_best": settings.n_best},
        "inputs": list(settings.inputs),
        "limits": {
            "sentences": settings.max_sentences,
            "characters": settings.max_characters,
            "tokens": settings.max_tokens(config.model),
        },
        "licence": {key: licences.get(key) or NOT_STATED for key in ("model", "data")},
        "made_with": {"keras_transformer": __version__, **versions},
    }


def write_card(folder, card):
    """Writes a card as JSON and as Markdown into the folder of a version."""
    (folder / CARD).parent.mkdir(exist_ok=True)
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / TEXT).write_text(_markdown(card), encoding="utf-8")


def _public(dataset):
    """A path of this machine is no one's business; a name in a catalogue is."""
    dataset = dataset.strip()
    is_path = dataset.startswith((".", "/", "~"))
    return pathlib.PurePath(dataset).name if is_path else dataset


def _markdown(card):
    model, search, limits, weights = card["model"], card["search"], card["limits"], card["weights"]
    rows = [
        ("languages", f"{card['languages']['source']} to {card['languages']['target']}"),
        ("trained on", ", ".join(card["data"]["dataset"])),
        ("SHA-256 of the training ids", card["data"]["sha256"] or NOT_STATED),
        ("updates", _number(card["training"].get("step"))),
        ("minutes of training", _number(card["training"].get("minutes"))),
        ("weights", f"{weights['name']}, {weights['parameters']:,} parameters"),
        (
            "sizes",
            f"{model['num_encoder_layers']} + {model['num_decoder_layers']} layers, d {model['d_model']}, "
            f"feed-forward {model['d_ff']}, {model['num_heads']} heads, "
            f"{model['source_vocab_size']:,} + {model['target_vocab_size']:,} tokens, "
            f"sharing {model['sharing']}",
        ),
        (
            "search",
            f"beam {search['beam_size']}, alpha {search['alpha']:g} ({search['length_penalty']})"
            + "".join(f", {name} is an input" for name in card["inputs"]),
        ),
        (
            "limits of a call",
            f"{limits['sentences']} sentences; of each, {limits['characters']:,} characters and "
            f"{limits['tokens']:,} tokens, the rest is cut off",
        ),
        ("licence of the model", _cell(card["licence"]["model"])),
        ("licence of the data", _cell(card["licence"]["data"])),
        ("made with", ", ".join(f"{library} {version}" for library, version in card["made_with"].items())),
    ]
    signatures = []
    for test in card["scores"]:
        lines = f"{test['num_lines']:,} lines of {test['split']}"
        for figure in ("bleu", "chrf"):
            if figure in test:
                rows.append((f"{figure} of {lines}", f"{test[figure]:.2f}"))
                signature = test.get(f"{figure}_signature", NOT_STATED)
                signatures.append(f"- {figure} of {lines}: `{signature}`\n")
    if not card["scores"]:
        rows.append(("scores", "none were measured with these weights"))
    table = "".join(f"| {name} | {value} |\n" for name, value in rows)
    text = f"# {card['name']}\n\n| {card['task']} | |\n|---|---|\n{table}"
    # Below the table: in one, a signature's bars would end its cell, and escaped they show in some viewers.
    return text + "".join(["\nSignatures of sacreBLEU:\n\n", *signatures] if signatures else [])


def _cell(text):
    """Text as a cell of a table takes it."""
    return " ".join(text.split()).replace("|", "\\|")


def _number(value):
    return NOT_STATED if value is None else f"{value:,.0f}"


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
            f"{path}: not an exported model, or damaged ({error}). "
            f"Export it with {programs.command('export')}"
        ) from error
    if kind not in kinds:
        raise ValueError(f"{path}: the model's format must be {' or '.join(kinds)}. Received: {kind!r}")
    return facts
