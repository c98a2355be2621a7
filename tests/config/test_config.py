"""Configurations: what they accept, what they refuse and what they say then."""

import dataclasses
import json

import pytest

from keras_transformer.config.settings import (
    CleaningConfig,
    Config,
    DataConfig,
    DeviceConfig,
    ModelConfig,
    SearchConfig,
    SpecialIds,
    TrainingConfig,
    differences,
    from_json,
    override,
    replace,
    to_json,
)

SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "search": SearchConfig,
    "cleaning": CleaningConfig,
    "devices": DeviceConfig,
}


def test_defaults_are_the_papers_base_model():
    config = Config()
    model, training = config.model, config.training
    assert (model.num_encoder_layers, model.num_decoder_layers) == (6, 6)
    assert (model.d_model, model.d_ff, model.num_heads) == (512, 2048, 8)
    assert (model.d_key, model.d_value) == (64, 64)
    assert (model.residual_dropout, model.embedding_dropout) == (0.1, 0.1)
    assert (model.attention_dropout, model.relu_dropout) == (0.0, 0.0)
    assert not model.norm_first
    assert (model.positions, model.tie_embeddings) == ("interleaved", "all")
    assert (model.attention_bias, model.output_bias) == (False, False)
    assert (training.warmup_steps, training.learning_rate_scale) == (4000, 1.0)
    assert (training.adam_beta_1, training.adam_beta_2) == (0.9, 0.98)
    assert training.adam_epsilon == 1e-9
    assert (training.label_smoothing, training.max_steps) == (0.1, 100_000)
    assert training.average_last == 5
    assert config.data.batch_tokens == 25_000
    assert (config.search.beam_size, config.search.alpha) == (4, 0.6)
    assert config.search.max_length_offset == 50


def test_special_ids_differ():
    assert len(set(dataclasses.astuple(SpecialIds()))) == 4


@pytest.mark.parametrize("section", SECTIONS.values())
def test_configurations_are_frozen(section):
    config = section()
    name = dataclasses.fields(section)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, getattr(config, name))


def test_key_and_value_width_default_to_the_share_of_one_head():
    config = ModelConfig(d_model=12, num_heads=3, value_dim=7)
    assert (config.d_key, config.d_value) == (4, 7)


# Overrides, as after --set.


@pytest.mark.parametrize(
    ("text", "section", "name", "value"),
    [
        ("model.d_model=24", "model", "d_model", 24),
        ("training.max_steps=1_000_000", "training", "max_steps", 1_000_000),
        ("model.residual_dropout=0.25", "model", "residual_dropout", 0.25),
        ("model.residual_dropout=0", "model", "residual_dropout", 0.0),
        ("training.adam_epsilon=1e-7", "training", "adam_epsilon", 1e-7),
        ("model.norm_first=true", "model", "norm_first", True),
        ("model.output_bias=False", "model", "output_bias", False),
        ("model.key_dim=17", "model", "key_dim", 17),
        ("model.key_dim=None", "model", "key_dim", None),
        ("model.positions=learned", "model", "positions", "learned"),
        ("data.dataset=a=b", "data", "dataset", "a=b"),
        (" search.alpha = 1.5 ", "search", "alpha", 1.5),
    ],
)
def test_override_reads_a_value_as_its_field_wants_it(text, section, name, value):
    found = getattr(getattr(override(Config(), [text]), section), name)
    assert found == value
    assert type(found) is type(value)


def test_override_changes_nothing_else():
    changed = override(Config(), ["model.d_model=24", "search.beam_size=7"])
    assert differences(Config(), changed) == [
        ("model.d_model", 512, 24),
        ("search.beam_size", 4, 7),
    ]


def test_override_checks_settings_that_must_agree_together():
    texts = ["model.source_vocab_size=29", "model.target_vocab_size=29"]
    assert override(Config(), texts).model.target_vocab_size == 29


def test_the_last_of_two_overrides_wins():
    assert override(Config(), ["model.d_ff=7", "model.d_ff=11"]).model.d_ff == 11


@pytest.mark.parametrize(
    ("before", "texts", "limit"),
    [
        (256, ["data.max_length=60"], 60),
        (256, ["data.max_length=60", "search.max_source_length=50"], 50),
        (256, ["search.max_source_length=256", "data.max_length=60"], 256),
        (256, ["search.max_source_length=60"], 60),
        # The two differed before, so one of them was set.
        (100, ["data.max_length=60"], 100),
    ],
)
def test_the_limit_of_a_source_follows_that_of_training_unless_it_is_set(before, texts, limit):
    config = Config(search=SearchConfig(max_source_length=before))
    assert override(config, texts).search.max_source_length == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.d_model", "The value of model.d_model is missing: --set model.d_model=VALUE"),
        ("training.early_stopping", "is missing: --set training.patience=VALUE"),
        ("model.dmodel", r"Received: 'model.dmodel'. Did you mean model.d_model=VALUE\?"),
        ("d_model=3", r"Expected section.field=value. Received: 'd_model=3'. Did you mean model.d_model=3\?"),
        ("max_step=3", r"Did you mean training.max_steps=3\?"),
        ("modle.d_model=3", r"There is no section 'modle'. Did you mean 'model'\?"),
        ("zzz.d_model=3", r"There is no section 'zzz'. Choose from: model, data, training, search, cleaning"),
        ("model.droput=3", r"model has no setting 'droput'. Did you mean '\w*dropout'"),
        (
            "model.dropout=0.3",
            "Did you mean 'residual_dropout' or 'embedding_dropout' or 'attention_dropout'\\?",
        ),
        (
            "batch_tokens=3",
            r"Did you mean data.batch_tokens=3 or search.batch_tokens=3\?",
        ),
        ("data.service=host:5050", "data.service: this setting was removed. .*tf.data.experimental.service"),
        ("search.zzz=3", r"search has no setting 'zzz'. Choose from: beam_size, alpha"),
        ("model.d_model=12.5", r"`model.d_model` must be a whole number. Received: '12.5'"),
        ("model.d_model=none", r"`model.d_model` must be a whole number. Received: 'none'"),
        ("model.d_model=", r"`model.d_model` must be a whole number. Received: ''"),
        ("search.alpha=big", r"`search.alpha` must be a number. Received: 'big'"),
        ("search.alpha=nan", r"`search.alpha` must be finite. Received: nan"),
        ("model.norm_first=1", r"`model.norm_first` must be true or false. Received: '1'"),
        ("model.key_dim=wide", r"`model.key_dim` must be a whole number. Received: 'wide'"),
        ("model.d_model=-4", r"`model.d_model` must be at least 1. .*d_model=-4"),
    ],
)
def test_override_refuses(text, message):
    with pytest.raises(ValueError, match=message):
        override(Config(), [text])


def test_replace_returns_a_changed_copy():
    config = ModelConfig()
    assert replace(config, d_ff=7) == ModelConfig(d_ff=7)
    assert config == ModelConfig()


def test_replace_refuses_an_unknown_field_with_the_nearest_name():
    message = r"training has no setting 'warmup_step'. Did you mean 'warmup_steps'\?"
    with pytest.raises(ValueError, match=message):
        replace(TrainingConfig(), warmup_step=7)


# Types.


def test_a_whole_number_is_accepted_where_a_float_is_wanted():
    assert ModelConfig(residual_dropout=0).residual_dropout == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ModelConfig(num_encoder_layers=True),
            "`model.num_encoder_layers` must be int. Received: True",
        ),
        (lambda: ModelConfig(norm_first=1), "`model.norm_first` must be bool. .*: 1"),
        (lambda: ModelConfig(residual_dropout=False), "residual_dropout` must be float. .*False"),
        (lambda: ModelConfig(d_model=512.0), "d_model` must be int. Received: 512.0"),
        (lambda: ModelConfig(key_dim=True), "key_dim` must be int or None. .*True"),
        (lambda: ModelConfig(positions=3), "positions` must be str. Received: 3"),
        (lambda: TrainingConfig(max_minutes=float("inf")), "max_minutes` must be finite. .*inf"),
        (lambda: SearchConfig(alpha=float("nan")), "alpha` must be finite. .*nan"),
        (lambda: Config(model=None), "`model` must be ModelConfig. Received: None"),
    ],
)
def test_refuses_another_type(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Ranges: for every field with one, the last value refused and the first accepted.

AT_LEAST_1 = {
    ModelConfig: ("num_encoder_layers num_decoder_layers d_ff num_heads key_dim value_dim max_positions"),
    TrainingConfig: (
        "max_steps warmup_steps log_every_steps validate_every_steps keep_checkpoints average_last"
    ),
    SearchConfig: "n_best batch_tokens",
    CleaningConfig: "min_length",
}
AT_LEAST_0 = {
    TrainingConfig: (
        "max_minutes clip_norm validation_sentences checkpoint_every_steps checkpoint_every_minutes seed"
    ),
    SearchConfig: "alpha min_length top_k",
}
SHARES = {
    ModelConfig: "residual_dropout embedding_dropout attention_dropout relu_dropout",
    TrainingConfig: "adam_beta_1 adam_beta_2 label_smoothing",
}


def pairs(table):
    return [(section, name) for section, names in table.items() for name in names.split()]


@pytest.mark.parametrize(("section", "name"), pairs(AT_LEAST_1))
def test_counts_are_at_least_1(section, name):
    others = {"average_last": 1} if name == "keep_checkpoints" else {}
    assert getattr(section(**{**others, name: 1}), name) == 1
    with pytest.raises(ValueError, match=rf"`\w+\.{name}` must be (at least|from) 1\b.*Received: {name}=0"):
        section(**{name: 0})


@pytest.mark.parametrize("name", ["source_vocab_size", "target_vocab_size", "d_model"])
def test_sizes_are_at_least_1(name):
    with pytest.raises(ValueError, match=f"{name}` must be at least 1. Received: {name}=0"):
        ModelConfig(**{name: 0})


@pytest.mark.parametrize(("section", "name"), pairs(AT_LEAST_0))
def test_limits_are_at_least_0(section, name):
    assert getattr(section(**{name: 0}), name) == 0
    with pytest.raises(ValueError, match=rf"`\w+\.{name}` must be at least 0\b.*Received: {name}=-1"):
        section(**{name: -1})


@pytest.mark.parametrize(("section", "name"), pairs(SHARES))
def test_rates_are_at_least_0_and_below_1(section, name):
    for accepted in (0.0, 0.999):
        assert getattr(section(**{name: accepted}), name) == accepted
    for refused in (-0.001, 1.0):
        message = f"{name}` must be at least 0 and below 1. Received: {name}={refused}"
        with pytest.raises(ValueError, match=message):
            section(**{name: refused})


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (ModelConfig, "layer_norm_epsilon"),
        (TrainingConfig, "learning_rate_scale"),
        (TrainingConfig, "adam_epsilon"),
    ],
)
def test_factors_are_above_0(section, name):
    with pytest.raises(ValueError, match=f"{name}` must be above 0. Received: {name}=0.0"):
        section(**{name: 0.0})


@pytest.mark.parametrize(
    ("section", "name", "choices", "wrong", "near"),
    [
        (ModelConfig, "positions", ["halves", "learned", "relative", "rotary"], "rotatory", "rotary"),
        (ModelConfig, "activation", ["relu", "swiglu", "geglu"], "swigl", "swiglu"),
        (ModelConfig, "norm", ["layer", "rms"], "rsm", "rms"),
        (ModelConfig, "tie_embeddings", ["all", "decoder", "none"], "decode", "decoder"),
        (DataConfig, "normalization", ["nfc", "nfkc", "identity"], "nfd", "nfc"),
        (DataConfig, "padding", ["longest", "fixed"], "fix", "fixed"),
        (DataConfig, "on_bad_utf8", ["refuse", "replace"], "refuses", "refuse"),
        (TrainingConfig, "smoothing_formula", ["t2t", "uniform"], "uniformly", "uniform"),
        (TrainingConfig, "precision", ["float32", "mixed_bfloat16"], "bfloat16", "mixed_bfloat16"),
    ],
)
def test_choices_are_checked_with_the_nearest_name(section, name, choices, wrong, near):
    for choice in choices:
        assert getattr(section(**{name: choice}), name) == choice
    message = f"{name}` must be one of .* Received: '{wrong}'. Did you mean '{near}'"
    with pytest.raises(ValueError, match=message):
        section(**{name: wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ModelConfig(d_model=14, num_heads=4),
            "`d_model` must be a multiple of `num_heads` when `key_dim` is not given. "
            "Received: d_model=14, num_heads=4",
        ),
        (
            lambda: ModelConfig(d_model=14, num_heads=4, key_dim=3),
            "multiple of `num_heads` when `value_dim` is not given",
        ),
        (lambda: ModelConfig(d_model=9, num_heads=3), "even for sinusoidal .*d_model=9"),
        (lambda: ModelConfig(positions="rotary", key_dim=7), "must be even for rotary .*key_dim=7"),
        (lambda: ModelConfig(max_relative_position=0), "max_relative_position` must be at least 1"),
        (
            lambda: ModelConfig(d_model=2, num_heads=1, positions="halves"),
            "at least 4 for `halves` positions. Received: d_model=2",
        ),
        (
            lambda: ModelConfig(source_vocab_size=7),
            "`tie_embeddings='all'` needs one shared vocabulary. .*source_vocab_size=7, target_vocab_size",
        ),
        (lambda: DataConfig(vocab_size=7), "vocab_size` must be at least 8. .*vocab_size=7"),
        (lambda: DataConfig(max_length=1), "max_length` must be at least 2. .*max_length=1"),
        (
            lambda: DataConfig(max_length=100, batch_tokens=799),
            "batch_tokens=799, max_length=100. Set batch_tokens=800 or max_length=99",
        ),
        (
            lambda: TrainingConfig(average_last=7, keep_checkpoints=6),
            "`average_last` must be at most `keep_checkpoints`. Received: average_last=7, keep_checkpoints=6",
        ),
        (lambda: SearchConfig(max_source_length=1), "at least 2. .*max_source_length=1"),
        (lambda: SearchConfig(beam_size=0), "from 1 to 1000. .*beam_size=0"),
        (lambda: SearchConfig(beam_size=1001), "from 1 to 1000. .*beam_size=1001"),
        (lambda: SearchConfig(max_length=3 * 10**9), "from 1 to 16777216. .*max_length=3000000000"),
        (lambda: SearchConfig(max_length_offset=2**31 - 1), "from 1 to 16777216. .*offset=2147483647"),
        (lambda: SearchConfig(max_length_ratio=1e9), "from 0 to 1000. .*ratio=1000000000.0"),
        (lambda: SearchConfig(no_repeat_ngram=10**6), "from 0 to 32. .*no_repeat_ngram=1000000"),
        (lambda: SearchConfig(max_length=0), "from 1 to 16777216. .*max_length=0"),
        (lambda: SearchConfig(max_length_offset=0), "from 1 to 16777216. .*offset=0"),
        (lambda: SearchConfig(max_length_ratio=-1), "from 0 to 1000. .*ratio=-1"),
        (lambda: SearchConfig(no_repeat_ngram=-1), "from 0 to 32. .*no_repeat_ngram=-1"),
        (lambda: SearchConfig(temperature=0.0), "at least 1e-30. .*temperature=0.0"),
        (lambda: SearchConfig(top_k=2**31), "below 2147483648. .*top_k=2147483648"),
        (lambda: SearchConfig(batch_tokens=2**31), "below 2147483648"),
        (lambda: SearchConfig(beam_size=1000, n_best=10_001), "from 1 to 10000. .*n_best=10001"),
        (lambda: SearchConfig(top_p=0.0), "above 0 and at most 1. .*top_p=0.0"),
        (lambda: SearchConfig(top_p=1.01), "above 0 and at most 1. .*top_p=1.01"),
        (lambda: SearchConfig(seed=-1), "at least 0 .*seed=-1"),
        (
            lambda: SearchConfig(min_length=7, max_length=7),
            "`min_length` must be below `max_length`. Received: min_length=7, max_length=7",
        ),
        (
            lambda: SearchConfig(n_best=5),
            "`n_best` must be at most `beam_size` unless `sampling` or `mbr` is on. Received: n_best=5, "
            "beam_size=4",
        ),
        (lambda: SearchConfig(length_penalty="gmnt"), "Received: 'gmnt'. Did you mean 'gnmt'"),
        (lambda: TrainingConfig(precision="float16"), "one of float32, mixed_bfloat16, mixed_float16"),
        (lambda: SearchConfig(long_lines="spilt"), "Received: 'spilt'. Did you mean 'split'"),
        (
            lambda: CleaningConfig(max_length_ratio=0.9),
            r"max_length_ratio` must be 0 \(no limit\) or at least 1. Received: max_length_ratio=0.9",
        ),
        (lambda: CleaningConfig(max_foreign_letters=1.01), "from 0 to 1. .*max_foreign_letters=1.01"),
        (lambda: CleaningConfig(max_foreign_letters=-0.01), "from 0 to 1. .*max_foreign_letters=-0.01"),
        (
            lambda: Config(cleaning=CleaningConfig(min_length=257)),
            "`cleaning.min_length` must be at most `data.max_length`. "
            "Received: min_length=257, max_length=256",
        ),
        (lambda: DataConfig(source="trees"), "trees are a target: `target='trees'`"),
        (
            lambda: DataConfig(target="trees"),
            "needs `separate_vocabularies=true`: choose a preset such as parsing_small. Received",
        ),
        (lambda: DataConfig(keep_tags=True), "`keep_tags` needs target='trees'. Received: target='de'"),
        (
            lambda: Config(search=SearchConfig(tree_grammar=True)),
            "`search.tree_grammar` is for parsing: data.target='trees'. Received: target='de'",
        ),
        (
            lambda: Config(training=TrainingConfig(best_metric="f1")),
            "`training.best_metric` must be 'loss' or 'bleu' with data.target='de'",
        ),
        (
            lambda: Config(
                data=DataConfig(target="trees", separate_vocabularies=True),
                training=TrainingConfig(best_metric="bleu"),
            ),
            "`training.best_metric` must be 'loss' or 'f1' with data.target='trees'",
        ),
    ],
)
def test_refuses_settings_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelConfig(d_model=14, num_heads=4, key_dim=3, value_dim=5),
        lambda: ModelConfig(d_model=9, num_heads=3, positions="learned"),
        lambda: ModelConfig(d_model=4, num_heads=1, positions="halves"),
        lambda: ModelConfig(source_vocab_size=7, tie_embeddings="decoder"),
        lambda: DataConfig(max_length=100, batch_tokens=800),
        lambda: TrainingConfig(average_last=6, keep_checkpoints=6),
        lambda: SearchConfig(max_source_length=2),
        lambda: SearchConfig(beam_size=1000, n_best=1000),
        lambda: SearchConfig(beam_size=1, n_best=7, sampling=True),
        lambda: SearchConfig(min_length=6, max_length=7),
        lambda: CleaningConfig(max_length_ratio=1, max_foreign_letters=0),
        lambda: Config(cleaning=CleaningConfig(min_length=256)),
    ],
)
def test_accepts_settings_that_just_fit(make):
    assert make() == make()


# JSON.


def test_json_round_trip_keeps_every_field():
    config = override(
        Config(),
        [
            "model.key_dim=17",
            "model.norm_first=true",
            "model.positions=learned",
            "data.padding=fixed",
            "training.clip_norm=1.5",
            "search.alpha=0",
            "cleaning.drop_damaged=true",
            "cleaning.max_foreign_letters=0.25",
        ],
    )
    assert from_json(to_json(config)) == config != Config()


def test_json_names_every_field():
    held = json.loads(to_json(Config()))
    assert held.keys() == SECTIONS.keys()
    for name, section in SECTIONS.items():
        assert held[name].keys() == {field.name for field in dataclasses.fields(section)}
    assert held["model"]["d_model"] == 512
    assert held["model"]["key_dim"] is None


def test_a_field_left_out_of_json_has_its_default():
    assert from_json('{"training": {"max_steps": 7}}') == Config(training=TrainingConfig(max_steps=7))


def test_a_file_of_before_matrices_were_stacked_has_separate_ones():
    assert from_json('{"model": {"d_ff": 7}}').model == ModelConfig(d_ff=7, attention_init="separate")
    assert from_json('{"model": {"attention_init": "stacked"}}').model == ModelConfig()


def test_deepnorm_is_for_post_norm():
    ModelConfig(depth_scaling="ds_init", norm_first=True)
    with pytest.raises(ValueError, match="'deepnorm'` needs post-norm: model.norm_first=false"):
        ModelConfig(depth_scaling="deepnorm", norm_first=True)


@pytest.mark.parametrize("address", ["", "host:5050"])
def test_json_with_a_setting_that_is_gone_is_read_with_a_line_that_says_so(address, capsys):
    assert from_json(json.dumps({"data": {"service": address, "max_length": 7}})).data.max_length == 7
    err = capsys.readouterr().err
    assert err.count("\n") == len(address and "1")
    assert ("data.service='host:5050': this setting was removed. " in err) is bool(address)


def test_json_of_before_there_was_cleaning_is_read():
    held = json.loads(to_json(Config()))
    del held["cleaning"]
    assert from_json(json.dumps(held)) == Config()


def test_by_default_cleaning_drops_blank_sides_only():
    assert CleaningConfig() == CleaningConfig(
        drop_empty=True,
        drop_damaged=False,
        max_foreign_letters=1,
        drop_identical=False,
        min_length=1,
        max_length_ratio=0,
        drop_duplicates=False,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"modell": {}}', r"There is no section 'modell'. Did you mean 'model'\?"),
        ('{"model": {"dmodel": 3}}', r"model has no setting 'dmodel'. .*'d_model'\?"),
        ('{"model": 3}', "`model` must be ModelConfig. Received: 3"),
        ("[]", "Config must be a JSON object"),
        ('{"model": {"d_model": {"d_ff": 3}}}', "`model.d_model` must be int"),
        ('{"config": {}}', "There is no section 'config'"),
        ('{"model": {"d_model": "512"}}', "d_model` must be int. Received: '512'"),
        ('{"search": {"alpha": -1}}', "alpha` must be at least 0. Received: alpha=-1"),
        ("{", "Expecting property name"),
        ('{"model": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_json_refuses(text, message):
    with pytest.raises(ValueError, match=message):
        from_json(text)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.d_ff=1000000000", r"1\.0e\+12 weights\. .* 1\.2e\+13 .* 2\.0e\+14 bytes .*d_ff=1\.0e\+9"),
        ("model.d_model=1000000000", r"at most .* weights.*d_model=1\.0e\+9"),
        ("model.d_model=" + "8" + "0" * 400, "at most .* weights"),
        ("model.key_dim=1000000000000", "at most .* weights"),
        ("model.num_encoder_layers=1000000", "must be at most 1,000. Received: num_encoder_layers=1000000"),
        ("model.num_decoder_layers=1001", "must be at most 1,000"),
    ],
)
def test_sizes_that_no_model_has_are_refused_at_once(assignment, message):
    with pytest.raises(ValueError, match=message):
        override(Config(), [assignment])


def test_large_sizes_that_models_have_are_not():
    deep = ModelConfig(num_encoder_layers=500, num_decoder_layers=500, d_model=1024, d_ff=8192)
    wide = ModelConfig(num_encoder_layers=1, num_decoder_layers=105, d_model=20_480, d_ff=4 * 20_480,
                       num_heads=128)  # fmt: skip
    assert 1e10 < deep.num_weights < 1e11 < wide.num_weights < 1e12


def test_differences_lists_path_old_and_new():
    old = Config()
    new = Config(model=ModelConfig(d_ff=7), training=TrainingConfig(seed=3))
    assert differences(old, new) == [("model.d_ff", 2048, 7), ("training.seed", 1, 3)]
    assert differences(old, Config()) == []
