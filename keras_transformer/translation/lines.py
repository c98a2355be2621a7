"""Input lines in chunks, and output lines of translations and scores.

`line_chunks` yields the lines of an `Input` without delay. `text_lines`, `json_line` and `moses_lines`
format the `NBest` of one text as whole lines; `score_text` and `score_json` format one scored pair as a
line without its newline. Texts are numbered from 0.
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

# A chunk that is not full is yielded when no line arrives for this time ...
PAUSE_SECONDS = 0.02
# ... and at the latest after this time.
LONGEST_WAIT_SECONDS = 0.25
MAX_CHUNK_CHARACTERS = 2**20
_LINES_AHEAD = 64


class Input:
    """Lines of a stream or file.

    Args:
        stream: as in `iterate_lines`.
        name: str, for error messages.
        is_regular: bool, whether it is a regular file, which never waits for more input.
        num_bytes: int, its size; `None` if unknown.
        on_bad_utf8, first_line: as in `iterate_lines`.
    """

    def __init__(
        self, stream, name, *, is_regular, num_bytes=None, on_bad_utf8="replace", first_line=1
    ):  # fmt: skip
        self._lines = iterate_lines(stream, name, on_bad_utf8=on_bad_utf8, first_line=first_line)
        self._name = name
        self._num_lines = 0
        self.is_regular = is_regular
        self.num_bytes = num_bytes

    @classmethod
    def of_stream(cls, stream, name):
        """Reads a binary stream."""
        is_regular = is_regular_file(stream)
        num_bytes = os.fstat(stream.fileno()).st_size if is_regular else None
        return cls(stream, name, is_regular=is_regular, num_bytes=num_bytes)

    @classmethod
    def of_reader(cls, reader, **options):
        """Reads a `LineReader` of a plain or compressed file; `options` are those of `iterate_lines`."""
        is_regular = reader.path.is_file()
        size = reader.path.stat().st_size if is_regular and not reader.is_compressed else None
        return cls(reader, str(reader.path), is_regular=is_regular, num_bytes=size, **options)

    def __iter__(self):
        """Yields lines as str; invalid UTF-8 becomes U+FFFD by default.

        Raises:
            DataError: the text is UTF-16 or damaged, or a line is too long or refused.
        """
        return self._lines

    def take(self, number):
        """Returns the next `number` lines of a file that is parallel to the main input.

        Raises:
            DataError: the file has fewer lines, or as `__iter__`.
        """
        lines = list(itertools.islice(self._lines, number))
        self._num_lines += len(lines)
        if len(lines) < number:
            found = f"only {self._num_lines} lines; the input has more"
            raise DataError(f"{self._name}: {found}. Write one for each line of the input")
        return lines

    def expect_end(self):
        """Raises `DataError` if the file has more lines than the main input."""
        if next(self._lines, None) is not None:
            found = f"more lines than the input, which has {self._num_lines}"
            raise DataError(f"{self._name}: {found}. Write one for each line of the input")


def is_regular_file(stream):
    """Whether a stream is a regular file, which never waits for more input."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, AttributeError):
        return False


def is_full(num_lines, characters, chunk_lines):
    """Whether a chunk of `num_lines` lines with so many characters takes no further line."""
    return num_lines == chunk_lines or characters >= MAX_CHUNK_CHARACTERS


def line_chunks(lines, chunk_lines, *, waits=False):
    """Yields lines in chunks: the lines that have arrived, at most `chunk_lines`.

    If the stream pauses, the chunk ends, so that each line of `tail -f` is answered at once.
    If lines arrive faster than they are used, every chunk is full. A thread reads at most
    `_LINES_AHEAD` lines ahead, so an endless stream needs little memory.

    Args:
        lines: iterable of str, consumed by the thread.
        chunk_lines: int, maximum number of lines of a chunk. A chunk of
            `MAX_CHUNK_CHARACTERS` characters is full, too.
        waits: bool, waits until each chunk is full; for files, which never pause.

    Yields:
        list of str. An exception of `lines` is raised after the lines before it.
    """
    arrived = queue.Queue(min(chunk_lines, _LINES_AHEAD))

    def read():
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    # A daemon, because it may be blocked in a read when the program ends.
    threading.Thread(target=read, daemon=True).start()
    while True:
        line = arrived.get()
        chunk, characters, deadline = [], 0, time.monotonic() + LONGEST_WAIT_SECONDS
        while isinstance(line, str):
            chunk.append(line)
            characters += len(line)
            if is_full(len(chunk), characters, chunk_lines):
                break
            seconds = min(PAUSE_SECONDS, max(deadline - time.monotonic(), 0))
            try:
                line = arrived.get(timeout=None if waits else seconds)
            except queue.Empty:
                break
        if chunk:
            yield chunk
        if isinstance(line, Exception):
            raise line
        if line is None:
            return


def text_lines(number, result, *, n_best=1, scores=False):
    r"""Returns exactly `n_best` lines of one text, best translation first.

    Missing translations are blank lines, so that line i * n_best + k is the k-th translation of
    text i.

    Args:
        number: int, of the text; not used.
        result: `NBest`.
        n_best: int, number of lines.
        scores: bool, begins each line with the score, or the utility if there is one, and a tab. Missing
            translations stay blank.
    """
    best = result.translations[:n_best]
    texts = [f"{_rank_value(item):.6f}\t{item.text}" if scores else item.text for item in best]
    return "".join(f"{text}\n" for text in texts + [""] * (n_best - len(texts)))


def json_line(number, result, *, n_best=1):
    """Returns one text's translations as a JSON object on one line.

    It has `line` (counted from 1), the fields of the best translation, `source_pieces` and
    `flags`; for `n_best` above 1 also `n_best`, the list of all translations with the same
    fields. Values that are not finite or were not requested are null.

    Args:
        number: int, of the text.
        result: `NBest`.
        n_best: int, maximum number of translations.
    """
    record = {"line": number + 1, **_fields(result.best)}
    record |= {"source_pieces": result.source_pieces, "flags": result.flags}
    if n_best > 1:
        record["n_best"] = [_fields(translation) for translation in result.translations[:n_best]]
    return json.dumps(record, ensure_ascii=False) + "\n"


def moses_lines(number, result, *, n_best=1):
    """Returns Moses' n-best lines: `number ||| text ||| F0= log-probability ||| score`, as Marian does.

    Instead of the score, a translation of minimum Bayes risk decoding has its utility.

    Each translation is a line; there is at least one. Texts are numbered from 0. `|||` inside a
    translation becomes `&#124;&#124;&#124;`, Moses' escape. An alignment, if requested, is a field
    after the text, such as `0-0 1-2`.

    Args:
        number: int, of the text.
        result: `NBest`.
        n_best: int, maximum number of lines.
    """
    lines = []
    for translation in result.translations[:n_best]:
        fields = [str(number), translation.text.replace("|||", "&#124;&#124;&#124;")]
        if translation.alignment is not None:
            fields.append(format_pharaoh(translation.alignment))
        fields += [f"F0= {translation.log_prob:.6f}", f"{_rank_value(translation):.6f}"]
        lines.append(" ||| ".join(fields) + "\n")
    return "".join(lines)


def _rank_value(translation):
    return translation.score if translation.utility is None else translation.utility


def _fields(translation):
    def rounded(value):
        return round(value, 6) if math.isfinite(value) else None  # JSON has no infinity

    log_probs = translation.token_log_probs
    utility = {} if translation.utility is None else {"utility": rounded(translation.utility)}
    return {
        "text": translation.text,
        "pieces": translation.pieces,
        "score": rounded(translation.score),
        "log_prob": rounded(translation.log_prob),
        "token_log_probs": None if log_probs is None else list(map(rounded, log_probs)),
        "alignment": translation.alignment,
        "finished": translation.finished,
        **utility,
    }


def score_text(scored, *, per_token=False, alignment=None, **options):
    """Returns the log-probability of a pair, and more fields after tabs.

    Args:
        scored: `Scored`.
        per_token: bool, adds the log-probabilities of the target pieces and of the end of sentence.
        alignment: `"hard"` adds the alignment in Pharaoh's format (`0-0 1-2`), `"soft"` in that of
            `format_soft`.
        **options: `convention` and `unit` of the alignment, which uses the first layer of `scored`.

    Returns:
        str, without a newline.
    """
    fields = [f"{scored.log_prob:.6f}"]
    if per_token:
        fields.append(" ".join(f"{value:.6f}" for value in scored.log_probs))
    if alignment is not None:
        write = format_pharaoh if alignment == "hard" else format_soft
        fields.append(write(_align(scored, alignment, options)))
    return "\t".join(fields)


def score_json(source, target, scored, *, alignment=None, **options):
    """Returns a JSON object with texts, pieces and log-probabilities of a pair.

    `log_probs` has one more entry than `target_pieces`, for the end of sentence.

    Args:
        source: str.
        target: str.
        scored: `Scored`.
        alignment: `"hard"` adds a list of `[source, target]`, `"soft"` a list of rows, one per
            target piece or word.
        **options: as in `score_text`.

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
        links = _align(scored, alignment, options)
        if alignment == "soft":
            links = [[round(weight, 4) for weight in row] for row in links.tolist()]
        record["alignment"] = links
    return json.dumps(record, ensure_ascii=False)


def _align(scored, alignment, options):
    make = {"hard": hard_alignment, "soft": soft_alignment}[alignment]
    return make(scored.attention[0], scored.source_pieces, scored.target_pieces, **options)
