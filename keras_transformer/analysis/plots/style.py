"""Shared helpers of all plots: figures with panels, curves with legends, colours, text."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

# Colours by Okabe and Ito: distinguishable with any colour vision, and in greyscale.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS = "osD^vPX*"
STYLES = ("-", "--", "-.", ":")


def subplots(width, height, rows=1, columns=1, *, title="", layout="constrained", **shared):
    """Returns a figure with panels, and a list of their axes, row by row.

    Args:
        width: width of the figure in inches.
        height: height of the figure in inches.
        rows: int, number of rows of panels.
        columns: int, number of columns of panels.
        title: title of the figure.
        layout: layout engine of matplotlib, `"constrained"` or `"compressed"`.
        **shared: `sharex` and `sharey` of `Figure.subplots`.
    """
    figure = Figure(figsize=(width, height), layout=layout)
    if title:
        figure.suptitle(*drawable([title]))
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def draw_curves(axes, curves, *, marked=True):
    """Plots curves with a legend.

    Args:
        axes: matplotlib axes of a panel.
        curves: dict: name -> (x, y).
        marked: whether curves differ by markers; else by line styles.
    """
    for number, (name, (x, y)) in enumerate(curves.items()):
        look = {"color": COLOURS[number % len(COLOURS)], "label": name}
        dashes = number // len(COLOURS) if marked else number
        marker = MARKERS[number % len(MARKERS)] if marked else ""
        axes.plot(x, y, marker=marker, markersize=4, linestyle=STYLES[dashes % len(STYLES)], **look)
    axes.legend(frameon=False)
    tidy(axes)


def name_ticks(axes, ticks):
    """Labels a logarithmic x axis with these numbers only."""
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def draw_map(axes, values, rows=(), columns=(), *, fontsize=None):
    """Plots numbers from 0 to 1 as shades of blue.

    Args:
        axes: matplotlib axes of a panel.
        values: float NumPy array, shape `(num_rows, num_columns)`.
        rows: list of str, labels of the rows, from top to bottom.
        columns: list of str, labels of the columns.
        fontsize: size of the labels, in points.

    Returns:
        matplotlib image, for a colour bar.
    """
    axes.set_xticks(range(len(columns)), drawable(columns), rotation=90, fontsize=fontsize)
    axes.set_yticks(range(len(rows)), drawable(rows), fontsize=fontsize)
    return axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="equal")


def tidy(axes):
    """Gives axes a light grid and removes the top and right frame lines."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def drawable(texts):
    """Escapes `$` in a list of str, so matplotlib does not parse formulas."""
    return [text.replace("$", r"\$") for text in texts]
