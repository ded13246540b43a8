# Two targets matter: `make demo` and `make test`. Both set up everything that they need and may be run again at any time.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test test-unit test-e2e test-all check fmt engine down lock plan build verify push clean patch-status port-drift bench compiler

VENV := .venv
BIN := $(VENV)/bin
# what the demo makes: the cell that any machine can build, run and ask
DEMO ?= flavor=cpu

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(BIN)/imagefactory: pyproject.toml
	@echo "setting up $(VENV)"
	@python3 -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

engine: $(BIN)/imagefactory ## a container engine: the machine's own, or a private one where none answers
	@scripts/engine up

demo: engine ## build and verify the demo cell, ending in a table of what was made and proven
	@$(BIN)/imagefactory build --matrix --select '$(DEMO)' --no-verify
	@$(BIN)/imagefactory verify --select '$(DEMO)'

test: check test-unit test-e2e ## everything but what moves tens of gigabytes

check: $(BIN)/imagefactory ## mypy strict and ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# the tests of the extension probe make small libraries, and proofs compile and configure upstream's sources
compiler:
	@{ command -v g++ && command -v cmake; } >/dev/null || { echo "installing g++ and cmake for the tests"; apt-get -qq update && apt-get -qq install -y --no-install-recommends cmake g++ >/dev/null; } \
	  || { echo "the tests need g++ and cmake: install them" >&2; exit 3; }

test-unit: $(BIN)/imagefactory compiler ## seconds, without an engine
	@$(BIN)/pytest -n auto -m 'not e2e and not large'

test-e2e: engine compiler ## a real engine, a real registry, real servers
	@$(BIN)/pytest -n 2 --dist loadgroup -m 'e2e and not large' tests/e2e

test-all: test ## all of it: a whole gb10 cell too, tens of gigabytes
	@$(BIN)/pytest -m large tests/e2e

patch-status: $(BIN)/imagefactory compiler ## measure every patch against every release, and write docs/patch-status.md
	@$(BIN)/imagefactory patch status --markdown docs/patch-status.md

port-drift: $(BIN)/imagefactory compiler ## carry every patch forward release by release, and write docs/port-drift.md
	@$(BIN)/python benchmarks/port_drift.py --markdown docs/port-drift.md

fmt: $(BIN)/imagefactory ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# the nightly's steps, one target each; SELECT narrows them, TO names the registry's repository
lock: $(BIN)/imagefactory ## resolve everything anew
	@$(BIN)/imagefactory lock --upgrade

plan: $(BIN)/imagefactory ## what would be built
	@$(BIN)/imagefactory plan $(if $(SELECT),--select '$(SELECT)')

build: engine ## build what changed
	@$(BIN)/imagefactory build --matrix --no-verify $(if $(SELECT),--select '$(SELECT)')

verify: engine ## verify what was built
	@$(BIN)/imagefactory verify $(if $(SELECT),--select '$(SELECT)')

push: engine ## push what was verified
	@$(BIN)/imagefactory push $(if $(SELECT),--select '$(SELECT)') $(if $(TO),--to '$(TO)')

# CELL names it as --select does; BENCH may hold further options, such as --together 'flavor=gb10'; PAGE is what is written
bench: engine ## measure a cell against other ways of making it, and write docs/benchmarks.md
	@$(BIN)/python benchmarks/images.py --select '$(or $(CELL),$(DEMO))' --markdown $(or $(PAGE),docs/benchmarks.md) $(BENCH)

down: ## stop the private engine, if there is one
	@scripts/engine down

clean: ## forget the virtual environment
	@rm -rf $(VENV)
