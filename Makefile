PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

.PHONY: install docs train test test-all test-more test-times lint unit test-slow test-kills test-install bench clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $(READY)

train: install
	$(BIN)/roundweave train

# Lint, types, import rules, and the tests that find nearly all faults: five minutes on two cores.
test: install
	@echo "five minutes on two cores; make test-all, which has every test but the slow ones, takes seventeen"
	@$(MAKE) --no-print-directory -j 2 lint unit

# Everything but the slow tests: seventeen minutes in all.
test-all: test test-more

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.weights

# More processes than the cores of a small machine, since tests often wait; those that share a server share one.
# Bytecode is kept, also where the environment says not to, since hundreds of processes would compile it again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 3 --dist loadgroup

unit: install
	$(PYTEST) -m "not slow and not thorough"

test-more: install
	$(PYTEST) -m "thorough and not slow"

# The dearest tests of the last run, in seconds of processor, and the sum of each folder.
test-times: install
	$(BIN)/python -m tests.times

test-slow: install
	$(BIN)/pytest -m slow

# Of the slow tests, runs of many kinds that are killed at random moments; ROUNDWEAVE_KILLS names a file for their lines.
test-kills: install
	$(BIN)/pytest -m slow tests/test_soak_kills.py

# What pip resolves from pyproject.toml alone, without constraints.txt, in an environment that is made for it and deleted.
test-install:
	.ci/test-install $(PYTHON)

# The site, from docs/ and from the code; its tutorials are run. Warnings are errors. It needs no network.
docs: install
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --builder html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: install
	$(BIN)/python -m tests.benchmarks.table --json docs/peers.json --picture docs/peers.png

clean:
	git clean -fdqX docs
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
