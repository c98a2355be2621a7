"""A prepared corpus as a person wants to see it: counts, warnings, pairs, pictures."""

import shlex

import numpy as np

from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.config import programs
from keras_transformer.text.cleaning import CleaningReport
from keras_transformer.text.languages import SAMPLE_SIZE, check_languages


def describe(prepared, data, *, examples=0):
    """Describes a prepared corpus.

    Args:
        prepared: `PreparedCorpus`.
        data: `DataConfig`, of which `batch_tokens`, `padding` and `max_shapes` count.
        examples: so many pairs are shown as text, pieces and ids.

    Returns:
        str, several lines: what was kept and dropped, tokens, padding, warnings, and the
        command that trains.
    """
    pairs, tokenizers = prepared.load_pairs(), prepared.load_tokenizers()
    report = CleaningReport.from_dict(prepared.manifest["report"])
    source, target = prepared.languages
    lines = [
        f"{prepared.path}: {pairs.num_pairs:,} pairs in {_number(len(prepared.manifest['shards']), 'shard')}",
        "",
        report.table(),
        "",
    ]
    for language, sequences, tokenizer in zip(prepared.languages, pairs, tokenizers, strict=True):
        lengths = sequences.lengths
        lines.append(
            f"{language}: {lengths.sum():,} tokens of {tokenizer.vocab_size:,}, "
            f"{lengths.mean():.1f} a sentence (half up to {_quantile(lengths, 0.5)}, "
            f"99 % up to {_quantile(lengths, 0.99)}, longest {lengths.max()})"
        )
    for split in prepared.splits:
        lines.append(f"{split}: {prepared.manifest['texts'][split]['num_pairs']:,} pairs as text")
    try:
        share = _planner(pairs, data).real_share()
        lines.append(
            f"batches of {data.batch_tokens:,} tokens a side: {100 * share:.1f} % of the positions are real"
        )
    except ValueError as error:
        lines.append(f"no batches of {data.batch_tokens:,} tokens a side: {error}")
    for warning in [*report.warnings(), *_language_warnings(prepared, pairs, tokenizers)]:
        lines.append(f"warning: {warning}")
    for number in _spread(pairs.num_pairs, examples):
        lines += ["", *_example(number, pairs, tokenizers)]
    path = shlex.quote(str(prepared.path))
    lines += [
        "",
        "next:",
        f"  {programs.command('prepare')} {path} --show 5 --plot lengths.png",
        f"  {programs.command('train')} --dataset {path} --source {source} --target {target} "
        "--preset base --run-dir RUN",
    ]
    return "\n".join(lines)


def batch_sizes(pairs, data):
    """Returns the sizes of the batches of one epoch.

    Args:
        pairs: `IdPairs`.
        data: `DataConfig`, of which `batch_tokens`, `padding` and `max_shapes` count.

    Returns:
        list of (positions of both sides, padding included; tokens; target length) of each batch.
    """
    lengths = pairs.source.lengths + pairs.target.lengths
    return [
        (
            plan.rows * (plan.source_len + plan.target_len),
            int(lengths[plan.indices].sum()),
            plan.target_len,
        )
        for plan in _planner(pairs, data).plan(0)
    ]


def _number(number, noun):
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _quantile(lengths, share):
    """The least length up to which at least this share of the sentences goes."""
    counts = np.cumsum(np.bincount(lengths))
    return int(np.searchsorted(counts, share * counts[-1]))


def _planner(pairs, data):
    return EpochPlanner(
        pairs.source.lengths,
        pairs.target.lengths,
        batch_tokens=data.batch_tokens,
        padding=data.padding,
        max_shapes=data.max_shapes,
    )


def _spread(num_pairs, number):
    return np.unique(np.linspace(0, num_pairs - 1, min(number, num_pairs)).astype(int)).tolist()


def _language_warnings(prepared, pairs, tokenizers):
    numbers = _spread(pairs.num_pairs, SAMPLE_SIZE)
    texts = [
        tokenizer.decode([sequences[i].tolist() for i in numbers])
        for sequences, tokenizer in zip(pairs, tokenizers, strict=True)
    ]
    return check_languages(*texts, *prepared.languages).warnings()


def _example(number, pairs, tokenizers):
    lines = [f"pair {number:,}"]
    for name, sequences, tokenizer in zip(("source", "target"), pairs, tokenizers, strict=True):
        ids = sequences[number].tolist()
        text = tokenizer.decode([ids])[0]
        lines += [
            f"  {name}  {text}",
            f"  pieces  {' '.join(tokenizer.pieces([text])[0])}",
            f"  ids     {' '.join(map(str, ids))}",
        ]
    return lines
