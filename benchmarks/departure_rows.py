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

    Training and search have the speed of the row over that of the base row.

    Raises:
        ValueError: as `table3_rows.by_row`.
    """
    rows = by_row(records)
    order = sorted(rows, key=lambda name: name != BASE)
    speeds = {
        name: [statistics.fmean(values) for values in ((1 / r["minutes"] for r in own), _search(own))]
        for name, own in rows.items()
    }
    lines = [
        "| row | seeds | weights | perplexity | BLEU | speed of training | of search |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in order:
        own = rows[name]
        figures = (mean_and_range([r[key] for r in own], n) for key, n in (("perplexity", 3), ("bleu", 2)))
        ratios = ["", ""]
        if BASE in rows:
            ratios = [f"{a / b:.2f}" for a, b in zip(speeds[name], speeds[BASE], strict=True)]
        cells = name, len(own), f"{own[0]['parameters']:,}", *figures, *ratios
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", f"BLEU: `{records[0]['signature']}`"])


def _search(records):
    """Returns sentences per second of each seed."""
    return [record["sentences_per_second"] for record in records]
