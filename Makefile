# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv, installs the pinned set-up, does its
# job, and can be run again.

PYTHON ?= python3
DATA ?= digits
DEMO := $(if $(filter digits,$(DATA)),runs/demo,runs/$(DATA))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
SOURCES := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all reach servers lint format docs bench release peers clean

help:  ## Say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

demo: $(VENV)/.base  ## Search 60 small CNNs, select an ensemble, take a picture of the page (DATA=digits or fashion-mnist); kill it and run it again: it goes on
	@if [ "$(DATA)" = fashion-mnist ] && [ ! -d /usr/share/datasets/fashion-mnist ]; then \
	  echo "demo: DATA=fashion-mnist needs Debian's package: apt-get install dataset-fashion-mnist" >&2; exit 2; fi
	@echo "== demo: 60 trials of a CNN on $(DATA), an ensemble, a report and a picture of the page, in $(DEMO)"
	$(BIN)/trainwright run examples/projects/images/$(DATA).toml --directory $(DEMO)
	@$(BIN)/python docs/picture.py $(DEMO) $(DEMO)/page.png || true
	@echo "to see it:  $(BIN)/trainwright ui $(DEMO)"

test: $(VENV)/.dev servers  ## Run the fast tests
	@echo "== test: the fast suite, a process per processor and one more"
	$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

test-all: $(VENV)/.dev servers  ## Run all tests, the slow ones too
	@echo "== test-all: everything, several minutes more than \`make test\`"
	$(BIN)/python -m pytest -q -m "slow or not slow"

reach: $(VENV)/.dev  ## Measure which functions the demo, the examples and the guides run; the share by package is printed
	rm -rf runs/reach .coverage .coverage.*
	$(BIN)/python -m coverage run -m trainwright run examples/projects/images/digits.toml --directory runs/reach
	$(BIN)/python -m coverage run -m pytest -q -m "slow or not slow" -p no:cacheprovider tests/test_examples.py tests/test_projects.py tests/docs/test_code_blocks.py
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage json --quiet -o runs/reach/coverage.json
	$(BIN)/python benchmarks/reach.py runs/reach/coverage.json

servers:  ## Install Redis and Chromium, which tests talk to, by apt where that is allowed; else say what is left out
	@missing=""; command -v redis-server >/dev/null || missing="redis-server"; \
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$$missing chromium"; \
	[ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; } || \
	  echo "test: left out is what needs: $$missing (apt-get install $$missing)"

lint: $(VENV)/.dev  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## Put style right where a tool can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## Build the documentation into docs/_build/html
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

bench: $(VENV)/.dev  ## Run the benchmarks that need no peers or data (see benchmarks/README.md for the others)
	$(BIN)/python benchmarks/ledger/run.py
	$(BIN)/python benchmarks/overhead/run.py
	$(BIN)/python benchmarks/asktell/run.py

release: $(VENV)/.base  ## Build wheel and sdist twice to the same bytes, pins with hashes and an SBOM, into dist/
	PYTHON=$(BIN)/python .ci/release

peers:  ## Install the peers that benchmarks compare with, each into a venv of its own below .peers/
	$(PYTHON) benchmarks/peers/install.py

clean:  ## Remove environments, runs and build products
	rm -rf $(VENV) runs docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.base: $(SOURCES)
	@echo "== set-up: .venv (about two minutes and 2 GB the first time)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install --constraint constraints.txt --editable ".[demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install --constraint constraints.txt --editable ".[all]" --group test --group lint
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) install --constraint constraints.txt --editable ".[demo,optuna]" --group docs
	@touch $@
