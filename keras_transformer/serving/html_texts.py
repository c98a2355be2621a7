"""HTML: the texts between tags, which are translated one by one; tags and attributes stay as they are.

Python's `html.parser` is not used: its time is quadratic on broken HTML, and some of it raises.
"""

import html
import re

# Each alternative ends at the end of the text at the latest, and none is tried twice: the time is linear.
_MARKUP = re.compile(
    r"""<!--.*?(?:-->|\Z)
    |<(?P<raw>script|style|textarea)(?=[\s/>]).*?(?:</(?P=raw)\s*+>|\Z)
    |<[!?][^>]*+(?:>|\Z)
    |<(?P<end>/?)(?P<tag>[a-z][^\s/>]*+)(?:[^"'>]|"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))*+(?:>|\Z)""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_TOO_LARGE = re.compile(r"&#0*+[1-9][0-9]{7,}+;?")  # `html.unescape` raises for thousands of digits
_KEPT = ("code", "pre", "template")
_KEPT_BY_ATTRIBUTE = re.compile(r"""\stranslate\s*+=\s*+["']?no["'\s/>]""", re.IGNORECASE)
_WITHOUT_END = (
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"
)  # fmt: skip


def split_html(text):
    """Divides HTML.

    Args:
        text: str.

    Returns:
        list of (bool, str): texts with True, without character references; markup with False.
    """
    pieces, begin = [], 0
    kept, depth = "", 0  # the element that is not translated, and how many of its name are open

    def add_text(data):
        if data:
            text = data if depth else html.unescape(_TOO_LARGE.sub("\ufffd", data))
            pieces.append((not depth, text))

    for match in _MARKUP.finditer(text):
        add_text(text[begin : match.start()])
        pieces.append((False, match[0]))
        begin = match.end()
        tag = (match["tag"] or "").lower()
        if depth:
            depth += (tag == kept) * (-1 if match["end"] else 1)
        elif tag in _KEPT or _KEPT_BY_ATTRIBUTE.search(match[0]):
            kept, depth = tag, int(not match["end"] and tag not in ("", *_WITHOUT_END))
    add_text(text[begin:])
    return pieces


def join_html(pieces, translations):
    """Returns HTML with translated texts.

    Args:
        pieces: of `split_html`.
        translations: list of str, one per text.
    """
    translations = iter(translations)
    return "".join(
        html.escape(next(translations), quote=False) if is_text else piece for is_text, piece in pieces
    )
