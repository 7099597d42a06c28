"""The operators with Triton's kernels as torch sees them: the tests of tests/test_compile.py with this backend."""

import pytest
import test_compile as shared
import torch

import ugnn_fast as uf
from ugnn_fast import dropping, functional, solving

pytestmark = [pytest.mark.triton, pytest.mark.plain_memory]

# every operator once, and the forms of propagate that have outputs of their own
NAMES = ("ada_propagate_replicas", "propagate_sum", "propagate_edge_value", "neighbor_var", "ada_c", "denoising_energy")
# with those that take long in the interpreter
MORE = (*NAMES, "solve", "gat_aggregate_dropout")


@pytest.fixture(autouse=True)
def triton_by_default(monkeypatch):
    """What calls without a backend take."""
    choose = uf._backend.choose

    def choose_triton(op, backend, x):
        return choose(op, "triton" if backend == "auto" else backend, x)

    # each check runs an operator ten times
    monkeypatch.setattr(shared, "RECORDED", 6)
    for module in (functional, solving, dropping):
        monkeypatch.setattr(module, "choose", choose_triton)


@pytest.mark.parametrize("name", MORE)
def test_opcheck(name):
    shared.test_opcheck(name)


@pytest.mark.parametrize("name", MORE)
def test_fake_cuda_tensors(name):
    shared.test_fake_tensors_have_the_metadata_of_real_ones(name, "cuda")


@pytest.mark.parametrize("name", NAMES)
def test_compile(name):
    function = shared.CALLS[name][0]
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    g = shared.graph_of(20)
    leaves = shared.inputs_of(name, g)
    # the first one plans the rows of the graph
    expected = shared.outcome(function, g, leaves)
    for a, b in zip(shared.outcome(compiled, g, leaves), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_autocast(name):
    shared.test_autocast_stores_bfloat16(name)
