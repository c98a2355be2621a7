"""Translations as lines of plain text, as JSON, and as Moses and Marian write n-best lists.

Each function takes the number of a text, from 0, its `NBest`, and returns a str of whole
lines, each with a newline at its end.
"""

import json
import math

FORMATS = ("text", "jsonl", "moses")


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
