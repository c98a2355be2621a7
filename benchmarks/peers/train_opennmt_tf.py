"""OpenNMT-tf in training: its Trainer's own step (accumulate, then apply) with Adam (variant: `xla`)."""

import opennmt
import tensorflow as tf
from opennmt.training import Trainer, TrainingStats

from peers.models_opennmt_tf import build, features, num_parameters
from peers.timing import parse_job, time_training
from peers.work import BETA_1, BETA_2, EPSILON, LEARNING_RATE, training_batch


def main():
    """Runs this peer."""
    job = parse_job(("xla",))
    tf.random.set_seed(0)
    model = build(job.size)
    model.set_jit_compile("xla" in job.words)
    adam = opennmt.optimizers.make_optimizer(
        "Adam", LEARNING_RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON
    )
    source, target, labels = training_batch(job.size)
    target = {**features(target), "ids_out": tf.constant(labels)}
    data = tf.data.Dataset.from_tensors((features(source), target)).repeat()
    trainer = Trainer(model, adam)
    # What its `__call__` prepares before it takes steps, without checkpoints and summaries.
    trainer._training_stats = TrainingStats(model, adam)
    trainer._gradient_accumulator.reset()
    losses = trainer._steps(data)

    def run(steps):
        for _ in range(steps):
            loss = next(losses)
        return loss

    libraries = ["OpenNMT-tf", "tensorflow-cpu"]
    time_training(job, run, parameters=lambda: num_parameters(model), libraries=libraries)


if __name__ == "__main__":
    main()
