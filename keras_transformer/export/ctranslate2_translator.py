"""Text in, text out with an exported CTranslate2 model: needs neither Keras nor TensorFlow."""

import itertools
import logging
import pathlib
import shlex

from keras_transformer.config import programs
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.export.model_card import read_facts
from keras_transformer.export.versions import check_manifest
from keras_transformer.text.lines import one_line
from keras_transformer.tokenizers.tokenizer_pair import load_tokenizers
from keras_transformer.translation.long_lines import encode_texts, joint
from keras_transformer.translation.results import BLANK, NBest, Translation, joined

logger = logging.getLogger(__name__)

KIND = "ctranslate2"
SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}

# CTranslate2 ends a sentence when so many times `beam_size` hypotheses have ended, whether or not
# a better one can follow; 1 is our rule "first". With 2, Multi30k's translations are those of the exact
# rule, which it has only without a length penalty: then the first end that is the best of the beam is
# the best of all.
_PATIENCE = 2.0
# Beyond it length ** alpha is no number that can be computed with.
_MAX_ALPHA = 20


def import_ctranslate2():
    """Returns the module.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise ValueError(
            "CTranslate2 is not installed. Install it: pip install -e '.[ctranslate2]' in the folder with "
            "setup.cfg, or pip install ctranslate2"
        ) from error
    return ctranslate2


def vocabulary_tokens(tokenizer):
    """Returns what CTranslate2 calls each id, a list of str without repetition.

    It is the piece, unless another id is called so: a text may have a piece `<s>`.
    """
    is_special = [kind == "special" for kind, _ in tokenizer.entries]
    names, taken = {}, set()
    for number in sorted(range(tokenizer.vocab_size), key=lambda number: not is_special[number]):
        text = tokenizer.entries[number][1]
        name = SPECIAL_TOKENS[text] if is_special[number] else text
        while name in taken:
            name += f"#{number}"
        taken.add(name)
        names[number] = name
    return [names[number] for number in range(tokenizer.vocab_size)]


def beam_options(search):
    """Returns CTranslate2's `length_penalty` and `patience` for a `SearchConfig`."""
    alpha = search.alpha if search.length_penalty == "average" else 0.0
    return alpha, _PATIENCE if search.stop == "exact" else 1.0


def search_notes(search):
    """Says which settings of search CTranslate2 takes otherwise, and which give translations equal to ours.

    Args:
        search: `SearchConfig` of a run.

    Returns:
        list of str; empty where translations are equal: greedy search, no length penalty with the
        exact rule, or length ** alpha with the rule "first"; to rounding, and where none is cut
        off at the limit of length, which is that of the longest sentence in a batch.
    """
    if search.beam_size == 1:
        return []
    if search.length_penalty == "none" or search.alpha == 0:
        if search.stop == "exact":
            return []
        return [
            "stop=first of the run does not carry over: without a length penalty CTranslate2 searches as "
            "stop=exact does",
            "equal to the program translate with --stop exact",
        ]
    notes = []
    if search.length_penalty == "gnmt":
        notes.append(
            f"length_penalty=gnmt of the run does not carry over: here it is length^{search.alpha:g}"
        )
    if search.stop == "exact":
        notes.append(
            "stop=exact of the run does not carry over: here a sentence ends when "
            f"{round(_PATIENCE * search.beam_size)} hypotheses have ended, though a better one may follow"
        )
    if notes:
        notes.append(
            "equal to the program translate with --length-penalty average --stop first if this folder is "
            "translated with the same two"
        )
    return notes


class CTranslate2Translator:
    """Translates sentences with a folder that `export_ctranslate2` wrote.

    Args:
        folder: its path.
        inter_threads: batches that are translated at the same time.
        intra_threads: threads of each; 0 for as many as CTranslate2 thinks fit.

    Attributes:
        tokenizers: `Tokenizers`.
        search: `SearchConfig`, the defaults of `translate`: those of the run, but for the
            length penalty, of which CTranslate2 knows length ** alpha alone.

    Raises:
        ValueError: ctranslate2 is not installed; or the folder is no such model, or a file of
            it was changed, removed or added.
    """

    def __init__(self, folder, *, inter_threads=1, intra_threads=0):
        ctranslate2 = import_ctranslate2()
        folder = pathlib.Path(folder)
        if (folder / "checkpoints").is_dir():
            raise ValueError(
                f"{folder}: a run. Export it first: {programs.command('export')} "
                f"{shlex.quote(str(folder))} OUT --format ctranslate2"
            )
        check_manifest(folder)
        facts = read_facts(folder, (KIND,))
        self.tokenizers = load_tokenizers(folder)
        self.search = SearchConfig(**facts["search"])
        if self.search.length_penalty == "gnmt":
            self.search = replace(self.search, length_penalty="average")
        self._joint = joint(facts["languages"]["target"])
        self._max_positions = facts["max_positions"]
        self._source_tokens, self._target_tokens = map(vocabulary_tokens, self.tokenizers)
        self._target_ids = {token: number for number, token in enumerate(self._target_tokens)}
        try:
            self._model = ctranslate2.Translator(
                str(folder), device="cpu", inter_threads=inter_threads, intra_threads=intra_threads
            )
        except RuntimeError as error:
            raise ValueError(f"{folder}: CTranslate2 cannot read it ({error}). Export it again") from error

    def translate(self, texts, **search):
        """Translates sentences.

        Args:
            texts: list of str, one sentence each.
            **search: as of `n_best`.

        Returns:
            list of str, as many and in the same order. A blank text gives `""`.
        """
        return [one.best.text for one in self.n_best(texts, **search)]

    def n_best(self, texts, **search):
        """Translates sentences, and tells what is known of the translations.

        Args:
            texts: list of str.
            **search: fields of `SearchConfig` to change. `stop="exact"` goes on until twice
                `beam_size` hypotheses have ended. The longest text of a batch decides how
                long its translations may get.

        Returns:
            list of `NBest`, as many and in the same order.

        Raises:
            ValueError: a setting that is refused, or which CTranslate2 does not have.
        """
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"`texts` must be a list of str. Received: one {type(texts).__name__}")
        config = replace(self.search, **search) if search else self.search
        self._check(config)
        limit = min(config.max_source_length, self._max_positions) - 1
        encoded = encode_texts(
            texts, self.tokenizers.source.encode, limit=limit, long_lines=config.long_lines
        )
        for flag, number in (
            ("cut", sum(one.is_cut for one in encoded)),
            ("split", sum(len(one.rows) > 1 for one in encoded)),
        ):
            if number:
                logger.warning("%s %d sentences at %d tokens", flag, number, limit)
        rows = list(itertools.chain.from_iterable(one.rows for one in encoded))
        found = iter(self._translate_rows(rows, config))
        return [self._joined([next(found) for _ in one.rows], one) for one in encoded]

    def _check(self, config):
        if config.sampling:
            raise ValueError("CTranslate2 models are searched here, not sampled. Received: sampling=True")
        if config.alpha > _MAX_ALPHA:
            raise ValueError(
                f"CTranslate2 takes an alpha of at most {_MAX_ALPHA}. Received: alpha={config.alpha:g}"
            )
        if config.max_source_length > max(self._max_positions, self.search.max_source_length):
            raise ValueError(
                f"The model was exported with {self._max_positions} positions. "
                f"Received: max_source_length={config.max_source_length}"
            )
        if config.length_penalty == "gnmt":
            raise ValueError(
                "CTranslate2 knows the length penalties 'average' and 'none'. Received: length_penalty='gnmt'"
            )

    def _translate_rows(self, rows, config):
        """Returns for each row of ids the list of its `Translation`s, best first."""
        alpha, patience = beam_options(config)
        options = {
            "beam_size": config.beam_size,
            "num_hypotheses": config.n_best,
            "length_penalty": alpha,
            "patience": patience,
            "no_repeat_ngram_size": config.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": [[SPECIAL_TOKENS["pad"]], [SPECIAL_TOKENS["bos"]]],
            "max_input_length": 0,
            "return_scores": True,
            # Only so does the length in the penalty count the end of sentence, as ours does.
            "return_end_token": True,
            "asynchronous": True,
        }
        waiting = []
        for numbers in _batches(rows, config.batch_tokens):
            longest = len(rows[numbers[-1]]) + 1
            length = int(longest * config.length_factor) + config.extra_length
            length = min(length, config.max_length, self._max_positions)
            tokens = [[self._source_tokens[one] for one in rows[number]] for number in numbers]
            waiting += zip(
                numbers,
                self._model.translate_batch(
                    tokens,
                    max_decoding_length=length,
                    min_decoding_length=min(config.min_length, length),
                    **options,
                ),
                strict=True,
            )
        translations = [None] * len(rows)
        for number, result in waiting:
            translations[number] = self._translations(result.result(), alpha)
        return translations

    def _translations(self, result, alpha):
        ids = [[self._target_ids[token] for token in tokens] for tokens in result.hypotheses]
        target = self.tokenizers.target
        return [
            Translation(
                text=one_line(text),
                score=score,
                log_prob=score * max(len(row), 1) ** alpha,
                pieces=[target.entries[one][1] for one in row if one != target.special.eos],
                ids=row,
                finished=row[-1:] == [target.special.eos],
            )
            for row, text, score in zip(ids, target.decode(ids), result.scores, strict=True)
        ]

    def _joined(self, parts, encoded):
        """The `NBest` of one text, of the translations of its parts."""
        entries = self.tokenizers.source.entries
        source_pieces = [[entries[one][1] for one in row] for row in encoded.rows]
        if not parts:
            return NBest([BLANK], [], 0, False)
        if len(parts) == 1:
            return NBest(parts[0], source_pieces[0], 1, encoded.is_cut)
        whole = joined([translations[0] for translations in parts], source_pieces, self._joint)
        return NBest([whole], list(itertools.chain.from_iterable(source_pieces)), len(parts), encoded.is_cut)


def _batches(rows, batch_tokens):
    """Groups the numbers of rows: alike in length, within the budget, the longest row last."""
    batches = []
    for number in sorted(range(len(rows)), key=lambda number: len(rows[number])):
        if not batches or (len(batches[-1]) + 1) * (len(rows[number]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(number)
    return batches[::-1]
