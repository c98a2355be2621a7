"""`serve` with a model that writes texts in capitals once a file exists.

Of the text `frozen`, it writes the number of objects that garbage collections leave out.

python tests/shared/fake_serve.py FILE ARGUMENTS...
"""

import gc
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from fake_serving import FakeEngine  # noqa: E402

from keras_transformer.cli import process, serve  # noqa: E402
from keras_transformer.serving.models import Models  # noqa: E402


class Waiting(FakeEngine):
    """A `FakeEngine` that waits for a file."""

    def translate(self, texts, settings):
        while not GATE.exists():
            time.sleep(0.01)
        texts = [str(gc.get_freeze_count()) if text == "frozen" else text for text in texts]
        return super().translate(texts, settings)


def load(path, **options):
    if path.name == "slow":
        time.sleep(600)
    return Waiting(path)


if __name__ == "__main__":
    GATE = pathlib.Path(sys.argv[1])
    Models.__init__.__kwdefaults__["load"] = load
    process.run(lambda: serve.main(sys.argv[2:]))
