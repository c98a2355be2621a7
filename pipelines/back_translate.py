"""`keras-transformer back-translate` of this clone, with or without an installation of the package."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from keras_transformer.cli.main import run_script  # noqa: E402

if __name__ == "__main__":
    run_script("back-translate")
