# Every target sets up what it needs in .venv, once, and again when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo check test sweep test-all smoke monkey fuzz faults live-hour test-record lint types format clean docs bench bench-quick bench-peers

demo: $(VENV)/app
	@$(BIN)/chopper demo

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
# Tests start Chopper some hundred times: without its bytecode each start compiles it anew.
unexport PYTHONDONTWRITEBYTECODE

# The inner loop: what a change most likely breaks.
check: $(VENV)/dev lint types
	$(PYTEST) -m "not slow and not sweep"

# What CI runs. Rewriting every assertion of a fresh clone takes a tenth of the time: only failures get it.
test: $(VENV)/dev lint types
	$(PYTEST) -m "not sweep" --assert=plain || { $(PYTEST) -m "not sweep" --last-failed --last-failed-no-failures none; exit 1; }

# What CI runs once a day: key sweeps, old terminals, process kills, damaged files. SWEEP takes folders and options: make sweep SWEEP=tests/tui
sweep: $(VENV)/dev
	$(PYTEST) -m sweep $(SWEEP)

# Installs the wheel on each supported Python of this machine and once with the lowest versions of its dependencies, and tries it.
smoke: $(VENV)/dev
	$(BIN)/python -m tests.smoke $(SMOKE)

# Also ten times the examples of property tests, key sweeps, old terminals, process kills, byte comparisons of the demo data, readers of exports: Chakra's tools and HTA.
test-all: $(VENV)/chakra lint types
	$(PYTEST) --hypothesis-profile thorough

# An hour of random keys, mouse, pastes and resizes; MONKEY takes options and more runs: make monkey MONKEY="--seed 7 RUN"
monkey: $(VENV)/dev
	$(BIN)/python -m tests.programs.monkey --seconds 3600 $(MONKEY)

# An hour of damaged files; FUZZ takes options: make fuzz FUZZ="--only rocpd --seconds 60"
fuzz: $(VENV)/dev
	$(BIN)/python -m tests.programs.fuzz --seconds 3600 $(FUZZ)

# A thousand kills and faults of ingest; FAULTS takes options: make faults FAULTS="--seed 7 --only dask"
faults: $(VENV)/dev
	$(BIN)/python -m tests.programs.faults --kills 1000 $(FAULTS)

# An hour of live in twenty minutes, each second's screen against its own sums; HOUR takes options: make live-hour HOUR="--of-node"
live-hour: $(VENV)/dev
	$(BIN)/python -m tests.programs.live_hour $(HOUR)

# Records training scripts with real torch on two ranks of the CPU, also by deepspeed, torchtitan and trl where they are; TORCH names a Python: make test-record TORCH=~/torch/bin/python
test-record: $(VENV)/dev
	CHOPPER_TORCH="$(TORCH)" $(BIN)/python -m pytest -rs --durations=0 tests/record/real

# Rewrites the generated parts of README and docs, the pictures and the goldens; read the diff.
docs: $(VENV)/dev
	CHOPPER_UPDATE_GOLDENS=1 $(PYTEST) $$(grep -rlE 'wording: Wording|mark\.golden' tests --include='test_*.py')

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Workers halve the time of the first run, and lengthen those after it.
types: $(VENV)/dev
	$(if $(wildcard .mypy_cache),,MYPY_NUM_WORKERS=2) $(BIN)/mypy

# BENCH takes options and parts: make bench-quick BENCH="reading ranks --rounds 5"
bench: $(VENV)/dev
	$(BIN)/python -m tests.programs.bench -o docs/internals/benchmarks.md $(BENCH)

# The ratios from small runs, in three minutes.
bench-quick: $(VENV)/dev
	$(BIN)/python -m tests.programs.bench --quick $(BENCH)

# The same beside JSON decoders and another trace analyser. The original Chopper and TraceLens run from
# a checkout: see CHOPPER_MERGE and TRACELENS in tests/programs/bench/reading.py.
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
	  { echo "Chopper needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setting up $(VENV) (once)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'

$(VENV)/app: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable '.[fast]' >&2
	@touch $@

$(VENV)/dev: $(VENV)/app
	@$(PIP) install --group dev >&2
	@touch $@

$(VENV)/chakra: $(VENV)/dev
	@$(PIP) install --group chakra --group hta >&2
	@$(PIP) install --no-deps mlc-chakra==1.0.0 HolisticTraceAnalysis==0.5.0 >&2
	@touch $@
