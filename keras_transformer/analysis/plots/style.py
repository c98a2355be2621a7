"""What all pictures share: figures with panels, named curves, colours, texts."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

# Okabe and Ito's colours: distinct for every kind of colour vision, and in grey.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS = "osD^vPX*"
STYLES = ("-", "--", "-.", ":")


def subplots(width, height, rows=1, columns=1, *, title="", layout="constrained", **shared):
    """Returns a figure of this size in inches, and a list of its axes, row by row.

    Args:
        width: of the figure.
        height: of the figure.
        rows: of panels.
        columns: of panels.
        title: above all panels.
        layout: matplotlib's, `"constrained"` or `"compressed"`.
        **shared: what panels share: `sharex`, `sharey`.
    """
    figure = Figure(figsize=(width, height), layout=layout)
    if title:
        figure.suptitle(title)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def draw_curves(axes, curves, *, marked=True):
    """Draws named curves with their legend.

    Args:
        axes: of a panel.
        curves: dict: name -> (x, y).
        marked: tells curves apart by markers, not by dashes.
    """
    for number, (name, (x, y)) in enumerate(curves.items()):
        look = {"color": COLOURS[number % len(COLOURS)], "label": name}
        dashes = number // len(COLOURS) if marked else number
        marker = MARKERS[number % len(MARKERS)] if marked else ""
        axes.plot(x, y, marker=marker, markersize=4, linestyle=STYLES[dashes % len(STYLES)], **look)
    axes.legend(frameon=False)
    tidy(axes)


def name_ticks(axes, ticks):
    """Writes these numbers, and no others, below a logarithmic axis."""
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def draw_map(axes, values, rows=(), columns=(), *, fontsize=None):
    """Draws numbers from 0 to 1 as shades of blue.

    Args:
        axes: of a panel.
        values: float NumPy array, shape `(num_rows, num_columns)`.
        rows: list of str, beside the rows, the first on top.
        columns: list of str, below the columns.
        fontsize: of both, in points.

    Returns:
        matplotlib's image, for a colour bar.
    """
    axes.set_xticks(range(len(columns)), drawable(columns), rotation=90, fontsize=fontsize)
    axes.set_yticks(range(len(rows)), drawable(rows), fontsize=fontsize)
    return axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="equal")


def tidy(axes):
    """Gives axes a light grid and no frame above and to the right."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def drawable(texts):
    """Returns texts, a list of str, without what would begin a formula."""
    return [text.replace("$", r"\$") for text in texts]
