"""`Explorer`: answers the questions of a browser page about one translation model, JSON in and JSON out."""

import base64
import contextlib
import pathlib
import threading
import time
from typing import Any, Self

import numpy as np

from keras_transformer.analysis.heads import KINDS, Head, without_heads
from keras_transformer.config.settings import replace
from keras_transformer.config.types import PathLike
from keras_transformer.explorer.checks import (
    MAX_ALPHA,
    MAX_ALTERNATIVES,
    InvalidRequestError,
    Limits,
    check_inspect,
    check_search,
)
from keras_transformer.explorer.forced import Inspector
from keras_transformer.explorer.trace import Tracer
from keras_transformer.text.lines import to_one_line
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.tokenizers.tags import tags_of
from keras_transformer.translation.alignment import default_alignment_choice, hard_alignment
from keras_transformer.translation.ensemble import max_target_lengths
from keras_transformer.translation.long_texts import encode_texts
from keras_transformer.translation.translator import Translator

MAX_TOKENS = 128  # of a source; the attention of all heads to a longer one would be many megabytes
SPECIAL = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}  # as shown


class Explorer:
    """Shows the beam search and the attention of a translation model.

    It works on a copy of the weights, so heads can be switched off while others use the translator. Calls
    from several threads wait for each other.

    Args:
        translator: a `Translator` of one model.
        name: str, by which the page calls the model.
        max_beam: int, largest beam size of a request.
        max_bytes: int, largest size of a text in bytes of UTF-8.
        languages: pair of str, names of the source and the target; `None` for those of the translator.

    Raises:
        ValueError: the translator has several models, or parses.
    """

    def __init__(
        self,
        translator: Translator,
        name: str = "model",
        *,
        max_beam: int = 16,
        max_bytes: int = 2000,
        languages: tuple[str, str] | None = None,
    ) -> None:
        if len(translator.models) != 1:
            raise ValueError(
                f"The explorer shows one model. Received: an ensemble of {len(translator.models)} models"
            )
        if isinstance(translator.tokenizers.target, TreeTokenizer):
            raise ValueError("The explorer shows translation models. Received: a parser")
        (model,) = translator.models
        self.name = name
        self.languages = languages or translator.languages
        self._tokenizers = translator.tokenizers
        self._model = type(model).from_config(model.get_config())
        self._model.set_weights(model.get_weights())
        search = replace(translator.search, n_best=1, sampling=False, mbr=False, long_lines="cut")
        self._search = replace(
            search,
            beam_size=min(search.beam_size, max_beam),
            alpha=min(search.alpha, MAX_ALPHA),
            max_source_length=min(translator.max_source_length(search), MAX_TOKENS),
            max_length=min(translator.max_target_length(search), 2 * MAX_TOKENS),
        )
        config = model.config
        decoder = config.num_decoder_layers, config.num_heads
        self._limits = Limits(
            max_beam, max_bytes, self._search.max_length, config.target_vocab_size,
            self._tokenizers.target.special,
            {"encoder": (config.num_encoder_layers, config.num_heads), "decoder": decoder, "cross": decoder},
        )  # fmt: skip
        self._trace = Tracer(self._model, tags_of(self._tokenizers.target).values())
        self._inspect = Inspector(self._model, MAX_ALTERNATIVES)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, run_dir: PathLike, name: str | None = None, **options: Any) -> Self:
        """Loads the model of a run folder.

        Args:
            run_dir: path of a run folder, or name of a model that comes with the package.
            name: str; the name of the folder if it is `None`.
            **options: as in `Explorer`.

        Raises:
            ValueError: the path is no run folder, it has no final weights, or the run trained a parser.
        """
        return cls(Translator.load(run_dir), name or pathlib.Path(run_dir).resolve().name, **options)

    def model(self) -> dict:
        """Returns what the page must know about the model, as JSON values."""
        config = self._model.config
        return {
            "name": self.name,
            "source": self.languages[0],
            "target": self.languages[1],
            "encoder_layers": config.num_encoder_layers,
            "decoder_layers": config.num_decoder_layers,
            "heads": config.num_heads,
            "d_model": config.d_model,
            "vocab_size": config.target_vocab_size,
            "beam_size": self._search.beam_size,
            "alpha": float(self._search.alpha),
            "length_penalty": self._search.length_penalty,
            "max_beam": self._limits.max_beam,
            "max_bytes": self._limits.max_bytes,
            "max_tokens": self._search.max_source_length,
            "max_length": self._search.max_length,
        }

    def search(self, body: Any) -> dict:
        """Searches the translations of a text.

        The hypotheses are those of `Translator.n_best` with `n_best=beam_size` and `long_lines="cut"`.

        Args:
            body: dict of JSON values: `text`; optional `model`, `beam_size`, `alpha`, `max_length`, `prefix`
                (target ids) and `heads_off` (list of dicts with `kind`, `layer` and `head`).

        Returns:
            dict of JSON values: the n-best list in `hypotheses`, and the tree of all candidates in `nodes`,
            see `trace.Node`.

        Raises:
            InvalidRequestError: `body` is not such a dict; the message is one line.
        """
        started = time.perf_counter()
        request = check_search(body, self._limits)
        self._check_name(request.model)
        source_ids, is_cut = self._source(request.text)
        changes = {name: getattr(request, name) for name in ("beam_size", "alpha", "max_length")}
        try:
            config = replace(self._search, **{k: v for k, v in changes.items() if v is not None})
        except ValueError as error:
            raise InvalidRequestError(to_one_line(str(error))) from None
        with self._without(request.heads_off):
            trace = self._trace(source_ids, request.prefix, config)
        if not trace.hypotheses:
            raise InvalidRequestError("No translation has a probability above 0")
        target = self._tokenizers.target
        rows = [one.ids for one in trace.hypotheses]
        pieces = [
            [self._piece(target, token) for token in row if token != target.special.eos] for row in rows
        ]
        return {
            "model": self.name,
            "text": request.text,
            "beam_size": config.beam_size,
            "alpha": float(config.alpha),
            "prefix": request.prefix,
            "heads_off": _heads_json(request.heads_off),
            "source": self._pieces(self._tokenizers.source, source_ids),
            "cut": is_cut,
            "hypotheses": [
                {"text": to_one_line(text), "pieces": row, **one._asdict()}
                for text, row, one in zip(target.decode(rows), pieces, trace.hypotheses, strict=True)
            ],
            "nodes": [
                {"id": number, "piece": self._piece(target, node.token), **node._asdict()}
                for number, node in enumerate(trace.nodes)
            ],
            "steps": trace.steps,
            "milliseconds": _milliseconds(started),
        }

    def inspect(self, body: Any) -> dict:
        """Shows what the model says about each token of a given target, and all attention weights.

        Args:
            body: dict of JSON values: `text`, and `target`, a text or a list of target ids; optional `model`,
                `heads_off` and `alternatives`, the number of tokens shown instead of each one.

        Returns:
            dict of JSON values: `tokens` with natural log-probabilities and entropies in nats, `alignment`
            and `attention`, whose weights * 65535 are base64 of little-endian uint16.

        Raises:
            InvalidRequestError: `body` is not such a dict; the message is one line.
        """
        started = time.perf_counter()
        request = check_inspect(body, self._limits)
        self._check_name(request.model)
        source_ids, _ = self._source(request.text)
        source, target = self._tokenizers
        target_ids = self._target(request.target, source_ids)
        with self._without(request.heads_off):
            found = self._inspect(source_ids, target_ids)
        layer = default_alignment_choice(self._model.config.num_decoder_layers).layer
        entries = (
            [self._piece(tokenizer, token) for token in ids[:-1]]
            for tokenizer, ids in ((source, source_ids), (target, target_ids))
        )
        mean = found.attention["cross"][layer].mean(axis=0)
        links = hard_alignment(mean, *entries, convention="output", unit="pieces")
        for kind, in_layer, head in request.heads_off:
            found.attention[kind][in_layer, head] = 0
        return {
            "model": self.name,
            "text": request.text,
            "heads_off": _heads_json(request.heads_off),
            "source": self._pieces(source, source_ids),
            "target": self._pieces(target, target_ids),
            "target_text": to_one_line(target.decode([target_ids])[0]),
            "log_prob": float(found.log_probs.sum(dtype=np.float64)),
            "tokens": [
                self._token(found, place, token, request.alternatives)
                for place, token in enumerate(target_ids)
            ],
            "alignment": [list(link) for link in links],
            "attention": {kind: _attention_json(found.attention[kind]) for kind in KINDS},
            "milliseconds": _milliseconds(started),
        }

    def _token(self, found, place, token, alternatives):
        target = self._tokenizers.target
        return {
            "id": token,
            "piece": self._piece(target, token),
            "log_prob": float(found.log_probs[place]),
            "rank": int(found.ranks[place]),
            "entropy": float(found.entropies[place]),
            "alternatives": [
                {"id": int(other), "piece": self._piece(target, other), "log_prob": float(log_prob)}
                for other, log_prob in zip(
                    found.top_ids[place, :alternatives], found.top_log_probs[place], strict=False
                )
            ],
        }

    def _check_name(self, name):
        if name not in (None, self.name):
            raise InvalidRequestError(f"`model` must be {ascii(self.name)}. Received: {ascii(name[:60])}")

    def _source(self, text):
        """Returns ids with the end of sentence, and whether the end of the text was left out."""
        source = self._tokenizers.source
        limit = self._search.max_source_length - 1
        (encoded,) = encode_texts([text], source.encode, limit=limit, long_lines="cut")
        if not encoded.rows:
            raise InvalidRequestError("`text` is blank")
        return [*encoded.rows[0], source.special.eos], encoded.is_cut

    def _target(self, target, source_ids):
        """Returns ids with the end of sentence, given a text or ids without.

        As many ids as the length limit, of this sentence or of all, get no end: the search has cut them off.
        """
        tokenizer = self._tokenizers.target
        if not isinstance(target, str) and len(target) <= self._limits.max_length:
            (limit,) = max_target_lengths([self._model], np.array([source_ids]), self._search)
            if len(target) in (int(limit), self._limits.max_length):
                return target
        ids = tokenizer.encode([target])[0] if isinstance(target, str) else target
        if len(ids) >= self._limits.max_length:
            raise InvalidRequestError(
                f"`target` has {len(ids) + 1} tokens with the end of sentence, more than the limit of "
                f"{self._limits.max_length}"
            )
        return [*ids, tokenizer.special.eos]

    @contextlib.contextmanager
    def _without(self, heads):
        """Context manager: this thread alone uses the copy of the model, without some heads."""
        with self._lock, without_heads(self._model, [Head(*head) for head in heads]):
            yield

    def _pieces(self, tokenizer, ids):
        return [{"id": token, "text": self._piece(tokenizer, token)} for token in ids]

    @staticmethod
    def _piece(tokenizer, token):
        kind, piece = tokenizer.entries[token]
        return SPECIAL[piece] if kind == "special" else piece


def _heads_json(heads):
    return [Head(*head)._asdict() for head in heads]


def _attention_json(weights):
    """Returns attention weights, float32, shape `(layers, heads, rows, columns)`, as JSON values."""
    whole = np.rint(weights * 65535).astype("<u2")
    sizes = dict(zip(("layers", "heads", "rows", "columns"), weights.shape, strict=True))
    return {**sizes, "data": base64.b64encode(whole.tobytes()).decode()}


def _milliseconds(started):
    return round(1000 * (time.perf_counter() - started), 3)
