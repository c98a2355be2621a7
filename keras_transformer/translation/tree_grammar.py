"""Grammar of linearised constituency trees, as a constraint of the search (section 6.3)."""

import numpy as np
from keras import ops

from keras_transformer.model.kernels.tensor_ops import gather, take_along
from keras_transformer.translation.constraints import Constraint


class TreeGrammar(Constraint):
    """Allows only linearised trees with a given number of words, such as `(S (NP XX )NP (VP XX )VP )S`.

    Each token either opens a constituent with a label, or closes one, or is a word, or none of them. The
    rules:

    - The first token opens the root. After the root is closed, only eos may follow.
    - A token that closes a constituent must have the label of the innermost open one, which must contain
      something. The root is closed only when all words are used.
    - A word needs an open constituent and a word that is left.
    - Opening a constituent needs a word that is left, because it would stay empty otherwise. At most
      `max_openings` follow each other, and at most `max_depth` constituents are open.
    - Opening a constituent also needs enough steps before the length limit for itself, the words that are
      left, the closing of all open constituents, and eos.

    Therefore every hypothesis is a complete tree that ends in eos, whatever the model says, if the limit is
    at least `num_words + 3`, which `length_limits` ensures. Proof: let `steps` be the number of steps left,
    and `needed = words left + open constituents + 1`, the last for eos. After the root is opened, `needed`
    is at most `steps`, by the last rule. A word, a closing and eos reduce both by 1, and an opening keeps the
    inequality by the last rule. And a token is always allowed: a word, if words are left; otherwise the
    closing of the innermost constituent, which is not empty, because a word follows each opening; otherwise
    eos. So eos comes before `steps` is below 1.

    To use it, pass the words of each sentence in `num_words`, without eos::

        grammar = TreeGrammar(opening, closing, words, eos_id=tokenizer.special.eos, num_words=num_words)
        hypotheses = search_ids(model, source_ids, config, constraint=grammar)

    In a `tf.function`, create it inside of the function, with a `num_words` tensor of the graph. A sentence
    of 0 words has no tree: it is not searched, and its hypothesis is empty with score 0. A sentence of more
    than `max_positions - 3` words has no hypothesis (score -inf) in a model with learned positions; refuse it
    before. A prefix of the target is not checked: it must be the beginning of such a tree.
    `config.no_repeat_ngram` and `config.min_length` do not fit trees; leave them at 0.

    Args:
        opening: int, shape `(vocab_size,)`, number of the label that each token opens, from 0; -1 for
            tokens that open none.
        closing: the same for the label that each token closes.
        words: bool, shape `(vocab_size,)`, whether the token stands for a word: `XX`, or a tag.
        eos_id: int.
        num_words: int32, shape `(batch,)`, number of words of each sentence.
        max_openings: int, maximum number of constituents that open in a row. Of the trees of CRAFT, none
            has more than 8.
        max_depth: int, maximum number of open constituents.

    Raises:
        ValueError: the arrays contradict each other, or a limit is below 1.
    """

    def __init__(self, opening, closing, words, *, eos_id, num_words, max_openings=8, max_depth=64):
        opening, closing, words = (np.asarray(x) for x in (opening, closing, words))
        _check(opening, closing, words, eos_id)
        for name, value in (("max_openings", max_openings), ("max_depth", max_depth)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        self._opening, self._closing = opening.astype("int32"), closing.astype("int32")
        self._words = words.astype("bool")
        self._is_eos = np.arange(len(words)) == eos_id
        self._num_words = num_words
        self._max_openings, self._max_depth = max_openings, max_depth

    @classmethod
    def of(cls, tokenizer, num_words):
        """Returns the grammar of the trees of a vocabulary.

        Args:
            tokenizer: `TreeTokenizer`.
            num_words: int32, shape `(batch,)`.
        """
        opening, closing = (np.full(tokenizer.vocab_size, -1) for _ in range(2))
        for label, (opens, closes) in enumerate(tokenizer.brackets):
            opening[opens], closing[closes] = label, label
        words = np.isin(np.arange(tokenizer.vocab_size), tokenizer.word_ids)
        return cls(opening, closing, words, eos_id=tokenizer.special.eos, num_words=num_words)

    def length_limits(self, limits, prefix_lengths):
        """Returns limits of at least `num_words + 3`, and 0 for sentences without words."""
        num_words = ops.convert_to_tensor(self._num_words, "int32")
        return ops.where(num_words > 0, ops.maximum(limits, num_words + 3), 0)

    def start(self, limits, n):
        """Returns the state of empty hypotheses, a dict of int32 tensors."""
        limits = ops.repeat(limits, n)
        zeros = ops.zeros_like(limits)
        return {
            "limit": limits,
            "words_left": ops.repeat(ops.convert_to_tensor(self._num_words, "int32"), n),
            "depth": zeros,  # number of open constituents
            "openings": zeros,  # number of tokens since the last one that did not open a constituent
            "labels": zeros[:, None] - ops.ones((1, self._max_depth), dtype="int32"),  # of the open ones
        }

    def advance(self, state, ids):
        """Returns the state after one more token of each hypothesis."""
        opened, closed, words = (
            gather(ops.array(x), ids) for x in (self._opening, self._closing, self._words.astype("int32"))
        )
        opens, closes = ops.cast(opened >= 0, "int32"), ops.cast(closed >= 0, "int32")
        slot = ops.arange(self._max_depth, dtype="int32")[None]
        here = (slot == state["depth"][:, None]) & (opened >= 0)[:, None]
        return {
            "limit": state["limit"],
            "words_left": state["words_left"] - words,
            "depth": state["depth"] + opens - closes,
            "openings": (state["openings"] + 1) * opens,
            "labels": ops.where(here, opened[:, None], state["labels"]),
        }

    def allowed(self, state, position):
        """Returns which tokens keep the hypotheses well-formed, bool, shape `(rows, vocab_size)`."""
        depth, openings, words_left = state["depth"], state["openings"], state["words_left"]
        is_first, is_open, has_words = position == 0, depth > 0, words_left > 0
        # After the opening: the words, one closing more than constituents are open now, and eos.
        fits = words_left + depth + 2 <= state["limit"] - position - 1
        may_open = (is_open | is_first) & has_words & fits
        may_open &= (openings < self._max_openings) & (depth < self._max_depth)
        may_close = is_open & (openings == 0) & ((depth > 1) | ops.logical_not(has_words))
        innermost = take_along(state["labels"], ops.clip(depth - 1, 0, self._max_depth - 1)[:, None])
        closes = (ops.array(self._closing)[None] == innermost) & (ops.array(self._closing) >= 0)[None]
        may_end = ops.logical_not(is_open | is_first)
        return (
            (may_open[:, None] & (ops.array(self._opening) >= 0)[None])
            | (may_close[:, None] & closes)
            | ((is_open & has_words)[:, None] & ops.array(self._words)[None])
            | (may_end[:, None] & ops.array(self._is_eos)[None])
        )


def _check(opening, closing, words, eos_id):
    """Raises ValueError if the classes of the tokens contradict each other."""
    shapes = {"opening": opening.shape, "closing": closing.shape, "words": words.shape}
    if opening.ndim != 1 or len(set(shapes.values())) != 1:
        raise ValueError(f"`opening`, `closing` and `words` must have one shape. Received: {shapes}")
    classes = (opening >= 0).astype(int) + (closing >= 0) + (words != 0)
    if (classes > 1).any():
        token = int(np.argmax(classes > 1))
        raise ValueError(f"A token must be of one class only. Received: token {token} is of several")
    if classes[eos_id]:
        raise ValueError(f"The end of sentence must be of no class. Received: eos_id={eos_id}")
    labels = [set(array[array >= 0].tolist()) for array in (opening, closing)]
    if not labels[0] or labels[0] != labels[1]:
        raise ValueError(
            "The labels that are opened must be those that are closed, at least one. "
            f"Received: opened {sorted(labels[0])}, closed {sorted(labels[1])}"
        )
    if not (words != 0).any():
        raise ValueError("`words` must contain a token. Received: none")
