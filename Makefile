# Two targets matter: `make demo` and `make test`. Both set up everything that they need, and can be
# run again at any time.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test test-unit test-programs test-proofs test-e2e test-all check fmt engine down compiler clean
.PHONY: wheel plan-check lock-check patch-check nightly dashboard
.PHONY: lock plan build verify push patch-status port-drift audit-table simulated-year schema bench
.PHONY: memory-table bench-disk bench-dashboard browser skopeo sshd starters faults kills test-faults mutants test-mutants
.PHONY: test-gpu gpu-page room

# otherwise each of the processes of a test run compiles all modules again
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# as modules: given as paths, mypy calls all of them `proof`
PROOFS := $(subst /,.,$(patsubst patches/%.py,%,$(wildcard patches/*/*/proof.py)))
CPU_IMAGE := imagefactory/vllm:cpu-vllm0.32.0-torch2.13.0-cpu
# the cell that `make demo` builds: one that this machine runs without emulation
DEMO ?= flavor=$(if $(filter aarch64 arm64,$(shell uname -m)),cpu-arm64,cpu)

help: ## show this list
	@sed -nE 's/^([a-z0-9-]+):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 21

$(BIN)/imagefactory: pyproject.toml
	@echo "setting up $(VENV)"
	@python3 -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

engine: $(BIN)/imagefactory ## start a private container engine if none is running
	@scripts/engine up

demo: engine ## build and verify the demo cell, and show the results
	@$(BIN)/imagefactory build --matrix --select '$(DEMO)' --no-verify
	@$(BIN)/imagefactory verify --select '$(DEMO)'
	@command -v imagefactory >/dev/null || \
	  echo "to call imagefactory by its name: source $(BIN)/activate"

# GiB that `make test` took on the disk with an empty engine, when downloads were cached
ROOM ?= 30
room:
	@scripts/room '$(ROOM)'

test: room check test-unit test-programs test-faults test-mutants test-proofs test-e2e ## run all tests except the large ones

check: $(BIN)/imagefactory ## run ruff, mypy, and linters of the workflows
	@PATH="$$PWD/$(BIN):$$PATH" actionlint
	@$(BIN)/zizmor --offline --quiet --no-progress .github action.yml
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@# releases of numpy type calls in different ways, and a changed proof would change images
	@MYPYPATH=imagefactory/inbuild:patches $(BIN)/mypy --disable-error-code call-overload \
	  $(PROOFS:%=-m %)

# tests compile small libraries; proofs compile and configure upstream's sources
compiler:
	@{ command -v g++ && command -v cmake; } >/dev/null || { \
	  echo "installing g++ and cmake for the tests"; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends cmake g++ >/dev/null; } \
	  || { echo "the tests need g++ and cmake: install them" >&2; exit 3; }

# tests of the dashboard look at it in a browser
browser:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } \
	  >/dev/null || { echo "installing Chromium for the tests"; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium >/dev/null; } \
	  || { echo "the tests need Chromium: install it" >&2; exit 3; }

# tests read with it what is attached to images
skopeo:
	@{ command -v skopeo && command -v ssh-keygen; } >/dev/null || { \
	  echo "installing skopeo and ssh-keygen for the tests"; \
	  apt-get -qq update && \
	  apt-get -qq install -y --no-install-recommends skopeo openssh-client >/dev/null; } \
	  || { echo "the tests need skopeo and ssh-keygen: install them" >&2; exit 3; }

# tests start other machines, which are reached over ssh. It is unpacked rather than installed: the
# package would open this machine's own port 22
sshd: $(BIN)/imagefactory
	@test -x /usr/sbin/sshd || test -x $(VENV)/sshd/usr/sbin/sshd || { \
	  echo "unpacking sshd for the tests"; \
	  rm -rf $(VENV)/sshd.part && mkdir $(VENV)/sshd.part && cd $(VENV)/sshd.part && \
	  apt-get -qq update && apt-get -qq -o APT::Sandbox::User=root download openssh-server libwrap0 && \
	  for deb in *.deb; do dpkg -x "$$deb" .; done && rm -f -- *.deb && mv ../sshd.part ../sshd; } \
	  || { echo "the tests need sshd: install openssh-server" >&2; exit 3; }

# tests read exported files with them. Both run with the libc of older releases, which have Compose 1
# and a Podman without quadlets
starters: $(BIN)/imagefactory
	@test -x $(VENV)/starters/usr/libexec/podman/quadlet || { \
	  echo "unpacking Docker Compose and Podman's generator for the tests"; \
	  sh tests/support/unpack.sh trixie $(CURDIR)/$(VENV)/starters docker-compose podman; } \
	  || { echo "the tests need Debian's packages docker-compose and podman" >&2; exit 3; }

test-unit: $(BIN)/imagefactory ## run the unit tests, which need no engine and start no programs
	@# in a fresh clone, each process would compile all of it
	@$(BIN)/python -m compileall -qq -j 0 imagefactory tests/support
	@$(BIN)/pytest -n $$(nproc) -m 'not programs and not e2e' tests/unit imagefactory

# one process more than there are cores, for some tests wait
PARALLEL = $(BIN)/pytest -n $$(($$(nproc) + 1))
test-programs: $(BIN)/imagefactory compiler ## run the tests that start git, uv, Python or compilers
	@$(PARALLEL) -m 'programs and not e2e' tests/unit imagefactory

test-proofs: $(BIN)/imagefactory compiler ## test the proofs of patches on small sources
	@$(PARALLEL) tests/proofs

# attacks are made from a seed: SEED=1 tries others, COUNT=1000 more of them
FAULTS = PYTHONPATH=tests $(BIN)/python -m faults
test-faults: $(BIN)/imagefactory ## attack the factory, in short
	@$(FAULTS)

faults: $(BIN)/imagefactory ## attack the factory with COUNT faults of each kind, made from SEED
	@$(FAULTS) --seed $(or $(SEED),0) --count $(or $(COUNT),1000) $(NAMES)

kills: engine ## kill nights and pushes at COUNT points, drawn from SEED, by SIGKILL
	@KILLS=$(or $(COUNT),20) SEED=$(or $(SEED),0) $(BIN)/pytest -m e2e tests/e2e/test_nightly.py -k killed

# COUNT mutants of each of the factory's ROOMS are drawn with SEED. The short form does not find out
# which tests call what: a mutant may survive it for lack of time
mutants: $(BIN)/imagefactory ## mutate patches and code; what survives is untested
	@COUNT=$(or $(COUNT),40) PYTHONPATH=tests $(BIN)/python -m mutants $(NAMES)

test-mutants: $(BIN)/imagefactory compiler ## mutate the factory's code, in short
	@QUICK=1 COUNT=$(or $(COUNT),2) PYTHONPATH=tests $(BIN)/python -m mutants factory

# PYTHON is one with torch and perhaps vLLM; what runs is recorded in tests/data/gpu
test-gpu: $(BIN)/imagefactory ## test on the NVIDIA GPU of this machine, and record it
	@PYTHONPATH=tests $(BIN)/python -m gpu --python '$(or $(PYTHON),python3)'

gpu-page: $(BIN)/imagefactory ## write docs/gpu.md from what was recorded on GPUs
	@PYTHONPATH=tests $(BIN)/python -c 'from gpu import records; print(records.page(), end="")' \
	  >docs/gpu.md.part && mv docs/gpu.md.part docs/gpu.md

# three at a time: tests that need no image of a cell, those that make wheels, and those that use the
# one image; much of what they do runs on one core, or waits
# releases that test_patches.py measures are drawn each day, or with SEED; test-all measures all
E2E := $(BIN)/pytest -m 'e2e and not large'
tests = $(patsubst %,tests/e2e/test_%.py,$(1))
WITHOUT_IMAGE := $(wildcard tests/e2e/test_patch*.py) $(call tests,cluster dashboard log_rules \
  machines moving_tags real_index receipts_travel recipes refs simulated_weeks transport)
WHEELS := $(wildcard tests/e2e/test_wheel*.py) $(call tests,compiled)
test-e2e: room engine compiler browser skopeo sshd starters ## a real engine, a real registry, real servers
	@logs=$$(mktemp -d); trap 'rm -rf "$$logs"' EXIT; \
	  $(E2E) $(WITHOUT_IMAGE) >"$$logs/others" 2>&1 & others=$$!; \
	  $(E2E) $(WHEELS) >"$$logs/wheels" 2>&1 & wheels=$$!; \
	  failed=0; $(E2E) tests/e2e $(WITHOUT_IMAGE:%=--ignore=%) $(WHEELS:%=--ignore=%) || failed=$$?; \
	  wait $$others || failed=$$?; cat "$$logs/others"; \
	  wait $$wheels || failed=$$?; cat "$$logs/wheels"; exit $$failed

test-all: test ## run all tests: builds a gb10 cell, tens of gigabytes
	@$(BIN)/pytest -m large tests/e2e

patch-status: $(BIN)/imagefactory compiler ## measure all patches; write docs/patch-status.md
	@$(BIN)/imagefactory patch status --markdown docs/patch-status.md

port-drift: $(BIN)/imagefactory compiler ## rebase all patches; write docs/port-drift.md
	@$(BIN)/python benchmarks/port_drift.py --markdown docs/port-drift.md

# reads 7 GB of wheels the first time, and keeps what it found in the cache folder
audit-table: $(BIN)/imagefactory ## audit releases of vLLM; write docs/audit-table.md
	@$(BIN)/python benchmarks/audit_table.py --markdown docs/audit-table.md

# asks the cpu image, which `make demo` builds, or PYTHON with vLLM's CPU build
memory-table: $(BIN)/imagefactory ## ask vLLM for its KV-cache blocks; write docs/memory-table.md
	@$(BIN)/python benchmarks/memory_table.py --markdown docs/memory-table.md \
	  $(if $(PYTHON),--python '$(PYTHON)',--image '$(or $(IMAGE),$(CPU_IMAGE))')

# minutes of lock and proofs for each release; WORK keeps what was read of PyPI
simulated-year: $(BIN)/imagefactory compiler ## replay a year of releases as nights; write docs/simulated-year.md
	@$(BIN)/python benchmarks/simulated_year.py --markdown docs/simulated-year.md \
	  $(if $(WORK),--folder '$(WORK)')

SCHEMA = import json; from imagefactory.$(1) import json_schema; \
  print(json.dumps(json_schema(), indent=2))
schema: $(BIN)/imagefactory ## write the JSON Schemas in docs
	@$(BIN)/python -c '$(call SCHEMA,matrix.schema)' >docs/matrix.schema.json
	@$(BIN)/python -c '$(call SCHEMA,verifying.receipt)' >docs/receipt.schema.json
	@$(BIN)/python -c '$(call SCHEMA,recipes.schema)' >docs/recipe.schema.json

fmt: $(BIN)/imagefactory ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# VERSION is that of a release, which the wheel must have
wheel: $(BIN)/imagefactory ## build the wheel into dist/
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	  $(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/imagefactory-$(or $(VERSION),*)-py3-none-any.whl

plan-check: $(BIN)/imagefactory ## check that matrix, lock and patches agree
	@$(BIN)/imagefactory plan --check

lock-check: $(BIN)/imagefactory ## check that everything in the lock is still available
	@$(BIN)/imagefactory lock --check

# the patches of every cell are tried if anything did that they depend on
BASE ?= origin/main
patch-check: $(BIN)/imagefactory compiler ## measure the patches that changed since BASE
	@git diff --quiet '$(BASE)...' -- matrix.yaml wheels.lock patches || \
	  $(BIN)/imagefactory patch check '*'
	@git diff --name-only '$(BASE)...' -- 'patches/*/*/*' | cut -d/ -f2-3 | sort -u | \
	  while read -r name; do test ! -d "patches/$$name" || echo "$$name"; done | \
	  xargs --no-run-if-empty $(BIN)/imagefactory patch status

# TO is the repository to push to; MAX_CELLS and MAX_MINUTES are the budget
nightly: engine ## take over what is new, build, verify, push, and move the nightly tags
	@$(BIN)/imagefactory nightly $(if $(TO),--to '$(TO)') \
	  $(if $(MAX_CELLS),--max-cells $(MAX_CELLS)) $(if $(MAX_MINUTES),--max-minutes $(MAX_MINUTES))

dashboard: $(BIN)/imagefactory ## write the site that shows the nights to dashboard/
	@$(BIN)/imagefactory dashboard -o dashboard

# the steps of a night by hand; SELECT selects cells, TO is the repository to push to
lock: $(BIN)/imagefactory ## resolve all cells again
	@$(BIN)/imagefactory lock --upgrade

plan: $(BIN)/imagefactory ## show what would be built
	@$(BIN)/imagefactory plan $(if $(SELECT),--select '$(SELECT)')

build: engine ## build what changed
	@$(BIN)/imagefactory build --matrix --no-verify $(if $(SELECT),--select '$(SELECT)')

verify: engine ## verify what was built
	@$(BIN)/imagefactory verify $(if $(SELECT),--select '$(SELECT)')

push: engine ## push what was verified
	@$(BIN)/imagefactory push $(if $(SELECT),--select '$(SELECT)') $(if $(TO),--to '$(TO)')

# CELL is a --select expression, PAGE the page to write (default docs/benchmarks.md), BENCH further
# options, such as --together 'flavor=gb10'
bench: engine ## compare a cell with other ways to build it; write docs/benchmarks.md
	@$(BIN)/python benchmarks/images.py --select '$(or $(CELL),$(DEMO))' \
	  --markdown $(or $(PAGE),docs/benchmarks.md) $(BENCH)

bench-disk: engine ## measure the disk space and time of a cold build of CELL; write PAGE
	@$(BIN)/python benchmarks/disk.py --select '$(or $(CELL),$(DEMO))' \
	  --markdown $(or $(PAGE),docs/benchmarks-disk.md)

bench-dashboard: $(BIN)/imagefactory ## measure the dashboard of a year of 50 cells
	@PYTHONPATH=tests $(BIN)/python benchmarks/dashboard.py

down: ## stop the private engine
	@scripts/engine down

clean: ## delete the virtual environment
	@rm -rf $(VENV)
