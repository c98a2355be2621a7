"""The programs: `keras-transformer train`, `prepare`, `translate`, `evaluate`, `average`, `export`, ...

`main` is the console script. `train`, `prepare` and the others have `parse_args` and `main`, which returns an
exit code; `config.programs.ExitCode` lists all codes. Every program refuses bad input in one line before it
loads TensorFlow. `pipelines/*.py` of a clone open the same programs.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, {"main": ("program_module",)})
