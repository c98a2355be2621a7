"""Makes the notebooks: runs the cells of NAME.py and writes NAME.ipynb with all that they showed.

    python notebooks/make.py                            # all of them
    python notebooks/make.py 01_the_paper               # one
    python notebooks/make.py --quick --out /tmp/quick   # small settings, as the tests have them

NAME.py is text, a cell after every `# %%`: edit that one. A notebook is written when all its cells
have run, without an error and without a warning; it has no times and no places of the machine.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
# Notebooks of another run than RUN: the environment variable that names its folder.
NEEDS = {"07_parsing": "PARSER"}
# A cell that takes longer hangs.
SECONDS_A_CELL = 1200
_CHATTER = re.compile(r"WARNING: All log messages before absl|[IWE]\d{4} \d|To enable the following|$")


def parse_args(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Runs the notebooks and keeps what they show.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="without .py (default: all)")
    parser.add_argument("--quick", action="store_true", help="small settings: seconds, poor results")
    parser.add_argument("--out", default=FOLDER, type=pathlib.Path, metavar="DIR", help="default: notebooks/")
    args = parser.parse_args(argv)
    there = sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))
    unknown = [name for name in args.names if name not in there]
    if unknown:
        parser.error(f"no notebook {unknown[0]!r}. There are: {', '.join(there)}")
    if not args.names:
        args.names = [name for name in there if NEEDS.get(name) is None or os.environ.get(NEEDS[name])]
        for name in sorted({*there} - {*args.names}):
            print(f"left out: {name} needs the environment variable {NEEDS[name]}, the folder of a run")
    return args


def make(name, out):
    """Runs one notebook and writes it to a folder."""
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    notebook = jupytext.read(FOLDER / f"{name}.py")
    notebook.metadata = {"language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        cell.metadata = {}
    client = NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute(stderr=subprocess.DEVNULL)  # the cells have it, too
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not _is_chatter(output)]
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                raise RuntimeError(f"a cell wrote to standard error:\n{cell.source}\n{output.text}")
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / f".{name}.ipynb.tmp"
    nbformat.write(notebook, temporary)
    os.replace(temporary, out / f"{name}.ipynb")


def _is_chatter(output):
    """Whether an output is what TensorFlow's C++ says of itself when it is imported."""
    if output.output_type != "stream" or output.name != "stderr":
        return False
    return all(_CHATTER.match(line) for line in output.text.splitlines())


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    try:
        import jupytext  # noqa: F401
        import nbclient
    except ImportError as error:
        print(f"make.py: {error}. Install: pip install -e '.[notebooks]'", file=sys.stderr)
        return 2
    paths = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    if args.quick:
        os.environ["QUICK"] = "1"
    for name in args.names:
        begin = time.monotonic()
        try:
            make(name, args.out)
        except (nbclient.exceptions.CellExecutionError, RuntimeError) as error:
            print(f"make.py: {name}.py: {error}", file=sys.stderr)
            return 1
        print(f"{args.out / name}.ipynb: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
