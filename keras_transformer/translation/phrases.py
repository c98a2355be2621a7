"""Lexical constraints: phrases that must occur in each translation, in any order."""

from keras import ops

from keras_transformer.translation.constraints import Constraint


class Phrases(Constraint):
    """Requires that every hypothesis contains all phrases of its sentence.

    Phrases may come in any order, overlap, and share tokens. A phrase that is given twice must occur once.
    Beam search divides the beam by the number of tokens that are met (dynamic beam allocation).

    Each phrase is matched exactly: `matches[i]` says whether the last i tokens are the first i of the phrase
    (the states of a nondeterministic automaton). So "a a b" is found in "a a a b". For a hypothesis, let

        needed = tokens of the unmet phrases - the longest match among them,

    the tokens that it needs at most until all phrases are met. The rules:

    - eos comes only when all phrases are met.
    - Any other token needs enough steps before the length limit for itself, the tokens that are needed after
      it, and eos. After a token that extends a match to i tokens, at most the tokens of the unmet phrases
      less i are needed; after any other token, at most the tokens of the unmet phrases.
    - When all phrases are met, every token is allowed.

    Therefore every hypothesis contains all phrases, whatever the model says, if the limit is at least the
    tokens of all phrases + 1, which `length_limits` ensures. Proof: let `steps` be the number of steps left.
    At first, `needed + 1` is at most `steps`, and by the second rule this also holds after every token while
    a phrase is unmet. And a token is always allowed: the one that extends the longest match, or begins a
    phrase, because after it at most `needed - 1` tokens are needed, and `steps - 1` steps are left. When
    `steps` is 0, `needed + 1` is above it, so no phrase is unmet.

    Near the length limit, `needed` may be more than necessary, because what unmet phrases share counts for
    each of them: a hypothesis that would fit only with overlapping phrases is not found.

    To use it, pass the tokens of the phrases::

        phrases = Phrases([[[7, 8], [9, 0]]], vocab_size=31, eos_id=2, pad_id=0)  # "7 8" and "9"
        hypotheses = search_ids(model, source_ids, config, constraint=phrases)

    In a `tf.function`, create it inside of the function, with a tensor of the graph; all of its axes may
    vary. The tokens of a prefix count. A sentence without phrases is searched as without a constraint. If the
    phrases do not fit into a model with learned positions, or contain a token that the search never produces
    (bos, unk), the sentence has no hypothesis (score -inf); refuse it before.

    Axes: `batch, rows` as in `constraints`, `num_phrases, phrase_length` (of the longest), `vocab_size`.

    Args:
        phrases: int32, shape `(batch, num_phrases, phrase_length)`, tokens in the vocabulary, without bos and
            eos, padded at the end. A phrase of only padding requires nothing.
        vocab_size: int.
        eos_id: int.
        pad_id: int.

    Raises:
        ValueError: `phrases` does not have three axes.
    """

    def __init__(self, phrases, *, vocab_size, eos_id, pad_id):
        self._phrases = ops.convert_to_tensor(phrases, "int32")
        if len(self._phrases.shape) != 3:
            raise ValueError(
                "`phrases` must have the shape (batch, num_phrases, phrase_length). "
                f"Received: shape {tuple(self._phrases.shape)}"
            )
        self._vocab_size, self._eos_id, self._pad_id = vocab_size, eos_id, pad_id

    def length_limits(self, limits, prefix_lengths):
        """Returns limits of at least the tokens of the prefix and of all phrases, and eos."""
        tokens = self._tokens_left(self._phrases, self._met_before(self._phrases))
        return ops.where(tokens > 0, ops.maximum(limits, prefix_lengths + tokens + 1), limits)

    def start(self, limits, n):
        """Returns the state of empty hypotheses.

        A dict: `limit`, int32, shape `(rows,)`; `phrases`, int32, shape `(rows, num_phrases, phrase_length)`;
        `met`, bool, shape `(rows, num_phrases)`; `matches`, bool, shape `(rows, num_phrases, phrase_length
        + 1)`, whether the last i tokens are the first i of the phrase.
        """
        phrases = ops.repeat(self._phrases, n, axis=0)
        return {
            "limit": ops.repeat(limits, n),
            "phrases": phrases,
            "met": self._met_before(phrases),
            "matches": _begin_matches(ops.zeros_like(phrases, dtype="bool")),
        }

    def advance(self, state, ids):
        """Returns the state after one more token of each hypothesis."""
        phrases = state["phrases"]
        matches = _begin_matches(state["matches"][:, :, :-1] & (phrases == ids[:, None, None]))
        ends = _places(matches) == self._lengths(phrases)[:, :, None]
        return {**state, "met": state["met"] | ops.any(matches & ends, axis=2), "matches": matches}

    def allowed(self, state, position):
        """Returns which tokens keep the phrases within the limit, bool, shape `(rows, vocab_size)`."""
        tokens = self._tokens_left(state["phrases"], state["met"])
        done, after = tokens == 0, state["limit"] - position - 1  # steps left after the token
        extends = self._extends(state)
        needed = tokens[:, None, None] - 1 - _places(extends)
        extending = self._to_vocabulary(state, extends & (needed + 1 <= after[:, None, None]))
        is_eos = ops.arange(self._vocab_size, dtype="int32")[None] == self._eos_id
        others = (tokens + 1 <= after)[:, None] & ops.logical_not(is_eos)
        return done[:, None] | others | extending

    def wanted(self, state):
        """Returns the tokens that begin an unmet phrase or extend its match, bool, `(rows, vocab_size)`."""
        return self._to_vocabulary(state, self._extends(state))

    def progress(self, state):
        """Returns the number of tokens of phrases that are met, the longest match included."""
        unmet = ops.logical_not(state["met"])
        matches = state["matches"] & unmet[:, :, None]
        longest = ops.max(ops.where(matches, _places(matches), 0), axis=(1, 2), initial=0)
        every = ops.sum(self._lengths(state["phrases"]), axis=1)
        return every - self._tokens_left(state["phrases"], state["met"]) + longest

    def _lengths(self, phrases):
        return ops.sum(ops.cast(phrases != self._pad_id, "int32"), axis=2)

    def _met_before(self, phrases):
        """Returns which phrases are empty or repeat an earlier one, bool, `(batch or rows, num_phrases)`."""
        number = ops.arange(ops.shape(phrases)[1], dtype="int32")
        is_same = ops.all(phrases[:, :, None] == phrases[:, None], axis=3)
        repeats = ops.any(is_same & (number[None] < number[:, None])[None], axis=2)
        return repeats | (self._lengths(phrases) == 0)

    def _tokens_left(self, phrases, met):
        """Returns the number of tokens of all unmet phrases, int32, shape `(batch,)` or `(rows,)`."""
        return ops.sum(ops.where(met, 0, self._lengths(phrases)), axis=1)

    def _extends(self, state):
        """Returns which tokens of the phrases extend a match, bool, `(rows, num_phrases, phrase_length)`."""
        unmet = ops.logical_not(state["met"])[:, :, None]
        return state["matches"][:, :, :-1] & unmet & (state["phrases"] != self._pad_id)

    def _to_vocabulary(self, state, flags):
        """Returns the tokens of the phrases that have a flag, bool, shape `(rows, vocab_size)`."""
        phrases = state["phrases"]
        num_rows = ops.shape(phrases)[0]
        row = ops.arange(num_rows, dtype="int32")[:, None, None] + ops.zeros_like(phrases)
        indices = ops.reshape(ops.stack([row, phrases], axis=-1), (-1, 2))
        counts = ops.reshape(ops.cast(flags, "int32"), (-1,))
        return ops.scatter(indices, counts, (num_rows, self._vocab_size)) > 0


def _begin_matches(longer):
    """Puts the match of no tokens, which is always there, before those of 1, 2, ... tokens."""
    return ops.concatenate([ops.ones_like(longer[:, :, :1]), longer], axis=2)


def _places(x):
    """Returns 0, 1, ... along the last of three axes, int32, shape `(1, 1, size)`."""
    return ops.arange(ops.shape(x)[2], dtype="int32")[None, None]
