"""Prepares a corpus with Apache Beam: on this machine, or on Dataflow, Flink or Spark.

    pip install 'keras-transformer-translation[beam]'
    python examples/beam_prepare.py corpus data/corpus --source en --target de --tokenizer runs/mine
    python examples/beam_prepare.py wmt14_translate/de-en gs://b/wmt14 --source en --target de \
        --tokenizer vocabulary/tokenizer.model --set cleaning.drop_duplicates=true --runner DataflowRunner

The folder is that of `prepare_wmt.py` to the byte, whose arguments this program has; others must be Beam's.
Without `--tokenizer`, this process reads the whole text and learns the vocabulary before the pipeline starts.

An element of the pipeline is the raw text of a shard. Each dataset is read in order by one worker; shards are
cleaned, encoded and written in parallel. Repeated pairs are found by their hashes: a worker gets all hashes
of one residue class, in the order of the text. The manifest appears when all shards are complete. An
interrupted pipeline starts again, in a new folder. The datasets must have the same path or name on all
workers; OUT may be in a bucket.
"""

import json
import os
import pathlib
import pickle
import sys
import tempfile
import uuid

import numpy as np

from keras_transformer.config.extras import MissingExtraError, needs

try:
    with needs("beam", "This program"):
        import apache_beam as beam
        from apache_beam.io.filesystems import FileSystems
        from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
except MissingExtraError as error:
    print(f"{pathlib.Path(sys.argv[0]).name}: {error}", file=sys.stderr)
    sys.exit(2)

FOR_LOCAL_PREPARATION = ("text", "examples", "plot", "workers")
RESULTS = "results.json"


class Read(beam.DoFn):
    """Reads a dataset: its index -> (key, job) of each shard; key is (index, number of the shard in it).

    Args:
        config: `Config`.
        shard_pairs: int, number of raw pairs per shard.
    """

    def __init__(self, config, shard_pairs):
        self._config, self._shard_pairs = config, shard_pairs

    def process(self, index):
        """Yields the jobs of one dataset; what cannot be read is an output `errors`."""
        from keras_transformer.batches.sharding import open_text, shard_jobs
        from keras_transformer.text.lines import DataError

        number = -1
        try:
            text = open_text(self._config)
            text = text._replace(datasets=[text.datasets[index]])
            jobs = shard_jobs(text, self._shard_pairs, finds_repeated=False)
            for number, job in enumerate(jobs):
                yield (index, number), job._replace(dataset=index)
        except DataError as error:
            yield beam.pvalue.TaggedOutput("errors", ((index, number + 1), str(error)))


class Hash(beam.DoFn):
    """Hashes the pairs of a job: (key, job) -> (residue class, (key, numbers of the pairs, their hashes)).

    Args:
        data: `DataConfig`.
        partitions: int, number of residue classes.
    """

    def __init__(self, data, partitions):
        self._data, self._partitions = data, partitions

    def process(self, element):
        """Yields the hashes of each residue class."""
        from keras_transformer.text.cleaning import pair_hashes
        from keras_transformer.text.lines import DataError

        key, job = element
        try:
            hashes = np.concatenate([pair_hashes(*pairs) for pairs, _ in job.decode(self._data)])
        except DataError:
            return  # `Encode` has the same error
        classes = hashes % np.uint64(self._partitions)
        for number in np.unique(classes).tolist():
            (pairs,) = np.nonzero(classes == number)
            yield number, (key, pairs.astype(np.int32), hashes[pairs])


def find_repeated(group):
    """Finds the pairs whose hash occurred earlier, in the order of the text.

    Args:
        group: (residue class, iterable of what `Hash` yields).

    Yields:
        (key, int32 NumPy array, the numbers of such pairs in the job)
    """
    from keras_transformer.text.cleaning import HashSet

    seen = HashSet()
    for key, pairs, hashes in sorted(group[1], key=lambda part: part[0]):
        repeated = seen.add(hashes)
        if repeated.any():
            yield key, pairs[repeated]


class Encode(beam.DoFn):
    """Cleans, encodes and writes a shard: (key, job and repeated pairs) -> (key, record).

    Args:
        config: `Config`.
        tokenizers: pickled `Tokenizers`.
        folder: str, where files are written.
    """

    def __init__(self, config, tokenizers, folder):
        self._config, self._pickled, self._folder = config, tokenizers, folder

    def setup(self):
        """Loads the tokenizers and the filters."""
        from keras_transformer.text.cleaning import Cleaner

        data = self._config.data
        self._tokenizers = pickle.loads(self._pickled)
        self._cleaner = Cleaner(self._config.cleaning, data.source, data.target, max_length=data.max_length)

    def process(self, element, num_shards):
        """Writes the files of a shard; invalid text is an output `errors`.

        Args:
            element: (key, dict: `jobs`, one; `repeated`, arrays of numbers of pairs).
            num_shards: dict, index of a dataset -> number of its shards.
        """
        from keras_transformer.batches.prepared import array_bytes, file_entry
        from keras_transformer.batches.sharding import encode_shard
        from keras_transformer.text.folders import TRAIN
        from keras_transformer.text.lines import DataError

        (index, number), group = element
        (job,) = group["jobs"]
        first = sum(count for dataset, count in num_shards.items() if dataset < index)
        job = job._replace(name=f"{TRAIN}-{first + number:05}")
        if self._config.cleaning.drop_duplicates:
            job = job._replace(repeated=flags_of(job, group["repeated"]))
        try:
            shard, report, arrays = encode_shard(self._config.data, self._cleaner, self._tokenizers, job)
        except DataError as error:
            yield beam.pvalue.TaggedOutput("errors", ((index, number), str(error)))
            return
        for side, (name, array) in arrays.items():
            content = array_bytes(array)
            write(FileSystems.join(self._folder, name), content)
            shard[side] |= file_entry(name, content)
        beam.metrics.Metrics.counter("prepare", "pairs").inc(report.num_pairs)
        yield (index, number), {"shard": shard, "report": report.to_dict()}


def flags_of(job, repeated):
    """Returns a list with a bool NumPy array per block, true for repeated pairs."""
    sizes = [block.source.count(b"\n") + (not block.source.endswith(b"\n")) for block in job.blocks]
    flags = np.zeros(sum(sizes), bool)
    for pairs in repeated:
        flags[pairs] = True
    return np.split(flags, np.cumsum(sizes)[:-1])


def write(path, content):
    """Writes a file under a temporary name, then renames it. A repeated attempt replaces it."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with FileSystems.create(temporary, "application/octet-stream", compression_type="uncompressed") as file:
        file.write(content)
    FileSystems.rename([temporary], [path])


def write_results(results, path):
    """Writes the records and errors of all shards, in order, as JSON.

    Args:
        results: list of ((index, number), record or error).
        path: str.
    """
    values = [value for _, value in sorted(results, key=lambda result: result[0])]
    write(path, json.dumps(values).encode())


def clear(folder, and_itself):
    """Deletes the files of a folder, and the folder too if `and_itself`."""
    (found,) = FileSystems.match([FileSystems.join(folder, "*")])
    FileSystems.delete([entry.path for entry in found.metadata_list])
    if and_itself and FileSystems.exists(folder):  # in a bucket, there is none
        FileSystems.delete([folder])


def prepare(config, out, options, *, tokenizers, shard_pairs, partitions):
    """Runs the pipeline and writes the files around it; returns the `CleaningReport`.

    Args:
        config: `Config`.
        out: str, path of the folder.
        options: `PipelineOptions`.
        tokenizers: `Tokenizers`; `None` learns them.
        shard_pairs: int, number of raw pairs per shard.
        partitions: int, residue classes of hashes, for duplicates.

    Raises:
        ValueError: the folder is not empty, or the text is invalid.
    """
    from keras_transformer.batches.prepared import MANIFEST, file_entry
    from keras_transformer.batches.preparing import (
        check_outside,
        check_synthetic_text,
        last_files,
        settings_of,
    )
    from keras_transformer.batches.sharding import open_text
    from keras_transformer.batches.text_files import write_split
    from keras_transformer.text.cleaning import CleaningReport
    from keras_transformer.text.folders import TRAIN
    from keras_transformer.tokenizers.tokenizer_pair import (
        learn_tokenizers,
        save_tokenizers,
        vocabulary_files,
    )

    if FileSystems.exists(FileSystems.join(out, MANIFEST)):
        raise ValueError(f"{out}: a prepared corpus. Choose another folder, or delete this one")
    (found,) = FileSystems.match([FileSystems.join(out, "*")])
    if found.metadata_list:  # shards of another size would stay, and text files of a corpus be replaced
        raise ValueError(
            f"{out}: exists and is not an empty folder. Choose a new folder, or delete this one if an "
            "interrupted pipeline left it"
        )
    check_outside(config.data.dataset, out)
    text = open_text(config)
    settings = settings_of(config, tokenizers, shard_pairs) | {"inputs": text.inputs}
    check_synthetic_text(text, settings, tokenizers)
    is_new = not FileSystems.exists(out)
    if is_new:
        FileSystems.mkdirs(out)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        texts = {split: write_split(text, folder, split) for split in text.splits}
        tokenizers = tokenizers or learn_tokenizers(text.clean_pairs, config.data)
        save_tokenizers(folder, tokenizers)
        for file in sorted(folder.iterdir()):
            write(FileSystems.join(out, file.name), file.read_bytes())
        names = vocabulary_files(tokenizers.shared)
        vocabularies = [file_entry(name, (folder / name).read_bytes()) for name in names]
    results = FileSystems.join(out, RESULTS)
    with beam.Pipeline(options=options) as pipeline:
        indices = [i for i, dataset in enumerate(text.datasets) if TRAIN in dataset.splits]
        read = (
            pipeline
            | "Datasets" >> beam.Create(indices)
            | "Distribute datasets" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(Read(config, shard_pairs)).with_outputs("errors", main="jobs")
        )
        jobs = read.jobs | "Distribute jobs" >> beam.Reshuffle()
        repeated = pipeline | "None repeated" >> beam.Create([])
        if config.cleaning.drop_duplicates:
            repeated = (
                jobs
                | "Hash" >> beam.ParDo(Hash(config.data, partitions))
                | "By residue" >> beam.GroupByKey()
                | "Find repeated" >> beam.FlatMap(find_repeated)
            )
        num_shards = (
            jobs
            | "Dataset of job" >> beam.Map(lambda element: element[0][0])
            | "Count" >> beam.combiners.Count.PerElement()
        )
        encode = Encode(config, pickle.dumps(tokenizers), out)
        encoded = (
            {"jobs": jobs, "repeated": repeated}
            | "Join" >> beam.CoGroupByKey()
            | "Encode"
            >> beam.ParDo(encode, beam.pvalue.AsDict(num_shards)).with_outputs("errors", main="records")
        )
        _ = (
            (read.errors, encoded.errors, encoded.records)
            | beam.Flatten()
            | "All" >> beam.combiners.ToList()
            | "Results" >> beam.Map(write_results, results)
        )
    with FileSystems.open(results, "application/octet-stream", compression_type="uncompressed") as file:
        found = json.loads(file.read())
    FileSystems.delete([results])
    try:
        if errors := [one for one in found if isinstance(one, str)]:
            raise ValueError(errors[0])
        report = sum((CleaningReport.from_dict(one["report"]) for one in found), CleaningReport())
        report.check(config.data.dataset)
    except ValueError:
        clear(out, is_new)
        raise
    shards = [one["shard"] for one in found if one["shard"]["num_pairs"]]
    for name, content in last_files(settings, report, vocabularies, texts, shards).items():
        write(FileSystems.join(out, name), content)
    return report


def parse_args(argv=None):
    """Parses the command line; returns the arguments, and those of Beam."""
    from beam_translate import check_flags

    from keras_transformer.cli.prepare import make_parser

    parser = make_parser()
    parser.prog, parser.description = pathlib.Path(__file__).name, __doc__.splitlines()[0]
    parser.epilog = None
    parser.add_argument(
        "--partitions", type=int, default=256, help="groups of hashes, for duplicates (default: 256)"
    )
    args, rest = parser.parse_known_args(argv)
    check_flags(rest, parser)
    for name in FOR_LOCAL_PREPARATION:
        if getattr(args, name):
            parser.error(f"--{name} is a flag of prepare_wmt.py only")
    if not args.out:
        parser.error("a folder to write is needed: DATASET OUT")
    if args.partitions < 1:
        parser.error(f"--partitions must be at least 1, not {args.partitions}")
    return args, rest


def main(argv=None):
    """Runs the program; returns its exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    args, rest = parse_args(argv)
    from beam_translate import ctrl_c_stops

    from keras_transformer.batches.preparing import SHARD_PAIRS
    from keras_transformer.checkpoints.pretrained import resolve as folder_of
    from keras_transformer.cli.prepare import resolve
    from keras_transformer.tokenizers.tokenizer_pair import read_tokenizers

    options = PipelineOptions(rest)
    options.view_as(SetupOptions).save_main_session = True  # workers need the functions of this file
    FileSystems.set_options(options)
    try:
        config = resolve(args)
        tokenizers = read_tokenizers(folder_of(args.tokenizer)) if args.tokenizer else None
        with ctrl_c_stops():
            report = prepare(
                config,
                args.out,
                options,
                tokenizers=tokenizers,
                shard_pairs=args.shard_pairs or SHARD_PAIRS,
                partitions=args.partitions,
            )
    except KeyboardInterrupt:
        remedy = f"Delete {args.out}, if it is there: the same command then starts again"
        print(f"{pathlib.Path(__file__).name}: stopped. {remedy}", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"{pathlib.Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: {report.num_kept:,} pairs\n\n{report.table()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
