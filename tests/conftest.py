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
from ugnn_fast import _graph_build, testing
from ugnn_fast import graph as graph_module
from ugnn_fast._native import native, reason
from ugnn_fast.ops import _native_call

# Inductor's own cache does not see that a fake kernel has changed since it was filled.
_compiled = tempfile.TemporaryDirectory(prefix="ugnn-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _compiled.name

# A process either interprets Triton's kernels or does not; one that does runs the tests of that backend alone.
INTERPRETING = uf._backend._interpreting()
BACKENDS = ("triton",) if INTERPRETING else ("reference", "cpu")
_ran = pytest.StashKey[set]()
_launched = pytest.StashKey[set]()
_selected = pytest.StashKey[list]()
_GUARD = 64  # elements before and after each guarded tensor


def pytest_addoption(parser):
    parser.addoption("--whole-product", action="store_true", help="all cases of Triton's kernels, not a pairwise cover")
    parser.addoption("--share", default="1/1", metavar="k/n", help="the k-th of n shares of the tests")


def pytest_configure(config):
    config.stash[_ran], config.stash[_launched] = set(), set()
    testing.whole_product = config.getoption("whole_product")
    for line in (
        "plain_memory: outputs are not guarded, as the test looks at their storage",
        "near_tables: on small graphs tables of bfloat16 x are floats, as users have it",
        "triton: for Triton's interpreter alone",
        "float64: in float64, which Triton's kernels do not have",
        "needs(*ops): for backends that have these operators",
        "long: takes long in Triton's interpreter, only with --whole-product there",
    ):
        config.addinivalue_line("markers", line)


def _belongs_here(item):
    """Whether a test is one for this process: see INTERPRETING."""
    if item.name == "test_every_backend_ran":
        return True
    if item.get_closest_marker("triton"):
        return INTERPRETING
    if not INTERPRETING:
        return True
    given = item.callspec.params if hasattr(item, "callspec") else {}
    case = given.get("case")
    has = uf.backends()["triton"].ops
    return (
        "triton" in (given.get("backend"), case.get("backend") if isinstance(case, dict) else None)
        and not item.get_closest_marker("float64")
        and (testing.whole_product or not item.get_closest_marker("long"))
        and all(op in has for marker in item.iter_markers("needs") for op in marker.args)
    )


def pytest_collection_modifyitems(config, items):
    k, n = map(int, config.getoption("share").split("/"))
    config.stash[_selected] = [item for item in items if _belongs_here(item)]
    here = config.stash[_selected][k - 1 :: n]
    chosen = set(here)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    # the last one looks back at what ran
    items[:] = sorted(here, key=lambda item: item.name == "test_every_backend_ran")


@pytest.fixture(autouse=True)
def checked_launches(request, monkeypatch):
    """Kernels of Triton run in the checked interpreter, and are not replaced by the reference."""
    if not INTERPRETING:
        yield
        return
    from ugnn_fast._checked_interpreter import checked

    def refuse(key, message):
        raise AssertionError(message)

    monkeypatch.setattr(uf._backend, "_warn_once", refuse)
    with checked() as report:
        yield
    request.config.stash[_launched].update(report)


@pytest.fixture
def selected_tests(request):
    """Those of this process and of the processes that run the other shares."""
    return request.config.stash[_selected]


@pytest.fixture
def kernels_that_ran(request):
    """Names of Triton's kernels that ran before this test."""
    return request.config.stash[_launched]


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

    if guarded:
        # large results would come from the pool
        monkeypatch.setattr(_native_call, "_LARGE", sys.maxsize)
    monkeypatch.setattr(torch, "empty", poison(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poison(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))
    yield
    for block, size in blocks:
        assert block[:_GUARD].isnan().all(), "a kernel wrote before the start of its output"
        assert block[_GUARD + size :].isnan().all(), "a kernel wrote past the end of its output"


@pytest.fixture(autouse=True)
def sixteen_bit_tables(request, monkeypatch):
    """Tables of bfloat16 on small graphs too, where ugnn_fast takes floats: most tests have no other graphs."""
    if request.node.get_closest_marker("near_tables") is None:
        monkeypatch.setattr(_native_call, "NEAR_BYTES", 0)


@pytest.fixture
def shipped_data_alone(monkeypatch, tmp_path):
    """No data sets but those of the package, an empty folder to work in, one thread."""
    monkeypatch.delenv("UGNN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["native", "numpy"])
def builder(request, monkeypatch):
    """Every test with it runs with both builders behind Graph."""
    if request.param == "native" and native is None:
        pytest.skip(f"native builder: {reason}")
    chosen = native if request.param == "native" else _graph_build
    monkeypatch.setattr(graph_module, "_builder", chosen)
    return chosen
