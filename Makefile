# make demo   set up, then compare five recipes on the embedded digits data
# make test   set up, then run the tests (make slow adds the long ones)
# make bench  measure against the plain loop on an idle machine; adds a line to bench/history.jsonl
# make cards  write docs/methods/ anew from the code, the guide and the published tables
# make setup  leaves a working .venv/bin/headway

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test slow lint types check bench cards clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/headway compare fedavg fedprox scaffold fedetf fedavg+ccvr \
	  --data digits --clients 20 --partition 'dir(0.1)' --rounds 20 --out runs/demo

test: setup
	$(BIN)/python -m pytest

slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

check: test lint types

bench: setup
	$(BIN)/headway bench --out bench/history.jsonl

cards: setup
	$(BIN)/python -m headway.cards docs/methods

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
