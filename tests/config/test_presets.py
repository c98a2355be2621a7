"""Presets: parameter counts by hand and by the paper, and what each row changes."""

import keras
import pytest

from keras_transformer.config.presets import PRESETS, auto, preset, with_vocab_size
from keras_transformer.config.settings import Config, differences
from keras_transformer.model.optimizer import TransformerSchedule
from keras_transformer.model.transformer import Transformer

# Weights of the model with one vocabulary of 37,000 tokens, worked out from section 3.
PUBLISHED = {
    "base": 63_045_632,
    "big": 214_171_648,
    "table3_a_heads_1": 63_045_632,
    "table3_a_heads_4": 63_045_632,
    "table3_a_heads_16": 63_045_632,
    "table3_a_heads_32": 63_045_632,
    "table3_b_key_16": 55_967_744,
    "table3_b_key_32": 58_327_040,
    "table3_c_layers_2": 33_644_544,
    "table3_c_layers_4": 48_345_088,
    "table3_c_layers_8": 77_746_176,
    "table3_c_model_256": 26_816_512,
    "table3_c_model_1024": 163_815_424,
    "table3_c_ff_1024": 50_450_432,
    "table3_c_ff_4096": 88_236_032,
    "table3_d_dropout_0.0": 63_045_632,
    "table3_d_dropout_0.2": 63_045_632,
    "table3_d_smoothing_0.0": 63_045_632,
    "table3_d_smoothing_0.2": 63_045_632,
}
# N, d_model, d_ff, h, d_k, d_v of Table 3, as the paper prints them; for N also the numbers of both stacks.
BASE_SIZES = (6, 512, 2048, 8, 64, 64)
SIZES = {
    "base": BASE_SIZES,
    "big": (6, 1024, 4096, 16, 64, 64),
    "big_enfr": (6, 1024, 4096, 16, 64, 64),
    "table3_a_heads_1": (6, 512, 2048, 1, 512, 512),
    "table3_a_heads_4": (6, 512, 2048, 4, 128, 128),
    "table3_a_heads_16": (6, 512, 2048, 16, 32, 32),
    "table3_a_heads_32": (6, 512, 2048, 32, 16, 16),
    "table3_b_key_16": (6, 512, 2048, 8, 16, 64),
    "table3_b_key_32": (6, 512, 2048, 8, 32, 64),
    "table3_c_layers_2": (2, 512, 2048, 8, 64, 64),
    "table3_c_layers_4": (4, 512, 2048, 8, 64, 64),
    "table3_c_layers_8": (8, 512, 2048, 8, 64, 64),
    "table3_c_model_256": (6, 256, 2048, 8, 32, 32),
    "table3_c_model_1024": (6, 1024, 2048, 8, 128, 128),
    "table3_c_ff_1024": (6, 512, 1024, 8, 64, 64),
    "table3_c_ff_4096": (6, 512, 4096, 8, 64, 64),
    "table3_d_dropout_0.0": BASE_SIZES,
    "table3_d_dropout_0.2": BASE_SIZES,
    "table3_d_smoothing_0.0": BASE_SIZES,
    "table3_d_smoothing_0.2": BASE_SIZES,
    "table3_e_learned_positions": BASE_SIZES,
    "t2t_base": BASE_SIZES,
    "base_12_1": ((12, 1), 512, 2048, 8, 64, 64),
    "base_6_2": ((6, 2), 512, 2048, 8, 64, 64),
    "parsing_paper": (4, 1024, 2048, 8, 128, 128),
    "parsing_semi_supervised": (4, 1024, 2048, 8, 128, 128),
    "parsing_small": (4, 256, 1024, 4, 64, 64),
    "multi30k_tiny": (4, 128, 256, 4, 32, 32),
    "multi30k_tiny_pre_norm": (4, 128, 256, 4, 32, 32),
    "tiny": (4, 128, 256, 4, 32, 32),
    "demo": (2, 128, 512, 4, 32, 32),
    "small": (4, 256, 1024, 4, 64, 64),
}


def stacks(n):
    """Numbers of encoder and decoder layers of an N of `SIZES`."""
    return n if isinstance(n, tuple) else (n, n)


def by_hand(vocab_size, sizes, norm_first=False, learned_positions=0):
    """V d + N encoder + M decoder; pre-norm adds a norm to each stack."""
    n, d, ff, h, dk, dv = sizes
    n, m = stacks(n)
    attention = 2 * d * h * dk + 2 * d * h * dv
    feed_forward = d * ff + ff + ff * d + d
    norm = 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    total = vocab_size * d + n * encoder + m * decoder + learned_positions * d
    return total + (2 * norm if norm_first else 0)


@pytest.fixture
def without_random_numbers(monkeypatch):
    """Starts weights at 0, for the sake of time; what is counted are their shapes."""

    def zeros(self, shape, dtype=None):
        return keras.ops.zeros(shape, dtype=dtype)

    for cls in (keras.initializers.VarianceScaling, keras.initializers.RandomNormal):
        monkeypatch.setattr(cls, "__call__", zeros)


def count(config, **arguments):
    """Number of weights of a model, in two bytes each."""
    return Transformer(config.model, dtype="bfloat16", **arguments).count_params()


def test_every_preset_has_its_sizes_in_this_table():
    assert SIZES.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_are_the_papers(name):
    model = PRESETS[name].model
    n, *others = SIZES[name]
    assert (model.num_encoder_layers, model.num_decoder_layers) == stacks(n)
    assert [model.d_model, model.d_ff, model.num_heads, model.d_key, model.d_value] == others


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_hand_count_gives_the_published_figures(name):
    assert by_hand(37_000, SIZES[name]) == PUBLISHED[name]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", PRESETS)
def test_the_model_has_as_many_weights_as_counted_by_hand(name, without_random_numbers):
    config = PRESETS[name]
    learned = config.model.max_positions if config.model.positions == "learned" else 0
    source, target = config.model.source_vocab_size, config.model.target_vocab_size
    # A parser shares no matrix: source embedding, target embedding and output.
    tokens = source + 2 * target if config.data.parses else source
    assert config.data.parses == (source != target)
    wanted = by_hand(tokens, SIZES[name], config.model.norm_first, learned)
    assert count(config) == wanted
    # Biases and norms are not counted there.
    assert 0.99 * wanted < config.model.num_weights <= wanted
    if name in PUBLISHED:
        assert wanted == PUBLISHED[name]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("vocab_size", "millions"), [(32_000, 60.49), (33_708, 61.36), (36_000, 62.53)])
def test_base_with_other_vocabularies(vocab_size, millions, without_random_numbers):
    found = count(with_vocab_size(PRESETS["base"], vocab_size))
    assert round(found / 1e6, 2) == millions


@pytest.mark.slow
def test_pre_norm_adds_a_norm_to_each_stack(without_random_numbers):
    assert count(preset("base", norm_first=True)) == 63_047_680


@pytest.mark.slow
def test_three_separate_matrices(without_random_numbers):
    assert round(count(preset("base", tie_embeddings="none")) / 1e6, 2) == 100.93


def test_multi30k_tiny_is_the_published_recipe():
    training, search = PRESETS["multi30k_tiny"].training, PRESETS["multi30k_tiny"].search
    schedule = TransformerSchedule(128, training.warmup_steps, scale=training.learning_rate_scale)
    assert float(schedule(1999)) == pytest.approx(0.005, rel=1e-3)
    assert (training.warmup_steps, training.max_steps, training.average_last) == (2000, 8000, 10)
    assert (training.clip_norm, training.adam_epsilon, training.smoothing_formula) == (25, 1e-8, "uniform")
    assert PRESETS["multi30k_tiny"].data.batch_tokens == 2 * 4096
    assert (search.beam_size, search.length_penalty, search.alpha) == (5, "average", 1)
    twin = differences(PRESETS["multi30k_tiny"], PRESETS["multi30k_tiny_pre_norm"])
    assert twin == [("model.norm_first", False, True)]


@pytest.mark.slow
def test_multi30k_tiny_has_the_published_2_6_million(without_random_numbers):
    config = with_vocab_size(PRESETS["multi30k_tiny"], 9716)
    assert round(count(config) / 1e6, 1) == 2.6
    # fairseq, with which it was published, has biases: 12 attentions with 4 of 128.
    biased = preset(
        "multi30k_tiny",
        source_vocab_size=9716,
        target_vocab_size=9716,
        attention_bias=True,
    )
    assert count(biased) == count(config) + 12 * 4 * 128
    assert round(count(biased) / 1e6, 2) == 2.57


ROWS = {
    "table3_a_heads_1": [("model.num_heads", 8, 1)],
    "table3_a_heads_4": [("model.num_heads", 8, 4)],
    "table3_a_heads_16": [("model.num_heads", 8, 16)],
    "table3_a_heads_32": [("model.num_heads", 8, 32)],
    "table3_b_key_16": [("model.key_dim", None, 16)],
    "table3_b_key_32": [("model.key_dim", None, 32)],
    **{
        f"table3_c_layers_{n}": [
            ("model.num_encoder_layers", 6, n),
            ("model.num_decoder_layers", 6, n),
        ]
        for n in (2, 4, 8)
    },
    "table3_c_model_256": [("model.d_model", 512, 256)],
    "table3_c_model_1024": [("model.d_model", 512, 1024)],
    "table3_c_ff_1024": [("model.d_ff", 2048, 1024)],
    "table3_c_ff_4096": [("model.d_ff", 2048, 4096)],
    **{
        f"table3_d_dropout_{rate}": [
            ("model.residual_dropout", 0.1, rate),
            ("model.embedding_dropout", 0.1, rate),
        ]
        for rate in (0.0, 0.2)
    },
    "table3_d_smoothing_0.0": [("training.label_smoothing", 0.1, 0.0)],
    "table3_d_smoothing_0.2": [("training.label_smoothing", 0.1, 0.2)],
    "table3_e_learned_positions": [("model.positions", "interleaved", "learned")],
}


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("table3")])
def test_a_row_of_table_3_differs_from_base_in_the_papers_field_only(name):
    assert differences(PRESETS["base"], PRESETS[name]) == ROWS[name]


def test_all_rows_of_table_3_are_there():
    assert {name for name in PRESETS if name.startswith("table3")} == ROWS.keys()
    assert len(ROWS) == 4 + 2 + 7 + 4 + 1


def test_base_is_the_default_configuration():
    assert PRESETS["base"] == Config()


def test_big_is_the_last_line_of_table_3():
    assert differences(PRESETS["base"], PRESETS["big"]) == [
        ("model.d_model", 512, 1024),
        ("model.d_ff", 2048, 4096),
        ("model.num_heads", 8, 16),
        ("model.residual_dropout", 0.1, 0.3),
        ("model.embedding_dropout", 0.1, 0.3),
        ("training.max_steps", 100_000, 300_000),
        ("training.average_last", 5, 20),
    ]


def test_big_for_english_french_has_dropout_0_1():
    changed = {path: new for path, _, new in differences(PRESETS["big"], PRESETS["big_enfr"])}
    assert changed == {
        "model.source_vocab_size": 32_000,
        "model.target_vocab_size": 32_000,
        "model.residual_dropout": 0.1,
        "model.embedding_dropout": 0.1,
        "data.dataset": "cldr/en-fr",
        "data.target": "fr",
        "data.vocab_size": 32_000,
        "data.model_type": "wordpiece",  # section 5.1
    }


@pytest.mark.parametrize(("encoder", "decoder"), [(12, 1), (6, 2)])
def test_a_shallow_decoder_differs_from_base_in_depth_and_initial_matrices_only(encoder, decoder):
    changed = {
        path: new for path, _, new in differences(PRESETS["base"], PRESETS[f"base_{encoder}_{decoder}"])
    }
    layers = {"model.num_encoder_layers": encoder, "model.num_decoder_layers": decoder}
    assert {"model.num_encoder_layers": 6, **changed} == {**layers, "model.depth_scaling": "ds_init"}


def test_parsing_is_section_6_3():
    base, paper = PRESETS["base"], PRESETS["parsing_paper"]
    assert differences(base, paper) == [
        ("model.source_vocab_size", 37_000, 16_000),
        ("model.target_vocab_size", 37_000, 64),
        ("model.num_encoder_layers", 6, 4),
        ("model.num_decoder_layers", 6, 4),
        ("model.d_model", 512, 1024),
        ("model.residual_dropout", 0.1, 0.2),
        ("model.embedding_dropout", 0.1, 0.2),
        ("model.attention_dropout", 0.0, 0.2),
        ("model.tie_embeddings", "all", "none"),
        ("data.dataset", "cldr/en-de", "treebank"),
        ("data.target", "de", "trees"),
        ("data.vocab_size", 37_000, 16_000),
        ("data.separate_vocabularies", False, True),
        ("data.max_length", 256, 512),
        ("training.max_steps", 100_000, 50_000),
        ("training.warmup_steps", 4000, 16_000),
        ("training.best_metric", "loss", "f1"),
        ("search.beam_size", 4, 21),
        ("search.alpha", 0.6, 0.3),
        ("search.max_length_offset", 50, 300),
        ("search.max_source_length", 256, 512),
    ]
    assert PRESETS["parsing_semi_supervised"].data.vocab_size == 32_000


def test_t2t_base_is_version_3_of_tensor2tensor():
    config = PRESETS["t2t_base"]
    assert config.model.norm_first
    assert config.model.positions == "halves"
    assert (config.model.attention_dropout, config.model.relu_dropout) == (0.1, 0.1)
    assert (config.training.warmup_steps, config.training.learning_rate_scale) == (8000, 2.0)
    assert (config.training.adam_beta_2, config.search.max_length_offset) == (0.997, 100)


@pytest.mark.parametrize("name", PRESETS)
def test_data_and_model_of_a_preset_have_one_vocabulary_size(name):
    config = PRESETS[name]
    # A parser has a small vocabulary of tree symbols as its target.
    assert config.data.vocab_size == config.model.source_vocab_size
    assert config.data.parses or config.data.vocab_size == config.model.target_vocab_size


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_splits_sources_longer_than_its_training_sentences(name):
    config = PRESETS[name]
    assert config.search.max_source_length == config.data.max_length


def test_auto_splits_sources_longer_than_its_training_sentences():
    limits = []
    for num_pairs in (3_000, 20_000, 29_000, 300_000, 4_500_000):
        config = auto(num_pairs)
        limits.append((config.data.max_length, config.search.max_source_length))
    assert limits == 4 * [(128, 128)] + [(256, 256)]


def test_preset_changes_fields_of_the_model():
    changed = preset("base", d_ff=7, norm_first=True)
    assert differences(PRESETS["base"], changed) == [
        ("model.d_ff", 2048, 7),
        ("model.norm_first", False, True),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("autoo", r"There is no preset 'autoo'. Did you mean 'auto'\?"),
        ("bases", r"There is no preset 'bases'. Did you mean 'base'\?"),
        ("zzz", "There is no preset 'zzz'. Choose from: base, big, big_enfr, table3"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, message):
    with pytest.raises(ValueError, match=message):
        preset(name)


def test_an_unknown_field_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no setting 'd_modle'. Did you mean 'd_model'\?"):
        preset("base", d_modle=3)


def test_with_vocab_size_changes_both_vocabularies_only():
    assert differences(Config(), with_vocab_size(Config(), 29)) == [
        ("model.source_vocab_size", 37_000, 29),
        ("model.target_vocab_size", 37_000, 29),
    ]


def test_with_vocab_size_takes_a_size_for_each_side():
    config = preset("base", tie_embeddings="decoder")
    found = with_vocab_size(config, 29, 31).model
    assert (found.source_vocab_size, found.target_vocab_size) == (29, 31)
    with pytest.raises(ValueError, match="`tie_embeddings='all'` needs one shared vocabulary"):
        with_vocab_size(Config(), 29, 31)


@pytest.mark.parametrize(
    ("num_pairs", "max_minutes", "gpu", "expected"),
    [
        # layers, d_model, dropout, pieces, tokens of a batch, warm-up, longest run
        (3_000, 0, False, (2, 128, 0.3, 1000, 2048, 500, 6000)),
        (20_000, 0, False, (2, 128, 0.3, 2000, 2048, 500, 12_000)),
        (29_000, 0, False, (4, 128, 0.3, 8000, 4096, 2000, 16_000)),
        (300_000, 0, False, (4, 256, 0.2, 8000, 4096, 4000, 60_000)),
        (4_500_000, 0, False, (6, 512, 0.1, 37_000, 25_000, 4000, 100_000)),
        # A larger model that makes few updates would be worse.
        (29_000, 10, False, (4, 128, 0.3, 8000, 4096, 156, 16_000)),
        (29_000, 7, False, (2, 128, 0.3, 2000, 2048, 350, 12_000)),
        (300_000, 10, True, (4, 256, 0.2, 8000, 4096, 1562, 60_000)),
        (4_500_000, 5, False, (2, 128, 0.3, 2000, 2048, 250, 12_000)),
    ],
)
def test_auto_follows_from_the_corpus_and_the_time(num_pairs, max_minutes, gpu, expected):
    config = auto(num_pairs, max_minutes=max_minutes, gpu=gpu)
    model, data, training = config.model, config.data, config.training
    found = (model.num_encoder_layers, model.d_model, model.residual_dropout, data.vocab_size)
    assert (*found, data.batch_tokens, training.warmup_steps, training.max_steps) == expected
    assert model.source_vocab_size == model.target_vocab_size == data.vocab_size
    # Ten checkpoints of after the warm-up are averaged, in whatever time there is.
    assert training.max_minutes == max_minutes
    assert training.average_last == training.keep_checkpoints == 10
    assert training.warmup_steps <= 5.1 * training.checkpoint_every_steps
    assert training.validate_every_steps % training.checkpoint_every_steps == 0


def test_a_shorter_warm_up_of_auto_does_not_raise_the_highest_rate():
    for minutes, row in ((5, "demo"), (20, "demo"), (0, "demo")):
        training = auto(20_000, max_minutes=minutes).training
        highest = training.learning_rate_scale * training.warmup_steps**-0.5
        assert highest == pytest.approx(PRESETS[row].training.warmup_steps ** -0.5, rel=0.01)


def test_the_vocabulary_of_auto_has_room_for_every_character():
    assert auto(3_000, num_characters=90).data.vocab_size == 1000
    assert auto(3_000, num_characters=4_000).data.vocab_size == 8500
