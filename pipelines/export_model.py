"""Exports the model of a run for other programs.

    python pipelines/export_model.py RUN OUT --format savedmodel
    python pipelines/export_model.py runs/m30k served/m30k --beam-size 2 --max-sentences 64

A SavedModel is written to OUT/VERSION, complete or not at all, for TensorFlow Serving; and one
that takes and gives ids, and needs no TensorFlow Text, to OUT/ids/VERSION. The last lines
are the commands that serve it.
"""

import argparse
import sys

from search_flags import add_search_flags, search_settings
from startup import import_quietly


def saved_model(args):
    """Writes a SavedModel; returns what is printed."""
    search = search_settings(args, args.run)
    import_quietly("keras_transformer.export.saved_model")
    import tensorflow as tf

    from keras_transformer.config import replace
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.export.serving_files import curl_command, docker_command
    from keras_transformer.export.settings import ServingSettings
    from keras_transformer.training.run_folder import RunFolder

    settings = ServingSettings(
        search=replace(RunFolder(args.run).config.search, **search),
        max_sentences=args.max_sentences,
        max_characters=args.max_characters,
        inputs=tuple(dict.fromkeys(args.input)),
        frozen=args.frozen,
    )
    exported = export_saved_model(
        args.run,
        args.out,
        weights=args.weights,
        settings=settings,
        version=args.version,
        name=args.name,
        licences={"model": args.model_licence, "data": args.data_licence},
        warmup=not args.no_warmup,
        with_ids=not args.no_ids,
    )
    docker = docker_command(
        args.out,
        exported.name,
        version=exported.version,
        tensorflow_version=tf.__version__,
        batching=not settings.inputs,
    )
    written = " and ".join(str(path) for path in (exported.path, exported.ids_path) if path)
    return f"wrote {written}\nnext:\n  {docker}\n  {curl_command(exported.name, settings.inputs)}"


# A format's name -> what writes it. Each imports what it needs when it is called.
FORMATS = {"savedmodel": saved_model}


def parse_args(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Exports the model of a run for other programs.")
    parser.add_argument("run", metavar="RUN", help="run folder of a training run")
    parser.add_argument("out", metavar="OUT", help="folder of the versions; made if it is missing")
    parser.add_argument("--format", choices=sorted(FORMATS), default="savedmodel", help="default: savedmodel")
    parser.add_argument(
        "--weights",
        default="averaged",
        metavar="NAME",
        help="averaged (at the end of training), last, best, ema, last-N or best-K (see "
        "average_checkpoints.py), or step-N (default: averaged)",
    )
    saved = parser.add_argument_group("savedmodel")
    saved.add_argument("--version", type=int, metavar="N", help="default: the next free number")
    saved.add_argument("--name", help="of the model on the server (default: that of RUN)")
    saved.add_argument(
        "--frozen", action="store_true", help="weights as constants of the graph, not as variables beside it"
    )
    saved.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME",
        help="alpha or extra_length: each call gives it; may be repeated. Turns batching off",
    )
    saved.add_argument(
        "--max-sentences", type=int, default=256, metavar="N", help="more in one call are refused (256)"
    )
    saved.add_argument(
        "--max-characters", type=int, default=10_000, metavar="N", help="longer texts are cut (10,000)"
    )
    saved.add_argument("--no-ids", action="store_true", help="writes no model for ids alone")
    saved.add_argument("--no-warmup", action="store_true", help="writes no warm-up requests")
    saved.add_argument("--model-licence", metavar="TEXT", help="for the model card")
    saved.add_argument("--data-licence", metavar="TEXT", help="for the model card")
    add_search_flags(parser)
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    try:
        print(FORMATS[args.format](args))
    except (ValueError, OSError) as error:
        print(f"export_model.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
