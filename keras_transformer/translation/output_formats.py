"""Translations and scored pairs as lines: of plain text, of JSON, and as Moses and Marian write n-best lists.

`text_lines`, `json_line` and `moses_lines` take the number of a text, from 0, and its `NBest`, and return
whole lines; `score_text` and `score_json` return one line of a scored pair, without its newline.
"""

import json
import math

from keras_transformer.translation.alignment import (
    format_pharaoh,
    format_soft,
    hard_alignment,
    soft_alignment,
)

FORMATS = ("text", "jsonl", "moses")
SCORE_FORMATS = ("text", "jsonl")
ALIGNMENTS = ("hard", "soft")


def text_lines(number, found, *, n_best=1, scores=False):
    r"""Writes exactly `n_best` lines for each text, best first.

    Where there are fewer translations, as of a blank text, lines are blank, so that line
    i * n_best + k is the k-th translation of text i.

    Args:
        number: int, of the text; not written.
        found: `NBest`.
        n_best: lines for each text.
        scores: each line begins with the score and a tab; a blank line stays blank but
            for them where it is a translation.
    """
    texts = [f"{one.score:.6f}\t{one.text}" if scores else one.text for one in found.translations[:n_best]]
    texts += [""] * (n_best - len(texts))
    return "".join(f"{text}\n" for text in texts)


def json_line(number, found, *, n_best=1):
    """Writes one JSON object for each text, on one line.

    It has `line` (from 1), the fields of the best translation, `source_pieces` and `flags`;
    for `n_best` above 1 also `n_best`, the list of all translations with the same fields.
    What is not finite, or was not asked for, is null.

    Args:
        number: int, of the text.
        found: `NBest`.
        n_best: number of translations that were asked for.
    """
    record = {"line": number + 1, **_fields(found.best)}
    record |= {"source_pieces": found.source_pieces, "flags": found.flags}
    if n_best > 1:
        record["n_best"] = [_fields(one) for one in found.translations[:n_best]]
    return json.dumps(record, ensure_ascii=False) + "\n"


def moses_lines(number, found, *, n_best=1):
    """Writes `number ||| text ||| F0= log-probability ||| score`, a line for each translation.

    So does Marian; texts are numbered from 0. A text has as many lines as translations, at
    least one. `|||` inside a translation becomes `&#124;&#124;&#124;`, Moses' escape. Where
    an alignment was asked for, it is a field after the text, as `0-0 1-2`.

    Args:
        number: int, of the text.
        found: `NBest`.
        n_best: most lines.
    """
    lines = []
    for one in found.translations[:n_best]:
        fields = [str(number), one.text.replace("|||", "&#124;&#124;&#124;")]
        if one.alignment is not None:
            fields.append(" ".join(f"{source}-{target}" for source, target in one.alignment))
        fields += [f"F0= {one.log_prob:.6f}", f"{one.score:.6f}"]
        lines.append(" ||| ".join(fields) + "\n")
    return "".join(lines)


def _fields(translation):
    log_probs = translation.token_log_probs
    return {
        "text": translation.text,
        "pieces": translation.pieces,
        "score": _finite(translation.score),
        "log_prob": _finite(translation.log_prob),
        "token_log_probs": None if log_probs is None else [_finite(one) for one in log_probs],
        "alignment": translation.alignment,
        "finished": translation.finished,
    }


def _finite(value):
    # JSON knows no infinity.
    return round(value, 6) if math.isfinite(value) else None


def score_text(scored, *, per_token=False, alignment=None, **how):
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


def score_json(source, target, scored, *, alignment=None, **how):
    """Returns a JSON object with all that is known of a pair.

    Its `log_probs` are one longer than `target_pieces`: the last is of the end.

    Args:
        source: str.
        target: str.
        scored: `Scored`.
        alignment: `"hard"` adds a list of `[source, target]`, `"soft"` a list of rows, one
            for each target piece or word.
        **how: as in `score_text`.

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
