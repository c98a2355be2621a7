"""Prepares a corpus: cleans raw text, learns a vocabulary, encodes the text and writes shards.

`prepare` writes to a folder of the user's choice, `prepare_for_run` to the folder of a training run.
A shard is a fixed number of raw pairs and depends only on the text and the settings. An interrupted
preparation keeps its finished shards and makes the others; the result is identical to the byte.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import pathlib
import shutil

from keras_transformer.batches.ids import encode_flat
from keras_transformer.batches.prepared import (
    FORMAT,
    MANIFEST,
    PROGRESS,
    PreparedCorpus,
    check_not_prepared,
    file_entry,
    write_json,
)
from keras_transformer.batches.sharding import BLOCK_PAIRS, UnfinishedError, open_text, write_shards
from keras_transformer.batches.text_files import write_split
from keras_transformer.config.console import console
from keras_transformer.config.cores import usable_cores
from keras_transformer.config.fields import with_earlier_defaults
from keras_transformer.config.sections import VOCABULARY, DataConfig
from keras_transformer.config.settings import Config
from keras_transformer.config.tags import parse_tags
from keras_transformer.config.types import PathLike
from keras_transformer.files import (
    explain_write_error,
    process_lock,
    temporary_path,
    to_checked_json,
    write_atomically,
)
from keras_transformer.text.datasets import dataset_names, first_split, open_dataset
from keras_transformer.text.folders import TRAIN, file_identity, is_archive
from keras_transformer.text.lines import DataError
from keras_transformer.text.synthetic import check_tags, warn_of_changes
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.tokenizers.tokenizer_pair import (
    Tokenizers,
    learn_tokenizers,
    load_tokenizers,
    save_tokenizers,
    vocabulary_files,
)

logger = logging.getLogger(__name__)

REPORT = "report.txt"
SHARD_PAIRS = 100_000
# The settings that change the prepared files; the others of `data` are only used in training.
_DATA_SETTINGS = ("dataset", "source", "target", *VOCABULARY, "vocab_texts", "max_length", "on_bad_utf8")
_LOCK = ".lock"
_SETTINGS = "settings.json"


@console()
def prepare(
    config: Config,
    folder: PathLike,
    *,
    tokenizers: Tokenizers | None = None,
    num_workers: int | None = None,
    shard_pairs: int = SHARD_PAIRS,
) -> PreparedCorpus:
    """Prepares a corpus, or continues an interrupted preparation.

    A finished corpus is opened as it is, with a warning if files of the text have changed since.

    Worker processes import the main module again, so a script must call this function under
    `if __name__ == "__main__":`, unless `num_workers` is 0.

    Args:
        config: `Config`; only the sections `data` and `cleaning` are used.
        folder: a new or empty folder, or the folder of the same preparation.
        tokenizers: `Tokenizers` to encode with; `None` learns them from the text.
        num_workers: number of processes that clean and encode; `None` starts one per core, 0 uses this
            process alone.
        shard_pairs: number of raw pairs per shard.

    Returns:
        `PreparedCorpus`.

    Raises:
        DataError: the text is invalid, or cleaning drops all pairs. A new folder is removed again.
        ValueError: the folder holds other files, or another process is using it.
        UnfinishedError: the disk is full or not writable, or a worker process was
            killed; a later call continues.
    """
    folder = pathlib.Path(folder)
    settings = settings_of(config, tokenizers, shard_pairs)
    if (folder / MANIFEST).exists():
        prepared = _open_finished(folder, settings)
        if changed := _changed_file(config.data, prepared):
            logger.warning(
                f"{folder}: the text has changed since it was prepared ({changed}). Remove the folder to "
                "prepare it again"
            )
        return prepared
    check_not_prepared(config.data.dataset)
    check_outside(config.data.dataset, folder)
    num_workers = usable_cores() if num_workers is None else num_workers
    return _prepare(open_text(config), folder, settings, tokenizers, num_workers)


def check_outside(dataset, folder):
    """Raises `DataError` if a folder is within one of the datasets, whose files it would join."""
    folder = pathlib.Path(folder)
    for name in dataset_names(dataset):
        if pathlib.Path(name).is_dir() and folder.resolve().is_relative_to(pathlib.Path(name).resolve()):
            raise DataError(f"{folder}: inside the corpus {name}. Choose a folder outside it")


def prepare_for_run(config, folder, tokenizers=None):
    """Opens the prepared corpus of a training run; prepares it in this process if it is missing.

    A corpus that is damaged, or was prepared from other text or with other settings, is prepared again.

    Args:
        config: `Config`.
        folder: the folder of the run's corpus; it is removed and made again when the corpus is outdated.
        tokenizers: `Tokenizers` of the run; `None` learns them.

    Returns:
        `PreparedCorpus` with the training split, one validation split and one test split.

    Raises:
        ValueError: see `prepare`.
        UnfinishedError: see `prepare`.
    """
    folder, text = pathlib.Path(folder), open_text(config)
    splits = [first_split(text.datasets, split) for split in ("validation", "test")]
    text = text._replace(splits=[split.name for split in splits if split])
    settings, inputs, prepared = settings_of(config, tokenizers, SHARD_PAIRS), text.inputs, None
    try:
        prepared = _open_finished(folder, settings | {"inputs": inputs})
    except ValueError:
        logger.info(f"{folder}: prepared again, because the text or the folder has changed")
        # Rename before removing: a partly removed folder looks like a partly prepared one.
        folder.rename(temporary_path(folder))
    for old in folder.parent.glob(f".{folder.name}.*.tmp"):
        try:
            shutil.rmtree(old)
        except OSError as error:
            raise DataError(f"{old}: cannot be deleted ({error.strerror}). Delete it yourself") from error
    if prepared is None and not (folder / PROGRESS).is_dir() and any(folder.glob(f"{TRAIN}-*")):
        raise DataError(f"{folder}: {MANIFEST} is missing. Delete the folder to prepare the text again")
    return prepared or _prepare(text, folder, settings, tokenizers, num_workers=0)


def legacy_sha256(text, pairs, tokenizers):
    """Returns the SHA-256 that earlier versions recorded in run folders to identify their training text.

    Those versions did not prepare raw text. They hashed the lengths of the pairs that passed all filters,
    and the ids of the pairs that passed the text filters.

    Args:
        text: `RawText`.
        pairs: `IdPairs` prepared from it.
        tokenizers: `Tokenizers` of the run.
    """
    digest = hashlib.sha256()
    for side, (sequences, tokenizer) in enumerate(zip(pairs, tokenizers, strict=True)):
        digest.update(sequences.lengths)
        lines = (pair[side] for pair in text.clean_pairs())
        while block := list(itertools.islice(lines, BLOCK_PAIRS)):
            digest.update(encode_flat(block, tokenizer)[0])
    return digest.hexdigest()


def last_files(settings, report, tokenizers, texts, shards):
    """Returns the files that are written last, a dict from name to bytes; the last one is the manifest.

    Args:
        settings: dict, `settings_of` with `inputs`, the fingerprints of the text.
        report: `CleaningReport`.
        tokenizers: list of manifest entries, of the vocabularies.
        texts: dict from a split to its manifest entry.
        shards: list of manifest entries.
    """
    own = {name: value for name, value in settings.items() if name != "inputs"}
    manifest = {
        "format": FORMAT,
        "languages": [settings["data"]["source"], settings["data"]["target"]],
        "settings": own,
        "inputs": settings["inputs"],
        "num_pairs": report.num_kept,
        "report": report.to_dict(),
        "tokenizers": tokenizers,
        "texts": texts,
        "shards": shards,
    }
    return {REPORT: f"{report.table()}\n".encode(), MANIFEST: to_checked_json(manifest).encode()}


def settings_of(config, tokenizers, shard_pairs):
    """Returns the settings that determine the prepared files, a dict for JSON."""
    _check_tags(config.data.tags, tokenizers)
    if tokenizers and isinstance(tokenizers.target, TreeTokenizer) != config.data.parses:
        kind = "a translation vocabulary, and the targets are trees" if config.data.parses else "of a parser"
        raise DataError(f"the vocabulary given is {kind}. Give another --tokenizer, or leave it out")
    return {
        "data": {name: getattr(config.data, name) for name in _DATA_SETTINGS} | _vocab_settings(tokenizers),
        "cleaning": dataclasses.asdict(config.cleaning),
        "shard_pairs": shard_pairs,
        "tokenizers": [tokenizer.sha256 for tokenizer in tokenizers] if tokenizers else None,
    }


def check_synthetic_text(text, settings, tokenizers):
    """Raises `DataError` if the settings lack a tag of synthetic text; warns if such text has changed."""
    remedy = "Add --new-vocabulary --set 'data.tags={tags}'" if tokenizers else "Add --set 'data.tags={tags}'"
    check_tags(text.datasets, parse_tags(settings["data"]["tags"]), remedy)
    warn_of_changes(text.datasets)


def _check_tags(tags, tokenizers):
    """Raises `DataError` if given tokenizers lack a tag of `data.tags`."""
    missing = [tag for tag in parse_tags(tags) if tokenizers and tag not in tokenizers.source.tags]
    if missing:
        raise DataError(
            f"data.tags={tags}: the vocabulary lacks {missing[0]}. Tags are reserved when a vocabulary is "
            "learned: add --new-vocabulary, or start a run without training.init_from"
        )


def _vocab_settings(tokenizers):
    """Returns the settings that given tokenizers determine, which override the configuration."""
    if tokenizers is None:
        return {}
    parses = isinstance(tokenizers.target, TreeTokenizer)
    return {
        "vocab_size": tokenizers.source.vocab_size if parses else tokenizers.target.vocab_size,
        "separate_vocabularies": not tokenizers.shared,
        "normalization": tokenizers.source.normalization,
        "keep_tags": parses and tokenizers.target.keep_tags,
        "tags": ",".join(tokenizers.source.tags),
    }


def _open_finished(folder, settings):
    """Returns the finished corpus of a folder, or `None` if there is none yet.

    Raises:
        DataError: the folder was prepared, or its preparation was begun, with other settings or text.
    """
    unfinished = folder / PROGRESS / _SETTINGS
    if not (folder / MANIFEST).exists():
        if unfinished.exists():
            _check_same(folder, json.loads(unfinished.read_bytes()), settings)
        return None
    prepared = PreparedCorpus(folder)
    before = prepared.manifest | prepared.settings
    if before["tokenizers"] is None and settings["tokenizers"]:  # the learned ones may be given now
        learned = prepared.load_tokenizers()
        before["tokenizers"] = [tokenizer.sha256 for tokenizer in learned]
        before["data"] = before["data"] | _vocab_settings(learned)
    _check_same(folder, before, settings)
    shutil.rmtree(folder / PROGRESS, ignore_errors=True)  # left if killed after writing the manifest
    (folder / _LOCK).unlink(missing_ok=True)
    return prepared


def _prepare(text, folder, settings, tokenizers, num_workers):
    """Writes all files of a prepared corpus; the manifest comes last. Returns the `PreparedCorpus`."""
    data, with_inputs = text.data, settings | {"inputs": text.inputs}
    check_synthetic_text(text, settings, tokenizers)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: a file, not a folder. Choose a folder")
    # A process that is killed at its start leaves only the lock.
    names = {path.name for path in folder.iterdir()} - {_LOCK} if folder.exists() else {}
    if names and not (folder / PROGRESS).is_dir():
        raise DataError(f"{folder}: contains other files. Choose a new or an empty folder")
    with _locked_folder(folder):
        _open_finished(folder, with_inputs)
        (folder / PROGRESS).mkdir(exist_ok=True)
        for leftover in (*folder.glob(".*.tmp"), *folder.glob(f"{PROGRESS}/.*")):
            leftover.unlink()  # temporary file of a killed process
        write_json(folder / PROGRESS / _SETTINGS, with_inputs)
        texts = {split: write_split(text, folder, split) for split in text.splits}
        tokenizers = _find_or_learn_tokenizers(text, folder, tokenizers)
        shards, report = write_shards(text, folder, tokenizers, num_workers, settings["shard_pairs"])
        report.check(data.dataset)
        vocabularies = vocabulary_files(tokenizers.shared)
        entries = [file_entry(name, (folder / name).read_bytes()) for name in vocabularies]
        for name, content in last_files(with_inputs, report, entries, texts, shards).items():
            write_atomically(folder / name, content)
        shutil.rmtree(folder / PROGRESS)
    return PreparedCorpus(folder)


@contextlib.contextmanager
def _locked_folder(folder):
    """Locks the folder for this process; removes a new folder if its text is invalid."""
    is_made_here = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with process_lock(folder / _LOCK):
            is_new = not (folder / PROGRESS).exists()
            try:
                yield
            except ValueError as error:
                # Invalid text must change, so its preparation cannot continue later. After a read error of
                # disk or network it can, so the folder stays.
                if is_new and getattr(error.__cause__, "errno", None) is None:
                    with contextlib.suppress(OSError):  # the error of the text is what matters
                        for path in folder.iterdir():  # the folder itself may be a link or a mount
                            shutil.rmtree(path) if path.is_dir() else path.unlink()
                        if is_made_here:
                            folder.rmdir()
                raise
            (folder / _LOCK).unlink()
    except UnfinishedError:
        raise
    except OSError as error:
        reason, remedy = explain_write_error(error, error.filename or folder / MANIFEST)
        raise UnfinishedError(
            f"{folder}: cannot be written: {reason}. Finished parts are kept; the same command continues. "
            f"{remedy}"
        ) from error


def _check_same(folder, before, now):
    """Raises `DataError` if settings or inputs differ from those of the earlier preparation."""
    before, now = _flatten_sections(before), _flatten_sections(json.loads(json.dumps(now)))
    for name in now:
        what = f"was prepared with {name}={before.get(name)!r}, not {now[name]!r}"
        if name == "inputs":
            what = f"the text has changed since the preparation began ({_first_change(before, now)})"
        if before.get(name) != now[name]:
            raise DataError(f"{folder}: {what}. Use the same settings and text, or choose another folder")


def _flatten_sections(settings):
    """Returns {name: value}, with names such as `data.source` for the settings of a section."""
    fields = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    settings = settings | {"data": with_earlier_defaults(DataConfig, settings["data"])}
    for section in ("data", "cleaning"):
        fields |= {f"{section}.{name}": value for name, value in settings[section].items()}
    return fields


def _first_change(before, now):
    """Returns the name of the first input that changed."""
    entries = (*(before.get("inputs") or []), *now["inputs"])
    files = [file for entry in entries for file in (entry if isinstance(entry, list) else [entry])]
    changed = (file for file in files if files.count(file) == 1)
    return next((file.get("path") or file["name"] for file in changed), "the order of the files")


def _changed_file(data, prepared):
    """Returns the path of a file that changed after a corpus was prepared, or `None`.

    Only folders and archives are compared: opening another dataset may download it. A file that was moved,
    with its size and modification time, has not changed.
    """
    now = []
    try:
        for name in dataset_names(data.dataset):
            if is_archive(name):  # known without unpacking it
                now.append(file_identity(name))
            elif pathlib.Path(name).is_dir():
                dataset = open_dataset(name, data.source, data.target)
                splits = [split for split in (TRAIN, *prepared.splits) if split in dataset.splits]
                now += [file for split in splits for file in dataset.fingerprint(split)]
    except (ValueError, OSError):
        return None
    entries = [entry for entry in prepared.manifest["inputs"] or () if isinstance(entry, list)]
    before = [file for entry in entries for file in entry]

    def identity(file):
        return pathlib.Path(file["path"]).name, file["size"], file["mtime_ns"]

    same = set(map(identity, now)) & set(map(identity, before))
    changed = (file["path"] for file in (*now, *before) if identity(file) not in same)
    return next(changed, None) if now else None


def _find_or_learn_tokenizers(text, folder, given):
    """Returns the given tokenizers, those already in the folder, or newly learned ones; saves them."""
    shared = given.shared if given else not text.data.separate_vocabularies
    if given is None and all((folder / name).exists() for name in vocabulary_files(shared)):
        return load_tokenizers(folder)
    if given is None:
        data = text.data
        words = " of the words" if data.parses else ""
        logger.info(f"learning a vocabulary of {data.vocab_size:,} tokens ({data.model_type}){words}")
        given = learn_tokenizers(text.clean_pairs, data)
    save_tokenizers(folder, given)
    return given
