# make demo   install what running needs, then compare five recipes on the embedded digits data
# make test   install the development tools too, then run the tests (make slow runs the long ones)
# make lint   ruff, and import-linter on the layers of headway/ (docs/architecture.md)
# make types  mypy
# make ray    install the extra `ray`, then run its tests on real clusters
# make bench  measure against the plain loop on an idle machine; adds a line to bench/history.jsonl
# make cards  write docs/methods/ anew from the code, the guide and the published tables
# make setup  install what running needs: .venv/bin/headway; make dev adds the development tools

PYTHON ?= python3
BIN := .venv/bin
# --no-compile: Python compiles what a command imports when it first does; compiling all of torch up front takes longer.
# editable_mode=compat: `import headway` works in every folder, also in the one that holds the clone.
PIP := $(BIN)/python -m pip install -q --no-compile -c constraints.txt --config-settings editable_mode=compat
RUN := .venv/.run
DEV := .venv/.dev

.PHONY: setup dev demo test slow ray lint types check bench cards clean

setup: $(RUN)
	@echo "ready: $(BIN)/headway, or \`. $(BIN)/activate\` and then headway"

dev: $(DEV)

$(RUN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

$(DEV): $(RUN)
	$(PIP) -e '.[dev]'
	touch $@

demo: $(RUN)
	$(BIN)/headway compare fedavg fedprox scaffold fedetf fedavg+ccvr \
	  --data digits --clients 20 --partition 'dir(0.1)' --rounds 20 --out runs/demo

test: $(DEV)
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

slow: $(DEV)
	$(BIN)/python -m pytest -m slow

ray: $(DEV)
	$(PIP) -e '.[dev,ray]'
	$(BIN)/python -m pytest -m ray

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(DEV)
	$(BIN)/mypy

check: test lint types

bench: $(RUN)
	$(BIN)/headway bench --out bench/history.jsonl

cards: $(RUN)
	$(BIN)/python -m headway.analysis.cards docs/methods

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
