"""CTranslate2's search for our settings: its options, the ranking of what it finds, and the differences.

Both searches keep the same live hypotheses, whatever the length penalty. They differ in which ends of
sentence count, and in when they stop.
"""

# CTranslate2 ends a sentence when patience * beam_size hypotheses have finished, even if a better one could
# follow; 1.0 is `early_stop`. With 2.0, the translations of Multi30k equal those of exact search.
_PATIENCE = 2.0
# With a penalty of 0, CTranslate2 ends at the first hypothesis that leads the beam. In float32,
# length ** 1e-9 is 1.
_SMALLEST = 1e-9
_UNLESS_CUT = ", up to rounding and for translations that end before the length limit"
# With a larger alpha, length ** alpha overflows.
MAX_ALPHA = 20


def beam_options(search):
    """Returns CTranslate2's options of beam search for a `SearchConfig`, a dict.

    CTranslate2 only has length ** alpha. For GNMT's formula it returns the hypotheses of the highest
    log-probability, and `ranked` applies the formula. With `early_stop` the best one is always among them:
    what is left out has a lower log-probability than a returned hypothesis of the last step, whose penalty is
    the largest.
    """
    if search.beam_size == 1 or (_has_no_penalty(search) and not search.early_stop):
        return {"num_hypotheses": search.n_best, "length_penalty": 0.0, "patience": 1.0}
    patience = 1.0 if search.early_stop else _PATIENCE
    alpha = search.alpha if search.length_penalty == "average" and search.alpha else _SMALLEST
    number = round(search.beam_size * patience)
    return {"num_hypotheses": number, "length_penalty": alpha, "patience": patience}


def ranked(lengths, scores, finished, search):
    """Ranks the hypotheses of one sentence as our search does: those that have ended first, then by score.

    Args:
        lengths: list of int, in tokens, with the end of sentence.
        scores: list of float, CTranslate2's, with the options of `beam_options`.
        finished: list of bool, whether the hypothesis has ended.
        search: `SearchConfig`.

    Returns:
        list of `(index, score, log-probability)`, at most `search.n_best`, best first.
    """
    alpha = beam_options(search)["length_penalty"]
    found = []
    for index, (length, score) in enumerate(zip(lengths, scores, strict=True)):
        log_prob = score * max(length, 1) ** alpha
        found.append((index, log_prob / length_penalty(length, search), log_prob))
    found.sort(key=lambda one: (not finished[one[0]], -one[1], lengths[one[0]]))
    return found[: search.n_best]


def unequal_settings(search):
    """Returns search settings with which translations may differ from those of `Translator`.

    Without such settings, translations are equal, up to rounding and if they end before the length limit.
    Scores are higher by the probability of the special tokens, which are never produced: CTranslate2 gives it
    to the other tokens.

    Args:
        search: `SearchConfig`.

    Returns:
        dict from the flag that makes translations equal to the difference, both str.
    """
    found = {}
    if search.beam_size > 1 and not search.early_stop:
        ends = f"a sentence ends when {round(_PATIENCE * search.beam_size)} hypotheses have ended"
        if _has_no_penalty(search):
            ends = f"an end of sentence counts only among the best {search.beam_size} candidates"
        found["--early-stop"] = f"early_stop=false is approximated: {ends}"
    elif search.n_best > 1 and search.length_penalty == "gnmt" and search.alpha:
        found["--n-best 1"] = f"n_best={search.n_best}: only the best translation is exact with gnmt"
    if search.coverage_penalty:
        left_out = f"coverage_penalty={search.coverage_penalty:g} is left out"
        found["--coverage-penalty 0"] = left_out
    for name in ("min_length", "no_repeat_ngram"):
        if value := getattr(search, name):
            flag = f"--{name.replace('_', '-')} 0"
            found[flag] = f"{name}={value}: the probability of forbidden tokens goes to the others"
    return found


def search_notes(search):
    """Returns `unequal_settings` as sentences, a list of str; empty if translations are equal."""
    unequal = unequal_settings(search)
    flags = " ".join(unequal)
    equal = f"equal to the program translate if both translate with {flags}{_UNLESS_CUT}"
    return [*unequal.values(), equal] if unequal else []


def _has_no_penalty(search):
    return search.length_penalty == "none" or search.alpha == 0


def length_penalty(length, search):
    """Returns `translation.rules.length_penalty` of a length in tokens, without importing Keras."""
    if search.length_penalty == "none":
        return 1.0
    return ((5 + length) / 6 if search.length_penalty == "gnmt" else max(length, 1)) ** search.alpha
