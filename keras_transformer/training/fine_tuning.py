"""A new run that starts from the weights of an earlier one, also with another vocabulary.

Only the embeddings and what stands before the softmax know a vocabulary: there, a piece
that both vocabularies have keeps its row, whatever its id in each.
"""

import dataclasses

import numpy as np

from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, check_vocabularies

# Of `ModelConfig`: what the vocabularies decide, and what a weight knows nothing of.
_MAY_DIFFER = (
    "source_vocab_size",
    "target_vocab_size",
    "residual_dropout",
    "embedding_dropout",
    "attention_dropout",
    "relu_dropout",
)
# {path of a weight within the model: (side of the vocabulary, its axis)}.
_VOCABULARY_AXES = {
    "embedding/embeddings": ("source", 0),
    "source_embedding/embeddings": ("source", 0),
    "target_embedding/embeddings": ("target", 0),
    "output_projection/kernel": ("target", 1),
    "output_bias": ("target", 0),
}


def initialize_from(model, tokenizers, source_run, *, checkpoint="final"):
    """Puts the weights of an earlier run into a new model of the same shape.

    Weights without a vocabulary axis are copied. Of the others (embeddings, output
    projection, output bias), the rows of pieces that both vocabularies have are copied, by
    the text of the piece and not by its id; special tokens are matched by their role. The
    vocabularies may be of different kinds. The rows of all other pieces stay as the model's
    initializer made them.

    Args:
        model: a `Transformer`, fresh; its weights are changed in place.
        tokenizers: `Tokenizers` of `model`, or one tokenizer for both sides.
        source_run: `RunFolder` of the earlier run.
        checkpoint: which weights, as `RunFolder.load_weights` takes it.

    Returns:
        str, one line for the log: how many pieces of the vocabularies kept their weights.

    Raises:
        ValueError: the models differ in more than vocabulary sizes and dropout rates, the
            tokenizers are not the model's, or the earlier run has no such weights. The model
            is as it was then.
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
        before = by_path.pop(_path(variable)).numpy()
        if _path(variable) in _VOCABULARY_AXES:
            side, axis = _VOCABULARY_AXES[_path(variable)]
            rows_before, rows = matches[side]
            after = np.array(variable.numpy())
            # Views of which the first axis is the vocabulary.
            np.moveaxis(after, axis, 0)[rows] = np.moveaxis(before, axis, 0)[rows_before]
            before = after
        variable.assign(before)
    assert not by_path, f"left over: {sorted(by_path)}"

    one_vocabulary = tokenizers.shared and earlier_tokenizers.shared
    counts = []
    for side in ("source",) if one_vocabulary else ("source", "target"):
        kept, size = len(matches[side][0]), getattr(tokenizers, side).vocab_size
        dropped = getattr(earlier_tokenizers, side).vocab_size - kept
        pieces = "pieces" if one_vocabulary else f"{side} pieces"
        counts.append(f"{kept:,} of {size:,} {pieces} kept, {size - kept:,} new, {dropped:,} dropped")
    return f"started from {source_run.path} ({checkpoint}): {'; '.join(counts)}"


def check_initial_weights(run, wanted, checkpoint="final"):
    """Refuses what `initialize_from` would, before there is a model.

    Args:
        run: `RunFolder` of the earlier run.
        wanted: `ModelConfig` of the new one.
        checkpoint: which weights, as `RunFolder.load_weights` takes it.

    Raises:
        ValueError: the models differ in more than vocabulary sizes and dropout rates, or there
            are no such weights.
    """
    before = run.config.model
    differing = [
        field.name
        for field in dataclasses.fields(wanted)
        if getattr(before, field.name) != getattr(wanted, field.name) and field.name not in _MAY_DIFFER
    ]
    # The same width, once named and once derived; positions that are computed.
    alike = {"key_dim": before.d_key == wanted.d_key, "value_dim": before.d_value == wanted.d_value}
    alike["max_positions"] = wanted.positions != "learned"
    differing = [name for name in differing if not alike.get(name)]
    if differing:
        changes = ", ".join(
            f"model.{name} {getattr(before, name)} -> {getattr(wanted, name)}" for name in differing
        )
        advice = " ".join(f"--set model.{name}={getattr(before, name)}" for name in differing)
        raise ValueError(
            f"{run.path}: a run cannot start from weights of another shape. Received: {changes}. "
            f"Give the new run the same shape: {advice}; or leave training.init_from empty"
        )
    run.check_weights(checkpoint)


def _match(earlier, new):
    """Returns the ids, in each of two tokenizers, of the pieces that both have."""
    number_of = {entry: number for number, entry in enumerate(earlier.entries)}
    pairs = [(number_of[entry], number) for number, entry in enumerate(new.entries) if entry in number_of]
    return np.array(pairs).T


def _path(variable):
    """The path of a weight within its model, whatever the model's name."""
    return variable.path.partition("/")[2]
