"""The programs: `keras-transformer train`, `prepare`, `translate`, `evaluate`, `average`, `export`, ...

`main` is the console script. Every other program is a module with `parse_args` and `main`, which returns an
exit code of `config.programs.ExitCode`. Bad input ends a program with a one-line message, if possible before
TensorFlow is imported. The files `pipelines/*.py` of a clone run the same programs.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, {"main": ("program_module",)})
