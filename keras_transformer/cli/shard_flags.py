"""Flags of `translate` for texts that are translated in parts."""

import pathlib
import re

MAX_PARTS = 99_999  # names have five digits


def add_shard_flags(parser):
    """Adds `--shards`, `--num-shards` and `--shard` to an `argparse.ArgumentParser`."""
    group = parser.add_argument_group("parts", "for a long --input, on one machine or several")
    group.add_argument(
        "--shards",
        metavar="DIR",
        help="folder with a file for each part, complete or not there; the same command continues; "
        "--output joins the parts when all are complete",
    )
    group.add_argument("--num-shards", type=int, metavar="N", help="number of parts of a new DIR")
    group.add_argument(
        "--shard",
        metavar="I/N",
        help="translate part I of N only, counted from 1 (default: all that are missing)",
    )


def check_shard_flags(parser, args):
    """Ends the program if flags of parts cannot be used; sets `args.part` and `args.num_shards`."""
    args.part = None
    for name in ("shard", "num_shards"):
        if getattr(args, name) is not None and not args.shards:
            parser.error(f"--{name.replace('_', '-')} needs --shards DIR")
    if args.shards and pathlib.Path(args.shards).is_file():
        parser.error(f"--shards {args.shards} is a file. Choose a folder")
    if args.shards and not args.input:
        parser.error("--shards needs --input FILE, as each part is read from it")
    if args.shard is not None:
        match = re.fullmatch(r"(\d+)/(\d+)", args.shard)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            parser.error(f"--shard must be I/N, part I of N with I from 1 to N, not {args.shard}")
        if args.num_shards not in (None, int(match[2])):
            parser.error(
                f"--shard {args.shard} names another number of parts than --num-shards, which is not needed"
            )
        args.part, args.num_shards = int(match[1]), int(match[2])
    if args.num_shards is not None and not 1 <= args.num_shards <= MAX_PARTS:
        parser.error(f"the number of parts must be from 1 to {MAX_PARTS:,}, not {args.num_shards}")
