"""`translate --shards`: a long text in parts, by one process or by any number of them."""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import sys

from keras_transformer.cli.early_checks import open_runs
from keras_transformer.cli.engine import chosen_engine, engine_loader, identity_of
from keras_transformer.cli.line_translation import (
    Inputs,
    TranslationProgress,
    translated_chunks,
    warn_of_narrow_beam,
)
from keras_transformer.cli.process import end_on_sigterm
from keras_transformer.config import programs
from keras_transformer.config.settings import replace
from keras_transformer.files import check_output
from keras_transformer.text.lines import LineReader
from keras_transformer.translation.lines import Input
from keras_transformer.translation.shards import BusyError, Shards


def translate_shards(args, search, engine=None):
    """Translates one part of the input, or all that are missing, and joins them if all are complete.

    Args:
        args: the parsed arguments; optionally with `program`, the name in messages, and `result`, what is
            made of the output.
        search: dict, fields of `SearchConfig`.
        engine: str, what translates; `None` for that of `--engine`.

    Raises:
        DataError: the input or the folder cannot be used, or the text of a complete part has changed.
        BusyError: another process is translating the part of `--shard`.
    """
    runs = open_runs(args.runs, args.checkpoint)
    engine = engine or chosen_engine(args, runs, search)
    shards = open_shards(args, runs, search, engine)
    numbers = [args.part] if args.part else range(1, len(shards.parts) + 1)
    load = functools.cache(lambda: _load(args, runs, search, engine))
    parts = [shards.parts[number - 1] for number in numbers]
    shards.check_text([part for part in parts if part.is_complete])
    for part in parts:
        try:
            if not part.is_complete:
                with part.lock():
                    if not part.is_complete:  # completed by another process just now
                        name = f"part {part.number} of {len(shards.parts)}" if len(shards.parts) > 1 else ""
                        translate_part(args, search, part, load, name)
        except BusyError:
            if args.part:
                raise
            continue  # without --shard, processes share the parts
    complete, number = shards.num_complete, len(shards.parts)
    result = getattr(args, "result", args.output)
    later = f". The command that completes the last one writes {result}" if result else ""
    if args.output and complete == number:
        shards.join(args.output)
    empty = sum(not part.num_lines for part in shards.parts)
    reason = (
        f" ({empty} without lines, as a part is a number of whole chunks: see --chunk-lines)" if empty else ""
    )
    _say(
        args,
        f"{shards.folder}: {complete} of {number} parts are complete{reason}{later * (complete < number)}",
    )


def open_shards(args, runs, search, engine):
    """Returns the `Shards` of the command line; the first process plans them.

    Args:
        args, search: as in `translate_shards`.
        runs: list of `RunFolder`.
        engine: str, what translates.
    """
    files = {"input": args.input, "prefix_file": args.prefix_file, "constraints": args.constraints}
    files = {name: path for name, path in files.items() if path}
    for path in files.values():
        if pathlib.Path(path).is_fifo():
            raise ValueError(
                f"{path}: a pipe can be read only once, but each part reads it. Save it in a file"
            )
        LineReader(path).close()  # raises if it cannot be read
    if args.output:
        check_output(args.output, *files.values())
    settings = {
        "models": [run.fingerprint(args.checkpoint) for run in runs],
        **{name: getattr(args, name) for name in ("format", "scores", "alignment", "chunk_lines")},
        **dataclasses.asdict(replace(runs[0].config.search, **search)),
        "engine": identity_of(engine, args),
    }
    ending = ".jsonl" if args.format == "jsonl" else ".txt"
    return Shards(args.shards, files, settings, args.num_shards, ending=ending)


def translate_part(args, search, part, translator, name=""):
    """Translates the lines of a part that are missing. Call it under the part's lock.

    Args:
        args: the parsed arguments.
        search: dict, fields of `SearchConfig`.
        part: `Part`.
        translator: function without arguments that returns the `Translator`.
        name: str, what the progress calls the part; `""` if it is the whole text.
    """
    part.check_text()
    done = part.resume()
    if done.num_lines == part.num_lines:
        part.write(done, iter(()))
        return
    if done.num_lines:
        place = f"{name}: " if name else ""
        _say(args, f"{place}{done.num_lines:,} of {part.num_lines:,} lines are there already; continuing")
    with contextlib.ExitStack() as stack:
        inputs, num_bytes = _open_inputs(args, part, done.num_lines, stack)
        progress = TranslationProgress(num_bytes, part=name)
        first = part.first_line + done.num_lines
        part.write(done, translated_chunks(args, search, translator(), inputs, progress, first))
        progress.finish()


def _open_inputs(args, part, skipped, stack):
    """Returns the `Inputs` of a part without its first lines, and the number of bytes of the input left."""
    inputs = {}
    for name, span in part.spans.items():
        reader = stack.enter_context(LineReader(getattr(args, name), span.begin, span.end))
        on_bad_utf8 = "refuse" if name == "constraints" else "replace"
        inputs[name] = Input.of_reader(reader, on_bad_utf8=on_bad_utf8, first_line=part.first_line + 1)
        num_bytes = sum(len(line.encode()) + 1 for line in itertools.islice(inputs[name], skipped))
        if name == "input":
            left = span.end - span.begin - num_bytes
    return Inputs(inputs["input"], inputs.get("prefix_file"), inputs.get("constraints")), left


def _load(args, runs, search, engine):
    """Returns the translator; imports that take seconds are done here."""
    load = engine_loader(engine, args, runs, is_file=True)
    end_on_sigterm()
    translator = load()
    warn_of_narrow_beam(args, search, translator)
    return translator


def _say(args, text):
    print(f"{programs.name(getattr(args, 'program', 'translate'))}: {text}", file=sys.stderr)
