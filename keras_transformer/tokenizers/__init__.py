"""Text to ids and back, in Python and inside a TensorFlow graph.

Byte-pair and unigram vocabularies (SentencePiece) and word pieces (section 5.1 of the paper); sub-word
sampling for training; `Tokenizers` is the pair that a model has for source and target.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "inspection": ("inspect_vocabulary",),
        "sentencepiece": ("SubwordTokenizer",),
        "tokenizer_pair": ("Tokenizers", "load_tokenizer", "train_tokenizer"),
        "wordpiece": ("WordPieceTokenizer",),
    },
)
