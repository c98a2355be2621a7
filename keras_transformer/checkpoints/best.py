"""The weights of the best validations, in `best/`."""

import math

from keras_transformer.checkpoints import tensor_files


def ranked_steps(history, by):
    """Returns the steps of all validations, the best first; of equal ones the earlier.

    Args:
        history: list of records, as `RunFolder.read_history` returns.
        by: `"loss"` (lower is better) or `"bleu"` (higher).
    """
    sign = {"loss": 1, "bleu": -1}[by]
    # A step that was validated twice counts as it did the last time.
    values = {
        record["step"]: sign * record[by]
        for record in history
        if record.get("kind") == "validation" and by in record
    }
    return sorted((s for s, v in values.items() if math.isfinite(v)), key=lambda s: (values[s], s))


class BestWeights:
    """Keeps the weights of the best validations of a run.

    Args:
        run: `RunFolder`; its history says which validations are best, its settings
            (`keep_best`, `best_by`) how many are kept and by what.
        model: a compiled `Transformer`.
    """

    def __init__(self, run, model):
        self.run = run
        self.model = model
        self.folder = run.path / "best"

    def update(self):
        """Keeps the present weights if the history has them among the best; drops all others.

        Called when the validation of the present step is in the history.

        Raises:
            StorageError: there is no room.
        """
        training = self.run.config.training
        if not self.run.writes:
            return
        best = ranked_steps(self.run.read_history(), training.best_by)[: training.keep_best]
        step = int(self.model.optimizer.iterations.numpy())
        if step in best:
            weights = tensor_files.by_path(self.model.weights)
            tensor_files.write({"weights": weights}, self.folder / f"step-{step}")
        with tensor_files.storing(self.folder):
            for old in set(tensor_files.steps_in(self.folder)) - set(best):
                tensor_files.delete(self.folder / f"step-{old}")
