"""Fixtures: backends, and memory that shows whoever reads what was never written or writes past the end."""

import os
import sys
import tempfile

# Before torch starts OpenMP: threads that spin while they wait make small operators a hundred times slower
# when another process has the second core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import ugnn_fast as uf

# Inductor's own cache does not see that a fake kernel has changed since it was filled.
_compiled = tempfile.TemporaryDirectory(prefix="ugnn-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _compiled.name

BACKENDS = ("reference", "cpu")
_ran = pytest.StashKey[set]()
_GUARD = 64  # elements before and after each guarded tensor


def pytest_configure(config):
    config.stash[_ran] = set()
    config.addinivalue_line("markers", "triton: needs Triton's interpreter, TRITON_INTERPRET=1")
    config.addinivalue_line("markers", "plain_memory: outputs are not guarded, as the test looks at their storage")


def pytest_collection_modifyitems(config, items):
    if not uf._backend._interpreting():
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("triton")])
        items[:] = [item for item in items if not item.get_closest_marker("triton")]
    # it looks back at what ran
    items.sort(key=lambda item: item.name == "test_every_backend_ran")


@pytest.fixture
def use_backend(request):
    """use_backend(name) notes that a backend runs, or skips the test with the reason why it cannot."""

    def use(name):
        info = uf.backends()[name]
        if not info.runs:
            pytest.skip(f"{name}: {info.reason}")
        request.config.stash[_ran].add(name)
        return name

    return use


@pytest.fixture(params=BACKENDS)
def backend(request, use_backend):
    """Every test with it runs once per backend."""
    return use_backend(request.param)


@pytest.fixture
def cpu(use_backend):
    """For what only the cpu backend has."""
    return use_backend("cpu")


@pytest.fixture
def backends_that_ran(request):
    return request.config.stash[_ran]


@pytest.fixture(autouse=True)
def poisoned_memory(request, monkeypatch):
    """Whatever ugnn_fast allocates starts as NaN, with NaN before and after it that must stay."""
    guarded = request.node.get_closest_marker("plain_memory") is None
    blocks = []

    def poison(make):
        def allocate(*args, **kwargs):
            tensor = make(*args, **kwargs)
            # one call up: empty, empty_like or new_empty in a module of the package
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("ugnn_fast"):
                return tensor
            if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or not tensor.is_floating_point():
                return tensor
            if not guarded or not tensor.is_contiguous():
                return tensor.fill_(torch.nan)
            block = torch.full((tensor.numel() + 2 * _GUARD,), torch.nan, dtype=tensor.dtype)
            if len(blocks) < 1000:
                blocks.append((block, tensor.numel()))
            return block[_GUARD : _GUARD + tensor.numel()].view(tensor.shape)

        return allocate

    monkeypatch.setattr(torch, "empty", poison(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poison(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))
    yield
    for block, size in blocks:
        assert block[:_GUARD].isnan().all(), "a kernel wrote before the start of its output"
        assert block[_GUARD + size :].isnan().all(), "a kernel wrote past the end of its output"
