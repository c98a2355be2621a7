"""Which settings a run that continues may change."""

import dataclasses
import difflib
import re

from keras_transformer.config import settings as configs
from keras_transformer.files import write_text

CORPUS_SUM = "corpus.sha256"
# How long the run is, where its data are and what is kept of it: not what it computes.
FREE = frozenset(
    {
        "training.max_steps",
        "training.max_minutes",
        "training.keep_checkpoints",
        "training.keep_best",
        "training.average_last",
        "training.early_stopping",
        "training.init_weights",  # they are in the state that the run continues from
        "training.validation_beam_size",
        "data.data_dir",
        "data.manual_dir",
        "data.service",
    }
)
FREE_SECTIONS = ("devices.", "search.")
# Weights of other shapes, or for other tokens, are another model's.
FIXED = frozenset(
    {
        "data.vocab_size",
        "data.vocab_texts",
        "data.model_type",
        "data.separate_vocabularies",
        "data.normalization",
        "data.split_digits",
    }
)


def continue_with(run, config, *, sha256, allowed=()):
    """Takes over the settings that may change; refuses any other change.

    Args:
        run: `RunFolder`; its `config` and its file are replaced.
        config: `Config` of the run from now on.
        sha256: of the training ids, as in `corpus.sha256`.
        allowed: settings that may differ though they change what is computed, such as
            `"training.warmup_steps"`; with `"data.dataset"`, also the training ids.

    Returns:
        list of `(path, old value, new value)`, what was taken over. `path` is
        `"corpus.sha256"` where the training ids are others.

    Raises:
        ValueError: another setting differs, or `allowed` names none.
    """
    check_names(allowed, config)
    changes = configs.differences(run.config, config)
    file = run.path / CORPUS_SUM
    old = _read_sum(file) if file.exists() else sha256
    refused = [change for change in changes if not _may_change(change[0], allowed)]
    if refused:
        raise ValueError(_refusal(run.path, refused))
    if old != sha256:
        if "data.dataset" not in allowed:
            raise ValueError(
                f"{run.path}: the training text is not the one that this run began with (see {CORPUS_SUM}). "
                "Put it back, pass --allow-config-change data.dataset, or choose another --run-dir"
            )
        changes.append((CORPUS_SUM, old, sha256))
    if run.writes and (not file.exists() or old != sha256):
        write_text(file, f"{sha256}\n")
    run.write_config(config)
    return changes


def _read_sum(file):
    found = file.read_bytes()
    if not re.fullmatch(rb"[0-9a-f]{64}\n", found):
        raise ValueError(
            f"{file}: damaged. Put it back from a copy, or remove it: then the run goes on with the text "
            "that there is now"
        )
    return found.decode().strip()


def _may_change(path, allowed):
    if path in FREE or path.startswith(FREE_SECTIONS):
        return True
    return path in allowed and not _is_fixed(path)


def _is_fixed(path):
    return path in FIXED or (path.startswith("model.") and not path.endswith("_dropout"))


def _refusal(folder, refused):
    listed = ", ".join(f"{path} {_shown(before)} -> {_shown(after)}" for path, before, after in refused)
    fixed = [path for path, _, _ in refused if _is_fixed(path)]
    if fixed:
        remedy = "choose another --run-dir"
        if all(path in FIXED or path.endswith("_vocab_size") for path in fixed):
            remedy += f"; --init-from {folder} --new-vocabulary starts from its weights"
        return f"{folder}: this run has other settings: {listed}. {fixed[0]} makes another model: {remedy}"
    names = ",".join(path for path, _, _ in refused)
    return (
        f"{folder}: this run has other settings: {listed}. "
        f"Pass --allow-config-change {names}, or choose another --run-dir"
    )


def _shown(value):
    return "(empty)" if value == "" else value


def check_names(allowed, config):
    """Raises `ValueError` where a name in `allowed` is that of no setting."""
    known = [
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(config)
        for field in dataclasses.fields(getattr(config, section.name))
    ]
    for name in allowed:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "Name it as in --set"
            raise ValueError(f"--allow-config-change: no setting {name!r}. {hint}")
