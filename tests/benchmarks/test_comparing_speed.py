"""The comparison of speeds: hand counts, ratios within a round, peers that fail. Nothing is timed."""

import contextlib
import ctypes
import functools
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import types

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import compare  # noqa: E402
import engine_speed  # noqa: E402
from peers import decode_ours_ctranslate2, environments, running, tables, timing, work  # noqa: E402

from keras_transformer.cli import process  # noqa: E402
from keras_transformer.export.ctranslate2_model import vocabulary_tokens  # noqa: E402
from keras_transformer.export.engines import load_translator  # noqa: E402
from keras_transformer.tokenizers import WordPieceTokenizer  # noqa: E402

SIZE = work.Size(vocab_size=11, d_model=2, num_heads=1, d_ff=3, num_layers=5, batch=7, length=13)


def record(peer, speed, *, number=0, precision="float32", **more):
    return {
        "task": "train",
        "size": "small",
        "run": "now",
        "round": number,
        "peer": peer,
        "precision": precision,
        "speed": speed,
        "gflops": speed / 10,
        "peak_memory_mb": 1234,
        "parameters": 5678,
        **more,
    }


def peak(gflops, number=0):
    return {"task": "peak", "run": "now", "round": number, "gflops": gflops}


def rows(markdown):
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in markdown.splitlines()]


def test_a_gpu_is_hidden_unless_it_is_measured(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cpu, gpu = (running.child_environment(1, device=device) for device in ("cpu", "gpu"))
    assert (cpu["CUDA_VISIBLE_DEVICES"], cpu["JAX_PLATFORMS"], cpu["PEER_DEVICE"]) == ("-1", "cpu", "cpu")
    assert "CUDA_VISIBLE_DEVICES" not in gpu
    assert gpu["PEER_DEVICE"] == "gpu"


def test_on_a_gpu_the_memory_is_that_of_its_arrays(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_torch.py"])
    for on_gpu, wanted in ((True, 3), (False, None)):
        monkeypatch.setattr(timing, "ON_GPU", on_gpu)
        timing.emit(timing.parse_job((), []), gpu_memory=lambda: 3 * 2**20)
        found = json.loads(capsys.readouterr().out)["peak_memory_mb"]
        assert found == wanted if on_gpu else found > 3


def test_operations_of_a_training_step_are_those_counted_by_hand():
    attention = 2 * 2 * 4  # queries, keys, values, output
    encoder_layer = attention + 2 * 3 + 3 * 2
    decoder_layer = 2 * attention + 2 * 3 + 3 * 2
    weights = 5 * encoder_layer + 5 * decoder_layer + 2 * 11
    assert work.training_flops(SIZE) == 6 * (7 * 13) * weights


def test_operations_of_a_sentence_are_those_counted_by_hand():
    square = 2 * 2
    once = 5 * (4 * square + 12) + 5 * 2 * square  # the encoder; keys and values of the source
    every_token = 5 * (4 * square + 2 * square + 12) + 2 * 11
    assert work.decoding_flops(SIZE) == 2 * (13 * once + 4 * 32 * every_token)


def test_a_training_batch_has_no_special_ids_and_labels_one_token_further():
    source, target, labels = work.training_batch(SIZE)
    assert source.shape == target.shape == labels.shape == (7, 13)
    assert min(source.min(), target.min(), labels.min()) >= work.FIRST_ID
    assert (target[:, 1:] == labels[:, :-1]).all()


@pytest.mark.parametrize(
    ("variant", "words"),
    [("", set()), ("compile", {"compile"}), ("compile+bfloat16", {"compile", "bfloat16"})],
)
def test_a_variant_is_words(variant, words):
    assert work.variant_words(variant, ("compile", "bfloat16")) == words


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match="words of: compile, xla. Received: 'xla\\+fast'"):
        work.variant_words("xla+fast", ("compile", "xla"))


def test_a_job_is_named_by_its_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/somewhere/train_tf_models.py"])
    job = timing.parse_job(("xla", "bfloat16"), ["--size", "base", "--variant", "xla+bfloat16"])
    assert (job.task, job.peer, job.precision) == ("train", "tf_models:xla+bfloat16", "bfloat16")
    assert job.size == work.SIZES["base"]
    with pytest.raises(SystemExit):
        timing.parse_job((), ["--variant", "xla"])
    assert "words of: none. Received: 'xla'" in capsys.readouterr().err


def test_translations_of_another_length_end_a_peer(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["decode_torch.py"])
    with pytest.raises(ValueError, match=r"must have 32 tokens. Received: \[31\]"):
        timing.time_decoding(
            timing.parse_job((), []), lambda ids: [[5] * 31 for _ in ids], parameters=int, libraries=[]
        )


def test_ratios_are_within_a_round_and_to_the_fastest_that_is_not_ours():
    records = [
        *(record("ours", speed, number=number) for number, speed in enumerate([300, 200, 400])),
        *(record("slow", 50, number=number) for number in range(3)),
        *(record("fast", speed, number=number) for number, speed in enumerate([100, 200, 100])),
    ]
    ((key, peers),) = tables.groups_of(records).items()
    assert key == ("train", "small", None, "float32")
    assert tables.fastest_other(peers, "float32") == "fast"
    assert tables.ratios(peers["ours"], peers["fast"]) == [3.0, 1.0, 4.0]
    assert tables.ratios(peers["ours"], peers["fast"][1:]) == [1.0, 4.0]
    head, _, first, second, third = rows(tables.table(key, peers, {}, {}))
    assert first[:3] == ["ours", "200 / 300 / 400", "1.00 / 3.00 / 4.00"]
    assert second[:3] == ["fast", "100 / 100 / 200", "1.00 / 1.00 / 1.00"]
    assert third[:3] == ["slow", "50 / 50 / 50", "0.25 / 0.50 / 0.50"]
    assert head[1] == "target tokens/s"


def test_rounds_of_two_runs_are_not_mixed_up():
    first, second = record("ours", 6), {**record("ours", 8), "run": "later"}
    reference = [record("torch", 2), {**record("torch", 4), "run": "later"}]
    assert tables.ratios([first, second], reference) == [3.0, 2.0]


def test_bfloat16_is_compared_with_bfloat16_and_int8_with_nobody():
    records = [
        record("ours:bfloat16", 9, precision="bfloat16"),
        record("torch:bfloat16", 3, precision="bfloat16"),
        record("ours", 4),
        record("ctranslate2:int8", 8, precision="int8"),
        record("torch", 2),
    ]
    found = {
        key[-1]: (sorted(peers), tables.fastest_other(peers, key[-1]))
        for key, peers in tables.groups_of(records).items()
    }
    assert found == {
        "bfloat16": (["ours:bfloat16", "torch:bfloat16"], "torch:bfloat16"),
        "float32": (["ctranslate2:int8", "ours", "torch"], "torch"),
    }


def test_the_share_of_the_peak_is_of_the_fastest_library_in_the_same_round():
    records = [
        peak({"NumPy float32": 50.0, "PyTorch bfloat16": 400.0}),
        peak({"PyTorch float32": 100.0}),
        peak({"PyTorch float32": 200.0}, number=1),
        record("torch", 800),
        record("torch", 800, number=1),
    ]
    peaks = tables.peaks_of(records)
    assert peaks == {("now", 0): {"float32": 100.0, "bfloat16": 400.0}, ("now", 1): {"float32": 200.0}}
    ((key, peers),) = tables.groups_of(records).items()
    row = rows(tables.table(key, peers, {}, peaks))[2]
    assert row[3:] == ["80", "60 %", "1,234", "5,678", "2"]  # the median of 80 % and 40 %


def test_a_peer_that_failed_is_a_line_of_its_table():
    failed = {"task": "train", "size": "small", "peer": "joeynmt", "run": "now", "round": 0}
    records = [
        {"task": "machine", "run": "now", "processor": "abacus", "cores": 2, "system": "Linux", "threads": 2}
        | {"rounds": 3, "seconds": 1.5},
        record("torch", 10, versions={"torch": "2.13"}, others_cores=0.25, stolen_cores=0.0),
        record("torch:compile", 10, versions={"torch": "2.13"}),
        record("ours", 10, versions={"keras": "3.15", "tensorflow": "2.21"}),
        {**failed, "failed": "no module | pipe"},
        {**failed, "size": "base", "failed": "killed"},
        {"task": "peak", "environment": "torch", "run": "now", "round": 0, "failed": "none"},
    ]
    text = tables.report(records)
    assert "- now: abacus, 2 cores, Linux; 2 threads for each peer, 3 rounds" in text
    assert "- Versions: torch: torch 2.13; ours: keras 3.15, tensorflow 2.21" in text
    assert "0.25 / 0.25 / 0.25; the host: 0.00" in text
    small, base = text.split("### ")[1:]
    assert small.startswith("Training, `small`, float32\n")
    assert "| joeynmt | none: no module / pipe |" in small
    assert base.startswith("Training, `base`, float32\n")
    assert "| joeynmt | none: killed |" in base
    assert len({line.count("|") for line in small.splitlines() if line.startswith("|")}) == 1


def test_a_process_leaves_its_records_and_the_load_beside_them(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho noise\necho "{\\"threads\\": $OMP_NUM_THREADS, \\"of\\": \\"$2\\"}"\n')
    python.chmod(0o755)
    variables = running.child_environment(3)
    (found,) = running.launch(
        str(python), BENCHMARKS / "peers" / "train_torch.py", [], environment=variables, limit=20
    )
    assert (found["threads"], found["of"]) == (3, "peers.train_torch")
    assert found["others_cores"] >= 0
    assert found["stolen_cores"] >= 0


def test_no_file_here_takes_the_place_of_a_library_that_a_peer_imports():
    # Peers run in this folder; transformers imports `kernels` where there is one.
    names = {path.stem for path in BENCHMARKS.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not names & {*sys.stdlib_module_names, "kernels", "torch", "datasets", "evaluate", "tokenizers"}


def test_malloc_is_the_same_for_all(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    tuned, default = (running.child_environment(2, malloc=malloc) for malloc in ("tuned", "default"))
    assert tuned["MALLOC_MMAP_MAX_"] == "0"
    assert {name for name in tuned if name.startswith("MALLOC_")} == {*running.TUNED_MALLOC}
    assert not [name for name in default if name.startswith("MALLOC_")]
    own = {f"{name}": str(value) for name, (_, value) in process._MALLOC.items()}
    assert own == running.TUNED_MALLOC  # as our own programs have it


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("vendor", "is_made"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_mkl_is_unlocked_on_the_processors_that_it_locks(tmp_path, vendor, is_made):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id : {vendor}\n")
    library = running.unlocked_mkl(tmp_path, cpuinfo=cpuinfo)
    assert (library is not None) == is_made
    if is_made:
        loaded = ctypes.CDLL(str(library))
        assert (loaded.mkl_serv_intel_cpu(), loaded.mkl_serv_intel_cpu_true()) == (1, 1)
        assert running.child_environment(1, preload=library)["LD_PRELOAD"] == str(library)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo first >&2; echo No module named torch >&2; exit 1", "^No module named torch$"),
        ("exit 3", "^exit code 3$"),
        ("sleep 30 & sleep 30", "^over the limit of 0.2 s$"),
    ],
)
def test_a_process_that_fails_says_why(tmp_path, program, reason):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    with pytest.raises(ValueError, match=reason):
        running.launch(
            str(python),
            BENCHMARKS / "peers" / "train_torch.py",
            [],
            environment={"PATH": "/usr/bin:/bin"},
            limit=0.2,
        )


def test_a_python_that_is_not_there_says_so():
    with pytest.raises(ValueError, match="/no/python cannot be started: No such file"):
        running.launch("/no/python", BENCHMARKS / "peers" / "train_torch.py", [], environment={}, limit=1)


def test_a_variable_names_the_python_of_several_peers(monkeypatch, tmp_path):
    monkeypatch.setenv("PEER_TORCH", "/my/python")
    monkeypatch.delenv("PEER_JOEYNMT", raising=False)
    monkeypatch.delenv("PEER_OURS", raising=False)
    found = {
        environments.python_of(environments.environment_of(peer), folder=tmp_path)
        for peer in ("torch:compile", "marian", "ctranslate2:int8+split")
    }
    assert found == {"/my/python"}
    assert environments.python_of(environments.environment_of("ours_saved_model:split")) == sys.executable
    with pytest.raises(ValueError, match="`make bench` makes it, or PEER_JOEYNMT names"):
        environments.python_of("joeynmt", folder=tmp_path)
    (tmp_path / "joeynmt").mkdir()
    (tmp_path / "joeynmt" / ".installed").touch()
    assert environments.python_of("joeynmt", folder=tmp_path).endswith("joeynmt/bin/python")


def test_an_environment_is_made_once(monkeypatch, tmp_path):
    monkeypatch.delenv("PEER_KERASHUB", raising=False)
    monkeypatch.setenv("PEER_TORCH", "/my/python")
    commands = []

    def run(command, **_):
        commands.append(command)
        (tmp_path / "kerashub").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    for name in ("kerashub", "kerashub", "torch"):
        environments.install(name, folder=tmp_path, run=run)
    made, installed = commands
    assert made[1:] == ["-m", "venv", "--clear", str(tmp_path / "kerashub")]
    assert installed[-1].endswith("requirements-kerashub.txt")


def test_an_environment_that_cannot_be_made_says_why(monkeypatch, tmp_path):
    monkeypatch.delenv("PEER_TF_MODELS", raising=False)

    def run(command, **_):
        return subprocess.CompletedProcess(command, int("pip" in command), "", "noise\nno such version\n")

    monkeypatch.setattr(environments, "NEWEST_PYTHON", {"tf_models": (3, 99)})
    with pytest.raises(ValueError, match="tf_models cannot be installed: no such version"):
        environments.install("tf_models", folder=tmp_path, run=run)
    monkeypatch.setattr(environments, "NEWEST_PYTHON", {"tf_models": (3, 2)})
    with pytest.raises(ValueError, match="python3.2 is needed"):
        environments.install("tf_models", folder=tmp_path, run=run)


@contextlib.contextmanager
def server(answer):
    """The address of a server which sends these bytes to whoever calls, and then is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        calls = []

        def serve():
            with contextlib.suppress(OSError):
                calls.append(listening.accept()[0])
                calls[0].sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            with contextlib.suppress(OSError):
                socket.create_connection(listening.getsockname()).close()  # `accept` waits no longer
            thread.join()
            for call in calls:
                call.close()


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", ["--extra-index-url"]),
        (b"HTTP/1.0 403 Forbidden\r\n\r\n", ["--extra-index-url"]),
        (b"", []),
    ],
)
def test_an_index_that_is_silent_is_left_out(answer, options, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("PEER_TORCH", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    commands = []

    def run(command, **_):
        commands.append(command)
        (tmp_path / "torch").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    with server(answer) as url:
        monkeypatch.setattr(environments, "EXTRA_INDEX", {"torch": url})
        soon = functools.partial(environments.answers, seconds=0.3 if not answer else 30)
        monkeypatch.setattr(environments, "answers", soon)
        environments.install("torch", folder=tmp_path, run=run)
    installed = commands[-1]
    assert [word for word in installed if word == "--extra-index-url"] == options
    assert installed[installed.index("--retries") + 1] == "1"
    assert (f"{url} does not answer" in capsys.readouterr().err) == (not options)
    requirements = pathlib.Path(installed[-1]).read_text(encoding="utf-8")
    assert "torch==" in requirements
    assert "+cpu" not in requirements  # which PyPI does not have
    assert "index-url" not in requirements


def test_an_installation_that_does_not_end_is_given_up(monkeypatch, tmp_path):
    monkeypatch.delenv("PEER_KERASHUB", raising=False)

    def run(command, **options):
        return subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], **options)

    message = "kerashub cannot be installed: no end within 0 s. PEER_KERASHUB may name a Python"
    with pytest.raises(ValueError, match=message):
        environments.install("kerashub", folder=tmp_path, run=run, limit=0.1)


def test_every_environment_has_its_requirements_and_every_peer_its_program():
    for name in environments.NEWEST_PYTHON:
        assert (BENCHMARKS / "peers" / f"requirements-{name}.txt").exists()
    for task, peers in (("train", compare.TRAIN), ("decode", compare.DECODE)):
        for peer in compare.names_of(peers):
            assert (BENCHMARKS / "peers" / f"{task}_{peer.partition(':')[0]}.py").exists()
            assert environments.environment_of(peer) in {"ours", *environments.NEWEST_PYTHON}


def test_peers_take_turns_and_one_that_fails_is_not_asked_again(monkeypatch):
    monkeypatch.setattr(compare, "python_of", lambda environment: environment)
    asked, written = [], []

    def run_process(python, program, arguments, *, environment, limit):
        if program.stem == "peak":
            return [{"gflops": {"NumPy float32": 1.0}, "onednn": environment["TF_ENABLE_ONEDNN_OPTS"]}]
        asked.append((python, program.stem, arguments[-1]))
        if "joeynmt" in program.stem:
            raise ValueError("broken")
        return [{"speed": 1.0}]

    args = compare.parse_args(["--train", "ours,joeynmt,torch:compile", "--rounds", "3"])
    compare.Comparison(args, written.append, run_process).run()
    ours, joey, torch = (
        ("ours", "train_ours", ""),
        ("joeynmt", "train_joeynmt", ""),
        ("torch", "train_torch", "compile"),
    )
    assert asked == [ours, joey, torch, torch, ours, torch, ours]
    (failed,) = (each for each in written if "failed" in each)
    assert (failed["peer"], failed["round"], failed["failed"]) == ("joeynmt", 0, "broken")
    assert [each["onednn"] for each in written if each["task"] == "peak" and each["round"] == 0] == [
        "1", "0", "1", "1",
    ]  # fmt: skip
    assert {each["run"] for each in written} == {written[0]["run"]}


def test_another_checkout_of_this_package_is_a_peer(tmp_path):
    peers = tmp_path / "benchmarks" / "peers"
    peers.mkdir(parents=True)
    (tmp_path / "keras_transformer.py").write_text("VERSION = 'older'\n")
    program = "import json, sys, keras_transformer as package\n"
    program += "print(json.dumps({'speed': 5.0, 'version': package.VERSION, 'variant': sys.argv[-1]}))\n"
    (peers / "train_ours.py").write_text(program)
    arguments = ["--train", "before:static", "--before", str(tmp_path), "--rounds", "1", "--limit", "60"]
    written = []
    comparison = compare.Comparison(compare.parse_args(arguments), written.append)
    comparison._measure_peaks = lambda: None
    comparison.run()
    (record,) = (each for each in written if each["task"] == "train")
    assert (record["peer"], record["version"], record["variant"]) == ("before:static", "older", "static")
    assert not tables.is_ours("before:static")  # so that ours is compared with it


def test_the_command_line_takes_lists_and_refuses_what_it_does_not_know(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "gpu_names", list)
    args = compare.parse_args(["--train", "--sizes", "small32k,base"])
    assert (args.train, args.decode) == (compare.names_of(compare.TRAIN), None)
    assert args.sizes == ["small32k", "base"]
    both = compare.parse_args([])
    assert both.train
    assert both.decode
    for argv, message in (
        (["--train", "before"], "the peer `before` needs `--before FOLDER`, a checkout of this repository"),
        (["--decode", "before", "--before", str(tmp_path)], f"{tmp_path} is no checkout of this repository"),
        (["--sizes", ","], "argument --sizes: the list is empty"),
        (["--train", ""], "argument --train: the list is empty"),
        (["--train", "torch,ours:fast"], "`--train`, ours:fast: `variant` must be words of: static, xla, "),
        (["--decode", "joeynmt:split"], "`--decode`, joeynmt:split: `variant` must be words of: none."),
        (["--sizes", "huge"], "sizes are: small, small32k, base, base25k, big25k. Received: 'huge'"),
        (
            ["--decode", "ours,marain:x"],
            "marian, opennmt_tf, ours, ours_ctranslate2, ours_jax, ours_saved_model, tf_models. Received: "
            "'marain:x'",
        ),
        (
            ["--device", "gpu", "--train", "ours_jax,joeynmt"],
            "on a GPU only ours, ours_jax, torch, marian can be measured. Received: 'joeynmt'",
        ),
        (["--device", "gpu", "--train", "ours_jax"], "`--device gpu`: nvidia-smi finds no GPU"),
        (["--rounds", "0"], "`--rounds` must be above 0. Received: 0"),
        (["--records", str(tmp_path)], f"{tmp_path} is a folder; `--records` wants a file"),
        (["--output", f"{__file__}/x"], f"{__file__}/x cannot be made (Not a directory); `--output` wants"),
        (["--output", __file__], f"{__file__} is a file; `--output` wants a folder"),
    ):
        with pytest.raises(SystemExit, match="2"):
            compare.parse_args(argv)
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_stopped_by_hand_it_says_where_the_records_are(tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare.Comparison, "run", stop)
    assert compare.main(["--records", str(tmp_path / "r.jsonl")]) == 130
    assert capsys.readouterr().err == f"compare.py: stopped; {tmp_path / 'r.jsonl'} has what was measured\n"


def test_where_every_peer_failed_the_exit_code_says_so(monkeypatch, capsys):
    def measure(comparison):
        found = {"task": "train", "size": "small", "run": "now", "round": 0}
        comparison._write({**found, "peer": "ours:tsatic", "failed": "no variant 'tsatic'"})
        if also_torch:
            comparison._write(record("torch", 10))

    monkeypatch.setattr(compare.Comparison, "run", measure)
    also_torch = False
    assert compare.main([]) == 1
    shown = capsys.readouterr()
    assert "no variant 'tsatic'" in shown.out
    assert shown.err == "compare.py: nothing could be measured\n"
    also_torch = True
    assert compare.main([]) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing.jsonl", "no such file or directory"), ("", "is a directory"), ("empty.jsonl", "no records")],
)
def test_files_without_records_are_refused_in_one_line(tmp_path, capsys, name, message):
    (tmp_path / "empty.jsonl").touch()
    assert compare.main(["--show", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err == f"compare.py: {tmp_path / name}: {message}\n"


def test_records_are_shown_again(tmp_path, capsys):
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for file, each in zip(files, (record("ours", 30), record("torch", 10)), strict=True):
        file.write_text(json.dumps(each) + "\n")
    assert compare.main(["--show", *map(str, files), "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "| **ours** | 30 / 30 / 30 | 3.00 / 3.00 / 3.00 |" in shown
    assert (tmp_path / "out/speed.md").read_text() in shown
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["training.png"]


@pytest.mark.parametrize("line", ["[1]", "{}", "nothing"])
def test_a_file_of_something_else_is_refused(tmp_path, capsys, line):
    path = tmp_path / "records.jsonl"
    path.write_text(line + "\n")
    assert compare.main(["--show", str(path)]) == 2
    assert capsys.readouterr().err == f"compare.py: {path}:1: a record of this program is wanted\n"
    assert compare.main(["--show", str(tmp_path / "none")]) == 2


def test_every_word_of_the_text_to_text_peer_is_one_token():
    size = 113
    tokenizer = WordPieceTokenizer(decode_ours_ctranslate2.vocabulary(size))
    words = decode_ours_ctranslate2.words_of(size)
    (row,) = tokenizer.encode([" ".join(words)])
    assert tokenizer.vocab_size == size
    assert list(row) == [*range(size - len(words), size)]


def test_both_contestants_of_the_engine_translate_the_same_sentences(tmp_path):
    size = work.Size(vocab_size=131, d_model=22, num_heads=2, d_ff=29, num_layers=3, batch=7, length=13)
    decode_ours_ctranslate2.write(size, tmp_path / "run", types.SimpleNamespace())
    translator = load_translator(tmp_path / "run", engine="ctranslate2")
    texts, ours, theirs = engine_speed.contestants(translator, size)
    names = vocabulary_tokens(translator.tokenizers.target)
    found = [[names[number] for number in ids] for ids in ours(texts[:5])]
    assert {len(tokens) for tokens in found} == {work.OUTPUT_LENGTH}
    # The last one may be the end of sentence, which CTranslate2 leaves out.
    assert [tokens[:-1] for tokens in found] == [tokens[:-1] for tokens in theirs(texts[:5])]
    assert len({str(tokens) for tokens in found}) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--turns", "0"], "must be at least 1"), (["--sizes", "huge"], "invalid choice: 'huge'")],
)
def test_the_comparison_of_engines_refuses_what_it_cannot_measure(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        engine_speed.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
