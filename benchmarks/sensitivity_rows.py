"""How post-norm and pre-norm depend on learning rate and warm-up: the rows of a grid, and its table."""

import statistics
from typing import NamedTuple

from table3_rows import Row, by_row, mean_and_range

# Relative to the preset's own.
PEAKS = (1 / 4, 1 / 2, 1, 2, 4)
WARMUPS = (1 / 8, 1)
# A model that translates every sentence alike has a BLEU below this.
LEAST_BLEU = 1.0


def grid(config, preset=""):
    """Returns the rows for a base model: both orders of norm, each with several peak rates and warm-ups.

    Args:
        config: `Config` of the preset; its peak learning rate is the middle one, its warm-up the longest.
        preset: its name; makes no difference.

    Returns:
        list of `Row`.

    Raises:
        ValueError: the longest warm-up does not end before training does.
    """
    training = config.training
    if training.warmup_steps >= training.max_steps:
        raise ValueError(
            f"training.max_steps={training.max_steps} must be above training.warmup_steps="
            f"{training.warmup_steps}, or the peak learning rate is not reached"
        )
    rows = []
    for norm_first in (False, True):
        for share in WARMUPS:
            warmup = max(1, round(training.warmup_steps * share))
            for factor in PEAKS:
                # The peak of equation 3 is proportional to warmup_steps^-0.5.
                scale = training.learning_rate_scale * factor * (warmup / training.warmup_steps) ** 0.5
                settings = [
                    f"model.norm_first={str(norm_first).lower()}",
                    f"training.learning_rate_scale={scale:.4g}",
                    f"training.warmup_steps={warmup}",
                ]
                group = norm_name(norm_first)
                peak = peak_rate(config.model.d_model, scale, warmup)
                rows.append(Row(group, f"{group} peak {peak:.3g} warm-up {warmup}", settings, ""))
    return rows


def norm_name(norm_first):
    """Returns the name of an order of norm."""
    return "pre-norm" if norm_first else "post-norm"


def peak_rate(d_model, scale, warmup_steps):
    """Returns the largest learning rate of equation 3 times `scale`: that of the last warm-up step."""
    return scale * (d_model * warmup_steps) ** -0.5


class Point(NamedTuple):
    """One row of the grid, over its seeds.

    Attributes:
        norm: `"post-norm"` or `"pre-norm"`.
        warmup: warm-up in updates.
        peak: peak learning rate.
        perplexities: list of float, validation perplexity of each seed; infinity for one that was stopped.
        bleus: list of float, likewise; 0 for one that was stopped.
        diverged: number of seeds that were stopped or have a BLEU below `LEAST_BLEU`.
        minutes: float, mean minutes of training.
    """

    norm: str
    warmup: int
    peak: float
    perplexities: list
    bleus: list
    diverged: int
    minutes: float


def points(records):
    """Returns the `Point` of each row, by order of norm (post-norm first), warm-up and peak.

    Raises:
        ValueError: as `table3_rows.by_row`.
    """
    from keras_transformer.config.presets import preset
    from keras_transformer.config.settings import override

    found = []
    for own in by_row(records).values():
        common = own[0]["common"]
        config = override(preset(common["preset"]), [*common["set"], *own[0]["settings"]])
        training = config.training
        peak = peak_rate(config.model.d_model, training.learning_rate_scale, training.warmup_steps)
        bleus = [record["bleu"] for record in own]
        found.append(
            Point(
                norm_name(config.model.norm_first),
                training.warmup_steps,
                peak,
                [record["perplexity"] for record in own],
                bleus,
                sum(bleu < LEAST_BLEU for bleu in bleus),
                statistics.fmean(record["minutes"] for record in own),
            )
        )
    return sorted(found)


def markdown(records):
    """Returns the table in Markdown."""
    lines = [
        "| order of norm | warm-up | peak learning rate | perplexity | BLEU | diverged | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for point in points(records):
        figures = mean_and_range(point.perplexities, 2), mean_and_range(point.bleus, 2)
        diverged = f"{point.diverged} of {len(point.bleus)}" if point.diverged else ""
        cells = point.norm, f"{point.warmup:,}", f"{point.peak:.3g}", *figures, diverged
        lines.append(f"| {' | '.join([*cells, f'{point.minutes:.0f}'])} |")
    legend = (
        "Diverged: training was stopped because the gradient was not finite (perplexity inf), or BLEU is "
        f"below {LEAST_BLEU:g}, as if every sentence had the same translation."
    )
    return "\n".join([*lines, "", legend, f"BLEU: `{records[0]['signature']}`"])
