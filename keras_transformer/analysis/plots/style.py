"""What all pictures share: colours, axes, texts."""

# Okabe and Ito's colours: distinct for every kind of colour vision, and in grey.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)


def tidy(axes):
    """Gives axes a light grid and no frame above and to the right."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def drawable(texts):
    """Returns texts, a list of str, without what would begin a formula."""
    return [text.replace("$", r"\$") for text in texts]
