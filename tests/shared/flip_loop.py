"""Flips one bit at a time in a run folder, a prepared corpus and exported models, and reads them again.

    python tests/shared/flip_loop.py 2000 --seed 1

Every file but the lock and TensorBoard's, which no program of this package reads, has its share of the
flips, at bits that are drawn. After each flip the folder is read as programs read it: settings,
vocabularies, history, alignment, translations, all weights, and as a run that goes on; the batches of an
epoch; a translation of an exported model. What comes of it is one of

    refused    one line, which names the file
    said       something else is read than before the flip, and a line says so and names the file
    the same   what is read is what was there before, to the bit
    SILENT     something else is read, and nothing says so
    TRACEBACK  another error than a refusal

The last two must not happen. The table has one row for each file.
"""

import argparse
import collections
import contextlib
import hashlib
import io
import pathlib
import random
import shutil
import sys
import tempfile
import time

import numpy as np
import processes

OUTCOMES = ("refused", "said", "the same", "SILENT", "TRACEBACK")
SETTINGS = {
    "training.max_steps": 12,
    "training.checkpoint_every_steps": 4,
    "training.validate_every_steps": 4,
    "training.warmup_steps": 2,
    "training.validation_sentences": 4,
    "training.keep_best": 2,
}
TEXTS = ["the dog sees the man 3 times", "the king knows the fox"]


def digest(value):
    """Returns SHA-256 of arrays, text or whatever else has a `repr`, in lists and dicts of any depth."""
    found = hashlib.sha256()
    for part in _parts(value):
        found.update(part)
    return found.hexdigest()


def _parts(value):
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, np.ndarray):
        yield f"{value.shape} {value.dtype} ".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _parts(each)
    else:
        yield f"{value!r} ".encode()


class RunReader:
    """Reads a run folder as the programs do.

    Args:
        path: a run that has ended.
    """

    def __init__(self, path):
        import keras

        from keras_transformer.checkpoints.run_folder import RunFolder
        from keras_transformer.model.transformer import Transformer
        from keras_transformer.training.fit import compile_model
        from keras_transformer.training.resume import CORPUS_SUM

        self.run = RunFolder(path)
        keras.utils.set_random_seed(1)
        self.model = Transformer(self.run.config.model)
        compile_model(self.model, self.run.config.training)
        self.sum = (path / CORPUS_SUM).read_text().strip()

    def __call__(self, path):
        from keras_transformer.checkpoints.run_folder import RunFolder
        from keras_transformer.training.resume import apply_config_changes

        run = RunFolder(path)
        found = [
            run.config,
            [one.sha256 for one in run.load_tokenizers()],
            run.read_history(),
        ]
        if run.config.model != self.run.config.model:
            return found
        found.append(run.read_translations("test", SETTINGS["training.max_steps"]))
        for name in run.weights_names():
            run.load_weights(self.model, name)
            found += [name, [weight.numpy() for weight in self.model.weights]]
        with run.lock():  # as a run that goes on
            run.clean()
            found.append(apply_config_changes(run, self.run.config, sha256=self.sum))
            step = run.checkpoints(self.model, self.model.optimizer).restore()
            run.rewind_history(step)
        state = [*self.model.variables, *self.model.optimizer.variables]
        return [*found, step, [np.asarray(each) for each in state], run.read_history()]


def read_prepared(path):
    """Reads a prepared corpus: text, vocabularies, and all batches of an epoch."""
    from keras_transformer.batches.dataset import training_batches
    from keras_transformer.batches.prepared import PreparedCorpus
    from keras_transformer.batches.training_data import load_training_data
    from keras_transformer.config.settings import Config, DataConfig

    settings = PreparedCorpus(path).settings["data"]
    data = DataConfig(dataset=str(path), max_length=40, batch_tokens=320, vocab_size=310)
    corpus = load_training_data(Config(data=data))
    batches = training_batches(data, corpus, seed=1)
    return [
        {name: value for name, value in settings.items() if name != "dataset"},
        [one.sha256 for one in corpus.tokenizers],
        corpus.sizes, list(corpus.validation), list(corpus.test), corpus.sha256,
        list(batches.dataset().as_numpy_iterator()),
    ]  # fmt: skip


def read_saved_model(path):
    """Translates with a SavedModel."""
    import tensorflow as tf

    from keras_transformer.export.versions import load_exported

    loaded = load_exported(path)
    found = loaded.signatures["serving_default"](tf.constant(TEXTS))
    return {name: value.numpy() for name, value in found.items()}


def read_ctranslate2(path):
    """Translates with a model of CTranslate2's."""
    from keras_transformer.export.ctranslate2 import CTranslate2Translator

    return CTranslate2Translator(path, intra_threads=1).translate(TEXTS)


def read_keras(path):
    """Reads the weights of a `.keras` file."""
    from keras_transformer.export.keras_files import load_keras

    return [weight.numpy() for weight in load_keras(path).weights]


def make(folder):
    """Trains, prepares and exports; returns {name: (folder, function that reads it)}."""
    from keras_transformer.batches.preparing import prepare
    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.cli import train as train_wmt
    from keras_transformer.config.settings import CleaningConfig, Config, DataConfig
    from keras_transformer.export.keras_files import export_keras
    from keras_transformer.export.saved_model import export_saved_model

    corpus, run = folder / "corpus", folder / "run"
    corpus.mkdir()
    processes.write_corpus(corpus, 200)
    arguments = ["--run-dir", str(run), "--dataset", str(corpus), "--source", "en", "--target", "de"]
    for name, value in {**processes.SETTINGS, **SETTINGS}.items():
        arguments += ["--set", f"{name}={value}"]
    assert train_wmt.main(arguments) == 0
    RunFolder(run).average(best=2)
    data = DataConfig(dataset=str(corpus), vocab_size=310, max_length=40, batch_tokens=320)
    prepare(Config(data=data, cleaning=CleaningConfig()), folder / "prepared", num_workers=1, shard_pairs=90)
    made = {
        "run": (run, RunReader(run)),
        "prepared": (folder / "prepared", read_prepared),
        "keras": (export_keras(RunFolder(run), folder / "keras"), read_keras),
    }
    written = export_saved_model(run, folder / "served", warmup=False, with_ids=False)
    made["savedmodel"] = (written.path, read_saved_model)
    with contextlib.suppress(ImportError):
        import ctranslate2  # noqa: F401

        from keras_transformer.export.ctranslate2 import export_ctranslate2

        export_ctranslate2(RunFolder(run), folder / "ctranslate2")
        made["ctranslate2"] = (folder / "ctranslate2", read_ctranslate2)
    return made


def outcome(read, path, name, before):
    """Reads a folder in which one bit was flipped; returns one of `OUTCOMES`, and what was said."""
    from keras_transformer.config.programs import TrainingError

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            found = digest(read(path))
        except (ValueError, TrainingError) as error:
            text = str(error)
            return ("refused" if "\n" not in text and str(path) in text else "TRACEBACK"), repr(error)
        except Exception as error:
            return "TRACEBACK", repr(error)
    if found == before:
        return "the same", said.getvalue()
    named = pathlib.PurePath(name).stem.partition(".")[0] in said.getvalue()
    return ("said" if named else "SILENT"), said.getvalue()


def flip_loop(number, folder, *, seed):
    """Flips so many bits; returns list of str, what must not be."""
    rng = random.Random(seed)
    made = make(folder)
    files = []
    for group, (source, _) in made.items():
        names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
        files.append([(group, name) for name in names if name != "lock" and "tensorboard/" not in name])
    before = {}
    for group, (source, read) in made.items():
        copy = shutil.copytree(source, folder / "copy" / source.name)
        before[group] = digest(read(copy))
        assert before[group] == digest(read(copy)), f"{group} is not read alike twice"
        shutil.rmtree(copy)
    counts, wrong, began = collections.defaultdict(collections.Counter), [], time.monotonic()
    # Half of them in the run folder, which has most to lose; the same number for each of its files.
    shares = [number // 2, *[number // 2 // (len(files) - 1)] * (len(files) - 1)]
    shares[-1] += number - sum(shares)
    for share, names in zip(shares, files, strict=True):
        for count in range(share):
            group, name = names[count % len(names)]
            source, read = made[group]
            copy = shutil.copytree(source, folder / "copy" / source.name)
            content = bytearray((copy / name).read_bytes())
            bit = rng.randrange(8 * len(content)) if content else None
            if bit is not None:
                content[bit // 8] ^= 1 << bit % 8
            (copy / name).write_bytes(content)
            result, said = outcome(read, copy, name, before[group])
            counts[group, name][result] += 1
            if result in ("SILENT", "TRACEBACK"):
                wrong.append(f"{group}/{name}, bit {bit}: {result} {said}")
                print(wrong[-1], flush=True)
            shutil.rmtree(copy)
    print(f"{'':<60}" + "".join(f"{each:>11}" for each in ("flips", *OUTCOMES)))
    total = collections.Counter()
    for (group, name), counted in counts.items():
        total += counted
        _print_row(f"{group}/{name}", counted)
    _print_row("all", total)
    seconds = time.monotonic() - began
    print(f"seed {seed}: {number} flips in {seconds:.0f} s; {len(wrong)} silent or with a traceback")
    return wrong


def _print_row(name, counted):
    numbers = (counted.total(), *(counted[each] for each in OUTCOMES))
    print(f"{name:<60}" + "".join(f"{number:>11,}" for number in numbers), flush=True)


def main():
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flips", type=int)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sys.path.insert(0, str(processes.ROOT))
    from keras_transformer.cli.process import import_quietly

    import_quietly("keras_transformer.training.run")
    with tempfile.TemporaryDirectory() as name:
        return 1 if flip_loop(args.flips, pathlib.Path(name), seed=args.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
