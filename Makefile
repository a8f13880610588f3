# Two commands do all the set-up: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What a run needs, and what development needs. Ray and transformers import optional packages that they find, so a run
# starts faster without those of development.
RUN := $(VENV)/.run
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
# One thread a process: small tensors gain nothing from more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q
BENCH := runs/bench/$(shell date +%Y%m%d-%H%M%S)

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-gpu test-browser lint hooks bench docs clean

help: ## what each target does
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

$(RUN): pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	@touch $@

$(STAMP): $(RUN)
	$(INSTALL) '.[dev]'
	@touch $@

run: $(RUN) ## the main job on the embedded pair: jobs/sharegpt.yaml into runs/sharegpt
	$(BIN)/specpipe run jobs/sharegpt.yaml

test: $(STAMP) ## the default test set: CPU only, no network
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(STAMP) ## the tests marked slow
	$(PYTEST) -m 'slow and not gpu'

test-gpu: ## the tests marked gpu, with the Python at hand (a CUDA device is needed)
	PYTHONPATH=.:kernels $(PYTHON) -m pytest -q -m gpu

test-browser: $(STAMP) ## the tests marked browser: pages in a headless Chromium (on the PATH, or named by CHROMIUM)
	$(INSTALL) '.[browser]'
	$(PYTEST) -m browser

lint: $(STAMP) ## ruff and mypy, strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

hooks: $(STAMP) ## ruff and mypy before every commit, by pre-commit
	$(BIN)/pre-commit install

bench: $(RUN) ## the sample job speculative, then plain, into a new folder under runs/bench
	$(BIN)/specpipe run jobs/sharegpt.yaml --set output.path=$(BENCH)/speculative
	$(BIN)/specpipe run jobs/sharegpt.yaml --set output.path=$(BENCH)/plain --set speculation.policy=off

$(VENV)/.docs: $(STAMP)
	$(INSTALL) '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## the documentation as a site, in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean: ## removes the environment and caches, never runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
