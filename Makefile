# make demo   set up, then compare five recipes on the embedded digits data
# make test   set up, then run the tests (make slow adds the long ones)
# make ray    install the extra `ray`, then run its tests on real clusters
# make bench  measure against the plain loop on an idle machine; adds a line to bench/history.jsonl
# make cards  write docs/methods/ anew from the code, the guide and the published tables
# make setup  leaves a working .venv/bin/headway, and says so

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test slow ray lint types check bench cards clean

setup: $(STAMP)
	@echo "ready: $(BIN)/headway, or \`. $(BIN)/activate\` and then headway"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/headway compare fedavg fedprox scaffold fedetf fedavg+ccvr \
	  --data digits --clients 20 --partition 'dir(0.1)' --rounds 20 --out runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

ray: $(STAMP)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest -m ray

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: test lint types

bench: $(STAMP)
	$(BIN)/headway bench --out bench/history.jsonl

cards: $(STAMP)
	$(BIN)/python -m headway.cards docs/methods

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
