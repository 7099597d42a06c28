# Every target sets up .venv by itself; nothing but Python, a C++ compiler and the package index is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# sees .venv and has peers of its own, some of which have to be built
BENCH := .venv-bench
# the CPU build of this version; without a pin pip may bring gigabytes of GPU libraries
TORCH := torch==2.13.0
NATIVE := $(shell find csrc -type f) CMakeLists.txt setup.py pyproject.toml
CPP := $(shell find csrc bench tests/csrc tests/cuda -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
# nobody shall wait for nvcc who did not ask for it
export UGNN_CUDA ?= 0

.PHONY: run test test-main test-cuda test-gpu-full experiments bench bench-quick lint format datasets clean

run: $(VENV)/.run  ## set up and train ADA-UGNN on Cora
	$(BIN)/ugnn-fast train --dataset cora --model ada-ugnn

test: $(VENV)/.test lint  ## set up, lint and run all tests
	$(MAKE) --no-print-directory -j2 -Oline test-main test-cuda test-triton-1 test-triton-2

test-main: $(VENV)/.test  # all backends but Triton; the CUDA kernels on the plain emulator
	$(BIN)/python -m pytest -q

test-cuda: $(VENV)/.test  ## the CUDA kernels without a GPU: traced and under sanitizers on the emulator, planted faults, nvcc
	UGNN_TEST_GPU=1 $(BIN)/python -m pytest -q tests/cuda/test_faults.py tests/cuda/test_cuda_traffic.py tests/cuda/test_nvcc.py
	UGNN_EMULATED=traced OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/cuda/test_operators.py
	UGNN_EMULATED=asan OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$$(g++ -print-file-name=libasan.so) \
	    $(BIN)/python -m pytest -q tests/cuda/test_operators.py

test-triton-%: $(VENV)/.test  # a half of the tests in Triton's interpreter
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --share=$*/2

test-gpu-full: $(VENV)/.test  ## all cases of the GPU kernels, in Triton's interpreter and traced on the emulator (two hours; continues where it was stopped)
	$(BIN)/python scripts/test_gpu_full.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: $(BENCH)/.peers  ## time everything against all peers that install (hours); the larger graphs need UGNN_DATA
	$(BENCH)/bin/python -m ugnn_fast.cli bench --threads 1 2 $(BENCH_OPTIONS)

experiments: $(VENV)/.run  ## the paper's tables and figures; the data sets need UGNN_DATA
	$(BIN)/ugnn-fast reproduce all

bench-quick: $(VENV)/.test
	$(BIN)/ugnn-fast bench --quick

datasets: $(VENV)/.test  ## make the shipped data sets again
	$(BIN)/python scripts/make_datasets.py

clean:
	rm -rf $(VENV) $(BENCH) build dist *.egg-info ugnn_fast/_C*.so

# a peer that cannot be installed is named, and left out of the run
$(BENCH)/.peers: $(VENV)/.test
	$(BIN)/python -m venv $(BENCH)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	    > $$($(BENCH)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/venv.pth
	-$(BENCH)/bin/pip install -q numba
	-$(BENCH)/bin/pip install -q dgl==1.1.3
	-$(BENCH)/bin/pip install -q --no-build-isolation torch_scatter torch_sparse
	touch $@

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
