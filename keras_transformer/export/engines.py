"""The engine that translates: TensorFlow, or CTranslate2 with a conversion of the run, made once.

Nothing here imports Keras or TensorFlow unless the engine needs it.
"""

from typing import NamedTuple

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.extras import MissingExtraError
from keras_transformer.config.fields import did_you_mean
from keras_transformer.config.settings import SearchConfig
from keras_transformer.config.types import PathLike
from keras_transformer.export.conversions import load_conversion
from keras_transformer.export.ctranslate2 import max_positions
from keras_transformer.export.ctranslate2_model import import_ctranslate2
from keras_transformer.export.ctranslate2_search import MAX_ALPHA, unequal_settings
from keras_transformer.translation.texts import TextTranslator, check_precision

ENGINES = ("tensorflow", "ctranslate2", "auto")


class EngineChoice(NamedTuple):
    """An engine and what to say of it.

    Attributes:
        name: str, `"tensorflow"` or `"ctranslate2"`.
        reason: str, why it was chosen, or how its translations differ; "" if there is nothing to say.
    """

    name: str
    reason: str


def choose_engine(
    engine: str, runs: list[RunFolder], search: SearchConfig | None = None, *, uses: tuple[str, ...] = ()
) -> EngineChoice:
    """Chooses the engine; the choice depends on settings and on what is installed, never on the text.

    Args:
        engine: `"tensorflow"`; `"ctranslate2"`; or `"auto"`, which is CTranslate2 if it is installed, has
            all that the settings need and gives the same translations, and there is no GPU; else TensorFlow.
        runs: list of `RunFolder`, those of an ensemble.
        search: `SearchConfig`; `None` for the settings of the first run.
        uses: what else translation needs, such as `("--constraints",)`, none of which CTranslate2 has.

    Returns:
        `EngineChoice`.

    Raises:
        ValueError: an unknown engine, or `"ctranslate2"` without something that is needed.
    """
    if engine not in ENGINES:
        message = f"`engine` must be one of {', '.join(ENGINES)}. Received: {engine!r}"
        raise ValueError(f"{message}. {did_you_mean(engine, ENGINES)}".rstrip())
    if engine == "tensorflow":
        return EngineChoice(engine, "")
    search = search or runs[0].config.search
    unequal = unequal_settings(search)
    notes = f"{'; '.join(unequal.values())}. Equal with {' '.join(unequal)}" if unequal else ""
    lacking = [*_lacking(runs, search), *uses]
    if engine == "ctranslate2":
        if lacking:
            raise ValueError(f"ctranslate2 has no {lacking[0]}. Choose the engine tensorflow or auto")
        return EngineChoice(engine, notes and f"translations may differ: {notes}")
    if lacking:
        return EngineChoice("tensorflow", f"ctranslate2 has no {lacking[0]}")
    if notes:
        return EngineChoice("tensorflow", f"translations of ctranslate2 may differ: {notes}")
    try:
        if import_ctranslate2().get_cuda_device_count():
            return EngineChoice("tensorflow", "it uses the GPU")
    except MissingExtraError as error:
        return EngineChoice("tensorflow", str(error))
    return EngineChoice("ctranslate2", "the same translations, faster on a CPU")


def load_translator(
    run_dirs: PathLike | list[PathLike],
    *,
    engine: str = "tensorflow",
    checkpoint: str = "final",
    threads: int = 1,
    precision: str | None = None,
) -> TextTranslator:
    """Loads a run for translation with an engine, as `Translator.load` does.

    With CTranslate2, TensorFlow is imported only if the run must be converted first.

    Args:
        run_dirs, checkpoint, threads, precision: as in `Translator.load`; CTranslate2 has float32 only.
        engine: as in `choose_engine`, by the search settings of the run.

    Returns:
        `Translator` or `CTranslate2Translator`.

    Raises:
        ValueError: as `Translator.load` and `choose_engine`.
    """
    dirs = list(run_dirs) if isinstance(run_dirs, (list, tuple)) else [run_dirs]
    runs = [RunFolder(run_dir) for run_dir in dirs]
    check_precision(precision)
    uses = (f"precision {precision}",) if precision == "bfloat16" else ()
    if not runs or choose_engine(engine, runs, uses=uses).name == "tensorflow":
        from keras_transformer.translation.translator import Translator

        return Translator.load(dirs, checkpoint=checkpoint, threads=threads, precision=precision)
    return load_conversion(runs[0], checkpoint, threads=threads)


def _lacking(runs, search):
    """Yields what CTranslate2 lacks of what the settings need."""
    config = runs[0].config
    if len(runs) > 1:
        yield "ensembles"
    if config.data.parses or search.tree_grammar:
        yield "parsing"
    if config.model.qk_norm:
        yield "qk_norm"
    if search.sampling:
        yield "sampling"
    if search.mbr:
        yield "minimum Bayes risk decoding"
    if search.coverage_penalty:
        yield "coverage penalty"
    if search.alpha > MAX_ALPHA:
        yield f"alpha above {MAX_ALPHA}"
    longest = max(search.max_length, search.max_source_length)
    if config.model.positions != "learned" and longest > max_positions(config):
        name = "max_length" if longest == search.max_length else "max_source_length"
        yield f"{name} above {max_positions(config)}, the largest length in the run's settings"
