"""Scores translations: of a split or a standard test set by a trained model, or of files.

    python pipelines/evaluate_wmt.py RUN
    python pipelines/evaluate_wmt.py RUN --dataset DIR --split test --output hypotheses.de
    python pipelines/evaluate_wmt.py RUN --test-set wmt14/full
    python pipelines/evaluate_wmt.py --hypothesis A.de --hypothesis B.de --reference test.de

Prints sacreBLEU with its signature, chrF, TER, and BLEU on tokens as multi-bleu.perl
computes it, the paper's own with split compounds among them, cased and lower-cased. The
figures are not comparable with each other. Only what a search has written is scored, never
what a model predicts while it is shown the reference.
"""

import json
import re
import sys
import time

from early import is_local, open_runs
from ending import run
from evaluation_arguments import check, parse_args
from search_flags import describe, number_of_threads, search_settings
from startup import report_os_error


def translated(args):
    """Translates with a run; returns systems, references, standard set and language."""
    from keras_transformer.config.settings import replace
    from keras_transformer.evaluation.report import NamedLines
    from keras_transformer.files import check_output, write_text
    from keras_transformer.text.datasets import check_dataset, dataset_names

    if args.output:
        check_output(args.output)
    weights = args.weights or "final"
    data = open_runs(args.runs, weights)[0].config.data
    search = search_settings(args, args.runs[0])
    names = dataset_names(",".join(args.dataset or [data.dataset]))
    for name in names:
        check_dataset(name, args.data_dir or data.data_dir)
    if args.test_set or all(map(is_local, names)):
        name, source, targets, standard = text_of(args, data)
        threads = number_of_threads(args)
    else:
        threads = number_of_threads(args)  # quietly: TensorFlow Datasets imports TensorFlow, too
        name, source, targets, standard = text_of(args, data)
    from keras_transformer.translation.translator import Translator

    translator = Translator.load(args.runs, weights=weights, threads=threads)
    used = replace(translator.search, **search)
    runs = " and ".join(args.runs)
    print(
        f"translating {len(source):,} lines of {name} with the "
        f"{weights} weights of {runs} ({describe(used)})",
        file=sys.stderr,
    )
    begin = time.monotonic()
    translations = translator.translate(source, **search)
    print(f"{len(source) / (time.monotonic() - begin):.1f} sentences/s", file=sys.stderr)
    if args.output:
        write_text(args.output, "".join(f"{text}\n" for text in translations))
    references = [NamedLines(name, lines) for lines in targets]
    return [NamedLines(runs, translations)], references, standard, data.target


def text_of(args, data):
    """Returns name, source, list of references and standard set, or `None`, of what a run translates."""
    from keras_transformer.evaluation.test_sets import load_standard_set
    from keras_transformer.text.datasets import open_split

    if args.test_set:
        standard = load_standard_set(args.test_set, data.source, data.target)
        return str(standard), standard.source, standard.references, standard
    found = open_split(
        ",".join(args.dataset or [data.dataset]),
        args.split or "test",
        data.source,
        data.target,
        data_dir=args.data_dir or data.data_dir,
        manual_dir=args.manual_dir or data.manual_dir,
    )
    source, target = found.load(on_bad_utf8=data.on_bad_utf8)
    return f"{found.dataset.name} {found.name}", source, [target], None


def read(args):
    """Reads files; returns systems, references, standard set and language."""
    from keras_transformer.evaluation.report import NamedLines
    from keras_transformer.evaluation.test_sets import load_standard_set
    from keras_transformer.text.lines import read_lines

    systems = [NamedLines(path, read_lines(path)) for path in args.hypothesis]
    if args.test_set:
        if not (args.source and args.target):
            raise ValueError("--test-set needs --source and --target, such as --source en --target de")
        standard = load_standard_set(args.test_set, args.source, args.target)
        return systems, [NamedLines(str(standard), x) for x in standard.references], standard, args.target
    references = [NamedLines(path, read_lines(path)) for path in args.reference]
    return systems, references, None, args.target or language_of(args.reference)


def language_of(paths):
    """The language that all names end with, as corpora are named (`test.de`, `test.de.gz`), or `None`."""
    from babel import localedata

    endings = {re.sub(r"\.(gz|xz|bz2)$", "", path).rpartition(".")[2] for path in paths}
    ending = endings.pop() if len(endings) == 1 else ""
    return ending if re.fullmatch("[a-z]{2}", ending) and localedata.exists(ending) else None


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv, __doc__)
    try:
        check(args)
        from keras_transformer.evaluation.report import compare

        systems, references, standard, language = (translated if args.runs else read)(args)
        if args.detokenize:
            systems, references = detokenized(args.detokenize, systems, references, language)
        found = compare(
            systems,
            references,
            target_language=language,
            tokens=args.tokens,
            ter=not args.no_ter,
            confidence=args.confidence,
            significance=args.significance,
            draws=args.draws,
            standard_set=standard,
        )
    except OSError as error:
        return report_os_error("evaluate_wmt.py", error, args.output)
    except ValueError as error:
        print(f"evaluate_wmt.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(found.to_dict(), indent=2) if args.json else found)
    return 0


def detokenized(which, systems, references, language):
    """Returns systems and references with the tokens of one side or both joined."""
    from keras_transformer.evaluation.moses import detokenize

    if not language:
        raise ValueError("--detokenize needs --target, such as --target de: Moses' rules are a language's")

    def join(texts):
        return [text._replace(lines=detokenize(text.lines, language)) for text in texts]

    return (
        systems if which == "reference" else join(systems),
        references if which == "hypothesis" else join(references),
    )


if __name__ == "__main__":
    run(main)
