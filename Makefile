# Everything starts here; CI calls these targets and nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-fast check format bench clean
help:       ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "partlabel needs Python 3.11 or newer; try make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/made pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/developing: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: .venv/installed  ## install, then the paper's argument in three minutes: outputs/demo/report.html
	$(BIN)/partlabel demo

test: .venv/developing  ## all tests but those that need a GPU
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not gpu"

test-fast: .venv/developing  ## the one-minute subset
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not gpu and not slow"

check: .venv/developing  ## everything static
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/developing  ## rewrite in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/developing  ## import at Open Images size (10 GB of disk) every loss and the metrics, beside their peers
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python benchmarks/import_labels.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/metrics.py

clean:      ## remove what the targets made
	rm -rf .venv outputs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
