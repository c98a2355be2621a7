"""`Translator.load(run, engine="ctranslate2")`, which `auto` chooses if translations are equal: text to text.

Variant: `split`, a batch for each thread. Every id of the other peers is a word here, and a token.
"""

import json
import tempfile

from peers.apart import write_apart
from peers.timing import THREADS, parse_job, time_decoding


def write(size, folder, parameters):
    """Writes a run with random weights; in a process of its own, whose memory is not counted.

    Args:
        size: `Size`.
        folder: str, made here.
        parameters: shared integer that is given their number.
    """
    import keras

    from keras_transformer.config.settings import Config, replace
    from keras_transformer.export.engines import load_translator
    from keras_transformer.tokenizers import WordPieceTokenizer
    from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers
    from keras_transformer.translation.translator import Translator
    from peers.models_ours import SEARCH, build

    keras.utils.set_random_seed(0)
    model = build(size)
    tokenizers = as_tokenizers(WordPieceTokenizer(vocabulary(size.vocab_size)))
    config = replace(Config(), model=model.config, data={"source": "en", "target": "de"}, search=SEARCH)
    Translator(model, tokenizers, SEARCH).save(folder, config=config)
    load_translator(folder, engine="ctranslate2")  # converts it
    parameters.value = model.count_params()


def words_of(size):
    """Returns the words of a vocabulary: numbers, because the digits are pieces in any case."""
    from keras_transformer.tokenizers.learning import ESCAPE_CHARACTERS, NUM_SPECIAL

    return [str(number) for number in range(size - NUM_SPECIAL - len(ESCAPE_CHARACTERS) - 1)]


def vocabulary(size):
    """Returns the content of a word-piece vocabulary in which every word of `words_of` is a piece."""
    from keras_transformer.tokenizers.base import SPACE
    from keras_transformer.tokenizers.learning import ESCAPE_CHARACTERS
    from keras_transformer.tokenizers.wordpiece import FORMAT

    special = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    header = {"format": FORMAT, "vocab_size": size, "normalization": "identity", "special": special}
    pieces = [SPACE, *ESCAPE_CHARACTERS, *(SPACE + word for word in words_of(size))]
    return "".join(f"{line}\n" for line in (json.dumps(header), *pieces)).encode()


def main():
    """Runs this peer."""
    job = parse_job(("split",))
    parts = THREADS if "split" in job.words else 1
    with tempfile.TemporaryDirectory() as folder:
        folder = f"{folder}/run"
        parameters = write_apart(write, job.size, folder)
        from keras_transformer.export.engines import load_translator

        translator = load_translator(folder, engine="ctranslate2", threads=parts)
        words = words_of(job.size.vocab_size)

        def translate(source_ids):
            # The end of sentence is the last token, as of the translations.
            texts = [" ".join(words[number % len(words)] for number in row[1:]) for row in source_ids]
            return [found.best.ids for found in translator.n_best(texts)]

        time_decoding(job, translate, parameters=lambda: parameters, libraries=["ctranslate2"])


if __name__ == "__main__":
    main()
