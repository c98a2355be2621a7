"""Scored translations as lines: of text, or of JSON."""

import json

from keras_transformer.translation.alignment import (
    format_pharaoh,
    format_soft,
    hard_alignment,
    soft_alignment,
)

FORMATS = ("text", "jsonl")
ALIGNMENTS = ("hard", "soft")


def text_line(scored, *, per_token=False, alignment=None, **how):
    """Returns the log-probability; after tabs what else is asked for.

    Args:
        scored: `Scored`.
        per_token: adds the log-probabilities of the pieces and of the end.
        alignment: `"hard"` adds Pharaoh's `0-0 1-2`, `"soft"` what `format_soft` writes.
        **how: `convention` and `unit` of the alignment, of the first layer of `scored`.

    Returns:
        str, without a newline.
    """
    fields = [f"{scored.log_prob:.6f}"]
    if per_token:
        fields.append(" ".join(f"{one:.6f}" for one in scored.log_probs))
    if alignment is not None:
        write = format_pharaoh if alignment == "hard" else format_soft
        fields.append(write(_align(scored, alignment, how)))
    return "\t".join(fields)


def json_line(source, target, scored, *, alignment=None, **how):
    """Returns a JSON object with all that is known of a pair.

    Its `log_probs` are one longer than `target_pieces`: the last is of the end.

    Args:
        source: str.
        target: str.
        scored: `Scored`.
        alignment: `"hard"` adds a list of `[source, target]`, `"soft"` a list of rows, one
            for each target piece or word.
        **how: as in `text_line`.

    Returns:
        str, without a newline.
    """
    record = {
        "source": source,
        "target": target,
        "log_prob": round(scored.log_prob, 6),
        "source_pieces": scored.source_pieces,
        "target_pieces": scored.target_pieces,
        "log_probs": [round(float(one), 6) for one in scored.log_probs],
    }
    if alignment is not None:
        found = _align(scored, alignment, how)
        if alignment == "soft":
            found = [[round(weight, 4) for weight in row] for row in found.tolist()]
        record["alignment"] = found
    return json.dumps(record, ensure_ascii=False)


def _align(scored, alignment, how):
    if alignment not in ALIGNMENTS:
        raise ValueError(f"`alignment` must be one of {list(ALIGNMENTS)}. Received: {alignment!r}")
    make = hard_alignment if alignment == "hard" else soft_alignment
    return make(scored.attention[0], scored.source_pieces, scored.target_pieces, **how)
