"""The CUDA kernels run on the emulator here. UGNN_EMULATED=plain, asan or traced says in which build.

Without UGNN_TEST_GPU=1, which `make test-cuda` sets, only what is quick: the operators, and tests for a GPU.
"""

import os
from pathlib import Path

import pytest

from tests.cuda.emulated import KIND, Emulated, build, install, load, uninstall

HERE = Path(__file__).parent
QUICK = None if os.environ.get("UGNN_TEST_GPU", "0") != "0" else ("test_operators.py", "test_gpu.py")
_deselected = pytest.StashKey[int]()


def pytest_collection_modifyitems(config, items):
    here = [item for item in items if item.path.parent == HERE]
    if KIND == "asan":
        # its own guards are right behind the outputs
        for item in here:
            item.add_marker("plain_memory")
    slow = {item for item in here if QUICK is not None and item.path.name not in QUICK}
    config.stash[_deselected] = len(slow)
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(_deselected, 0):
        terminalreporter.write_line(f"tests/cuda: {count} tests (faults, traffic, nvcc) are for `make test-cuda`")


@pytest.fixture(scope="session")
def module():
    return load(build(KIND))


@pytest.fixture(scope="module")
def installed(module):
    emulated = Emulated(module)
    install(emulated)
    yield emulated
    uninstall()


@pytest.fixture
def emulated(installed):
    """The launcher; launches lists those of the test."""
    installed.launches.clear()
    return installed
