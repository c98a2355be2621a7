"""Minimum Bayes risk decoding: the translation with the greatest expected utility, estimated from samples.

The samples of a sentence, drawn from the model, stand for the translations that it considers probable. The
utility of a translation is its similarity to another as its reference (chrF or BLEU). Its expected utility is
the mean over all samples. A translation that agrees with many samples wins, even an improbable one
(Eikema and Aziz, 2020; with longer lists and other utilities, Freitag et al., 2022).
"""

from typing import Any

import numpy as np

from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.evaluation.pairwise import bleu_matrix, chrf_matrix
from keras_transformer.translation.texts import Translation

_DIGITS = 9  # mean utilities that differ by less are equal, so that rounding never decides


def sampling_settings(config: SearchConfig) -> SearchConfig:
    """Returns the settings that draw the samples of `config`, a `SearchConfig` with `mbr`."""
    return replace(config, mbr=False, sampling=True, n_best=config.samples)


def by_utility(
    samples: list[Translation], utility: str = "chrf", target_language: str | None = None
) -> list[Translation]:
    """Ranks the samples of a sentence by their mean utility over all samples, themselves included.

    Args:
        samples: list of `Translation`, in the order drawn.
        utility: `"chrf"` or `"bleu"`, sacreBLEU's sentence scores, see `evaluation.pairwise`.
        target_language: code such as `"zh"`, for BLEU's tokenizer.

    Returns:
        list of `Translation` with `utility`, best first. Of equal texts the first drawn is kept; of equal
        utilities the one drawn first comes first.
    """
    first: dict[str, Translation] = {}
    counts: dict[str, int] = {}
    for sample in samples:
        first.setdefault(sample.text, sample)
        counts[sample.text] = counts.get(sample.text, 0) + 1
    texts = list(first)
    matrix = _matrix(texts, utility, target_language)
    means = np.sum(matrix * np.array([counts[text] for text in texts]), axis=1) / len(samples)
    order = np.argsort(-np.round(means, _DIGITS), kind="stable")
    return [first[texts[i]]._replace(utility=float(means[i])) for i in order]


def _matrix(texts, utility, target_language) -> Any:
    if utility == "chrf":
        return chrf_matrix(texts)
    if utility == "bleu":
        return bleu_matrix(texts, target_language)
    raise ValueError(f"`utility` must be chrf or bleu. Received: {utility!r}")
