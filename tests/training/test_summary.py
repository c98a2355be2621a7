"""The table before training, against counts by hand."""

import dataclasses
import types

from keras_transformer.config.settings import Config, DataConfig, DeviceConfig, ModelConfig, TrainingConfig
from keras_transformer.training.before_training import estimate_bytes, summarize


def table(config, shapes, **more):
    side = types.SimpleNamespace
    arguments = {
        "num_parameters": 1_250_000,
        "learning_rate": lambda step: (step + 1) * 1e-6,
        "devices": "2 GPUs",
        **more,
    }
    corpus = side(
        train=side(num_pairs=12_345),
        validation=side(source=["a"] * 7),
        test=side(source=["a"] * 11),
        tokenizers=side(sizes=(3000, 5000), shared=False),
    )
    batches = side(per_epoch=50, planner=side(real_share=lambda: 0.875))
    text = summarize(config, corpus, batches, shapes, **arguments)
    return dict(line.split(maxsplit=1) for line in text.splitlines())


CONFIG = Config(
    model=ModelConfig(num_encoder_layers=3, num_decoder_layers=2, d_model=64, d_ff=128, num_heads=4),
    data=DataConfig(source="en", target="fr", dataset="texts", batch_tokens=1024, max_length=100),
    training=TrainingConfig(max_steps=120, warmup_steps=40),
)


def test_the_table_has_what_is_read_and_what_is_done_with_it():
    shapes = [(8, 11, 13), (16, 7, 5), (4, 20, 23)]
    found = table(CONFIG, shapes)
    assert found["corpus"] == "texts, en to fr"
    assert found["pairs"] == "12,345 training pairs, 7 for validation, 11 for testing"
    assert found["vocabulary"] == "3,000 and 5,000 tokens (bpe)"
    assert found["model"] == "3 + 2 layers, d_model 64, d_ff 128, 4 heads, post-norm, dropout 0.1"
    assert found["parameters"] == "1,250,000, source embedding, target embedding and output share one matrix"
    assert found["batches"] == "50 an epoch, up to 1,024 tokens a side, 87.5 % of them real"
    assert found["updates"] == "120 (2.4 epochs), learning rate at most 4.00e-05 (update 40)"
    assert found["devices"] == "2 GPUs, float32"


def test_departures_are_said_where_they_are_not_the_default():
    changes = {
        "activation": "geglu",
        "norm": "rms",
        "qk_norm": True,
        "positions": "rotary",
        "attention_init": "separate",
        "depth_scaling": "deepnorm",
    }
    for names in (*([name] for name in changes), list(changes)):
        model = dataclasses.replace(CONFIG.model, **{name: changes[name] for name in names})
        found = table(dataclasses.replace(CONFIG, model=model), [(8, 11, 13)])["model"]
        said = ", ".join(["post-norm", "dropout 0.1", *(f"{name} {changes[name]}" for name in names)])
        assert found.endswith(f"4 heads, {said}")


def test_memory_is_that_of_weights_gradients_moments_and_the_largest_batch():
    shapes = [(8, 11, 13), (4, 20, 23)]
    most = max(estimate_bytes(shape, CONFIG.model) for shape in shapes)
    found = table(CONFIG, shapes)["memory"]
    # Four numbers of four bytes for each of 1,250,000 parameters.
    assert (
        f"weights and optimizer 20 MB, largest batch (8 rows of 11 + 13 tokens) {most / 1e6:.0f} MB" in found
    )
    assert found.startswith(f"about {20 + most / 1e6:.0f} MB a device")


def test_what_shortens_a_run_is_said():
    config = Config(
        model=CONFIG.model,
        data=CONFIG.data,
        training=TrainingConfig(max_steps=120, max_minutes=9.0, warmup_steps=4000, ema_decay=0.9),
        devices=DeviceConfig(micro_batch_tokens=512),
    )
    found = table(config, [(8, 11, 13)])
    assert found["updates"] == ("120 (2.4 epochs) or 9 minutes, learning rate at most 1.20e-04 (update 120)")
    assert "up to 1,024 tokens a side (a device: 512)" in found["batches"]
    assert "weights and optimizer 25 MB" in found["memory"]  # a fifth number: the moving average
