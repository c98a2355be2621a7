from keras_transformer.cli.main import program_module as program_module

__all__ = [
    "program_module",
]
