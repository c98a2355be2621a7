"""Speed of the server under load, what it does when overloaded, and whether it ends without losing requests.

    python benchmarks/serving.py --text test.en
    python benchmarks/serving.py throughput engines --models small --seconds 20 --rounds 3
    python benchmarks/serving.py throughput --models small --engine ctranslate2
    python benchmarks/serving.py overload sigterm --text test.en

`small` is a model of that preset with random weights, whose translations are as long as the source; other
models are run folders or come with the package. Everything stays on this machine: the servers listen on
127.0.0.1, and the load comes from another process.

- throughput: `--clients` clients that each send one sentence, wait for its translation and send the next. The
  ways take turns, round after round: `merged`, a server with the default settings; `unmerged`, each sentence
  a batch of its own; `alone`, one client; `offline`, all sentences at once, without a server, as
  `translate.py` does; `offline-N`, as many sentences at a time as there are clients.
- engines: `merged` and `offline` of the run and its exports.
- overload: requests of `--texts-per-request` sentences at `--times` the speed of `merged`, for `--seconds`.
- sigterm: the signal comes while all clients wait for answers.

A ratio is computed within one round. `cpu ms` is processor time for a sentence, the server's or offline; its
ratios mean more than those of speeds where other programs use the cores. Every translation is compared with
the offline one.
"""

import argparse
import collections
import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from refusing import Parser, refused
from serving_load import HOST, MAX_CONNECTIONS, MAX_SECONDS, Answer

from keras_transformer.config.cores import usable_cores

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARTS = ("throughput", "engines", "overload", "sigterm")
MODEL = "bench"  # its name on the servers
SMALL = "small"
CORES = usable_cores()
REFUSED = (429, 503)  # a full queue, a server that is ending
PATIENCE = 120  # seconds until a server must be ready


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument("--models", nargs="+", default=["en-de-tatoeba", SMALL], metavar="RUN")
    text = ROOT / "notebooks" / "sentences.en"
    parser.add_argument("--text", default=str(text), metavar="FILE", help="one sentence a line")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement (60)")
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds before each (5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="of throughput (all)")
    parser.add_argument("--times", type=float, default=10.0, help="the capacity, in overload (10)")
    parser.add_argument("--texts-per-request", type=int, default=32, help="in overload (32)")
    parser.add_argument("--connections", type=int, default=400, help="at most, in overload (400)")
    engines = ("tensorflow", "ctranslate2", "auto")
    parser.add_argument("--engine", default=engines[0], choices=engines, help="of run folders (tensorflow)")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of the merged servers")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def refuse(args):
    """Raises ValueError or OSError for what would be found out too late."""
    for part in args.parts:
        if part not in PARTS:
            raise ValueError(f"{part!r} is no part. Name some of {', '.join(PARTS)}, or none for all")
    from keras_transformer.checkpoints.pretrained import resolve

    for way in args.ways or ():
        if not re.fullmatch(r"merged|unmerged|alone|offline(-[1-9]\d*)?", way):
            raise ValueError(f"--ways {way}: choose from merged, unmerged, alone, offline and offline-N")
    for model in args.models:
        if model != SMALL and not pathlib.Path(resolve(model)).is_dir():
            raise ValueError(f"{model}: no such folder. Name a run folder or an exported model")
    if args.warmup < 0:
        raise ValueError(f"--warmup must be at least 0. Received: {args.warmup}")
    for name in ("clients", "rounds", "texts_per_request", "connections", "seconds", "times"):
        if getattr(args, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0. Received: {getattr(args, name)}")
    if max(args.clients, args.connections) > MAX_CONNECTIONS:
        raise ValueError(f"--clients and --connections must be at most {MAX_CONNECTIONS}")
    if args.seconds + args.warmup > MAX_SECONDS:
        raise ValueError(f"--seconds and --warmup together must be at most {MAX_SECONDS}")
    if not read_texts(args.text):
        raise ValueError(f"{args.text}: is empty. Name a file of one sentence a line")


def read_texts(path):
    """Returns the lines of a file that are not blank."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    return [line for line in map(str.strip, lines) if line]


class ServerProcess:
    """A server on a free port.

    Args:
        model: path of its model, or name of one that comes with the package.
        log: path of its standard error.
        flags: list of str, flags of `serve`.
    """

    def __init__(self, model, log, flags=()):
        self._log = pathlib.Path(log)
        program = str(ROOT / "pipelines" / "serve.py")
        command = [sys.executable, program, f"{MODEL}={model}", "--port", "0", "--no-explorer", *flags]
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
        self.port = int(self._wait_for(rf"listening on http://{HOST}:(\d+)"))
        self._wait_for("(ready after)")

    def _wait_for(self, pattern):
        end = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self._log.read_text(errors="replace"))):
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                last = (self._log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
                raise RuntimeError(f"the server did not start: {last}")
            time.sleep(0.1)
        return match.group(1)

    def batches(self):
        """Returns (number of batches so far, number of sentences in them)."""
        with urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=PATIENCE) as answer:
            metrics = answer.read().decode()
        names = ("count", "sum")
        pattern = r"(?m)^keras_transformer_batch_texts_{} (\S+)$"
        return tuple(float(re.search(pattern.format(name), metrics).group(1)) for name in names)

    def processor_seconds(self):
        """Returns the processor time used so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """Returns (resident memory, its peak) in MB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return tuple(
            int(re.search(rf"{name}:\s*(\d+) kB", status).group(1)) / 1000 for name in ("VmRSS", "VmHWM")
        )

    def stop(self):
        """Ends it; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class LoadProcess:
    """A running `serving_load.py`.

    Args:
        server: `ServerProcess`.
        texts: list of str.
        **load: further fields of `Load`.
    """

    def __init__(self, server, texts, **load):
        program = str(pathlib.Path(__file__).with_name("serving_load.py"))
        self._process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        path = f"/v1/models/{MODEL}:predict"
        self._process.stdin.write(json.dumps({"port": server.port, "path": path, "texts": texts, **load}))
        self._process.stdin.close()

    def result(self):
        """Waits; returns (list of `Answer`, number of requests that were not sent)."""
        output = self._process.stdout.read()
        if self._process.wait():
            raise RuntimeError("the client failed")
        answers, skipped = json.loads(output)
        return [Answer(*answer) for answer in answers], skipped


class Offline:
    """A process that translates without a server, with one thread per core.

    Args:
        model: path of a run folder or an export.
        text: path of the sentences.
        engine: str, as in `Translator.load`.
    """

    def __init__(self, model, text, engine):
        command = [sys.executable, __file__, "--worker", "offline", "--models", model, "--text", text]
        command += ["--engine", engine]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.translations = self._ask(0, 0)["translations"]  # of all sentences

    def _ask(self, size, seconds):
        print(size, seconds, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the offline translation failed")
        return json.loads(answer)

    def speed(self, size, seconds):
        """Translates again and again, `size` sentences at a time; 0 for all. Returns a dict of figures."""
        return {key: value for key, value in self._ask(size, seconds).items() if key != "translations"}

    def stop(self):
        """Ends it."""
        self._process.stdin.close()
        self._process.wait()


def work(args):
    """The process of `Offline`: for each line of standard input, translates and prints a line of JSON."""
    from keras_transformer.cli.process import import_quietly

    (model,), texts = args.models, read_texts(args.text)
    if args.worker == "make":
        make_small(model)
        return
    import_quietly("keras_transformer.serving.engines", batches_at_once=True)
    translate = offline_translator(model, args.engine)
    for request in sys.stdin:
        size, seconds = int(request.split()[0]), float(request.split()[1])
        chunks = [
            texts[begin : begin + (size or len(texts))] for begin in range(0, len(texts), size or len(texts))
        ]
        begin, used, count = time.monotonic(), time.process_time(), 0
        for chunk in itertools.cycle(chunks):
            found = translate(chunk)
            count += len(chunk)
            if time.monotonic() - begin >= seconds:
                break
        lasted, used = time.monotonic() - begin, time.process_time() - used
        figures = {
            "sentences_per_second": count / lasted,
            "cpu_ms": 1000 * used / count,
            "cores_used": used / lasted,
        }
        print(json.dumps({**figures, "translations": found}), flush=True)


def offline_translator(model, engine):
    """Returns a function that translates a list of str, `CORES` batches at once."""
    import concurrent.futures

    from keras_transformer.checkpoints.pretrained import resolve
    from keras_transformer.serving.engines import kind_of, load_engine

    kind = kind_of(resolve(model))
    if kind == "run":
        from keras_transformer.translation.translator import Translator

        return Translator.load(model, engine=engine, threads=CORES).translate
    if kind == "ctranslate2":
        from keras_transformer.export.ctranslate2 import CTranslate2Translator

        return CTranslate2Translator(model, inter_threads=CORES, intra_threads=1).translate
    loaded = load_engine(model)
    pool = concurrent.futures.ThreadPoolExecutor(CORES)

    def translate(texts):
        # The model has one batch per call, so calls get sentences of similar length.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        size = min(128, -(-len(order) // CORES))
        parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
        results = pool.map(lambda part: loaded.translate([texts[index] for index in part], {}), parts)
        found = dict(zip(itertools.chain(*parts), itertools.chain(*results), strict=True))
        return [found[index].best.text for index in range(len(texts))]

    return translate


def make_small(folder):
    """Writes a run folder of the preset `small`: random weights, vocabulary of the package's model."""
    import keras

    from keras_transformer.checkpoints.pretrained import pretrained_folder
    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.config.presets import PRESETS, with_vocab_size
    from keras_transformer.config.settings import replace
    from keras_transformer.model.transformer import Transformer
    from keras_transformer.translation.translator import Translator

    tokenizers = RunFolder(pretrained_folder("en-de-tatoeba")).load_tokenizers()
    config = with_vocab_size(PRESETS[SMALL], tokenizers.source.vocab_size)
    # Random weights do not end a translation, so the limit is its length.
    config = replace(config, data={"source": "en", "target": "de"}, search={"max_length_offset": 1})
    keras.utils.set_random_seed(1)
    Translator(Transformer(config.model), tokenizers, config.search).save(folder, config=config)


def percentiles(seconds):
    """Returns dict, p50, p95 and p99 of a list of seconds, in milliseconds."""
    ordered = sorted(seconds)
    return {
        f"p{share}_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
        for share in (50, 95, 99)
        if ordered
    }


def num_different(answers, expected):
    """Returns the number of translations that are not those expected.

    Args:
        answers: list of `Answer`.
        expected: list of str, by index of the text.
    """
    return sum(
        translation != expected[index]
        for answer in answers
        if answer.code == 200
        for index, translation in zip(answer.indices, answer.translations, strict=True)
    )


def codes(answers):
    """Returns dict, status -> number of answers."""
    return dict(sorted(collections.Counter(answer.code for answer in answers).items()))


def measured(server, texts, expected, clients, args):
    """Sends a closed load; returns a dict of figures."""
    before, used, begin = server.batches(), server.processor_seconds(), time.monotonic()
    load = LoadProcess(server, texts, connections=clients, seconds=args.warmup + args.seconds)
    answers, _ = load.result()
    lasted, used = time.monotonic() - begin, server.processor_seconds() - used
    batches, sentences = (now - then for now, then in zip(server.batches(), before, strict=True))
    first = min(answer.begin for answer in answers) + args.warmup
    counted = [answer for answer in answers if first <= answer.end < first + args.seconds]
    return {
        "sentences_per_second": sum(len(answer.translations) for answer in counted) / args.seconds,
        "texts_per_batch": sentences / batches,
        **percentiles([answer.end - answer.begin for answer in counted]),
        "cpu_ms": 1000 * used / max(1, sum(len(answer.translations) for answer in answers)),
        "cores_used": used / lasted,
        "codes": codes(answers),
        "different": num_different(answers, expected),
        "answers": len(answers),
    }


def throughput(args, model, stack, folder):
    """Yields a record for each way and round, ways in turns."""
    texts = read_texts(args.text)
    offline = started_offline(model, args, stack)
    expected = offline.translations
    chosen = args.ways or ["merged", "unmerged", "alone", "offline", f"offline-{args.clients}"]
    servers = {}
    if {"merged", "alone"} & {*chosen}:
        servers["merged"] = servers["alone"] = started(model, args, folder, stack, args.serve)
    if "unmerged" in chosen:
        servers["unmerged"] = started(model, args, folder, stack, ["--batch-tokens", "1"])
    for number in range(args.rounds):
        for way in chosen:
            if way.startswith("offline"):
                figures = offline.speed(int(way.partition("-")[2] or 0), args.seconds)
            else:
                clients = 1 if way == "alone" else args.clients
                figures = measured(servers[way], texts, expected, clients, args)
            yield {"part": "throughput", "round": number, "way": way, "load": os.getloadavg()[0], **figures}


def engines(args, model, stack, folder):
    """Yields a record for each engine, merged and offline, in turns."""
    texts = read_texts(args.text)
    paths = {"run": model, **exported(model, folder)}
    servers = {kind: started(path, args, folder, stack, args.serve) for kind, path in paths.items()}
    offlines = {kind: started_offline(path, args, stack) for kind, path in paths.items()}
    expected = {kind: offline.translations for kind, offline in offlines.items()}
    for number, kind in itertools.product(range(args.rounds), paths):
        record = {"part": "engines", "round": number, "load": os.getloadavg()[0]}
        figures = measured(servers[kind], texts, expected[kind], args.clients, args)
        yield {**record, "way": kind, **figures}
        yield {**record, "way": f"{kind} offline", **offlines[kind].speed(0, args.seconds)}


def exported(model, folder):
    """Exports a run; returns dict, kind -> path."""
    paths = {}
    for kind in ("savedmodel", "ctranslate2"):
        out = folder / f"{pathlib.Path(model).name}-{kind}"
        if not out.exists():
            program = str(ROOT / "pipelines" / "export_model.py")
            command = [sys.executable, program, model, str(out), "--format", kind]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        paths[kind] = str(out / "1" if kind == "savedmodel" else out)
    return paths


def overload(args, model, stack, folder):
    """Yields a record of an open load at `--times` the speed of a closed one."""
    texts, offline = read_texts(args.text), started_offline(model, args, stack)
    expected = offline.translations
    server = started(model, args, folder, stack, args.serve)
    short = argparse.Namespace(warmup=args.warmup, seconds=min(args.seconds, 10))
    capacity = measured(server, texts, expected, args.clients, short)["sentences_per_second"]
    rate = args.times * capacity / args.texts_per_request
    begin = time.monotonic()
    load = LoadProcess(
        server, texts, connections=args.connections, seconds=args.seconds, rate=rate,
        texts_per_request=args.texts_per_request,
    )  # fmt: skip
    memory = []
    for at in range(10, int(args.seconds) + 1, 10):
        time.sleep(max(0, begin + at - time.monotonic()))
        memory.append(round(server.memory()[0]))
    answers, skipped = load.result()
    accepted = [answer for answer in answers if answer.code == 200]
    lasted = max(answer.end for answer in answers) - min(answer.begin for answer in answers)
    yield {
        "part": "overload",
        "way": f"{args.times:g} times",
        "capacity": capacity,
        "offered_per_second": rate * args.texts_per_request,
        "sentences_per_second": sum(len(answer.translations) for answer in accepted) / lasted,
        "requests": len(answers),
        "not_sent": skipped,
        "codes": codes(answers),
        "lost": sum(answer.code not in (200, *REFUSED) for answer in answers),  # accepted, but no answer
        **percentiles([answer.end - answer.begin for answer in accepted]),
        "refusal_p50_ms": percentiles(
            [answer.end - answer.begin for answer in answers if answer.code in REFUSED]
        ).get("p50_ms"),
        "different": num_different(accepted, expected),
        "mb_every_10_s": memory,
        "mb_peak": server.memory()[1],
    }


def sigterm(args, model, stack, folder):
    """Yields a record of requests that wait when SIGTERM comes."""
    texts, offline = read_texts(args.text), started_offline(model, args, stack)
    expected = offline.translations
    for number in range(args.rounds):
        server = started(model, args, folder, stack, args.serve)
        load = LoadProcess(server, texts, connections=args.clients, seconds=args.warmup + 10)
        time.sleep(args.warmup)
        sent = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        answers, _ = load.result()
        code = server.stop()
        before = [answer for answer in answers if answer.begin < sent]
        waiting = [answer for answer in before if answer.end >= sent]
        yield {
            "part": "sigterm",
            "round": number,
            "way": f"{args.clients} clients",
            "accepted": len(before),
            "waiting": len(waiting),
            "answered": sum(answer.code == 200 for answer in before),
            "lost": sum(answer.code != 200 for answer in before),
            "lost_ages_ms": [1000 * (sent - answer.begin) for answer in before if answer.code != 200],
            "later": codes([answer for answer in answers if answer.begin >= sent]),
            "last_after_ms": 1000 * (max(answer.end for answer in before) - sent),
            "exit_code": code,
            "different": num_different(answers, expected),
        }


def started(model, args, folder, stack, flags=()):
    """Starts a server that ends with `stack`."""
    from keras_transformer.checkpoints.pretrained import resolve
    from keras_transformer.serving.engines import kind_of

    number = len(list(folder.glob("*.log")))
    if kind_of(resolve(model)) == "run":
        flags = ["--engine", args.engine, *flags]
    server = ServerProcess(model, folder / f"{number}.log", flags)
    stack.callback(server.stop)
    return server


def started_offline(model, args, stack):
    """Starts an `Offline` that ends with `stack`."""
    offline = Offline(model, args.text, args.engine)
    stack.callback(offline.stop)
    return offline


def ratios(records, way, other, key="sentences_per_second"):
    """Returns the ratios of a figure of two ways, one per round in which both were measured.

    Args:
        records: list of dict, with `way`, `round` and `key`.
        way, other: str.
        key: str.
    """
    by_round = collections.defaultdict(dict)
    for record in records:
        by_round[record["round"]][record["way"]] = record[key]
    return [found[way] / found[other] for found in by_round.values() if way in found and other in found]


def table(records):
    """Returns the lines of a table: a row for each way, medians over the rounds, then ratios."""
    ways = list(dict.fromkeys(record["way"] for record in records))
    columns = {
        "sentences/s": "sentences_per_second",
        "texts/batch": "texts_per_batch",
        "p50 ms": "p50_ms",
        "p95 ms": "p95_ms",
        "p99 ms": "p99_ms",
        "cpu ms": "cpu_ms",
        "cores": "cores_used",
    }
    lines = [f"{'':<20}" + "".join(f"{name:>13}" for name in columns) + "  different"]
    for way in ways:
        rows = [record for record in records if record["way"] == way]
        cells = []
        for key in columns.values():
            values = [row[key] for row in rows if key in row]
            cells.append(f"{statistics.median(values):13.1f}" if values else f"{'':>13}")
        answers = sum(row.get("answers", 0) for row in rows)
        different = f"  {sum(row.get('different', 0) for row in rows)} of {answers}" if answers else ""
        lines.append(f"{way:<20}" + "".join(cells) + different)
    pairs = [("merged", other) for other in ways if other != "merged"]
    pairs += [(way, f"{way} offline") for way in ways]
    for way, other in pairs:
        speeds, times = (ratios(records, way, other, key) for key in ("sentences_per_second", "cpu_ms"))
        if speeds:
            lines.append(f"{way} to {other}: speed {_spread(speeds)}, processor time {_spread(times)}")
    return lines


def _spread(values):
    """Returns the text `min / median / max`."""
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}"


def listed(records):
    """Returns the lines of a list of figures, for the parts that have no table."""
    return [
        f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}"
        for record in records
        for name, value in record.items()
    ]


def main(argv=None):
    """Runs the benchmark; returns its exit code."""
    args = parse_args(argv)
    if args.worker:
        work(args)
        return 0
    try:
        refuse(args)
    except (OSError, ValueError) as error:
        return refused("serving.py", error)
    os.environ["PYTHONPATH"] = str(ROOT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too
    functions = {"throughput": throughput, "engines": engines, "overload": overload, "sigterm": sigterm}
    with tempfile.TemporaryDirectory(prefix="serving-") as name:
        for number, run in enumerate(args.models):
            folder, model = pathlib.Path(name) / str(number), run
            folder.mkdir()
            if run == SMALL and not pathlib.Path(run).exists():
                model = str(folder / SMALL)
                subprocess.run([sys.executable, __file__, "--worker", "make", "--models", model], check=True)
            for part in args.parts or PARTS:
                records = []
                with contextlib.ExitStack() as stack:
                    for record in functions[part](args, model, stack, folder):
                        records.append({"model": run, **record})
                        print(json.dumps(records[-1]), flush=True)
                print(f"\n{run}, {part}:")
                lines = table if part in ("throughput", "engines") else listed
                print("\n".join(lines(records)) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
