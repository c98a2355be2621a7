# `make demo` and `make test` need nothing but Python 3.11-3.13 with venv.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
RUN_DIR ?= runs/demo
# Processes that tests run in; each takes up to 6 GB.
TEST_PROCESSES ?= 2

.PHONY: demo test test-slow test-all test-lowest test-beam notebooks bench docs lint types dist clean

demo: $(VENV)/.installed
	$(BIN)/python pipelines/train_wmt.py --run-dir $(RUN_DIR)
	@echo 'They need the environment that was made here. Once in this shell: . $(BIN)/activate'

test: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

# Longer tests, and variants of tests, that `make test` leaves out.
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "slow and not very_slow"

test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "slow or not slow"

# A part of the suite with the lowest versions that setup.cfg allows, in .venv-lowest.
LOWEST_TESTS = tests/model/layers tests/model/test_transformer.py tests/model/test_train_step.py \
	tests/tokenizers/test_sentencepiece.py tests/text/test_cldr.py tests/evaluation/test_bleu.py \
	tests/translation/test_search.py tests/export/test_saved_model.py tests/checkpoints/test_final.py
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tests/shared/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-lowest/constraints.txt -e '.[data,plots,serving]' pytest
	.venv-lowest/bin/python -m pytest -W default $(LOWEST_TESTS)

# The examples with Apache Beam, which requires an older protobuf, in .venv-beam.
test-beam:
	$(PYTHON) -m venv .venv-beam
	.venv-beam/bin/python -m pip install --quiet --disable-pip-version-check -e '.[beam]' pytest
	.venv-beam/bin/python -m pytest -W default -m very_slow tests/test_beam.py

# Notebooks 3, 5 and 6 look at the model that comes with the package, or at a trained run, RUN=runs/m30k. They
# translate the run's test split, or the files TEXT and REFERENCE. Notebook 7 looks at a parser, PARSER=runs/parsing.
notebooks: $(VENV)/.installed-test
	RUN=$(abspath $(RUN)) PARSER=$(abspath $(PARSER)) TEXT=$(abspath $(TEXT)) REFERENCE=$(abspath $(REFERENCE)) $(BIN)/python notebooks/make.py

# Speed beside other libraries, whose environments are made in .venv-bench/ unless PEER_TORCH and others name
# Pythons that have them (docs/speed.md). Read build/bench/speed.md.
BENCH ?= --sizes small,small32k,base --rounds 3
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/compare.py --install --records build/bench/records.jsonl --output build/bench $(BENCH)

# Read docs/_build/html/index.html.
docs: $(VENV)/.installed-test
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

# dist/: a wheel and a source distribution.
dist:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	.venv-dist/bin/python -m build
	.venv-dist/bin/python -m twine check --strict dist/*

lint: $(VENV)/.installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

# The annotations alone, which `lint` checks, too.
types: $(VENV)/.installed-test
	$(BIN)/python -m mypy

$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "Python 3.11, 3.12 or 3.13 is needed, this is %d.%d: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[data,plots,serving]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-beam .venv-bench .venv-dist .venv-lowest build dist *.egg-info
