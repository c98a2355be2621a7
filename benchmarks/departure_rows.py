"""The named departures of the model from the paper, one at a time: the rows of a grid, and its table."""

import statistics

from table3_rows import BASE, Row, by_row, mean_and_range


def grid(config, preset=""):
    """Returns the base row, and a row for each departure.

    Gated feed-forward networks have two thirds of the base row's d_ff, rounded to a multiple of 8, so that
    their three matrices have as many weights as its two (Shazeer, 2020).

    Args:
        config: `Config` of the base row.
        preset: its name; makes no difference.

    Returns:
        list of `Row`. Departures that the base row has already are left out.
    """
    gated = 8 * max(1, round(config.model.d_ff / 12))
    changes = [
        ("positions", "relative", {"positions": "relative"}),
        ("positions", "rotary", {"positions": "rotary"}),
        ("normalization", "QK-norm", {"qk_norm": "true"}),
        ("normalization", "RMSNorm", {"norm": "rms"}),
        ("feed-forward", "SwiGLU", {"activation": "swiglu", "d_ff": gated}),
        ("feed-forward", "GEGLU", {"activation": "geglu", "d_ff": gated}),
    ]
    rows = [Row("", BASE, [], BASE)]
    for group, name, settings in changes:
        (field, value), *_ = settings.items()
        if str(getattr(config.model, field)).lower() != value:
            rows.append(Row(group, name, [f"model.{key}={value}" for key, value in settings.items()], ""))
    return rows


def markdown(records):
    """Returns the table in Markdown, the base row first.

    Training and search have the speed of the row over that of the base row: geometric means over the seeds
    that both have.

    Raises:
        ValueError: as `table3_rows.by_row`.
    """
    rows = by_row(records)
    bases = {record["seed"]: record for record in rows.get(BASE, [])}
    lines = [
        "| row | seeds | weights | perplexity | BLEU | speed of training | of search |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(rows, key=lambda name: name != BASE):
        own = rows[name]
        figures = (mean_and_range([r[key] for r in own], n) for key, n in (("perplexity", 3), ("bleu", 2)))
        pairs = [(record, bases[record["seed"]]) for record in own if record["seed"] in bases]
        training = ratio((base["minutes"], row["minutes"]) for row, base in pairs)
        search = ratio((row["sentences_per_second"], base["sentences_per_second"]) for row, base in pairs)
        cells = name, len(own), f"{own[0]['parameters']:,}", *figures, training, search
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", f"BLEU: `{records[0]['signature']}`"])


def ratio(pairs):
    """Returns the geometric mean of a / b over pairs as text; "" without pairs, or if one has no number."""
    pairs = list(pairs)
    if not pairs or not all(a and b for a, b in pairs):
        return ""
    return f"{statistics.geometric_mean(a / b for a, b in pairs):.2f}"
