# `make demo` and `make test` set up what they need in .venv, once, and again when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint types format clean bench bench-peers

demo: $(VENV)/app
	@$(BIN)/chopper demo

test: $(VENV)/dev lint types
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/dev
	$(BIN)/mypy

# BENCH takes parts, to measure these anew only, and options: make bench BENCH="reading ranks --rounds 5"
bench: $(VENV)/dev
	$(BIN)/python -m tests.bench -o docs/benchmarks.md $(BENCH)

# What there is to measure beside: JSON decoders and another analyser of such traces. The original
# Chopper and TraceLens run from a checkout: see CHOPPER_MERGE and TRACELENS in tests/bench/reading.py.
bench-peers: $(VENV)/dev
	@$(PIP) install orjson ijson HolisticTraceAnalysis >&2
	@$(MAKE) bench

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Chopper needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setting up $(VENV) (once)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'

$(VENV)/app: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable '.[fast]' >&2
	@touch $@

$(VENV)/dev: $(VENV)/app
	@$(PIP) install --group dev >&2
	@touch $@
