"""The programs: `keras-transformer train`, `prepare`, `translate`, `evaluate`, `average`, `export`, ...

`main` is the console script. Every other program is a module with `parse_args` and `main`, which returns an
exit code of `config.programs.ExitCode`. Bad input ends a program with a one-line message, if possible before
TensorFlow is imported. The files `pipelines/*.py` of a clone run the same programs.
"""

import sys

import keras_transformer

if not hasattr(keras_transformer, "lazy_names"):
    # The package `keras-transformer` of PyPI has the same import name (docs/installing.md).
    print(
        f"keras-transformer: {keras_transformer.__file__} is another package's `keras_transformer`. "
        "Uninstall that one (pip uninstall keras-transformer), then install this package again",
        file=sys.stderr,
    )
    sys.exit(2)

__all__, __getattr__, __dir__ = keras_transformer.lazy_names(__name__, {"main": ("program_module",)})
