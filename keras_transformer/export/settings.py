"""What is decided when a model is exported for serving, and can no longer be changed after."""

import dataclasses
import math
import re

from keras_transformer.config.settings import SearchConfig

INPUTS = ("alpha", "extra_length")
# Caches and logits that one batch may hold at once: two gigabytes of float32.
_MAX_NUMBERS = 2**29
_MOST = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServingSettings:
    """Search and limits of an exported model.

    Attributes:
        search: `SearchConfig`. Texts are cut at `max_source_length`, whatever `long_lines` says.
            `n_best` of 1 gives `translate_nbest` all of the beam.
        max_sentences: most sentences of one call; more are refused.
        max_characters: longer texts are cut here before anything else is done with them.
        inputs: settings of search, of `INPUTS`, that every call to a signature that
            translates gives as a scalar.
        frozen: weights are constants of the graph, not variables beside it.

    Raises:
        ValueError: a setting that cannot be exported.
    """

    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    max_sentences: int = 256
    max_characters: int = 10_000
    inputs: tuple = ()
    frozen: bool = False

    def __post_init__(self):
        if self.search.sampling:
            raise ValueError(
                "An exported model searches, it does not sample. Leave `sampling` out. "
                "Received: sampling=True"
            )
        for name in ("max_sentences", "max_characters"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MOST:
                raise ValueError(f"`{name}` must be a whole number from 1 to {_MOST}. Received: {value!r}")
        for name in self.inputs:
            if name not in INPUTS:
                raise ValueError(f"`inputs` must be among {', '.join(INPUTS)}. Received: {name!r}")

    @property
    def n_best(self):
        """Translations of each sentence that `translate_nbest` gives."""
        return self.search.n_best if self.search.n_best > 1 else self.search.beam_size

    def max_tokens(self, model):
        """Most tokens of a text, end of sentence included.

        Args:
            model: `ModelConfig`.
        """
        limits = [model.max_positions] if model.positions == "learned" else []
        return min([self.search.max_source_length, *limits])

    def max_rows(self, model):
        """How many sentences of each length may share a batch: `Translator`'s budgets.

        Args:
            model: `ModelConfig`.

        Returns:
            list of int, at least 1 and never rising; entry n is of n tokens a sentence.
        """
        search = self.search
        width = model.num_heads * (model.d_key + model.d_value)
        rows = [self.max_sentences]
        for tokens in range(1, self.max_tokens(model) + 1):
            length = min(tokens * search.length_factor + search.extra_length, search.max_length)
            caches = 2 * model.num_decoder_layers * width * (length + tokens)
            numbers = search.beam_size * (caches + 4 * model.target_vocab_size)
            numbers += 2 * model.num_heads * tokens**2
            most = min(search.batch_tokens // tokens, math.floor(_MAX_NUMBERS / numbers))
            rows.append(min(rows[-1], max(1, most)))
        return rows


def checked_name(run, name=None):
    """Returns what a model is called on the server.

    Args:
        run: `RunFolder`.
        name: str, or `None` for that of the folder.

    Raises:
        ValueError: a server cannot have the name.
    """
    wanted = run.path.resolve().name if name is None else name
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", wanted):
        return wanted
    if name is None:
        return "translator"
    raise ValueError(f"`name` must have letters, digits, `_`, `.` and `-` only. Received: {name!r}")
