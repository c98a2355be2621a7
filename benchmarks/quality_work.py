"""The same work for both sides of `time_to_quality.py`: text, sizes and recipe, and a check of them."""

import json

from quality_contestants import settings_of_ours

PROBED_STEPS = (1, 10, 100, 1000, 1999, 2000, 2001, 4000, 16000)


def prepare(args, out):
    """Reads the text and writes the peer's files.

    Returns:
        `(corpus, facts)`: `TrainingData`, and the record of ours.

    Raises:
        ValueError: the peer cannot have a model or a recipe like that.
    """
    import keras
    import tensorflow as tf

    from keras_transformer import __version__
    from keras_transformer.batches.dataset import training_batches
    from keras_transformer.batches.training_data import load_training_data
    from keras_transformer.config.presets import preset, with_vocab_size
    from keras_transformer.config.settings import override
    from keras_transformer.model.transformer import Transformer
    from keras_transformer.training.fit import learning_rate_schedule

    data = [f"data.dataset={args.data}", f"data.source={args.source}", f"data.target={args.target}"]
    config = override(preset(args.preset), [*data, *settings_of_ours(args)])
    corpus = load_training_data(config, out / "text")
    config = with_vocab_size(config, *corpus.tokenizers.sizes)
    model, training = config.model, config.training
    refuse_what_the_peer_lacks(config)
    batches = training_batches(config.data, corpus, seed=args.seed)
    plans = batches.planner.plan(0)
    source_tokens = int(batches.pairs.source.lengths.sum())
    target_tokens = int(batches.pairs.target.lengths.sum())
    positions = sum(plan.rows * (plan.source_len + plan.target_len) for plan in plans)
    schedule = learning_rate_schedule(model, training)
    facts = {
        "kind": "contestant",
        "name": "ours",
        "library": f"keras_transformer {__version__}, Keras {keras.__version__}, TensorFlow {tf.__version__}",
        "parameters": Transformer(model).count_params(),
        "learning_rates": [float(schedule(step - 1)) for step in PROBED_STEPS],
        "updates_per_epoch": len(plans),
        "target_tokens_per_epoch": target_tokens,
        "target_tokens_per_update": target_tokens / len(plans),
        "padding_share": 1 - (source_tokens + target_tokens) / positions,
        "largest_batch_tokens": max(plan.rows * max(plan.source_len, plan.target_len) for plan in plans),
    }
    folder = out / "peer"
    (folder / "translations").mkdir(parents=True)
    sides = dict(zip(("train_source", "train_target"), batches.pairs, strict=True))
    for name, sequences in sides.items():  # the end of a sentence is added by the peer
        write_rows(folder / name, (sequences[i][:-1] for i in range(len(sequences))))
    encoded = corpus.tokenizers.source.encode(corpus.validation.source)
    write_rows(folder / "validation_source", encoded)
    # The library puts the unknown token at the end, of which there is none in this text.
    names = ["<blank>", "<s>", "</s>", *map(str, range(4, model.source_vocab_size))]
    write_rows(folder / "vocabulary", ([name] for name in names))
    spec = {
        **{name: str(folder / name) for name in (*sides, "validation_source", "vocabulary", "translations")},
        **{
            name: getattr(model, name)
            for name in ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads")
        },
        "dropout": model.residual_dropout,
        "norm_first": model.norm_first,
        "adam": {
            "beta_1": training.adam_beta_1,
            "beta_2": training.adam_beta_2,
            "epsilon": training.adam_epsilon,
        },
        "label_smoothing": training.label_smoothing,
        "learning_rate_scale": training.learning_rate_scale,
        "warmup_steps": training.warmup_steps,
        "max_steps": training.max_steps,
        "validate_every_steps": training.validate_every_steps,
        "batch_tokens": config.data.batch_tokens,
        "max_length": config.data.max_length,
        "beam_size": config.search.beam_size,
        "alpha": config.search.alpha,
        "max_decoding_length": max(map(len, encoded)) + 1 + config.search.max_length_offset,
        "inference_batch": args.inference_batch,
        "probed_steps": PROBED_STEPS,
        "seed": args.seed,
    }
    (folder / "specification.json").write_text(json.dumps(spec, indent=2))
    return corpus, facts


def refuse_what_the_peer_lacks(config):
    """Raises `ValueError` for settings that OpenNMT-tf's Transformer and trainer do not have."""
    from keras_transformer.config.settings import ModelConfig

    model, training = config.model, config.training
    for found, wanted in (
        (model.tie_embeddings, "all"),
        (model.embedding_dropout, model.residual_dropout),
        ((model.attention_dropout, model.relu_dropout), (0.0, 0.0)),
        ((model.attention_bias, model.output_bias), (False, False)),
        ((model.d_key, model.d_value), 2 * (model.d_model // model.num_heads,)),
        ((training.smoothing_formula, training.clip_norm), ("t2t", 0.0)),
        (config.data.subword_dropout, 0.0),
        (model.layer_norm_epsilon, ModelConfig().layer_norm_epsilon),
        (training.ema_decay, 0.0),
        (training.validation_beam_size or config.search.beam_size, config.search.beam_size),
    ):
        if found != wanted:
            raise ValueError(f"the peer needs {wanted} where --preset and --set have {found}")


def write_rows(path, rows):
    """Writes one line a row, its values with spaces between."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{' '.join(map(str, row))}\n" for row in rows)


def check_alike(ours, peer):
    """Raises `ValueError` unless model, learning rates and training text are the same."""
    for name in ("parameters", "target_tokens_per_epoch"):
        if ours[name] != peer[name]:
            raise ValueError(f"{name} must be the same. Received: ours {ours[name]}, peer {peer[name]}")
    for step, own, other in zip(PROBED_STEPS, ours["learning_rates"], peer["learning_rates"], strict=True):
        if abs(own - other) > 1e-5 * own:
            raise ValueError(f"learning rate of update {step}: ours {own}, peer {other}")
