"""Diagrams of the model and of attention: the paper's figures 1 and 2, with shapes and section numbers."""

from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from keras_transformer.analysis.plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW, subplots

_ATTENTION, _FEED_FORWARD, _NORM, _EMBEDDING, _LINEAR, _SOFTMAX = ORANGE, SKY, YELLOW, PURPLE, BLUE, GREEN
_GREY = "0.35"
_PALE = 0.22  # share of its colour in a block; the rest is white
_HEIGHT = 5.0  # of a block
_WIDTH = 25.0


def model_diagram():
    """Draws the whole model, after figure 1 of the paper: encoder to the left, decoder to the right.

    Returns:
        `matplotlib.figure.Figure`. A block has the number of its section of the paper. Beside some arrows is
        the shape of what passes there, for n source tokens and m target tokens.
    """
    figure, (axes,) = _canvas(8.6, 9.2, height=107)
    for x, ids, side in ((28, "source ids", -1), (72, "target ids, shifted right", 1)):
        axes.text(x, 1, ids, ha="center", va="center", size=10)
        _arrow(axes, (x, 3), (x, 7))
        _block(axes, x, 9.5, r"embedding $\times \sqrt{d_{model}}$", _EMBEDDING, "3.4")
        _arrow(axes, (x, 12), (x, 17))
        _sign(axes, x, 19, "+")
        axes.text(x + 19.5 * side, 19, "positional\nencoding\n(3.5)", ha="center", va="center", size=9)
        _arrow(axes, (x + 12.5 * side, 19), (x + 2 * side, 19))

    encoder = ("multi-head\nself-attention", _ATTENTION, "3.2.3"), ("feed-forward", _FEED_FORWARD, "3.3")
    masked = "masked multi-head\nself-attention", _ATTENTION, "3.2.3"
    cross = "multi-head\ncross-attention", _ATTENTION, "3.2.3"
    _, top = _stack(axes, 28, "encoder", encoder, side=-1)
    (_, entry, _), end = _stack(axes, 72, "decoder", (masked, cross, encoder[1]), side=1)

    # The encoder's output: keys and values of every decoder layer.
    turn = top + 6
    _arrow(axes, (28, top), (28, turn), (50, turn), (50, entry), (72 - _WIDTH / 2, entry))
    label = {"ha": "center", "va": "bottom", "size": 8.5, "color": _GREY}
    axes.text(39, turn + 0.8, "keys and values\n(batch, n, $d_{model}$)", **label)
    axes.text(73, entry - 6.3, "queries", **{**label, "ha": "left"})

    for text, colour in (("linear", _LINEAR), ("softmax", _SOFTMAX)):
        y = end + 7.5
        _arrow(axes, (72, end), (72, y - _HEIGHT / 2))
        _block(axes, 72, y, text, colour, "3.4")
        end = y + _HEIGHT / 2
    _arrow(axes, (72, end), (72, end + 4.5))
    axes.text(72, end + 5, "probabilities of the next token", ha="center", va="bottom", size=10)
    shapes = (
        (29, 14.2, "(batch, n, $d_{model}$)"),
        (73, 14.2, "(batch, m, $d_{model}$)"),
        (73, end + 2, "(batch, m, vocabulary)"),
    )
    for x, y, shape in shapes:
        axes.text(x, y, shape, va="center", size=8.5, color=_GREY)
    return figure


def attention_diagrams():
    """Draws attention, after figure 2 of the paper: one head to the left, all heads to the right.

    Returns:
        `matplotlib.figure.Figure` with two panels. Beside the arrows are the shapes of what passes there,
        without the axis of the batch, for m queries and n keys.
    """
    figure, (left, right) = _canvas(9.6, 6.4, height=66, columns=2)
    left.set_title("scaled dot-product attention (3.2.1)", size=11)
    right.set_title("multi-head attention (3.2.2)", size=11)
    _one_head(left)
    _all_heads(right)
    return figure


def _one_head(axes):
    x, v = 40, 72
    rows = (
        (14, "product $QK^T$", _ATTENTION, "(m, n)"),
        (24, r"divide by $\sqrt{d_k}$", _LINEAR, "(m, n)"),
        (34, "mask: hidden to $-\\infty$", _NORM, "(m, n)"),
        (44, "softmax of each row", _SOFTMAX, "(m, n): weights"),
    )
    for at, name, shape, end in ((x - 9, "$Q$", "$(m, d_k)$", 11.5), (x + 9, "$K$", "$(n, d_k)$", 11.5)):
        axes.text(at, 3, f"{name}  {shape}", ha="center", va="center", size=10)
        _arrow(axes, (at, 5), (at, end))
    for (y, text, colour, shape), (after, *_) in zip(rows, (*rows[1:], (54,)), strict=True):
        _block(axes, x, y, text, colour, width=40)
        _arrow(axes, (x, y + _HEIGHT / 2), (x, after - _HEIGHT / 2))
        axes.text(x - 1.5, y + 5, shape, ha="right", va="center", size=8.5, color=_GREY)
    axes.text(v + 6, 3, "$V$  $(n, d_v)$", ha="center", va="center", size=10)
    _arrow(axes, (v + 6, 5), (v + 6, 54), (x + 20, 54))
    _block(axes, x, 54, "product with $V$", _ATTENTION, width=40)
    _arrow(axes, (x, 56.5), (x, 62))
    axes.text(x, 62.5, "output  $(m, d_v)$", ha="center", va="bottom", size=10)


def _all_heads(axes):
    for copy in (2, 1, 0):  # the front one last
        shift = 2.2 * copy
        for x, name in ((22, "Q"), (50, "K"), (78, "V")):
            _block(
                axes, x + shift, 14 + shift, rf"linear $W_i^{name}$" if not copy else "", _LINEAR, width=20
            )
        text = "scaled dot-product attention" if not copy else ""
        _block(axes, 50 + shift, 31 + shift, text, _ATTENTION, width=70)
    for x, name, rows, width in ((22, "Q", "m", "k"), (50, "K", "n", "k"), (78, "V", "n", "v")):
        axes.text(x, 3, rf"${name}$  $({rows}, d_{{model}})$", ha="center", va="center", size=10)
        _arrow(axes, (x, 5), (x, 11.5))
        _arrow(axes, (x, 20.9), (x, 28.5))
        axes.text(x + 1.5, 24.4, f"$({rows}, d_{width})$", va="center", size=8.5, color=_GREY)
    axes.text(89.5, 40.2, "$h$ heads", ha="right", va="center", size=9.5)
    _arrow(axes, (50, 37.9), (50, 42.5))
    axes.text(51.5, 40.2, "$h$ times $(m, d_v)$", va="center", size=8.5, color=_GREY)
    _block(axes, 50, 45, "concatenate", _NORM, width=40)
    _arrow(axes, (50, 47.5), (50, 51.5))
    axes.text(51.5, 49.5, "$(m, h \\, d_v)$", va="center", size=8.5, color=_GREY)
    _block(axes, 50, 54, "linear $W^O$", _LINEAR, width=40)
    _arrow(axes, (50, 56.5), (50, 62))
    axes.text(50, 62.5, "output  $(m, d_{model})$", ha="center", va="bottom", size=10)


def _canvas(width, height_inches, *, height, columns=1):
    figure, row = subplots(width, height_inches, columns=columns)
    for axes in row:
        axes.set(xlim=(0, 100), ylim=(-1, height))
        axes.axis("off")
    return figure, row


def _stack(axes, x, name, sublayers, *, side):
    """Draws the N equal layers of the encoder or the decoder, from y = 21 on.

    Returns:
        heights at which the sublayers are entered, and the height of the top of the last block.
    """
    y, first, centres = 21.0, 21.0, []
    for text, colour, section in sublayers:
        height = _HEIGHT + 2.2 * text.count("\n")
        centre = y + 6.5 + height / 2
        _arrow(axes, (x, y), (x, centre - height / 2))
        _block(axes, x, centre, text, colour, section, height=height)
        norm = centre + height / 2 + 2 + _HEIGHT / 2
        _arrow(axes, (x, centre + height / 2), (x, norm - _HEIGHT / 2))
        _block(axes, x, norm, "add & norm", _NORM, "3.1")
        around = x + side * (_WIDTH / 2 + 2.5)  # the residual connection
        _arrow(axes, (x, y + 3.4), (around, y + 3.4), (around, norm), (x + side * _WIDTH / 2, norm))
        centres.append(centre)
        y = norm + _HEIGHT / 2
    frame = "round,pad=0,rounding_size=1.5"
    low, corner = first + 1.2, x - _WIDTH / 2 - 4.5
    style = {"boxstyle": frame, "facecolor": "none", "edgecolor": "0.6", "linestyle": "--", "zorder": 0}
    axes.add_patch(FancyBboxPatch((corner, low), _WIDTH + 9, y + 1.5 - low, **style))
    beside = x + side * (_WIDTH / 2 + 9)
    axes.text(beside, (low + y) / 2, r"$N \times$", ha="center", va="center", size=13)
    axes.text(beside, (low + y) / 2 - 4, name, ha="center", va="center", size=10)
    return centres, y


def _block(axes, x, y, text, colour, section="", *, width=_WIDTH, height=_HEIGHT):
    """Draws one block with its middle at (x, y)."""
    shape = "round,pad=0,rounding_size=0.8"
    corner = x - width / 2, y - height / 2
    pale = [1 - _PALE * (1 - part) for part in to_rgb(colour)]
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor=pale, edgecolor=colour))
    text = f"{text} ({section})" if section else text
    if text:
        axes.text(x, y, text, ha="center", va="center", size=9.5, linespacing=1.1)


def _sign(axes, x, y, text):
    axes.add_patch(Circle((x, y), 2, facecolor="white", edgecolor=_GREY))
    axes.text(x, y, text, ha="center", va="center", size=11)


def _arrow(axes, *points):
    """Draws a line through the points, with a head at the last one."""
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "color": _GREY, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(path=Path(points), joinstyle="miter", **style))
