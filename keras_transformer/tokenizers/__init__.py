"""Sub-word tokenizers, in Python and in the TensorFlow graph.

BPE and unigram vocabularies (SentencePiece), word pieces (section 5.1 of the paper), and sub-word sampling
for training. `Tokenizers` is the pair of tokenizers of a model, for source and target.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": ("Tokenizer",),
        "inspection": ("Inspection", "inspect_vocabulary"),
        "keras_hub": ("KerasHubTokenizer", "tokenizer_from_keras_hub"),
        "sentencepiece": ("SubwordTokenizer",),
        "symbols": ("TreeTokenizer",),
        "tokenizer_pair": ("Tokenizers", "load_tokenizer", "train_tokenizer"),
        "wordpiece": ("WordPieceTokenizer",),
    },
)
