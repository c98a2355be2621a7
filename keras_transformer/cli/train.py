r"""Trains a Transformer on parallel text.

    keras-transformer train
    keras-transformer train --dataset DIR --source en --target de \
        --preset tiny --run-dir runs/m30k --set training.max_steps=8000
    keras-transformer train --dataset DIR --source en --target de \
        --preset auto --set training.max_minutes=60
    keras-transformer train --dataset wmt14_translate/de-en --source en --target de \
        --preset base

Without arguments, it trains a small model on the built-in corpus, in at most ten minutes on two CPU cores.
With the run folder of an earlier run, it resumes that run. SIGTERM and Ctrl-C end training after the current
step, with a checkpoint. `config.programs.ExitCode` lists the exit codes.
"""

import dataclasses
import datetime
import itertools
import os
import random
import shlex

from keras_transformer.cli.command_line import (
    CORPUS_SETTINGS,
    DEVICE_SETTINGS,
    VOCABULARY_SETTINGS,
    add_setting_flags,
    given_settings,
    program_parser,
)
from keras_transformer.cli.early_checks import check_run
from keras_transformer.cli.foreign_flags import TRAINING
from keras_transformer.cli.process import exit_code, import_quietly, keep_freed_memory, open_closed_streams
from keras_transformer.config import programs
from keras_transformer.config.sections import DataConfig
from keras_transformer.config.training import DeviceConfig


def parse_args(argv=None):
    """Parses the command line."""
    stray = "To name a corpus, use --dataset {} --source LANGUAGE --target LANGUAGE"
    parser = program_parser("train", words=TRAINING, stray=stray)
    parser.add_argument(
        "--dataset",
        action="append",
        metavar="DATASET",
        help="cldr/SOURCE-TARGET (built in; default: cldr/en-de); a folder or archive with train.*, "
        f"valid.* and test.*, one sentence per line; a folder made by {programs.name('prepare')}; "
        "NAME/CONFIG of TensorFlow Datasets; or hf:NAME/CONFIG of Hugging Face; may be repeated",
    )
    add_setting_flags(parser, DataConfig, CORPUS_SETTINGS)
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="model sizes and training recipe: auto (chosen for your corpus and training.max_minutes), demo, "
        "tiny, small, base, big, a row of the paper's Table 3, ... (default: demo; an unknown name "
        "prints the list)",
    )
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="settings as YAML or JSON, a mapping for each section, such as the config.json of another run; "
        "`preset: NAME` names what they change; flags and --set come on top",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print all settings with their values and meanings, and exit",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="change one setting, e.g. training.warmup_steps=8000; may be repeated; see --print-config",
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", help="run folder (default: runs/PRESET-TIME); an existing run is resumed"
    )
    parser.add_argument(
        "--allow-config-change",
        default="",
        metavar="NAME,...",
        help="settings that may differ from those of the run to resume, e.g. training.warmup_steps",
    )
    parser.add_argument(
        "--resume-from", type=int, metavar="STEP", help="resume from this checkpoint and delete later ones"
    )
    parser.add_argument("--init-from", metavar="RUN", help="start a new run from the weights of another")
    parser.add_argument(
        "--new-vocabulary",
        action="store_true",
        help="with --init-from: learn a new vocabulary; pieces in both keep their embeddings",
    )
    add_setting_flags(parser.add_argument_group("devices"), DeviceConfig, DEVICE_SETTINGS)
    return parser.parse_args(argv)


def resolve(args):
    """Returns the `Config` that the command line asks for.

    Raises:
        ValueError: unknown preset or field, or an invalid value.
    """
    from keras_transformer.batches.prepared import is_prepared, settings_of_prepared
    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.config.files import SettingsFile, read_settings
    from keras_transformer.config.presets import preset

    if args.config and len(args.config) > 1:
        raise ValueError(f"--config: give one file. Received: {' and '.join(args.config)}")
    path = args.config[0] if args.config else None
    file = read_settings(path) if path else SettingsFile(None, [], None)
    _choose_preset(args, file, path)
    given = {setting.text: f"{path}: line {setting.line}: " for setting in file.settings}
    given |= dict.fromkeys(args.set, "--set ")
    for name in ("source_vocab_size", "target_vocab_size"):
        if any(text.startswith(f"model.{name}") for text in args.set):
            raise ValueError(f"model.{name} is the size of the vocabulary: set data.vocab_size instead")
    config = preset("base" if file.config else {"auto": "small"}.get(args.preset, args.preset))
    named = args.dataset or file.config or any(text.startswith("data.dataset=") for text in given)
    if args.preset != "demo" and not named:
        needs = "--dataset DIR --source LANGUAGE --target LANGUAGE"
        if config.data.parses:
            needs = "--dataset DIR with train.trees and valid.trees"
        raise ValueError(f"preset {args.preset} needs a corpus: {needs}")
    run = _run_to_resume(args.run_dir)
    config = _configured(config, args, file, run)
    if args.preset == "auto":
        config = _configured(run.config if run else _fitted(config), args, file, run)
    training = config.training
    own_vocabulary = training.init_from and training.init_vocabulary
    if is_prepared(config.data.dataset):
        settings = settings_of_prepared(config.data.dataset)["data"]
        was, remedy = f"{config.data.dataset} was prepared with", "prepare the text again"
        _check_vocabulary_settings(given, config.data, settings, was, remedy)
    elif own_vocabulary and not run and any(text.startswith(VOCABULARY_SETTINGS) for text in given):
        settings = dataclasses.asdict(RunFolder(training.init_from).config.data)
        was, remedy = f"the vocabulary of {training.init_from} has", "add --new-vocabulary"
        _check_vocabulary_settings(given, config.data, settings, was, remedy)
    return config


def _check_vocabulary_settings(given, data, settings, was, remedy):
    """Raises `ValueError` for a setting that differs from the one that the vocabulary was made with.

    Args:
        given: dict from each setting of the user, as text, to its place, such as "--set ".
        data: `DataConfig` with these settings.
        settings: dict from name to value, with which the vocabulary was made.
        was: str, the message before the name, such as "DIR was prepared with".
        remedy: str, what else the user can do.
    """
    for text, place in given.items():
        setting = text.partition("=")[0].strip()
        name = setting.removeprefix("data.")
        if setting in VOCABULARY_SETTINGS and getattr(data, name) != settings[name]:
            raise ValueError(
                f"{place}{text}: {was} {name}={settings[name]!r}. Remove the setting or {remedy}"
            )


def _choose_preset(args, file, path):
    """Sets `args.preset`: that of the command line or of the file, or demo; "config" for a complete file."""
    from keras_transformer.config.fields import unknown
    from keras_transformer.config.presets import PRESETS

    if file.config is not None:
        if args.preset or file.preset:
            raise ValueError(f"--preset: {path} has all settings already. Remove the preset")
        args.preset = "config"
    elif args.preset and file.preset and args.preset != file.preset:
        raise ValueError(f"--preset {args.preset}: {path} has preset {file.preset}. Remove one of them")
    elif file.preset and file.preset not in ("auto", *PRESETS):
        raise ValueError(f"{path}: {unknown('There is no preset', file.preset, list(PRESETS))}")
    args.preset = args.preset or file.preset or "demo"


def _run_to_resume(run_dir):
    """Returns the `RunFolder` of a run that has trained; `None` if a new run begins."""
    from keras_transformer.checkpoints.run_folder import RunFolder

    if not run_dir or not os.path.exists(os.path.join(run_dir, "config.json")):
        return None
    run = RunFolder(run_dir)
    return run if run.has_trained else None


def _fitted(config):
    """Returns the configuration of `--preset auto` for a corpus."""
    import_quietly()
    import tensorflow as tf

    from keras_transformer.batches.training_data import corpus_size
    from keras_transformer.config.presets import auto

    num_pairs, num_characters = corpus_size(config)
    chosen = auto(
        num_pairs,
        num_characters=num_characters,
        max_minutes=config.training.max_minutes,
        gpu=bool(tf.config.list_physical_devices("GPU")),
    )
    model, training = chosen.model, chosen.training
    print(
        f"preset auto, for {num_pairs:,} pairs: {model.num_encoder_layers} + "
        f"{model.num_decoder_layers} layers, d_model {model.d_model}, dropout {model.residual_dropout:g}, "
        f"vocabulary of {chosen.data.vocab_size:,}, batches of {chosen.data.batch_tokens:,} tokens, warm-up "
        f"{training.warmup_steps:,} steps, at most {training.max_steps:,} steps, a checkpoint every "
        f"{training.checkpoint_every_steps:,}",
        flush=True,
    )
    return chosen


def _configured(config, args, file, run):
    """Returns a configuration with the settings of `--config` and of the command line.

    Args:
        config: `Config`, the preset.
        args: arguments of `parse_args`.
        file: `SettingsFile`.
        run: `RunFolder` of the run to resume, or `None`.
    """
    from keras_transformer.config.files import apply_settings
    from keras_transformer.config.settings import override, replace
    from keras_transformer.text.datasets import dataset_names, languages_of

    config = apply_settings(config, file, args.config[0] if args.config else "")
    data = {}
    if args.dataset:
        names = [name for text in args.dataset for name in dataset_names(text)]
        data["dataset"] = ",".join(os.path.normpath(n) if os.path.exists(n) else n for n in names)
        if named := languages_of(names[0]):
            if config.data.parses:
                raise ValueError(
                    f"{names[0]}: has no trees; preset {args.preset} needs train.trees and valid.trees"
                )
            own = file.config or any(
                one.text.startswith(("data.source=", "data.target=")) for one in file.settings
            )
            if not own or {config.data.source, config.data.target} != set(named):
                data["source"], data["target"] = named
    training = {}
    if args.init_from:
        training = {"init_from": args.init_from}
        if args.new_vocabulary:
            training["init_vocabulary"] = False
    elif args.new_vocabulary:
        raise ValueError("--new-vocabulary needs --init-from RUN; a new run always learns its vocabulary")
    data |= given_settings(args, CORPUS_SETTINGS)
    devices = given_settings(args, DEVICE_SETTINGS)
    # Runs of earlier versions have 256 with any `data.max_length`. Resuming them must not change it.
    own = file.config or any(one.text.startswith("search.max_source_length=") for one in file.settings)
    kept = [f"search.max_source_length={run.config.search.max_source_length}"] if run and not own else []
    return override(replace(config, data=data, training=training, devices=devices), [*kept, *args.set])


def _run_dir(args):
    if args.run_dir:
        return args.run_dir
    if os.environ.get("TF_CONFIG"):
        raise ValueError("several workers must share one run folder: add --run-dir DIR")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"runs/{args.preset or 'demo'}-{stamp}"
    # The folder may exist: a run of the same second, or from before the clock was set back.
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.exists(name))


def report(result, *, examples=10):
    """Formats the `Result` of a run: example translations, scores, and next commands."""
    data = result.run.config.data
    lines = []
    numbers = range(len(result.translations))
    made = "tree" if data.parses else "translation"
    for i in sorted(random.Random(1).sample(numbers, min(examples, len(numbers)))):
        lines += [
            f"  source      {result.pairs.source[i]}",
            f"  {made:<11} {result.translations[i]}",
            f"  reference   {result.pairs.target[i]}",
            "",
        ]
    run, served, board, dataset = (
        shlex.quote(str(name))
        for name in (
            result.run.path,
            f"served/{result.run.path.name}",
            result.run.path / "tensorboard",
            data.dataset,
        )
    )
    program, sentence = "translate", "your sentence"
    if data.parses:
        program, sentence = "parse", "Words are separated by spaces ."
    return "\n".join(
        [
            *lines,
            f"scores on {result.split}:",
            str(result.scores),
            "",
            "next:",
            f"  echo '{sentence}' | {programs.command(program)} {run}",
            f"  {programs.command('evaluate')} {run} --dataset {dataset} --split {result.split}",
            f"  {programs.command('export')} {run} {served}",
            f"  tensorboard --logdir {board}",
        ]
    )


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    open_closed_streams()

    def work():
        config = resolve(args)
        if args.print_config:
            from keras_transformer.config.settings import describe_settings

            print(describe_settings(config))
            return
        run_dir = _run_dir(args)
        options = {
            "allowed": [name.strip() for name in args.allow_config_change.split(",") if name.strip()],
            "resume_from": args.resume_from,
        }
        check_run(config, run_dir, **options)
        keep_freed_memory()
        import_quietly("keras_transformer.training.run")
        from keras_transformer.training.run import train

        result = train(config, run_dir, **options)
        print(report(result) if result else "training finished; worker 0 prints translations and scores")

    stopped = "stopped. The same --run-dir continues from its newest checkpoint"
    return exit_code(programs.name("train"), work, stopped=stopped)
