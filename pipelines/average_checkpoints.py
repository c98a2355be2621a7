"""Averages the weights of several checkpoints of a run (section 6.1).

    python pipelines/average_checkpoints.py RUN --last 20
    python pipelines/average_checkpoints.py RUN --best 3

The average has a name, `last-20` or `best-3`, for `--weights` of translate.py and
evaluate_wmt.py. Nothing else in the run folder changes.
"""

import sys

from command_line import Parser
from startup import import_quietly


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(__doc__, prog="average_checkpoints.py")
    parser.add_argument("run", metavar="RUN", help="run folder of a training run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="the newest N checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="those of the best K validations")
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    import_quietly()
    from keras_transformer.training.errors import TrainingError

    try:
        from keras_transformer.training.run_folder import RunFolder

        steps = RunFolder(args.run).average(last=args.last, best=args.best)
    except TrainingError as error:
        print(f"average_checkpoints.py: {error}", file=sys.stderr)
        return error.exit_code
    except (ValueError, OSError) as error:
        print(f"average_checkpoints.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    name = f"last-{args.last}" if args.last else f"best-{args.best}"
    asked = args.last or args.best
    fewer = f" (there are no more than {len(steps)})" if len(steps) < asked else ""
    print(f"{name}: the mean of {', '.join(f'step-{step}' for step in steps)}{fewer}")
    print("next:")
    print(f"  python pipelines/evaluate_wmt.py {args.run} --weights {name}")
    print(f"  echo 'your sentence' | python pipelines/translate.py {args.run} --weights {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
