"""Translates a text with Apache Beam: on this machine, or on Dataflow, Flink or Spark.

    pip install 'keras-transformer-translation[beam]'
    python examples/beam_translate.py en-de-tatoeba big.en out/big.de
    python examples/beam_translate.py gs://b/run gs://b/big.en gs://b/big.de --runner DataflowRunner
    cat out/big.de-*.txt > big.de

Other arguments must be Beam's. An element of the pipeline is a chunk of lines, the same chunk that
`translate.py` translates at once. It is sorted by length, so batches have sentences of like lengths, and the
lines are those of `translate.py` to the byte. Each worker process loads the model once.
Output files hold consecutive lines; each appears when it is complete. OUTPUT.json lists them when all are.
An interrupted pipeline starts again, under another name or after its files are deleted. The workers of other
runners need this package, in a container or by `--setup_file`.
"""

import argparse
import contextlib
import json
import logging
import pathlib
import signal
import sys
import traceback
import uuid

from keras_transformer.config import SearchConfig
from keras_transformer.config.extras import MissingExtraError, needs
from keras_transformer.text.lines import DataError, LineReader, iterate_lines
from keras_transformer.translation.lines import line_chunks

try:
    with needs("beam", "This program"):
        import apache_beam as beam
        from apache_beam.io.filesystems import FileSystems
        from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
        from apache_beam.utils.shared import Shared
except MissingExtraError as error:
    print(f"{pathlib.Path(sys.argv[0]).name}: {error}", file=sys.stderr)
    sys.exit(2)


def read_chunks(path, chunk_lines):
    """Yields (number of the chunk, number of its first line, list of lines) of a plain or compressed text."""
    # Not unpacked by Beam, which takes a truncated file for a complete one.
    file = None if "://" not in path else FileSystems.open(path, compression_type="uncompressed")
    with LineReader(path, file=file) as reader:
        first = 0
        lines = iterate_lines(reader, path, on_bad_utf8="replace")
        for number, texts in enumerate(line_chunks(lines, chunk_lines, waits=True)):
            yield number, first, texts
            first += len(texts)


class Translate(beam.DoFn):
    """Translates chunks: (number, first line, texts) -> (number, translations).

    Args:
        run: run folder, also in a bucket, or the name of a model that comes with the package.
        threads: int, number of batches translated in parallel.
        search: dict, fields of `SearchConfig`.
    """

    def __init__(self, run, threads, search):
        self._run, self._threads, self._search = run, threads, search
        self._shared = Shared()  # one model for all threads of a process

    def setup(self):
        """Loads the model."""
        self._translator = self._shared.acquire(self._load)

    def _load(self):
        from keras_transformer.cli.process import import_quietly

        # As translate.py: its settings of TensorFlow decide how sums are rounded.
        import_quietly("keras_transformer.translation.translator", batches_at_once=self._threads > 1)
        from keras_transformer import Translator

        return Translator.load(local_copy(self._run), threads=self._threads)

    def process(self, chunk):
        """Yields the translations of a chunk."""
        number, first, texts = chunk
        results = self._translator.n_best(texts, first_number=first, **self._search)
        beam.metrics.Metrics.counter("translate", "lines").inc(len(texts))
        yield number, [result.best.text for result in results]


def local_copy(run):
    """Returns a local path of a run folder; what is in a bucket is copied first, without training states."""
    if "://" not in run:
        return run
    import tempfile

    folder = pathlib.Path(tempfile.mkdtemp())
    (found,) = FileSystems.match([FileSystems.join(run, "**")])
    for entry in found.metadata_list:
        name = entry.path.removeprefix(run).lstrip("/")
        if name and not name.startswith(("checkpoints/", "best/", "corpus/", "tensorboard/")):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileSystems.open(entry.path) as source:
                path.write_bytes(source.read())
    return folder


def write_file(group, prefix):
    """Writes the chunks of one file in order; the file appears when it is complete.

    Args:
        group: (number of the file, iterable of (number of the chunk, list of str)).
        prefix: str, begins the name.

    Returns:
        dict: number, path and number of lines.
    """
    number, chunks = group
    texts = [text for _, chunk in sorted(chunks) for text in chunk]
    path = f"{prefix}-{number:05}.txt"
    write(path, "".join(f"{text}\n" for text in texts))
    return {"number": number, "path": path, "num_lines": len(texts)}


def write(path, text):
    """Writes a file under a temporary name, then renames it. A repeated attempt replaces it."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with FileSystems.create(temporary, "text/plain", compression_type="uncompressed") as file:
        file.write(text.encode())
    FileSystems.rename([temporary], [path])


def write_list(files, prefix):
    """Writes the list of all files, in order, as JSON; returns its path."""
    files = sorted(files, key=lambda file: file["number"]) or [write_file((0, []), prefix)]
    content = {"num_lines": sum(file["num_lines"] for file in files), "files": files}
    write(f"{prefix}.json", json.dumps(content, indent=1) + "\n")
    return f"{prefix}.json"


def check_unused(prefix):
    """Raises `ValueError` if there are files of another pipeline, which a shorter text would not replace."""
    found = FileSystems.match([f"{prefix}-*", f"{prefix}.json"])
    paths = sorted(entry.path for match in found for entry in match.metadata_list)
    if paths:
        remedy = f"Delete the files {prefix}-* and {prefix}.json, or choose another OUTPUT"
        raise ValueError(f"{paths[0]}: exists. {remedy}")


def check_inputs(run, text):
    """Raises `ValueError` if the run or the text cannot be read from here."""
    from keras_transformer.checkpoints import RunFolder
    from keras_transformer.checkpoints.pretrained import resolve

    if "://" not in run:
        RunFolder(resolve(run))
    if not FileSystems.exists(text):
        raise ValueError(f"{text}: no such file. Check the path")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        """Prints the line; ends with exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def check_flags(given, parser):
    """Refuses arguments that are not Beam's, either. Other runners than the local one may know more.

    Args:
        given: list of str, what `parser` does not know.
        parser: `argparse.ArgumentParser`.
    """
    known, all_of_them = (
        PipelineOptions(given).get_all_options(drop_default=True, retain_unknown_options=keep)
        for keep in (False, True)
    )
    unknown = sorted(set(all_of_them) - set(known))
    if unknown and known.get("runner") in (None, "DirectRunner", "PrismRunner"):
        parser.error(f"neither this program nor Beam has the flag --{unknown[0]}")


def data_error(error):
    """Returns the message of a `DataError` that a worker raised; `None` for another exception."""
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    found = [line.partition(f"{DataError.__name__}: ")[2] for line in lines]
    return next((line.partition(" [while running")[0] for line in found if line), None)


def parse_args(argv=None):
    """Parses the command line; returns the arguments, and those of Beam."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder, or the name of a model that comes with the package")
    parser.add_argument("input", help="text, also .gz, .xz or .bz2")
    parser.add_argument("output", help="begins the names of the output files")
    parser.add_argument("--beam-size", type=int)
    parser.add_argument("--sampling", action="store_true", default=None)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--chunk-lines", type=int, default=1024)
    parser.add_argument("--file-chunks", type=int, default=64, help="chunks in an output file (default: 64)")
    parser.add_argument("--threads", type=int, default=1, help="batches in parallel in a worker (default: 1)")
    args, rest = parser.parse_known_args(argv)
    for name in ("chunk_lines", "file_chunks", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1. Received: {getattr(args, name)}")
    check_flags(rest, parser)
    return args, rest


def run_pipeline(args, search, options):
    """Translates the text and writes all files."""
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | "Path" >> beam.Create([args.input])
            | "Read" >> beam.FlatMap(read_chunks, args.chunk_lines)
            | "Distribute" >> beam.Reshuffle()
            | "Translate" >> beam.ParDo(Translate(args.run, args.threads, search))
            | "File of chunk" >> beam.Map(lambda chunk, size: (chunk[0] // size, chunk), args.file_chunks)
            | "Sort" >> beam.GroupByKey()
            | "Write" >> beam.Map(write_file, args.output)
            | "All files" >> beam.combiners.ToList()
            | "List" >> beam.Map(write_list, args.output)
        )


@contextlib.contextmanager
def ctrl_c_stops():
    """Raises `KeyboardInterrupt` if Ctrl-C ends the block, whatever Beam, TensorFlow or Keras make of it."""
    pressed = []

    def interrupt(*_):
        pressed.append(True)
        logging.disable(logging.ERROR)  # Beam logs a traceback of what it interrupts
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def main(argv=None):
    """Runs the pipeline; returns its exit code."""
    args, rest = parse_args(argv)
    search = {name: getattr(args, name) for name in ("beam_size", "sampling", "seed")}
    search = {name: value for name, value in search.items() if value is not None}
    options = PipelineOptions(rest)
    options.view_as(SetupOptions).save_main_session = True  # workers need the functions of this file
    FileSystems.set_options(options)
    logging.getLogger("apache_beam.runners").setLevel(logging.CRITICAL)  # errors are raised, too
    try:
        SearchConfig(**search)
        check_inputs(args.run, args.input)
        check_unused(args.output)
    except ValueError as error:
        print(f"{pathlib.Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    parent = FileSystems.split(args.output)[0]
    if parent and not FileSystems.exists(parent):
        FileSystems.mkdirs(parent)
    try:
        with ctrl_c_stops():
            run_pipeline(args, search, options)
    except KeyboardInterrupt:
        remedy = f"Delete the files {args.output}-*, if any: the same command then starts again"
        print(f"{pathlib.Path(__file__).name}: stopped. {remedy}", file=sys.stderr)
        return 130
    except Exception as error:
        if not (message := data_error(error)):
            raise
        print(f"{pathlib.Path(__file__).name}: {message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
