"""The records of `table3.py`: one line of JSON for each model that was trained and measured."""

import json
import math
import sys

# Field of a record -> types of its value. Other fields may follow.
FIELDS = {
    "row": str,
    "counterpart": str,
    "seed": int,
    "common": dict,
    "settings": list,
    "parameters": int,
    "perplexity": (int, float, type(None)),
    "bleu": (int, float),
    "signature": str,
    "minutes": (int, float),
}
# What all rows of a command have in common: its flags.
COMMON = ("dataset", "source", "target", "preset", "set", "checkpoint")
# A record without a grid is older than the grids.
FIRST_GRID = "table3"


def read_all(paths):
    """Returns the records of all grids from files of JSON lines, or from folders with a records.jsonl.

    A last line that is cut off is skipped, and standard error says so. The perplexity of a model that was
    stopped is infinity.

    Raises:
        OSError: a file cannot be read.
        ValueError: a line is not a record; the message names the file, the line and the remedy.
    """
    records = []
    for path in paths:
        path = path / "records.jsonl" if path.is_dir() else path
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if line.endswith(b"\n"):
                records.append(_record(line, f"{path}, line {number}"))
            else:
                print(f"{path}, line {number}: skipped, because it is cut off", file=sys.stderr, flush=True)
    return records


def read_grid(paths, grid):
    """Returns the records of one grid, as `read_all` does.

    Raises:
        OSError, ValueError: as `read_all`; or there are only records of other grids.
    """
    records = read_all(paths)
    own = [record for record in records if record["grid"] == grid]
    if records and not own:
        others = " or ".join(f"--grid {name}" for name in sorted({record["grid"] for record in records}))
        raise ValueError(f"there are no records of --grid {grid}, only of others: give {others}")
    return own


def append(path, record):
    """Appends a record to a file, in place of a last line that is cut off."""
    with open(path, "a+b") as file:
        file.seek(0)
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
        file.write(json.dumps(record).encode() + b"\n")


def check_common(records, common):
    """Checks that records can stand beside those of a new command.

    Args:
        records: records of the folder that belong to the grid, or to a model that is to be trained.
        common: dict, what the new rows have in common. Another `checkpoint` is possible: the same models.

    Raises:
        ValueError: a record is of another dataset, preset or setting; the message names both values.
    """
    for record in records:
        if names := different({**record["common"], "checkpoint": common["checkpoint"]}, common):
            raise ValueError(
                f"has models with another {names[0]}: {_text(record['common'], names[0])}, not "
                f"{_text(common, names[0])}. Give another folder, or the same settings"
            )


def different(common, other):
    """Returns the names of the values in which two records' `common` differ."""
    return [name for name in {**other, **common} if common.get(name) != other.get(name)]


def _text(common, name):
    value = common.get(name)
    return (" ".join(value) or "none") if isinstance(value, list) else value


def _record(line, place):
    """Returns the record of a line.

    Raises:
        ValueError: it is none.
    """
    remedy = "Remove the line; the command that made it then measures that model again"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({type(error).__name__}). {remedy}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{place}: not a record of a model. {remedy}")
    for name, types in FIELDS.items():
        value = record.get(name)
        number = isinstance(value, float)
        if name not in record or not isinstance(value, types) or (number and not math.isfinite(value)):
            given = repr(value) if name in record else "no value"
            raise ValueError(f"{place}: not a record of a model, {name!r} has {given}. {remedy}")
    if set(record["common"]) != set(COMMON):
        raise ValueError(f"{place}: 'common' must have {', '.join(COMMON)}. {remedy}")
    perplexity = math.inf if record["perplexity"] is None else record["perplexity"]
    return {"grid": FIRST_GRID, **record, "perplexity": perplexity}
