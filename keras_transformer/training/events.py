"""What TensorBoard shows of a run."""

import tensorflow as tf


class Events:
    """Writes event files into a run folder; a worker that does not write makes none.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        self._run = run
        self._made = None

    @property
    def _writer(self):
        # Its file appears with it: a run that is finished already gets none.
        if self._made is None:
            folder = str(self._run.path / "tensorboard")
            make = tf.summary.create_file_writer if self._run.writes else _no_writer
            self._made = make(folder)
        return self._made

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
        if self._made is not None:
            self._made.flush()


def _no_writer(folder):
    return tf.summary.create_noop_writer()


def _cell(text):
    # A bar would begin a new column, a line break a new row.
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
