"""Fine-tuning: initialises a new run from the weights of an earlier one, also with another vocabulary.

Only embeddings, output projection and output bias depend on the vocabulary. Their rows are copied by the
text of the piece, so pieces of both vocabularies keep their weights even if their ids differ.
"""

import dataclasses

import numpy as np

from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, check_vocabularies

# Fields of `ModelConfig` that may differ: vocabulary sizes, and rates that no weight depends on.
_MAY_DIFFER = (
    "source_vocab_size",
    "target_vocab_size",
    "residual_dropout",
    "embedding_dropout",
    "attention_dropout",
    "relu_dropout",
    "attention_init",
)
# {path of a weight within the model: (side of the vocabulary, axis of the vocabulary)}.
_VOCABULARY_AXES = {
    "embedding/embeddings": ("source", 0),
    "source_embedding/embeddings": ("source", 0),
    "target_embedding/embeddings": ("target", 0),
    "output_projection/kernel": ("target", 1),
    "output_bias": ("target", 0),
}


def initialize_from(model, tokenizers, source_run, *, checkpoint="final"):
    """Copies the weights of an earlier run into a new model of the same shape.

    Weights without a vocabulary axis are copied whole. Of the others (embeddings, output projection,
    output bias), rows are copied for the pieces that both vocabularies share. Pieces are matched by
    their text, special tokens by their role. All other rows keep their random initialisation. The
    vocabularies may be of different types.

    Args:
        model: a newly built `Transformer`; its weights are changed in place.
        tokenizers: `Tokenizers` of `model`, or one tokenizer for both sides.
        source_run: `RunFolder` of the earlier run.
        checkpoint: name of its weights, as in `RunFolder.load_weights`.

    Returns:
        str, one line for the log: number of pieces that kept their weights.

    Raises:
        ValueError: the models differ in more than vocabulary sizes and dropout rates, the
            tokenizers are not the model's, or the earlier run has no such weights. The model is
            then unchanged.
    """
    tokenizers = as_tokenizers(tokenizers)
    check_vocabularies(tokenizers, model.config, special=model.special)
    check_initial_weights(source_run, model.config, checkpoint)
    earlier_tokenizers = source_run.load_tokenizers()
    matches = {
        side: _match(getattr(earlier_tokenizers, side), getattr(tokenizers, side))
        for side in ("source", "target")
    }
    earlier = source_run.load_model(checkpoint=checkpoint)
    by_path = {_path(variable): variable for variable in earlier.weights}
    for variable in model.weights:
        value = by_path.pop(_path(variable)).numpy()
        if _path(variable) in _VOCABULARY_AXES:
            side, axis = _VOCABULARY_AXES[_path(variable)]
            earlier_rows, rows = matches[side]
            merged = np.array(variable.numpy())
            # `moveaxis` returns views whose first axis is the vocabulary.
            np.moveaxis(merged, axis, 0)[rows] = np.moveaxis(value, axis, 0)[earlier_rows]
            value = merged
        variable.assign(value)
    assert not by_path, f"left over: {sorted(by_path)}"

    one_vocabulary = tokenizers.shared and earlier_tokenizers.shared
    counts = []
    for side in ("source",) if one_vocabulary else ("source", "target"):
        kept, size = len(matches[side][0]), getattr(tokenizers, side).vocab_size
        dropped = getattr(earlier_tokenizers, side).vocab_size - kept
        pieces = "pieces" if one_vocabulary else f"{side} pieces"
        counts.append(f"{kept:,} of {size:,} {pieces} kept, {size - kept:,} new, {dropped:,} dropped")
    return f"started from {source_run.path} ({checkpoint}): {'; '.join(counts)}"


def check_initial_weights(run, config, checkpoint="final"):
    """Checks, before a model is built, that `initialize_from` can use the weights of a run.

    Args:
        run: `RunFolder` of the earlier run.
        config: `ModelConfig` of the new run.
        checkpoint: name of the weights, as in `RunFolder.load_weights`.

    Raises:
        ValueError: the models differ in more than vocabulary sizes and dropout rates, or the
            earlier run has no such weights.
    """
    before = run.config.model
    differing = [
        field.name
        for field in dataclasses.fields(config)
        if getattr(before, field.name) != getattr(config, field.name) and field.name not in _MAY_DIFFER
    ]
    # Equal widths, given or derived from d_model; numbers of positions without an effect.
    same = {"key_dim": before.d_key == config.d_key, "value_dim": before.d_value == config.d_value}
    same["max_positions"] = config.positions != "learned"
    same["max_relative_position"] = config.positions != "relative"
    differing = [name for name in differing if not same.get(name)]
    if differing:
        changes = ", ".join(
            f"model.{name} {getattr(before, name)} -> {getattr(config, name)}" for name in differing
        )
        advice = " ".join(f"--set model.{name}={getattr(before, name)}" for name in differing)
        raise ValueError(
            f"{run.path}: cannot start from weights of a different shape. Received: {changes}. "
            f"Give the new run the same shape: {advice}; or leave training.init_from empty"
        )
    run.check_weights(checkpoint)


def _match(earlier, new):
    """Returns the ids of the shared pieces of two tokenizers, in each of them: int array `(2, pieces)`."""
    earlier_ids = {entry: i for i, entry in enumerate(earlier.entries)}
    pairs = [(earlier_ids[entry], i) for i, entry in enumerate(new.entries) if entry in earlier_ids]
    return np.array(pairs).T


def _path(variable):
    """Returns the path of a weight without the name of its model."""
    return variable.path.partition("/")[2]
