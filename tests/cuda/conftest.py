"""The CUDA kernels run on the emulator here. UGNN_EMULATED=plain, asan or traced says in which build."""

import os

import pytest

from tests.cuda.emulated import register


@pytest.fixture(scope="session")
def emulated_session():
    return register(os.environ.get("UGNN_EMULATED", "plain"))


@pytest.fixture(autouse=True)
def emulated(emulated_session):
    """The launcher; launches lists those of the test."""
    emulated_session.launches.clear()
    return emulated_session
