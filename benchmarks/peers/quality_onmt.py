"""OpenNMT-tf's side of `time_to_quality.py`: trains, validates, prints a JSON line for each.

    PYTHON_OF_OPENNMT_TF quality_onmt.py SPECIFICATION.json

Runs in an environment of its own (`pip install opennmt-tf==2.32.0 "tensorflow-cpu<2.14"`), and imports
nothing of this project. The specification is what `time_to_quality.py` writes: files of ids as text
tokens, sizes and recipe.

Everything is the library's own: input pipeline, model, `Trainer`, beam search. Its best settings are
taken: oneDNN (the environment says so), no summaries and no checkpoints, shuffling of the whole text,
prefetching as the library tunes it, buckets of its usual width, a search that is traced once, in batches
of sentences of like length, and that cannot run on for longer than the longest sentence may. XLA is off,
with which a step took 1.20 s rather than 0.99 s (one core, 256 rows of 16 + 16 tokens); without oneDNN
it took 1.3 times as long. No validation loss is computed, which ours does beside the BLEU.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import opennmt
import tensorflow as tf
from opennmt.training import Trainer
from opennmt.utils.misc import extract_batches

# Of `Transformer.auto_config` and the runner.
TRAINING_BUCKET_WIDTH = 2
INFERENCE_BUCKET_WIDTH = 5


def build(spec):
    """Returns the library's Transformer, with all embeddings one matrix, and its optimizer."""
    model = opennmt.models.Transformer(
        num_layers=(spec["num_encoder_layers"], spec["num_decoder_layers"]),
        num_units=spec["d_model"],
        num_heads=spec["num_heads"],
        ffn_inner_dim=spec["d_ff"],
        dropout=spec["dropout"],
        attention_dropout=0.0,
        ffn_dropout=0.0,
        mha_bias=False,
        output_layer_bias=False,
        pre_norm=spec["norm_first"],
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
    )
    adam = spec["adam"]
    model.initialize(
        {
            "source_vocabulary": spec["vocabulary"],
            "target_vocabulary": spec["vocabulary"],
            # The library marks the end of targets only.
            "source_sequence_controls": {"start": False, "end": True},
        },
        params={
            "label_smoothing": spec["label_smoothing"],
            "average_loss_in_time": True,
            "optimizer": "Adam",
            "optimizer_params": {
                "beta_1": adam["beta_1"],
                "beta_2": adam["beta_2"],
                "epsilon": adam["epsilon"],
            },
            "learning_rate": spec["learning_rate_scale"],
            "decay_type": "NoamDecay",
            "decay_params": {"model_dim": spec["d_model"], "warmup_steps": spec["warmup_steps"]},
            "beam_width": spec["beam_size"],
            "length_penalty": spec["alpha"],
            "maximum_decoding_length": spec["max_decoding_length"],
            "num_hypotheses": 1,
        },
    )
    optimizer = model.get_optimizer()
    model.create_variables()
    return model, optimizer


def training_dataset(model, spec, *, single_pass=False):
    """The library's batches of at most `batch_tokens` padded tokens a side."""
    return model.examples_inputter.make_training_dataset(
        spec["train_source"],
        spec["train_target"],
        spec["batch_tokens"],
        batch_type="tokens",
        shuffle_buffer_size=-1,
        length_bucket_width=TRAINING_BUCKET_WIDTH,
        maximum_features_length=spec["max_length"],
        maximum_labels_length=spec["max_length"],
        single_pass=single_pass,
    )


def describe_batches(model, spec):
    """Counts the batches of one epoch, their tokens and their padding."""
    updates = source_tokens = target_tokens = positions = largest = 0
    for source, target in training_dataset(model, spec, single_pass=True):
        updates += 1
        source_tokens += int(tf.reduce_sum(source["length"]))
        target_tokens += int(tf.reduce_sum(target["length"]))
        sides = [int(tf.size(source["ids"])), int(tf.size(target["ids"]))]
        positions += sum(sides)
        largest = max(largest, *sides)
    return {
        "updates_per_epoch": updates,
        "target_tokens_per_epoch": target_tokens,
        "target_tokens_per_update": target_tokens / updates,
        "padding_share": 1 - (source_tokens + target_tokens) / positions,
        "largest_batch_tokens": largest,
    }


class Validation:
    """What the library's `Trainer` calls every so many steps, in the place of its own evaluator.

    Args:
        model: the model in training.
        spec: the specification.

    Attributes:
        seconds: of all validations so far.
    """

    def __init__(self, model, spec):
        self.spec = spec
        self.seconds = 0.0
        self.last_evaluated_step = None
        self.dataset = model.features_inputter.make_inference_dataset(
            spec["validation_source"],
            spec["inference_batch"],
            length_bucket_width=INFERENCE_BUCKET_WIDTH,
        )
        self.infer = tf.function(model.infer, input_signature=(self.dataset.element_spec,))
        self.begin = None

    def __call__(self, step):
        at = time.monotonic() - self.begin
        rows = {}
        for features in self.dataset:
            found = self.infer(features)
            found = {name: found[name].numpy() for name in ("tokens", "length", "index")}
            for one in extract_batches(found):
                tokens = one["tokens"][0][: one["length"][0]]
                rows[int(one["index"])] = b" ".join(tokens).decode()
        path = os.path.join(self.spec["translations"], f"{step}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{rows[number]}\n" for number in range(len(rows)))
        took = time.monotonic() - self.begin - at
        tell(
            "validation",
            step=int(step),
            minutes=at / 60,
            training_minutes=(at - self.seconds) / 60,
            validation_seconds=took,
            translations=path,
        )
        self.seconds += took
        self.last_evaluated_step = step

    def should_stop(self):
        return False


def tell(kind, **record):
    print(json.dumps({"kind": kind, **record}), flush=True)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    tf.random.set_seed(spec["seed"])
    model, optimizer = build(spec)
    tell(
        "ready",
        library=f"OpenNMT-tf {opennmt.__version__}, TensorFlow {tf.__version__}",
        parameters=model.count_params(),
        learning_rates=[float(optimizer.learning_rate(step - 1)) for step in spec["probed_steps"]],
        threads=os.cpu_count() if not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0)),
        one_dnn=os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
        **describe_batches(model, spec),
    )
    validation = Validation(model, spec)
    trainer = Trainer(model, optimizer)
    validation.begin = time.monotonic()  # ours begins here, too: before anything is traced
    trainer(
        lambda _: training_dataset(model, spec),
        max_step=spec["max_steps"],
        evaluator=validation,
        eval_steps=spec["validate_every_steps"],
    )


if __name__ == "__main__":
    main()
