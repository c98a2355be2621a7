"""The built-in corpus: sentences that two locales of the Unicode CLDR write with the same meaning."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "corpus": (
            "make_examples",
            "make_pairs",
        ),
    },
)
