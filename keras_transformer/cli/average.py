"""Averages the weights of several checkpoints of a run (section 6.1).

    keras-transformer average RUN --last 20
    keras-transformer average RUN --best 3

The average is stored in the run folder as `last-20` or `best-3`. Use this name with `--checkpoint` of
`translate` and `evaluate`. Checkpoints saved by a signal or at the end of training are left out, as they are
not on schedule.
"""

import shlex
import sys

from keras_transformer.cli.command_line import program_parser
from keras_transformer.cli.early_checks import open_runs
from keras_transformer.cli.process import exit_code, import_quietly, open_closed_streams
from keras_transformer.config import programs


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("average")
    parser.add_argument("run", metavar="RUN", help="run folder")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="average the newest N checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="average the weights of the best K validations")
    parser.add_argument(
        "--off-schedule",
        action="store_true",
        help="with --last: include checkpoints that were saved after a signal or at the end of training",
    )
    args = parser.parse_args(argv)
    for name in ("last", "best"):
        if (number := getattr(args, name)) is not None and number < 1:
            parser.error(f"--{name} must be at least 1. Received: {number}")
    if args.off_schedule and args.best is not None:
        parser.error("--off-schedule needs --last N; --best K averages any validated weights")
    return args


def notes(run, chosen, off_schedule):
    """Yields warnings about the averaged checkpoints."""
    from keras_transformer.checkpoints.averaging import missing_note, steps_text

    warmup = run.config.training.warmup_steps
    if chosen.early:
        yield (
            f"{run.path}: checkpoints within the warm-up (training.warmup_steps={warmup}): "
            f"{steps_text(chosen.early)}. Their average may be worse than the last checkpoint"
        )
    if chosen.forced:
        done = "included" if off_schedule else "left out (--off-schedule includes them)"
        yield f"{run.path}: checkpoints not saved on schedule: {steps_text(chosen.forced)}; {done}"
    if note := missing_note(run.path / "checkpoints", chosen):
        yield note


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    open_closed_streams()

    def work():
        (run,) = open_runs([args.run])
        run.averages.steps(last=args.last, best=args.best, forced=True)  # fail before the slow import
        import_quietly()
        steps = run.average(last=args.last, best=args.best, forced=args.off_schedule)
        if args.last:
            for note in notes(
                run, run.averages.choose(args.last, forced=args.off_schedule), args.off_schedule
            ):
                print(f"{programs.name('average')}: {note}", file=sys.stderr)
        name = f"last-{args.last}" if args.last else f"best-{args.best}"
        number = args.last or args.best
        fewer = f" (only {len(steps)} available)" if len(steps) < number else ""
        print(f"{name}: average of {', '.join(f'step-{step}' for step in steps)}{fewer}")
        folder = shlex.quote(args.run)
        print("next:")
        print(f"  {programs.command('evaluate')} {folder} --checkpoint {name}")
        program = "parse" if run.config.data.parses else "translate"
        print(f"  echo 'your sentence' | {programs.command(program)} {folder} --checkpoint {name}")

    return exit_code(programs.name("average"), work)
