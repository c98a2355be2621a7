"""Shows how a model translates a sentence: attention, beam search and log-probabilities, in a browser page.

In a notebook, or as a file for any browser::

    page = explore(Translator.pretrained(), "A man is riding a horse.")
    page.save("horse.html")

`Explorer` answers the page's requests: `search` runs beam search and returns the tree of its candidates,
`inspect` returns what the model says about each token of a given translation and the attention weights of all
heads. Both take a prefix or a target of ids, and heads to switch off. Requests and answers are JSON values.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checks": ("InvalidRequestError",),
        "explorer": ("Explorer",),
        "page": ("Exploration", "explore", "standalone_page"),
    },
)
