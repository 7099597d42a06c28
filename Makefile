# Every target sets up .venv by itself; nothing but Python, a C++ compiler and the package index is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# the CPU build of this version; without a pin pip may bring gigabytes of GPU libraries
TORCH := torch==2.13.0
NATIVE := $(shell find csrc -name '*.cpp' -o -name '*.h') CMakeLists.txt setup.py pyproject.toml

.PHONY: run test experiments bench bench-quick lint format datasets clean

run: $(VENV)/.run  ## set up and train ADA-UGNN on Cora
	$(BIN)/ugnn-fast train --dataset cora --model ada-ugnn

test: $(VENV)/.test lint  ## set up, lint and run all tests
	$(BIN)/python -m pytest -q

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(shell find csrc tests/csrc -name '*.cpp' -o -name '*.h')
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(shell find csrc tests/csrc -name '*.cpp' -o -name '*.h')

bench: $(VENV)/.test  ## compare ada_propagate with its peers; the larger graphs need UGNN_DATA
	$(BIN)/python -m bench.run

experiments: $(VENV)/.run  ## the paper's tables and figures; the data sets need UGNN_DATA
	$(BIN)/ugnn-fast reproduce all

bench-quick: $(VENV)/.test
	$(BIN)/python -m bench.run --quick

datasets: $(VENV)/.test  ## make the shipped data sets again
	$(BIN)/python scripts/make_datasets.py

clean:
	rm -rf $(VENV) build dist *.egg-info ugnn_fast/_C*.so

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q $(TORCH) numpy "setuptools>=77" wheel "cmake>=3.24" ninja "pybind11>=2.13"
	touch $@

$(VENV)/.run: $(VENV)/.base $(NATIVE)
	$(BIN)/pip install -q --no-build-isolation -e ".[cli]"
	touch $@

$(VENV)/.test: $(VENV)/.base $(NATIVE)
	$(BIN)/pip install -q --no-build-isolation -e ".[test]"
	touch $@ $(VENV)/.run
