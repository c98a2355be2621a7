# `make demo` and `make test` need nothing but Python 3.11-3.13 with venv.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
RUN_DIR ?= runs/demo
# Processes that tests run in; each takes up to 6 GB.
TEST_PROCESSES ?= 2

.PHONY: demo test test-slow notebooks bench docs lint clean

demo: $(VENV)/.installed
	$(BIN)/python pipelines/train_wmt.py --run-dir $(RUN_DIR)
	@echo 'They need the environment that was made here. Once in this shell: . $(BIN)/activate'

test: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "slow or not slow"

# Notebooks 3, 5 and 6 look at a trained run: RUN=runs/m30k for another than the demo's. They translate its
# test split, or the files TEXT and REFERENCE. Notebook 7 looks at a parser, PARSER=runs/parsing.
RUN ?= $(RUN_DIR)
notebooks: $(VENV)/.installed-test
	$(if $(filter $(RUN_DIR),$(RUN)),$(BIN)/python pipelines/train_wmt.py --run-dir $(RUN))
	RUN=$(abspath $(RUN)) PARSER=$(abspath $(PARSER)) TEXT=$(abspath $(TEXT)) REFERENCE=$(abspath $(REFERENCE)) $(BIN)/python notebooks/make.py

# Speed beside other libraries, whose environments are made in .venv-bench/ unless PEER_TORCH and others name
# Pythons that have them (docs/speed.md). Read build/bench/speed.md.
BENCH ?= --sizes small,small32k,base --rounds 3
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/compare.py --install --records build/bench/records.jsonl --output build/bench $(BENCH)

# Read docs/_build/html/index.html.
docs: $(VENV)/.installed-test
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

lint: $(VENV)/.installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "Python 3.11, 3.12 or 3.13 is needed, this is %d.%d: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[data,plots,serving]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-bench build *.egg-info
