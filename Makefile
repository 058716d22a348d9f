# `make demo` and `make test` are all that a newcomer needs: each makes .venv if there is none.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
DEV := .venv/.dev-installed
BENCH := .venv/.bench-installed
RECIPE ?= recipes/demo.toml
ARGS ?=

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(DEV)  ## base -> SFT -> RL on the terminal family, then the table
	@scripts/system_packages.sh
	$(BIN)/practicum train $(RECIPE) --audit $(ARGS)

test: $(DEV)  ## every test, the slow ones too
	@scripts/system_packages.sh chromium
	$(BIN)/python -m pytest $(ARGS)

lint: $(DEV)  ## style, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BENCH)  ## one RL step here and in TRL, side by side; ARGS=--quick ends in three minutes
	$(BIN)/python benchmarks/step.py $(ARGS)

clean:  ## remove the environment and all caches; runs are kept
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(DEV): pyproject.toml hatch_build.py src/practicum/sandbox/box.c scripts/venv.sh
	@echo "Installing Practicum into .venv (a few minutes the first time)"
	@scripts/system_packages.sh
	@scripts/venv.sh dev
	@touch $@

$(BENCH): $(DEV)
	@echo "Installing the peer to measure against"
	@scripts/venv.sh dev,bench
	@touch $@
