"""What TensorBoard shows of a run."""

import tensorflow as tf


class Events:
    """Writes event files into a run folder; a worker that does not write makes none.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        if run.writes:
            self._writer = tf.summary.create_file_writer(str(run.path / "tensorboard"))
        else:
            self._writer = tf.summary.create_noop_writer()

    def scalars(self, group, step, record):
        """Writes the numbers of a record of the history, as `group/name`."""
        with self._writer.as_default():
            for name, value in record.items():
                if name not in ("step", "kind"):
                    tf.summary.scalar(f"{group}/{name}", value, step=step)

    def table(self, tag, step, header, rows):
        """Writes a table as text.

        Args:
            tag: name in TensorBoard.
            step: training step.
            header: list of str, the names of the columns.
            rows: list of lists of str, one for each line.
        """
        lines = [header, ["---"] * len(header), *rows]
        text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        with self._writer.as_default():
            tf.summary.text(tag, text, step=step)

    def flush(self):
        """Brings what was written to the disk."""
        self._writer.flush()


def _cell(text):
    # A bar would begin a new column, a line break a new row.
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
