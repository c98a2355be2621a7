"""The records of `table3.py`, one line of JSON for each model: measured, written and read."""

import json
import math
import sys
import time

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


def measure(run_dir, checkpoint, *, stopped=False):
    """Measures one model on the validation split.

    Args:
        run_dir: str, path of a finished run folder.
        checkpoint: name of its weights.
        stopped: whether training was stopped because the gradient was not finite. Such a model has no
            perplexity, and empty translations.

    Returns:
        dict: parameters, perplexity (or `None`), bleu, signature, steps and minutes of training, and
        sentences_per_second of the search (or `None`), timed in a second pass.
    """
    from keras_transformer.cli.process import import_quietly

    import_quietly("keras_transformer.translation.scorer")
    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.evaluation.bleu import bleu_scorer
    from keras_transformer.model.transformer import Transformer
    from keras_transformer.text.datasets import open_split
    from keras_transformer.translation.scorer import Scorer, perplexity
    from keras_transformer.translation.translator import Translator

    run = RunFolder(run_dir)
    data = run.config.data
    pairs = open_split(data.dataset, "validation", data.source, data.target).load(
        on_bad_utf8=data.on_bad_utf8
    )
    if stopped:
        model, measured, translations = Transformer(run.config.model), None, [""] * len(pairs.source)
        rate = None
    else:
        scorer = Scorer.load(run_dir, checkpoint=checkpoint, max_length=1024)
        model, measured = scorer.model, perplexity(scorer.score(pairs.source, pairs.target))
        translator = Translator.load(run_dir, checkpoint=checkpoint)
        translations = translator.translate(pairs.source)
        start = time.monotonic()
        translator.translate(pairs.source)
        rate = len(pairs.source) / (time.monotonic() - start)
    bleu = bleu_scorer(data.target)
    score = bleu.corpus_score(translations, [pairs.target]).score
    steps = [record for record in run.read_history() if record["kind"] == "train"]
    last = steps[-1] if steps else {"step": 0, "minutes": 0.0}
    return {
        "parameters": model.count_params(),
        "perplexity": measured,
        "bleu": score,
        "signature": str(bleu.get_signature()),
        "steps": last["step"],
        "minutes": last["minutes"],
        "sentences_per_second": rate,
        "measured": time.strftime("%Y-%m-%d"),
    }


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


def difference(common, other):
    """Returns the first value in which the `common` of two records differs, as text; "" if there is none."""
    for name in COMMON:
        values = common[name], other[name]
        if values[0] != values[1]:
            flag = name if name == "dataset" else f"--{name}"
            texts = ((" ".join(value) or "nothing") if isinstance(value, list) else value for value in values)
            return "{} {}, not {}".format(flag, *texts)
    return ""


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
