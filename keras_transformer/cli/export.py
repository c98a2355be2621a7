"""Exports the model of a run for other programs.

    keras-transformer export RUN OUT --format savedmodel
    keras-transformer export runs/m30k served/m30k --beam-size 2 --max-sentences 64
    keras-transformer export RUN OUT --format ctranslate2 --quantization int8
    keras-transformer export RUN OUT --format keras

A SavedModel for TensorFlow Serving is written to OUT/VERSION, and a second one, which maps ids to ids and
needs no TensorFlow Text, to OUT/ids/VERSION. The last lines printed are commands to serve it. The other
formats are written to OUT itself: a CTranslate2 model, a `.keras` file, or only the weights
(`--format weights`). All formats are written atomically.
"""

import pathlib
import shlex
import sys

from keras_transformer.cli.command_line import (
    add_checkpoint_flag,
    add_search_flags,
    program_parser,
    search_settings,
)
from keras_transformer.cli.early_checks import open_runs
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.process import (
    drop_output,
    end_on_sigterm,
    exit_code,
    import_quietly,
    open_closed_streams,
)
from keras_transformer.config import programs
from keras_transformer.config.extras import install


def saved_model(args):
    """Writes a SavedModel; returns the text to print."""
    if args.long_lines == "split":
        raise ValueError("--long-lines split: a SavedModel truncates long lines. Remove this flag")
    from keras_transformer.config.fields import current_names
    from keras_transformer.config.sections import SearchConfig
    from keras_transformer.export.serving import (
        WARMUP,
        ServingSettings,
        curl_command,
        docker_command,
        server_name,
    )
    from keras_transformer.export.versions import IDS, free_version, with_search

    (run,) = open_runs([args.run], args.checkpoint)
    inputs, renamed = current_names(SearchConfig, dict.fromkeys(args.input))
    for old, new in renamed.items():
        print(f"{programs.name('export')}: --input {old} is now called --input {new}", file=sys.stderr)
    settings = ServingSettings(
        search=with_search(run.config, search_settings(args, args.run)).search,
        max_sentences=args.max_sentences,
        max_characters=args.max_characters,
        inputs=tuple(inputs),
        frozen=args.frozen,
    )
    server_name(run, args.name)
    folders = [args.out] if args.no_ids else [args.out, f"{args.out}/{IDS}"]
    free_version([pathlib.Path(folder) for folder in folders], args.version)
    import_quietly("keras_transformer.export.saved_model")
    from keras_transformer.export.saved_model import export_saved_model

    exported = export_saved_model(
        args.run,
        args.out,
        checkpoint=args.checkpoint,
        settings=settings,
        version=args.version,
        name=args.name,
        licences={"model": args.model_licence, "data": args.data_licence},
        warmup=False if args.no_warmup else None,
        with_ids=not args.no_ids,
        with_constraints=args.with_constraints,
    )
    docker = docker_command(
        args.out,
        exported.name,
        version=exported.version,
        batching=not settings.inputs,
    )
    written = " and ".join(str(path) for path in (exported.path, exported.ids_path) if path)
    text = "The dog barks ." if run.config.data.parses else "1 2 3"
    curl = curl_command(exported.name, settings.inputs, text=text)
    if not (exported.path / WARMUP).exists() and not args.no_warmup:
        written += f"\nnote: without warm-up requests, which need: {install('serving')}"
    return f"wrote {written}\nnext:\n  {docker}\n  {curl}"


def ctranslate2(args):
    """Writes a CTranslate2 model; returns the text to print."""
    from keras_transformer.config.settings import replace
    from keras_transformer.export.ctranslate2 import export_ctranslate2
    from keras_transformer.export.ctranslate2_model import import_ctranslate2
    from keras_transformer.export.ctranslate2_search import search_notes
    from keras_transformer.files import check_new_folder

    import_ctranslate2()
    (run,) = open_runs([args.run], args.checkpoint)
    options = {
        "checkpoint": args.checkpoint,
        "search": search_settings(args, args.run),
        "quantization": args.quantization,
    }
    check_new_folder(args.out)
    import_quietly()
    path = export_ctranslate2(run, args.out, **options)
    notes = search_notes(replace(run.config.search, **options["search"]))
    if args.quantization == "int16":
        notes.append("only Intel CPUs compute in int16; on other CPUs CTranslate2 loads this model as int8")
    lines = [f"wrote {path}", *(f"note: {note}" for note in notes), "next:"]
    lines += [f"  {programs.command('translate-ctranslate2')} {shlex.quote(str(path))} < TEXT"]
    return "\n".join(lines)


def keras_format(args):
    """Writes a `.keras` file or only the weights; returns the text to print."""
    from keras_transformer.files import check_new_folder

    (run,) = open_runs([args.run], args.checkpoint)
    search = search_settings(args, args.run)
    check_new_folder(args.out)
    import_quietly("keras_transformer.export.keras_files")
    from keras_transformer.export.keras_files import export_keras

    options = {"checkpoint": args.checkpoint, "search": search, "weights_only": args.format == "weights"}
    path = export_keras(run, args.out, **options)
    return (
        f"wrote {path}\nnext, in Python:\n  from keras_transformer.export.keras_files import load_keras\n"
        f"  model = load_keras({str(path)!r})"
    )


# Name of a format -> function that writes it and imports what it needs.
FORMATS = {
    "savedmodel": saved_model,
    "ctranslate2": ctranslate2,
    "keras": keras_format,
    "weights": keras_format,
}
# Flags for one format only.
OWN_FLAGS = {
    "savedmodel": (
        "version", "name", "frozen", "input", "max_sentences", "max_characters", "no_ids", "no_warmup",
        "with_constraints",
        "model_licence", "data_licence",
    ),
    "ctranslate2": ("quantization",),
}  # fmt: skip


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("export", words=TRANSLATING)
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("out", metavar="OUT", help="folder to write; a SavedModel goes to OUT/VERSION")
    parser.add_argument("--format", choices=sorted(FORMATS), default="savedmodel", help="default: savedmodel")
    add_checkpoint_flag(parser)
    saved = parser.add_argument_group("savedmodel")
    saved.add_argument("--version", type=int, metavar="N", help="version number (default: the next free one)")
    saved.add_argument("--name", help="name of the model on the server (default: the name of RUN)")
    saved.add_argument("--frozen", action="store_true", help="store the weights as constants of the graph")
    saved.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME",
        help="make alpha or max_length_offset an input of each request; may be repeated; disables batching",
    )
    saved.add_argument(
        "--max-sentences", type=int, default=256, metavar="N", help="sentences in one request (default: 256)"
    )
    saved.add_argument(
        "--max-characters",
        type=int,
        default=10_000,
        metavar="N",
        help="characters in one text (default: 10,000)",
    )
    saved.add_argument("--no-ids", action="store_true", help="do not write the model of ids (OUT/ids)")
    saved.add_argument(
        "--with-constraints", action="store_true", help="add translate_constrained: phrases that must occur"
    )
    saved.add_argument("--no-warmup", action="store_true", help="do not write warm-up requests")
    saved.add_argument("--model-licence", metavar="TEXT", help="license of the model, for the model card")
    saved.add_argument("--data-licence", metavar="TEXT", help="license of the data, for the model card")
    fast = parser.add_argument_group("ctranslate2")
    fast.add_argument(
        "--quantization",
        choices=("float32", "int16", "int8"),
        default="float32",
        help="type in which matrices are stored and, where the CPU supports it, multiplied; int16 on Intel "
        "CPUs only (default: float32)",
    )
    add_search_flags(parser, threads=False)
    args = parser.parse_args(argv)
    for kind, names in OWN_FLAGS.items():
        for name in names:
            if kind != args.format and getattr(args, name) != parser.get_default(name):
                parser.error(f"--{name.replace('_', '-')} needs --format {kind}, not {args.format}")
    return args


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    open_closed_streams()
    end_on_sigterm()

    def work():
        text = FORMATS[args.format](args)
        try:
            print(text, flush=True)
        except OSError:  # the export is complete even if the output is closed
            drop_output()

    return exit_code(programs.name("export"), work, args.out)
