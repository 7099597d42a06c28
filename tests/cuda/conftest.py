"""The CUDA kernels run on the emulator here. UGNN_EMULATED=plain, asan or traced says in which build."""

import os

import pytest

from tests.cuda.emulated import Emulated, build, install, load, uninstall

KIND = os.environ.get("UGNN_EMULATED", "plain")


def pytest_collection_modifyitems(items):
    if KIND == "asan":
        # its own guards are right behind the outputs
        for item in items:
            item.add_marker("plain_memory")


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
