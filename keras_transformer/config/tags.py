"""Names of tags: tokens that are reserved in a vocabulary to mark source sentences, such as `<BT>`."""

import re

RESERVED_NAMES = ("<s>", "<pad>", "<bos>", "<eos>", "<unk>")
RESERVED = f"{', '.join(RESERVED_NAMES[:-1])} or {RESERVED_NAMES[-1]}"
_TAG = re.compile(r"<(?!0x[0-9A-F]{2}>)[A-Za-z0-9_]{1,40}>")  # without SentencePiece's byte tokens


def is_tag(text):
    """Returns whether a text can be a tag: letters, digits and `_` in angle brackets, and not reserved."""
    return _TAG.fullmatch(text) is not None and text not in RESERVED_NAMES


def parse_tags(text):
    """Returns the tags of the setting `data.tags`, a tuple of str.

    Raises:
        ValueError: a name has another form, or occurs twice.
    """
    tags = tuple(text.split(",")) if text else ()
    if not all(map(is_tag, tags)) or len(set(tags)) < len(tags):
        raise ValueError(
            "`tags` must be different names of letters, digits and _ in angle brackets, separated by commas, "
            f"such as <BT>,<BLANK>; not {RESERVED}. Received: {text!r}"
        )
    return tags
