"""What is decided when a model is exported for serving, and can no longer be changed after."""

import dataclasses
import math
import re

from keras_transformer.config.sections import MAX_NUMBERS_IN_SEARCH, SearchConfig

INPUTS = ("alpha", "extra_length")
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
        rows = [self.max_sentences]
        for tokens in range(1, self.max_tokens(model) + 1):
            fitting = math.floor(MAX_NUMBERS_IN_SEARCH / model.numbers_in_search(tokens, search))
            most = min(search.batch_tokens // tokens, fitting)
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
