"""pytest-benchmark on Cora, small enough for CI: ours and the factorised CSR baseline, shown, not gated."""

import pytest

import ugnn_fast as uf
from bench.ops.ada_propagate import OP
from bench.registry import MODES, errors, why_wrong
from ugnn_fast._native import native


@pytest.fixture(autouse=True)
def poisoned_memory():
    """In place of the guards of conftest.py, which would be timed with the kernels."""


@pytest.fixture(scope="module")
def cora():
    problem = OP.make(uf.datasets.load("cora"), 7, 10)
    return problem, OP.expected(problem)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", ["ugnn_fast", "torch_csr_factored"])
def test_ada_propagate_cora(benchmark, cora, label, mode):
    if label == "ugnn_fast" and native is None:
        pytest.skip("the native module is not built")
    problem, expected = cora
    contender = OP.by_name[label]
    calls = contender.make(problem)
    assert why_wrong(contender, errors(OP.results, calls, expected)) is None
    benchmark.group = f"ada_propagate cora {mode}"
    # a fixed number of rounds: on a busy machine the plugin's own choice may take minutes
    benchmark.pedantic(calls[mode], rounds=15, warmup_rounds=3)
