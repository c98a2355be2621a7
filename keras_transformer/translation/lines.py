"""Lines in and lines out, as programs read and write them.

`line_chunks` hands out the lines of an `Input` without delay. `text_lines`, `json_line` and
`moses_lines` take the number of a text, from 0, and its `NBest`, and return whole lines; `score_text` and
`score_json` return one line of a scored pair, without its newline.
"""

import itertools
import json
import math
import os
import queue
import stat
import threading
import time

from keras_transformer.text.lines import DataError, iterate_lines
from keras_transformer.translation.alignment import (
    format_pharaoh,
    format_soft,
    hard_alignment,
    soft_alignment,
)

# A chunk that is not full is handed out when nothing comes for so long ...
PAUSE_SECONDS = 0.02
# ... and in any case after this.
LONGEST_WAIT_SECONDS = 0.25
MAX_CHUNK_CHARACTERS = 2**20
_LINES_AHEAD = 64


class Input:
    """Lines that come from somewhere, and what is known of them beforehand.

    Args:
        stream: as `iterate_lines` takes it.
        name: what messages call it.
        is_regular: whether it is a file on disk, whose end needs no waiting for.
        num_bytes: its size; `None` where it is not known.
    """

    def __init__(self, stream, name, *, is_regular, num_bytes=None):
        self._lines = iterate_lines(stream, name, on_bad_utf8="replace")
        self._name = name
        self._num_taken = 0
        self.is_regular = is_regular
        self.num_bytes = num_bytes

    @classmethod
    def of_stream(cls, stream, name):
        """Reads a binary stream."""
        is_regular = is_regular_file(stream)
        num_bytes = os.fstat(stream.fileno()).st_size if is_regular else None
        return cls(stream, name, is_regular=is_regular, num_bytes=num_bytes)

    @classmethod
    def of_reader(cls, reader):
        """Reads a `LineReader`, of a plain or a compressed file."""
        size = None if reader.is_compressed else reader.path.stat().st_size
        return cls(reader, str(reader.path), is_regular=True, num_bytes=size)

    def __iter__(self):
        """Yields str, one line after the other; invalid UTF-8 becomes U+FFFD.

        Raises:
            DataError: the text is UTF-16, damaged, or has a line without end.
        """
        return self._lines

    def take(self, number):
        """Returns the next lines of a file that has as many as another.

        Raises:
            DataError: there are no more, or as `__iter__`.
        """
        lines = list(itertools.islice(self._lines, number))
        self._num_taken += len(lines)
        if len(lines) < number:
            raise DataError(f"{self._name}: ends after {self._num_taken} lines; the input has more")
        return lines

    def expect_end(self):
        """Raises `DataError` if lines are left after the other file has ended."""
        if next(self._lines, None) is not None:
            raise DataError(f"{self._name}: has more than the {self._num_taken} lines of the input")


def is_regular_file(stream):
    """Whether a stream comes from a file on disk, so that its end needs no waiting for."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, AttributeError):
        return False


def line_chunks(lines, chunk_lines, *, waits=False):
    """Yields lines in chunks: what has come, up to a number.

    Of a stream that pauses, a chunk is what came until the pause, so that each line of
    `tail -f` is answered at once; of one that brings more than is used, each chunk is full.
    A thread reads ahead, `_LINES_AHEAD` lines and no more: an endless stream takes little memory.

    Args:
        lines: iterable of str, which the thread uses up.
        chunk_lines: most lines of a chunk. One of `MAX_CHUNK_CHARACTERS` is also full.
        waits: waits until each chunk is full, for files, which never pause.

    Yields:
        list of str. An exception of `lines` comes after the lines before it.
    """
    waiting = queue.Queue(min(chunk_lines, _LINES_AHEAD))

    def read():
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    # A daemon: at the end of the program it may hang in a read that never returns.
    threading.Thread(target=read, daemon=True).start()
    while True:
        line = waiting.get()
        chunk, characters, deadline = [], 0, time.monotonic() + LONGEST_WAIT_SECONDS
        while isinstance(line, str):
            chunk.append(line)
            characters += len(line)
            if len(chunk) == chunk_lines or characters >= MAX_CHUNK_CHARACTERS:
                break
            seconds = min(PAUSE_SECONDS, max(deadline - time.monotonic(), 0))
            try:
                line = waiting.get(timeout=None if waits else seconds)
            except queue.Empty:
                break
        if chunk:
            yield chunk
        if isinstance(line, Exception):
            raise line
        if line is None:
            return


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
        record["n_best"] = [_fields(translation) for translation in found.translations[:n_best]]
    return json.dumps(record, ensure_ascii=False) + "\n"


def moses_lines(number, found, *, n_best=1):
    """Writes `number ||| text ||| F0= log-probability ||| score`, a line for each translation.

    So does Marian; texts are numbered from 0. A text has a line for each of its translations, at
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
            fields.append(format_pharaoh(one.alignment))
        fields += [f"F0= {one.log_prob:.6f}", f"{one.score:.6f}"]
        lines.append(" ||| ".join(fields) + "\n")
    return "".join(lines)


def _fields(translation):
    def rounded(value):
        return round(value, 6) if math.isfinite(value) else None  # JSON knows no infinity

    log_probs = translation.token_log_probs
    return {
        "text": translation.text,
        "pieces": translation.pieces,
        "score": rounded(translation.score),
        "log_prob": rounded(translation.log_prob),
        "token_log_probs": None if log_probs is None else list(map(rounded, log_probs)),
        "alignment": translation.alignment,
        "finished": translation.finished,
    }


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
        fields.append(" ".join(f"{value:.6f}" for value in scored.log_probs))
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
        "log_probs": [round(float(value), 6) for value in scored.log_probs],
    }
    if alignment is not None:
        found = _align(scored, alignment, how)
        if alignment == "soft":
            found = [[round(weight, 4) for weight in row] for row in found.tolist()]
        record["alignment"] = found
    return json.dumps(record, ensure_ascii=False)


def _align(scored, alignment, how):
    make = {"hard": hard_alignment, "soft": soft_alignment}[alignment]
    return make(scored.attention[0], scored.source_pieces, scored.target_pieces, **how)
