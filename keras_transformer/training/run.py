"""A whole training run: devices, data, run folder, training, and translation of the test set."""

import contextlib
import logging
import pathlib
from collections.abc import Collection
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.tensor_files import check_step
from keras_transformer.config.console import console
from keras_transformer.config.settings import Config
from keras_transformer.config.types import PathLike
from keras_transformer.evaluation.bleu import Scores, corpus_scores
from keras_transformer.evaluation.tree_report import TreeComparison, compare_lines
from keras_transformer.model.kernels.switch import require_tensorflow
from keras_transformer.text.lines import Pairs
from keras_transformer.training.devices import choose_devices, is_worker_lost, worker_lost_error
from keras_transformer.training.fit import fit_session
from keras_transformer.training.given_callbacks import check_callbacks
from keras_transformer.training.session import open_session
from keras_transformer.training.signals import Signals
from keras_transformer.translation.parser import Parser
from keras_transformer.translation.translator import Translator

logger = logging.getLogger(__name__)


class Result(NamedTuple):
    """Result of a training run: translations of the test set by the final weights, and their scores.

    Attributes:
        run: `RunFolder`.
        split: name of the split that was translated.
        pairs: `Pairs` of that split.
        translations: list of str, one per pair; for parsing, bracketed trees.
        scores: `Scores` of the translations, or `TreeComparison` of the trees.
    """

    run: RunFolder
    split: str
    pairs: Pairs
    translations: list
    scores: Scores | TreeComparison


@console()
def train(
    config: Config,
    run_dir: PathLike,
    *,
    allowed: Collection[str] = (),
    resume_from: int | None = None,
    callbacks: Any = None,
) -> Result | None:
    """Trains a model, or resumes the run in `run_dir`.

    Args:
        config: `Config`. Its vocabulary sizes are replaced by those of the tokenizers.
        run_dir: a new or empty folder, or the folder of a run with the same settings.
        allowed: names of settings that may differ from those of the resumed run, although they
            affect the updates.
        resume_from: int, step of the checkpoint to resume from; `None` for the newest.
        callbacks: `keras.callbacks.Callback`, or a list of them. They are called as by one `model.fit` in
            which a batch is an update and an epoch lasts from one validation to the next; docs/python.md
            has the details. An error that a callback raises ends the training.

    Returns:
        `Result` for the test split, or the validation split if there is no test split; `None` on
        workers other than the chief.

    Raises:
        TypeError: an object in `callbacks` is no callback.
        ValueError: bad data, a folder in use, missing devices, a callback that cannot be honoured,
            settings that differ from those of the resumed run, or another Keras backend than TensorFlow.
        TrainingError: training ended early; the last checkpoint is complete. See
            `config.programs` for its subclasses.
    """
    require_tensorflow("`train`")
    callbacks = check_callbacks(callbacks, config.training)
    check_step(pathlib.Path(run_dir) / "checkpoints", resume_from)  # before anything is changed
    devices = choose_devices(config.devices, precision=config.training.precision)
    with contextlib.ExitStack() as stack:
        # After `choose_devices`: with several workers, TensorFlow installs its own handler of SIGTERM there.
        signals = stack.enter_context(Signals().caught())
        session = open_session(config, pathlib.Path(run_dir), devices, allowed, stack)
        try:
            step = fit_session(session, devices, signals, resume_from, callbacks)
            result = _translate_unseen(session, devices, step) if devices.is_chief else None
            # Wait for the chief: TensorFlow reports a worker that exits first as crashed.
            devices.gather(0)
        except tf.errors.OpError as error:
            if devices.num_workers > 1 and is_worker_lost(error):
                raise worker_lost_error(error) from error
            raise
        return result


def _translate_unseen(session, devices, step):
    """Translates the test (or validation) split with the final weights and scores it.

    Translations that an earlier call has stored for this step are reused.
    """
    run, corpus = session.run, session.corpus
    split = corpus.test_name if corpus.test else "validation"
    pairs = corpus.test or corpus.validation
    search, target = run.config.search, run.config.data.target
    translations = run.read_translations(split, step)
    if is_new := translations is None:
        beam = f"beam {search.beam_size}, alpha {search.alpha:g}"
        verb = "parsing" if run.config.data.parses else "translating"
        logger.info(f"\n{verb} {split} with the final weights ({beam})")
        if run.config.data.parses:
            parser = Parser.load(run.path, threads=devices.towers)
            translations = [parsed.text for parsed in parser.parse(pairs.source)]
        else:
            translations = Translator.load(run.path, threads=devices.towers).translate(pairs.source)
    if run.config.data.parses:
        scores = compare_lines(translations, pairs.target, name=str(run.path), reference_name=split)
    else:
        scores = corpus_scores(translations, pairs.target, target_language=target)
    if is_new:
        record = scores.to_record() if run.config.data.parses else scores.to_dict()
        run.write_translations(split, step, translations, record)
    return Result(run, split, pairs, translations, scores)
