"""Whole runs of a tiny model: the folder, resuming to the bit, averages, what was logged."""

import dataclasses
import itertools
import json
import math
import os
import shutil
import signal
import types

import keras
import numpy as np
import pytest
import sacrebleu
import tensorflow as tf
from tiny_runs import flip_a_byte

from keras_transformer.batches.dataset import TokenBatches
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli.train import report
from keras_transformer.config import settings as configs
from keras_transformer.config.programs import OutOfMemoryError, StoppedError
from keras_transformer.config.settings import Config, DataConfig, ModelConfig, SearchConfig, TrainingConfig
from keras_transformer.training import callbacks as steering
from keras_transformer.training import fit as fitting
from keras_transformer.training import progress
from keras_transformer.training.run import train
from keras_transformer.translation.translator import Translator

NOUNS = {"dog": "Hund", "man": "Mann", "fox": "Fuchs", "king": "König", "baker": "Bäcker"}
VERBS = {"sees": "sieht", "hears": "hört", "helps": "hilft", "knows": "kennt"}
STEPS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder of a few hundred short sentences."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = [
        (f"the {a} {verb} the {b} {n} times", f"der {NOUNS[a]} {VERBS[verb]} {n} Mal {NOUNS[b]}")
        for n, a, verb, b in itertools.product(range(2, 5), NOUNS, VERBS, NOUNS)
    ]
    np.random.default_rng(3).shuffle(pairs)
    for name, part in (("train", pairs[30:]), ("val", pairs[:9]), ("test", pairs[9:30])):
        for ending, side in zip(("en", "de"), zip(*part, strict=True), strict=True):
            (folder / f"{name}.{ending}").write_text("\n".join(side) + "\n", encoding="utf-8")
    return folder


def make_config(corpus, **training):
    return Config(
        model=ModelConfig(
            source_vocab_size=310,
            target_vocab_size=310,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            d_ff=24,
            num_heads=2,
            residual_dropout=0.2,
            embedding_dropout=0.2,
        ),
        data=DataConfig(dataset=str(corpus), vocab_size=310, max_length=40, batch_tokens=640),
        training=TrainingConfig(
            **{
                "max_steps": STEPS,
                "warmup_steps": 6,
                "log_every_steps": 5,
                "validate_every_steps": 8,
                "validation_sentences": 6,
                "checkpoint_every_steps": 4,
                "checkpoint_every_minutes": 0.0,
                "keep_checkpoints": 2,
                "average_last": 2,
                **training,
            }
        ),
        search=SearchConfig(beam_size=2, max_length_offset=3),
    )


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The result of 12 steps at once."""
    return train(make_config(corpus), tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture(scope="module")
def batch_starts():
    """At which batch each part of `resumed` began to read."""
    return []


@pytest.fixture(scope="module")
def resumed(corpus, batch_starts, tmp_path_factory):
    """The result of 5 steps, continued to 12."""
    path = tmp_path_factory.mktemp("runs") / "resumed"
    count_epochs = TokenBatches.count_epochs

    def spy(self, start, least):
        batch_starts.append(start)
        return count_epochs(self, start, least)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenBatches, "count_epochs", spy)
        train(make_config(corpus, max_steps=5), path)
        return train(make_config(corpus), path)


@pytest.fixture(scope="module")
def timed(corpus, tmp_path_factory):
    """A run whose time is up after its first step."""
    config = make_config(corpus, max_minutes=1e-6, max_steps=1000, log_every_steps=1, validation_sentences=0)
    return train(config, tmp_path_factory.mktemp("runs") / "timed")


def checkpoint_names(result):
    return sorted(path.stem for path in (result.run.path / "checkpoints").glob("*.index"))


def checkpoint_values(run, step):
    reader = tf.train.load_checkpoint(str(run.path / "checkpoints" / f"step-{step}"))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.startswith(("weights/", "optimizer/", "seeds/"))
    }


def of_kind(run, kind):
    return [record for record in run.read_history() if record["kind"] == kind]


def test_the_run_folder_holds_everything(whole):
    assert {path.name for path in whole.run.path.iterdir()} == {
        "config.json",
        "corpus",
        "corpus.sha256",
        "tokenizer.model",
        "tokenizer.sha256",
        "checkpoints",
        "averaged",
        "best",
        "final",
        "lock",
        "history.jsonl",
        "tensorboard",
        "translations.test.de",
    }


def test_the_configuration_file_holds_every_setting(whole, corpus):
    written = json.loads((whole.run.path / "config.json").read_text(encoding="utf-8"))
    assert len(written.pop("sha256")) == 64
    assert written == dataclasses.asdict(make_config(corpus))


def test_checkpoints_are_as_many_as_asked_and_the_last_step_is_one(whole):
    assert checkpoint_names(whole) == ["step-12", "step-8"]


@pytest.mark.slow
def test_a_continued_run_equals_an_uninterrupted_one_to_the_bit(whole, resumed):
    expected, found = (checkpoint_values(result.run, STEPS) for result in (whole, resumed))
    assert expected.keys() == found.keys()
    assert any(name.startswith("seeds/") for name in expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
def test_a_continued_run_is_translated_alike(whole, resumed):
    assert len(resumed.translations) == 21
    assert resumed.translations == whole.translations
    assert resumed.scores == whole.scores


def test_training_changed_the_weights(whole):
    before, after = (checkpoint_values(whole.run, step) for step in (8, 12))
    changed = [n for n in before if n.startswith("weights/") and np.any(before[n] != after[n])]
    assert len(changed) == sum(name.startswith("weights/") for name in before)


@pytest.mark.very_slow
def test_another_seed_gives_other_weights(whole, corpus, tmp_path):
    other = train(make_config(corpus, seed=2, validation_sentences=0), tmp_path / "run")
    expected, found = (checkpoint_values(run, STEPS) for run in (whole.run, other.run))
    name = next(n for n in expected if "embeddings" in n and n.startswith("weights/"))
    assert np.abs(expected[name] - found[name]).max() > 0.01


def test_a_continued_run_skips_the_batches_it_has_read(resumed, batch_starts):
    assert batch_starts == [0, 5]


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is(whole, corpus, capsys):
    def files():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in whole.run.path.rglob("*")
            if path.is_file() and path.name not in ("config.json", "corpus.sha256", "history.jsonl")
        }

    before, history = files(), whole.run.read_history()
    again = train(make_config(corpus), whole.run.path)
    assert files() == before
    assert whole.run.read_history() == history
    assert again.translations == whole.translations
    assert again.scores == whole.scores
    printed = capsys.readouterr().out
    assert "already finished at step 12. To train longer, raise training.max_steps" in printed
    assert printed.count("finished at step 12") == 1


@pytest.mark.slow
def test_a_finished_run_whose_weights_are_damaged_makes_them_anew(whole, corpus, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(whole.run.path, copy)
    flip_a_byte(copy / "final" / "weights.data-00000-of-00001")
    again = train(make_config(corpus), copy)
    printed = capsys.readouterr()
    assert "final/weights: damaged" in printed.err
    assert printed.out.count("finished at step 12") == 1
    assert "translating test with the final weights" in printed.out
    assert again.translations == whole.translations
    assert train(make_config(corpus), copy).translations == whole.translations
    printed = capsys.readouterr().out
    assert printed.count("finished at step 12") == 1
    assert "translating" not in printed


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("training", {"warmup_steps": 7}, "training.warmup_steps 6 -> 7. Pass --allow-config-change"),
        ("training", {"seed": 9}, "training.seed 1 -> 9"),
        ("model", {"d_ff": 25}, "model.d_ff 24 -> 25.*changes the model"),
        (
            "data",
            {"batch_tokens": 641, "max_length": 41},
            "data.max_length 40 -> 41, data.batch_tokens 640 -> 641",
        ),
    ],
)
def test_other_settings_are_refused_with_the_one_that_changed(whole, corpus, section, change, message):
    config = make_config(corpus)
    changed = configs.replace(getattr(config, section), **change)
    before = (whole.run.path / "history.jsonl").read_bytes()
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(config, **{section: changed}), whole.run.path)
    assert (whole.run.path / "history.jsonl").read_bytes() == before


def test_a_folder_in_use_is_refused_untouched(corpus, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(ValueError, match="exists and is not a run folder"):
        train(make_config(corpus), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"max_length": 3}, "all 270 pairs were dropped: 270 too many tokens"),
        ({"vocab_size": 100}, "vocab"),
    ],
)
def test_data_that_leaves_nothing_makes_no_folder(corpus, tmp_path, data, message):
    config = make_config(corpus)
    config = dataclasses.replace(config, data=configs.replace(config.data, **data))
    with pytest.raises(ValueError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_average_is_the_mean_of_the_last_checkpoints(whole):
    newest, before = (checkpoint_values(whole.run, step) for step in (12, 8))
    model = whole.run.load_model(checkpoint="averaged")
    for weight in model.weights:
        key = "weights/" + weight.path.replace("/", ".S") + "/.ATTRIBUTES/VARIABLE_VALUE"
        mean = (newest[key].astype(np.float64) + before[key]) / 2
        np.testing.assert_array_equal(weight.numpy(), mean.astype(np.float32))


def assert_same_weights(one, other):
    for ours, theirs in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


def test_what_validated_best_is_delivered_and_translates(whole):
    record = of_kind(whole.run, "final")[0]
    losses = {name: figures["loss"] for name, figures in record["candidates"].items()}
    assert losses.keys() >= {"averaged", "last"}
    assert losses[record["weights"]] == min(losses.values())
    assert losses["last"] == of_kind(whole.run, "validation")[-1]["loss"]
    assert record["candidates"]["averaged"]["steps"] == [8, 12]
    model = whole.run.load_model()
    assert_same_weights(model, whole.run.load_model(checkpoint=record["weights"]))
    translator = Translator(model, whole.run.load_tokenizers().source, whole.run.config.search)
    assert translator.translate(whole.pairs.source) == whole.translations


@pytest.mark.very_slow
def test_a_run_that_signals_stopped_delivers_the_same_weights(whole, corpus, tmp_path, monkeypatch):
    """Stopped between two checkpoints, twice, so that forced states could drive others out."""
    on_train_batch_end = steering.NonFiniteGuard.on_train_batch_end
    for stop in (10, 11):

        def signal_after(self, batch, logs=None, stop=stop):
            on_train_batch_end(self, batch, logs)
            if self.step == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(steering.NonFiniteGuard, "on_train_batch_end", signal_after)
        with pytest.raises(StoppedError, match=f"after step {stop}, which is saved"):
            train(make_config(corpus), tmp_path / "run")
    monkeypatch.undo()
    assert (tmp_path / "run" / "checkpoints" / "step-11.index").exists()
    stopped = train(make_config(corpus), tmp_path / "run")
    assert checkpoint_names(stopped) == checkpoint_names(whole)
    for name in ("averaged", "final"):
        assert_same_weights(stopped.run.load_model(checkpoint=name), whole.run.load_model(checkpoint=name))
    (found,), (expected,) = (of_kind(each.run, "final") for each in (stopped, whole))
    assert {**found, "minutes": 0} == {**expected, "minutes": 0}
    assert stopped.translations == whole.translations


@pytest.mark.very_slow
def test_a_run_that_ends_within_its_warm_up_delivers_no_average(timed):
    record = of_kind(timed.run, "final")[0]
    assert (record["weights"], list(record["candidates"])) == ("last", ["last"])
    assert "averaged" not in timed.run.weights_names()
    assert_same_weights(timed.run.load_model(), timed.run.load_model(checkpoint="last"))


def test_translations_of_the_test_set_are_written_one_a_line(whole, corpus):
    lines = (whole.run.path / "translations.test.de").read_text(encoding="utf-8").split("\n")
    assert lines == [*whole.translations, ""]
    sources = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    assert whole.pairs.source == sources
    assert len(whole.translations) == len(sources)


def test_the_score_is_that_of_sacrebleu_against_the_file(whole, corpus):
    references = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    bleu = sacrebleu.BLEU(trg_lang="de").corpus_score(whole.translations, [references]).score
    assert whole.scores.bleu == pytest.approx(bleu, abs=1e-9)
    assert of_kind(whole.run, "test")[0]["bleu"] == pytest.approx(bleu, abs=1e-9)


def test_history_has_the_logged_steps(whole):
    records = of_kind(whole.run, "train")
    assert [record["step"] for record in records] == [5, 10, 12]
    assert records[0]["minutes"] < records[1]["minutes"] < records[2]["minutes"]
    for record in records:
        paper = 16**-0.5 * min(record["step"] ** -0.5, record["step"] * 6**-1.5)
        assert record["learning_rate"] == pytest.approx(paper, rel=1e-5)
        # Smoothing only adds to the cross-entropy of a model this untrained.
        assert record["loss"] > 0.9 * math.log(record["perplexity"])
        assert 0 <= record["token_accuracy"] <= 1
        assert record["target_tokens_per_second"] > 0


@pytest.mark.slow
def test_the_first_loss_is_about_that_of_a_guess(timed):
    # Logits of a new model have variance 1 or so: ln V, and half of it at most on top.
    assert math.log(310) - 0.3 < of_kind(timed.run, "train")[0]["loss"] < math.log(310) + 2


def test_validations_are_at_their_steps_and_at_the_end(whole):
    assert [record["step"] for record in of_kind(whole.run, "validation")] == [8, 12]


@pytest.mark.slow
def test_validation_loss_and_perplexity_are_those_of_the_last_weights(whole, corpus):
    model = whole.run.load_model(checkpoint="last")
    tokenizer = whole.run.load_tokenizers().source
    sums, count = np.zeros(3), 0
    sides = ((corpus / f"val.{ending}").read_text(encoding="utf-8").splitlines() for ending in ("en", "de"))
    for source, target in zip(*sides, strict=True):
        source_ids = [*tokenizer.encode([source])[0], 2]
        labels = [*tokenizer.encode([target])[0], 2]
        inputs = np.array([source_ids]), np.array([[1, *labels[:-1]]])
        logits = model(inputs, training=False)[0].numpy().astype(np.float64)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        of_label = log_probs[np.arange(len(labels)), labels]
        others = (log_probs.sum(-1) - of_label) / (310 - 1)
        sums += [
            -(0.9 * of_label + 0.1 * others).sum(),
            -of_label.sum(),
            (logits.argmax(-1) == labels).sum(),
        ]
        count += len(labels)
    record = of_kind(whole.run, "validation")[-1]
    assert record["loss"] == pytest.approx(sums[0] / count, rel=1e-5)
    assert record["perplexity"] == pytest.approx(math.exp(sums[1] / count), rel=1e-5)
    assert record["token_accuracy"] == pytest.approx(sums[2] / count, abs=1e-6)


@pytest.mark.slow
def test_validation_bleu_is_of_searched_translations(whole, corpus):
    sources, references = (
        (corpus / f"val.{ending}").read_text(encoding="utf-8").splitlines()[:6] for ending in ("en", "de")
    )
    translator = Translator.load(whole.run.path, checkpoint="last")
    translations = translator.translate(sources, beam_size=2)
    bleu = sacrebleu.BLEU(trg_lang="de").corpus_score(translations, [references]).score
    assert of_kind(whole.run, "validation")[-1]["bleu"] == pytest.approx(bleu, abs=1e-9)


@pytest.mark.slow
def test_validation_does_not_disturb_the_means_that_are_logged(whole, corpus, tmp_path):
    config = make_config(corpus, validate_every_steps=100, validation_sentences=0)
    undisturbed = train(config, tmp_path / "run")
    for ours, theirs in zip(of_kind(whole.run, "train"), of_kind(undisturbed.run, "train"), strict=True):
        for name in ("step", "loss", "perplexity", "token_accuracy"):
            assert ours[name] == theirs[name]


def test_tensorboard_shows_the_numbers_of_the_history(whole):
    found = {}
    for path in sorted((whole.run.path / "tensorboard").glob("events.*")):
        for serialised in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(serialised.numpy())
            for value in event.summary.value:
                found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    expected = {
        (f"{record['kind']}/{name}", record["step"]): number
        for record in whole.run.read_history()
        if record["kind"] in ("train", "validation")
        for name, number in record.items()
        if name in ("loss", "perplexity", "token_accuracy", "learning_rate", "bleu")
    }
    assert len(expected) == 3 * 4 + 2 * 4
    for key, number in expected.items():
        assert found[key] == pytest.approx(number, rel=1e-6)


def test_training_stops_when_the_time_is_up_and_is_complete(timed):
    assert checkpoint_names(timed) == ["step-0", "step-1"]
    assert [record["step"] for record in of_kind(timed.run, "validation")] == [1]
    assert len(timed.translations) == len(timed.pairs.source)


def test_one_update_is_made_even_if_the_time_is_up_before(corpus):
    run = types.SimpleNamespace(config=make_config(corpus, max_minutes=1.0), read_history=list)
    clock = progress.Clock(earlier=61.0)
    assert [fitting._is_finished(run, step, clock) for step in (0, 1)] == [False, True]


@pytest.mark.slow
def test_time_of_earlier_parts_counts(timed, capsys):
    again = train(timed.run.config, timed.run.path)
    assert checkpoint_names(again) == ["step-0", "step-1"]  # no step is left
    assert "finished at step 1" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_was_killed_after_its_time_was_up_makes_no_more_steps(timed, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(timed.run.path, path)
    kept = of_kind(timed.run, "train")
    (path / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    again = train(timed.run.config, path)  # killed in the validation, which is not due at step 1
    assert [record["step"] for record in of_kind(again.run, "validation")] == [1]
    (final,) = of_kind(again.run, "final")
    assert final["candidates"]["last"]["loss"] == of_kind(again.run, "validation")[0]["loss"]
    # Time that passed after the checkpoint of this step was saved.
    reader = tf.train.load_checkpoint(str(path / "checkpoints" / "step-1"))
    limit = (float(reader.get_tensor("seconds/.ATTRIBUTES/VARIABLE_VALUE")) / 60 + final["minutes"]) / 2
    longer = train(configs.replace(again.run.config, training={"max_minutes": limit}), path)
    assert checkpoint_names(longer) == ["step-0", "step-1"]


def test_several_workers_that_have_stopped_early_stay_so(corpus):
    # They make one more step than one worker. Here, it was a new best.
    validations = [{"kind": "validation", "step": step, "loss": 9.0 - step % 2} for step in (1, 2)]
    validations.append({"kind": "validation", "step": 3, "loss": 1.0})
    rule = {"patience": 1, "best_metric": "loss"}
    history = [*validations, {"kind": "final", "step": 3, "stopped_early": rule}]
    run = types.SimpleNamespace(config=make_config(corpus, **rule), read_history=lambda: history)
    assert fitting._is_finished(run, 3, progress.Clock())
    assert "training.patience (now 1" in fitting._how_to_prolong(run, 3)
    run.config = make_config(corpus, patience=2)
    assert not fitting._is_finished(run, 3, progress.Clock())
    run.config, history = make_config(corpus, **rule), validations
    assert not fitting._is_finished(run, 3, progress.Clock())


@pytest.mark.very_slow
def test_without_a_test_set_the_validation_set_is_translated(corpus, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("train.en", "train.de", "val.en", "val.de"):
        (folder / name).write_bytes((corpus / name).read_bytes())
    settings = {"max_steps": 1, "validation_sentences": 0}
    result = train(make_config(folder, **settings), tmp_path / "run")
    assert result.split == "validation"
    assert result.pairs.source == (folder / "val.en").read_text(encoding="utf-8").splitlines()
    assert (result.run.path / "translations.validation.de").exists()


def test_the_report_shows_ten_translations_the_signature_and_what_to_do_next(whole):
    text = report(whole)
    lines = text.split("\n")
    shown = [line.removeprefix("  source      ") for line in lines if "  source      " in line]
    assert len(set(shown)) == 10
    assert set(shown) <= set(whole.pairs.source)
    for source in shown:
        i = whole.pairs.source.index(source)
        place = lines.index(f"  source      {source}")
        assert lines[place + 1] == f"  translation {whole.translations[i]}"
        assert lines[place + 2] == f"  reference   {whole.pairs.target[i]}"
    assert "nrefs:1|case:mixed" in text
    assert sacrebleu.__version__ in text
    for program in ("translate", "evaluate"):
        assert f"keras-transformer {program} {whole.run.path}" in text


def test_a_second_model_of_a_process_loads_the_weights_of_the_first(whole):
    before = keras.layers.Dropout(0.5)  # takes a number from Keras' count of generators
    assert before.seed_generator is not None
    first, second = (whole.run.load_model(checkpoint="last") for _ in range(2))
    for a, b in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_clock_counts_earlier_parts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    counted = progress.Clock(earlier=30.0)
    now[0] = 107.5
    assert counted.seconds == 37.5


@pytest.mark.very_slow
def test_digits_are_apart_where_the_settings_say_so(tmp_path):
    folder = tmp_path / "numbers"
    folder.mkdir()
    for split, language in itertools.product(("train", "valid"), ("en", "de")):
        lines = [f"{language} 2015 {number}" for number in range(2000, 2100)]
        (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split_digits, longest in ((True, 1), (False, 4)):
        config = make_config(folder, max_steps=1, validation_sentences=0)
        data = configs.replace(config.data, vocab_size=279, split_digits=split_digits)
        result = train(dataclasses.replace(config, data=data), tmp_path / f"run {split_digits}")
        pieces = result.run.load_tokenizers().source.pieces(["2015"])[0]
        assert max(len(piece.lstrip("\u2581")) for piece in pieces) == longest


@pytest.mark.very_slow
def test_the_settings_of_a_longer_run_are_written(corpus, tmp_path):
    train(make_config(corpus, max_steps=1), tmp_path / "run")
    train(make_config(corpus, max_steps=2), tmp_path / "run")
    assert RunFolder(tmp_path / "run").config.training.max_steps == 2


@pytest.mark.slow
def test_a_validation_that_a_kill_prevented_is_made_up_for_without_a_step(whole, corpus, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole.run.path, path)
    kept = [
        record
        for record in whole.run.read_history()
        if record["kind"] == "train" or (record["kind"], record["step"]) == ("validation", 8)
    ]
    (path / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    again = train(make_config(corpus), path)
    expected, found = of_kind(whole.run, "validation")[-1], of_kind(again.run, "validation")[-1]
    for record in (expected, found):
        record.pop("minutes")
    assert found == expected
    assert of_kind(again.run, "train") == of_kind(whole.run, "train")


@pytest.mark.very_slow
def test_a_run_that_never_trained_is_begun_anew_with_other_settings(corpus, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "Transformer", fail)
        with pytest.raises(OutOfMemoryError):
            train(make_config(corpus), tmp_path / "run")
    config = make_config(corpus, max_steps=1, validation_sentences=0)
    config = dataclasses.replace(config, model=configs.replace(config.model, d_ff=20))
    assert train(config, tmp_path / "run").run.config.model.d_ff == 20


def test_weights_that_do_not_fit_are_refused_before_there_is_a_folder(whole, corpus, tmp_path):
    for changes, message in (
        ({"init_checkpoint": "bestt"}, "no 'bestt' weights"),
        ({"init_from": "nowhere"}, "nowhere"),
    ):
        config = make_config(corpus, **{"init_from": str(whole.run.path), **changes})
        with pytest.raises(ValueError, match=message):
            train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    config = make_config(corpus, init_from=str(whole.run.path))
    with pytest.raises(ValueError, match="Give the new run the same shape: --set model.d_ff=24"):
        train(dataclasses.replace(config, model=configs.replace(config.model, d_ff=20)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_starts_from_the_weights_and_vocabulary_of_another(whole, corpus, tmp_path, capsys):
    settings = {"init_from": str(whole.run.path), "max_steps": 1, "validation_sentences": 0, "seed": 5}
    run = train(make_config(corpus, **settings), tmp_path / "run").run
    assert "310 of 310 pieces kept" in capsys.readouterr().out
    assert (run.path / "tokenizer.model").read_bytes() == (whole.run.path / "tokenizer.model").read_bytes()
    assert_same_weights(run.load_model(checkpoint="step-0"), whole.run.load_model())
