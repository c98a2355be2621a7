"""CTranslate2's files of a model: weights and vocabularies, in its own format."""

from keras_transformer.config.extras import needs

SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


def import_ctranslate2():
    """Returns the module `ctranslate2`.

    Raises:
        MissingExtraError: ctranslate2 is not installed.
    """
    with needs("ctranslate2", "CTranslate2"):
        import ctranslate2
    return ctranslate2


def vocabulary_tokens(tokenizer):
    """Returns the CTranslate2 token of each id, a list of str without duplicates.

    The token is the piece, with a suffix if the name is already used: a text may have a piece `<s>`.
    """
    is_special = [kind == "special" for kind, _ in tokenizer.entries]
    names, used = {}, set()
    for number in sorted(range(tokenizer.vocab_size), key=lambda number: not is_special[number]):
        text = tokenizer.entries[number][1]
        name = SPECIAL_TOKENS[text] if is_special[number] else text
        while name in used:
            name += f"#{number}"
        used.add(name)
        names[number] = name
    return [names[number] for number in range(tokenizer.vocab_size)]


def save_model(folder, model, tokenizers, *, max_positions, quantization="float32"):
    """Writes the files of CTranslate2.

    Args:
        folder: path of an existing folder.
        model: a `Transformer`.
        tokenizers: `Tokenizers`.
        max_positions: int, number of position encodings; with learned positions that of the model.
        quantization: as in `export_ctranslate2`.
    """
    from keras_transformer.export.ctranslate2_weights import specification  # translating needs no Keras

    spec = specification(model, max_positions)
    for role in ("bos", "eos", "unk"):
        setattr(spec.config, f"{role}_token", SPECIAL_TOKENS[role])
    spec.config.decoder_start_token = SPECIAL_TOKENS["bos"]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.config.layer_norm_epsilon
    spec.register_source_vocabulary(vocabulary_tokens(tokenizers.source))
    spec.register_target_vocabulary(vocabulary_tokens(tokenizers.target))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
