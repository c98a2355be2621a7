"""The training time of a run."""

import contextlib
import time


class Clock:
    """Training time of a run, over all its parts.

    Args:
        earlier: seconds of the parts before this one.

    Attributes:
        other_seconds: seconds of this part spent beside the training steps.
    """

    def __init__(self, earlier=0.0):
        self._earlier = earlier
        self._begin = time.monotonic()
        self.other_seconds = 0.0

    @property
    def seconds(self):
        """Seconds so far, of all parts, with what is beside the steps."""
        return self._earlier + time.monotonic() - self._begin

    @contextlib.contextmanager
    def beside_training(self):
        """Counts what is done inside as `other_seconds`: it is no part of the speed."""
        begin = self.seconds
        try:
            yield
        finally:
            self.other_seconds += self.seconds - begin
