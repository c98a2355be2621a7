r"""What the training step costs: beside Keras' own, and on several replicas beside one.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --preset base --batch-tokens 1024 --steps 5
    python benchmarks/training_step.py --preset multi30k_tiny_pre_norm --departures \
        --set training.precision=mixed_bfloat16 --batch-tokens 2048 \
        --set model.source_vocab_size=4000 --set model.target_vocab_size=4000

One process, the same model and batches; the steps of the contestants take turns, so that a
busy machine slows all of them down. Shown are medians of the ratios of neighbours.

Stock is `keras.Model.train_step` with the same loss function, first without metrics, then
with token accuracy and perplexity, which it computes from the logits again.

With `--departures`, the contestants are the rows of `table3.py --grid departures` instead.
"""

import os
import statistics
import sys
import time

from refusing import Parser, run

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import departure_rows  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_transformer.batches.dataset import TokenBatches  # noqa: E402
from keras_transformer.batches.ids import IdPairs, Sequences, flatten  # noqa: E402
from keras_transformer.batches.planning import EpochPlanner  # noqa: E402
from keras_transformer.config.presets import preset  # noqa: E402
from keras_transformer.config.settings import SpecialIds, override, replace  # noqa: E402
from keras_transformer.model.loss import LabelSmoothedCrossEntropy  # noqa: E402
from keras_transformer.model.metrics import Perplexity, TokenAccuracy  # noqa: E402
from keras_transformer.model.transformer import Transformer  # noqa: E402
from keras_transformer.training.devices import (
    Devices,  # noqa: E402
    mirrored,
)
from keras_transformer.training.fit import compile_model  # noqa: E402


class StockTransformer(Transformer):
    """The same model with Keras' own step."""

    compile = keras.Model.compile
    train_step = keras.Model.train_step
    metrics = keras.Model.metrics
    make_train_function = keras.Model.make_train_function


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description="Times training steps side by side.")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--batch-tokens", type=int, help="of one update (default: the preset's)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="a setting of all"
    )
    parser.add_argument("--departures", action="store_true", help="compare the departures of the model")
    parser.add_argument("--steps", type=int, default=30, help="steps of each contestant")
    parser.add_argument("--only", nargs="+", help="names of those that are compared with ours, as printed")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    return parser.parse_args(argv)


def make_batches(config):
    """Batches of random sentences whose lengths are those of Multi30k, more or less."""
    rng = np.random.default_rng(1)
    num_pairs = 12 * config.data.batch_tokens // 14
    lengths = np.clip(rng.normal(14, 4.5, num_pairs).round().astype(int), 4, 40)
    sides = []
    for _ in range(2):
        rows = [rng.integers(4, config.model.source_vocab_size, n).tolist() for n in lengths]
        sides.append(Sequences([flatten(rows, SpecialIds().eos)]))
        lengths = np.clip(lengths + rng.integers(-2, 3, num_pairs), 4, 40)
    pairs = IdPairs(*sides)
    return TokenBatches(pairs, EpochPlanner(*pairs.lengths, batch_tokens=config.data.batch_tokens))


class Contestant:
    """A model in training, one step at a time."""

    def __init__(self, name, config, batches, *, stock=None, replicas=1, device_tokens=0):
        self.name = name
        self.times = []
        strategy = tf.distribute.get_strategy()
        if replicas > 1:
            strategy = mirrored([f"CPU:{i}" for i in range(replicas)])
        keras.utils.set_random_seed(1)
        with strategy.scope():
            if stock is None:
                model = Transformer(config.model, dtype=config.training.precision)
                compile_model(model, config.training)
            else:
                model = StockTransformer(config.model, dtype=config.training.precision)
                optimizer = keras.optimizers.Adam(1e-4, beta_2=0.98, epsilon=1e-9)
                model.compile(
                    optimizer,
                    LabelSmoothedCrossEntropy(0.1),
                    weighted_metrics=None,
                    metrics=stock,
                    jit_compile=False,
                )
                model.optimizer.build(model.trainable_variables)
        dataset = Devices(strategy).distribute(
            device_tokens, lambda share: batches.dataset(0, 20, share).repeat()
        )
        if replicas == 1:
            dataset = dataset.prefetch(4)
        self._iterator = iter(dataset)
        model.make_train_function()
        self._step = model.train_function

    def step(self):
        """Makes one step; returns its seconds."""
        begin = time.perf_counter()
        logs = self._step(self._iterator)
        float(next(iter(logs.values())))
        return time.perf_counter() - begin


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * args.replicas,
    )
    config = override(preset(args.preset), args.set)
    if args.batch_tokens:
        config = replace(config, data=replace(config.data, batch_tokens=args.batch_tokens, max_length=64))
    batches = make_batches(config)
    tokens = config.data.batch_tokens
    makers = {
        "ours": {},
        "stock": {"stock": []},
        "stock with metrics": {"stock": [TokenAccuracy(), Perplexity()]},
        f"{args.replicas} replicas": {"replicas": args.replicas},
        f"{args.micro_batches} micro-batches": {"device_tokens": max(tokens // args.micro_batches, 64)},
    }
    makers = {name: (config, how) for name, how in makers.items()}
    if args.departures:
        makers = {row.name: (override(config, row.settings), {}) for row in departure_rows.grid(config)}
    if unknown := set(args.only or ()) - set(makers):
        raise ValueError(f"--only: {unknown.pop()!r} is none of {', '.join(makers)}")
    first = next(iter(makers))
    contestants = [
        Contestant(name, own, batches, **how)
        for name, (own, how) in makers.items()
        if not args.only or name in (first, *args.only)
    ]
    for contestant in contestants:  # the first steps compile
        contestant.step()
        contestant.step()
    for number in range(args.steps):
        # Whoever comes first differs from turn to turn.
        shift = number % len(contestants)
        for contestant in contestants[shift:] + contestants[:shift]:
            contestant.times.append(contestant.step())
        print(f"\r{number + 1}/{args.steps}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    ours = contestants[0].times
    print(
        f"{args.preset}, {tokens:,} tokens a side, {args.steps} steps each, median of the ratios to {first}"
    )
    for contestant in contestants:
        ratio = statistics.median(other / own for own, other in zip(ours, contestant.times, strict=True))
        seconds = statistics.median(contestant.times)
        print(f"{contestant.name:<20} {seconds:8.3f} s a step   {ratio:6.3f} times the time")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
