"""The console script: `keras-transformer PROGRAM ...` runs one of the programs."""

import importlib
import sys

import keras_transformer
from keras_transformer.cli.command_line import Parser, program_text
from keras_transformer.cli.process import run
from keras_transformer.config.programs import CONSOLE_SCRIPT, SCRIPTS


def parse_args(argv=None):
    """Parses the first argument, the name of a program."""
    parser = Parser("The Transformer: train, translate, evaluate, export.", prog=CONSOLE_SCRIPT)
    parser.add_argument(
        "--version", action="version", version=f"{CONSOLE_SCRIPT} {keras_transformer.__version__}"
    )
    programs = parser.add_subparsers(title="programs", dest="program", metavar="PROGRAM", required=True)
    for name in SCRIPTS:
        programs.add_parser(name, help=program_text(name).partition("\n")[0], add_help=False)
    return parser.parse_args((sys.argv[1:] if argv is None else argv)[:1])


def main(argv=None):
    """Runs the console script; ends the process."""
    argv = sys.argv[1:] if argv is None else argv
    run(lambda: program_module(parse_args(argv).program).main(argv[1:]))


def run_script(name):
    """Runs a program for its script in `pipelines/`; ends the process."""
    run(lambda: program_module(name).main())


def program_module(name):
    """Imports and returns the module of a program such as `"train"`."""
    return importlib.import_module(f"keras_transformer.cli.{name.replace('-', '_')}")
