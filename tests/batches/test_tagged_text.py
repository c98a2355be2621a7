"""Tags in a corpus: tokens of training sources, characters everywhere else."""

import json

import pytest

from keras_transformer.batches.prepared import MANIFEST, PreparedCorpus
from keras_transformer.batches.preparing import prepare
from keras_transformer.batches.training_data import load_training_data
from keras_transformer.config.settings import Config, override
from keras_transformer.files import from_checked_json, to_checked_json
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, train_tokenizer

PAIRS = [(f"<BT> the man sees {n} dogs", f"<BT> der Mann sieht {n} Hunde") for n in range(17)]
PAIRS += [(f"the king has {n} foxes <BT> <BLANK>", f"der König hat {n} Füchse") for n in range(11)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for split, pairs in (("train", PAIRS), ("valid", PAIRS[:3])):
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in side))
    return folder


def settings(corpus, *more):
    names = ["vocab_size=330", "max_length=40", "batch_tokens=640", f"dataset={corpus}", *more]
    return override(Config(), [f"data.{name}" for name in names])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_only_training_sources_have_tags(corpus, tmp_path, kind):
    size = {"bpe": 330, "wordpiece": 71}[kind]
    config = settings(corpus, "tags=<BT>,<BLANK>", f"model_type={kind}", f"vocab_size={size}")
    prepared = prepare(config, tmp_path / "out", num_workers=0)
    (tokenizer, _) = prepared.load_tokenizers()
    assert tokenizer.tags == {"<BT>": 4, "<BLANK>": 5}
    pairs = prepared.load_pairs()
    tags = [[number for number in row.tolist() if number in (4, 5)] for row in pairs.source]
    assert tags == [[4]] * 17 + [[4, 5]] * 11
    assert pairs.source[0][0] == 4
    assert not any(number in (4, 5) for row in pairs.target for number in row)
    assert tokenizer.decode([pairs.source[0].tolist()]) == ["the man sees 0 dogs"]
    assert tokenizer.decode([pairs.target[0].tolist()]) == ["<BT> der Mann sieht 0 Hunde"]
    assert prepared.load_text("valid").source[0] == "<BT> the man sees 0 dogs"  # as it is
    again = prepare(config, tmp_path / "again", num_workers=1, shard_pairs=7)
    for side, other in zip(pairs, again.load_pairs(), strict=True):
        assert [row.tolist() for row in side] == [row.tolist() for row in other]


@pytest.mark.slow
def test_tagged_sources_are_no_targets(corpus, tmp_path):
    """A prepared corpus is read in either direction, unless the model would learn to produce tags."""
    prepare(settings(corpus, "tags=<BT>"), tmp_path / "out", num_workers=0)
    there = settings(tmp_path / "out")
    assert load_training_data(there).train.num_pairs == 28
    back = override(there, ["data.source=de", "data.target=en"])
    with pytest.raises(DataError, match=r"its en side has tags \(<BT>\).* Use --source en --target de"):
        load_training_data(back)
    prepare(settings(corpus, "tags=<NEW>"), tmp_path / "reserved", num_workers=0)  # in no sentence
    back = override(back, [f"data.dataset={tmp_path / 'reserved'}"])
    assert load_training_data(back).train.num_pairs == 28


def test_without_the_setting_all_is_text(corpus, tmp_path):
    prepared = prepare(settings(corpus), tmp_path / "out", num_workers=0)
    (tokenizer, _) = prepared.load_tokenizers()
    assert tokenizer.tags == {}
    assert tokenizer.decode([prepared.load_pairs().source[0].tolist()]) == ["<BT> the man sees 0 dogs"]
    # A corpus that was prepared before the setting existed is used as it is.
    path = tmp_path / "out" / MANIFEST
    manifest = from_checked_json(path.read_bytes())
    del manifest["settings"]["data"]["tags"]
    path.write_text(to_checked_json(manifest))
    before = path.stat().st_mtime_ns
    assert PreparedCorpus(tmp_path / "out").settings["data"]["tags"] == ""
    prepare(settings(corpus), tmp_path / "out", num_workers=0)
    assert path.stat().st_mtime_ns == before
    assert load_training_data(settings(tmp_path / "out")).data.tags == ""
    with pytest.raises(DataError, match="was prepared with data.tags='', not '<BT>'"):
        prepare(settings(corpus, "tags=<BT>"), tmp_path / "out", num_workers=0)


@pytest.mark.slow
def test_a_given_vocabulary_must_have_the_tags(corpus, tmp_path):
    texts = [text for pair in PAIRS for text in pair]
    lacks = as_tokenizers(train_tokenizer(texts, model_type="bpe", vocab_size=320, tags=("<BLANK>",)))
    with pytest.raises(DataError, match="data.tags=<BT>: the vocabulary lacks <BT>. .*--new-vocabulary"):
        prepare(settings(corpus, "tags=<BT>"), tmp_path / "out", tokenizers=lacks, num_workers=0)
    assert not (tmp_path / "out").exists()
    has = as_tokenizers(train_tokenizer(texts, model_type="bpe", vocab_size=320, tags=("<BT>",)))
    prepared = prepare(settings(corpus), tmp_path / "out", tokenizers=has, num_workers=0)
    assert prepared.load_pairs().source[0][0] == 4  # the setting follows the vocabulary
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["settings"]["data"]["tags"] == "<BT>"


def test_sampled_segmentations_keep_tags(corpus, tmp_path):
    from keras_transformer.batches.dataset import SubwordSampling
    from keras_transformer.batches.planning import EpochPlanner

    config = settings(corpus, "tags=<BT>,<BLANK>")
    prepared = prepare(config, tmp_path / "out", num_workers=0)
    pairs, sampling = prepared.load_pairs(), SubwordSampling(prepared.load_tokenizers(), 0.5)
    planner = EpochPlanner(*sampling.lengths(pairs), batch_tokens=640, seed=1)
    for plan in planner.plan(0):
        source, target = sampling.draw(pairs, plan)
        for index, row, other in zip(plan.indices, source.tolist(), target.tolist(), strict=True):
            expected = [4] if index < 17 else [4, 5]
            assert [number for number in row if number in (4, 5)] == expected
            assert 4 not in other
            assert (row[0] == 4) == (index < 17)
