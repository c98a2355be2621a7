"""Writes a corpus as parallel text files: built-in corpora, archives and datasets become a plain folder."""

import contextlib
import itertools

from keras_transformer.batches.prepared import write_file
from keras_transformer.batches.sharding import open_text
from keras_transformer.files import create_folder_atomically
from keras_transformer.text.cleaning import CODES, CleaningReport, HashSet, pair_hashes
from keras_transformer.text.datasets import first_split
from keras_transformer.text.folders import TRAIN
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import decode_block


def write_text_corpus(config, folder):
    """Writes `train.LANGUAGE` and the files of the other splits, one sentence a line.

    Training pairs pass the filters of `config.cleaning` that look at the text; those that count tokens need
    a vocabulary, and are applied when the folder is prepared or trained on. Other splits are copied.

    Args:
        config: `Config`; only the sections `data` and `cleaning` are used.
        folder: a new or empty folder. It appears only when it is complete.

    Returns:
        (`CleaningReport` of the training pairs, dict from the other splits to their number of pairs)

    Raises:
        DataError: the text is invalid, cleaning drops all pairs, or the target is trees.
        ValueError: the folder is in use.
    """
    data = config.data
    if data.parses:
        raise DataError("--text writes sentences. Received: target trees. A treebank is text already")
    text = open_text(config)
    with create_folder_atomically(folder) as path:
        report = _write_training_pairs(text, path)
        report.check(data.dataset)
        others = {split: write_split(text, path, split)["num_pairs"] for split in text.splits}
    return report, others


def write_split(text, folder, split):
    """Writes a split of a `RawText` as it is; returns its entry for a manifest, a dict."""
    pairs = first_split(text.datasets, split).load(on_bad_utf8=text.data.on_bad_utf8)
    entry = {"num_pairs": len(pairs.source)}
    for side, lines in pairs._asdict().items():
        content = "".join(f"{line}\n" for line in lines).encode()
        entry[side] = write_file(folder, f"{split}.{getattr(text.data, side)}", content)
    return entry


def _write_training_pairs(text, folder):
    """Writes the training pairs that pass the filters; returns the `CleaningReport`."""
    report, seen = CleaningReport(), HashSet() if text.cleaner.config.drop_duplicates else None
    names = (text.data.source, text.data.target)
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(open(folder / f"{TRAIN}.{name}", "w", encoding="utf-8", newline="\n"))
            for name in names
        ]
        for _, block in text.blocks():
            pairs, num_replaced = decode_block(block, on_bad_utf8=text.data.on_bad_utf8)
            codes = text.cleaner.text_reasons(*pairs)
            if seen is not None:
                codes[(codes == 0) & seen.add(pair_hashes(*pairs))] = CODES["duplicate"]
            report += CleaningReport.of(codes, *pairs, num_replaced_utf8=num_replaced)
            for file, lines in zip(files, pairs, strict=True):
                file.writelines(f"{line}\n" for line in itertools.compress(lines, codes == 0))
    return report
