"""The rows of the paper's Table 3, scaled to any base model, and the table of what was measured."""

import statistics
from typing import NamedTuple

import table3_records

BASE = "base"


class Row(NamedTuple):
    """One model of a grid: a variation of the base model.

    Attributes:
        group: `"(A)"` to `"(E)"`, as in the paper; `""` for the base model.
        name: what differs from the base model, unique.
        settings: list of `"section.field=value"`.
        counterpart: key of the paper's row in `PAPER`, or one that is not there.
    """

    group: str
    name: str
    settings: list
    counterpart: str


class Figures(NamedTuple):
    """Perplexity per word piece and BLEU on newstest2013, from the paper's Table 3."""

    perplexity: float
    bleu: float


PAPER = {
    BASE: Figures(4.92, 25.8),
    "heads, fewest": Figures(5.29, 24.9),
    "heads, fewer": Figures(5.00, 25.5),
    "heads, more": Figures(4.91, 25.8),
    "heads, most": Figures(5.01, 25.4),
    "d_k / 4": Figures(5.16, 25.1),
    "d_k / 2": Figures(5.01, 25.4),
    "layers, fewest": Figures(6.11, 23.7),
    "layers, fewer": Figures(5.19, 25.3),
    "layers, more": Figures(4.88, 25.5),
    "d_model / 2": Figures(5.75, 24.5),
    "d_model * 2": Figures(4.66, 26.0),
    "d_ff / 2": Figures(5.12, 25.4),
    "d_ff * 2": Figures(4.75, 26.2),
    "dropout 0": Figures(5.77, 24.6),
    "dropout more": Figures(4.95, 25.5),
    "smoothing 0": Figures(4.67, 25.3),
    "smoothing 0.2": Figures(5.47, 25.7),
    "learned positions": Figures(4.92, 25.7),
}
# Of rows in tables and plots; "dropout less" is only in grids of models with more dropout than the paper's.
ORDER = [*PAPER]
ORDER.insert(ORDER.index("dropout more"), "dropout less")
# Printed below the table.
SIGNS = (
    "Sign of both: the row differs from the base row as the paper's does (agrees), the other way (differs), "
    "or not beyond the range of the seeds (within seeds); two entries are for perplexity and BLEU, - where "
    "the paper has no difference."
)


def grid(config, preset=""):
    """Returns the rows for a base model.

    Args:
        config: `Config` of the base row.
        preset: its name; `base` gives exactly the paper's rows. Other models get heads h / 4, h / 2, 2 h and
            4 h, N / 2 and 3 N / 2 layers, dropout 0 and 0.1, and otherwise the paper's factors. Variations
            that equal the base row or are impossible are left out.

    Returns:
        list of `Row`.
    """
    model, smoothing = config.model, config.training.label_smoothing
    layers, heads, d_model, d_ff = model.num_encoder_layers, model.num_heads, model.d_model, model.d_ff
    rows = [Row("", BASE, [], BASE)]

    def add(group, counterpart, name, value, *paths, **others):
        settings = [f"{path}={value}" for path in paths]
        settings += [f"model.{other}={number}" for other, number in others.items()]
        rows.append(Row(group, f"{name} {value}", settings, counterpart))

    numbers = (1, 4, 16, 32) if preset == "base" else (heads // 4, heads // 2, 2 * heads, 4 * heads)
    for which, number in zip(("fewest", "fewer", "more", "most"), numbers, strict=True):
        if number and d_model % number == 0:
            add("(A)", f"heads, {which}", "heads", number, "model.num_heads")
    for divisor in (4, 2):
        value = model.d_key // divisor
        add("(B)", f"d_k / {divisor}", "d_k", value, "model.key_dim", value_dim=model.d_value)
    numbers = (2, 4, 8) if preset == "base" else (0, layers // 2, layers + layers // 2)
    for which, number in zip(("fewest", "fewer", "more"), numbers, strict=True):
        if number:
            paths = ("model.num_encoder_layers", "model.num_decoder_layers")
            add("(C)", f"layers, {which}", "layers", number, *paths)
    for name, size in (("d_model", d_model), ("d_ff", d_ff)):
        add("(C)", f"{name} / 2", name, size // 2, f"model.{name}")
        add("(C)", f"{name} * 2", name, size * 2, f"model.{name}")
    for rate in (0.0, 0.2) if preset == "base" else (0.0, 0.1):
        if rate != model.residual_dropout:
            counterpart = "dropout 0" if rate == 0 else f"dropout {'more' if preset == 'base' else 'less'}"
            paths = ("model.residual_dropout", "model.embedding_dropout")
            add("(D)", counterpart, "dropout", rate, *paths)
    for value in (0.0, 0.2):
        if value != smoothing:
            add("(D)", f"smoothing {value:g}", "label smoothing", value, "training.label_smoothing")
    if model.positions != "learned":
        add("(E)", "learned positions", "positions", "learned", "model.positions")
    return rows


class Summary(NamedTuple):
    """One row of the table: mean and range over the seeds.

    Attributes:
        row: its name.
        seeds: number of models.
        parameters: number of weights.
        perplexities: list of float, one for each seed.
        bleus: list of float, likewise.
        minutes: float, mean minutes of training.
        counterpart: key of the paper's row.
    """

    row: str
    seeds: int
    parameters: int
    perplexities: list
    bleus: list
    minutes: float
    counterpart: str


def by_row(records):
    """Returns the records of each row, one for each seed: the last.

    Returns:
        dict: name of a row, in the order of first occurrence -> list of dict.

    Raises:
        ValueError: the records are of different datasets, presets, settings or weights, or of none.
    """
    if not records:
        raise ValueError("there are no records yet")
    first = records[0]["common"]
    for record in records:
        if difference := table3_records.difference(record["common"], first):
            raise ValueError(f"some records have {difference}: show records of the same command only")
    rows = {}
    for record in records:
        rows.setdefault(record["row"], {})[record["seed"]] = record
    return {name: list(seeds.values()) for name, seeds in rows.items()}


def summaries(records):
    """Returns a `Summary` of each row, in the order of the paper's table, the base row first.

    Rows that the paper's table does not have come last, in the order of the records.

    Raises:
        ValueError: as `by_row`.
    """
    found = []
    places = {counterpart: place for place, counterpart in enumerate(ORDER)}
    rows = by_row(records).items()
    for name, own in sorted(rows, key=lambda row: places.get(row[1][0]["counterpart"], len(ORDER))):
        perplexities, bleus, minutes = (
            [record[key] for record in own] for key in ("perplexity", "bleu", "minutes")
        )
        counts = len(own), own[0]["parameters"]
        figures = perplexities, bleus, statistics.fmean(minutes)
        found.append(Summary(name, *counts, *figures, own[0]["counterpart"]))
    return found


def agreement(row, base, *, key):
    """Compares the sign of a row's difference from the base row with the paper's.

    Args:
        row: `Summary`.
        base: `Summary` of the base row.
        key: `"perplexity"` or `"bleu"`.

    Returns:
        str: `"agrees"`, `"differs"`, `"within seeds"` (the ranges of the two rows overlap), or `""`
        (the paper has no such row, or no difference).
    """
    if row.counterpart == BASE or row.counterpart not in PAPER:
        return ""
    theirs = getattr(PAPER[row.counterpart], key) - getattr(PAPER[BASE], key)
    if not theirs:
        return ""
    own, bases = ((item.perplexities if key == "perplexity" else item.bleus) for item in (row, base))
    if min(own) <= max(bases) and min(bases) <= max(own):
        return "within seeds"
    return "agrees" if (statistics.fmean(own) > statistics.fmean(bases)) == (theirs > 0) else "differs"


def markdown(records):
    """Returns the table in Markdown: ours with seeds, the paper's beside it, and whether the signs agree."""
    rows = summaries(records)
    base = rows[0] if rows[0].row == BASE else None
    lines = [
        "| row | seeds | weights | perplexity | BLEU | minutes | paper: perplexity | BLEU | sign of both |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper = PAPER.get(row.counterpart)
        theirs = (f"{paper.perplexity:.2f}", f"{paper.bleu:.1f}") if paper else ("", "")
        signs = [agreement(row, base, key=key) for key in ("perplexity", "bleu")] if base else [""]
        both = signs[0] if len(set(signs)) == 1 else f"{signs[0] or '-'}, {signs[1] or '-'}"
        figures = mean_and_range(row.perplexities, 3), mean_and_range(row.bleus, 2)
        cells = (row.row, row.seeds, f"{row.parameters:,}", *figures, f"{row.minutes:.0f}", *theirs, both)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", SIGNS, f"BLEU: `{records[0]['signature']}`"])


def mean_and_range(values, digits):
    """Returns the mean of numbers as text, and the range if there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
