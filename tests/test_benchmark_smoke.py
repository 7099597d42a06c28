"""pytest-benchmark on Cora, small enough for CI: ours and the factorised CSR baseline, shown, not gated."""

import sys
from pathlib import Path

import pytest

# bench/ is part of the checkout, not of the installed package
sys.path.append(str(Path(__file__).parents[1]))

import ugnn_fast as uf
from bench.contenders import CONTENDERS, MODES, errors, why_wrong
from bench.graphs import SHAPES, make_problem, reference_results
from ugnn_fast._native import native


@pytest.fixture(autouse=True)
def poisoned_memory():
    """In place of the guards of conftest.py, which would be timed with the kernels."""


@pytest.fixture(scope="module")
def cora():
    shape = SHAPES["cora"]
    problem = make_problem(uf.datasets.load("cora").graph, shape.D, shape.K)
    return problem, reference_results(problem)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", ["ugnn_fast", "torch_csr_factored"])
def test_ada_propagate_cora(benchmark, cora, label, mode):
    if label == "ugnn_fast" and native is None:
        pytest.skip("the native module is not built")
    problem, expected = cora
    contender = CONTENDERS[label]
    calls = contender.make(problem)
    assert why_wrong(contender, errors(contender, calls, expected)) is None
    benchmark.group = f"ada_propagate cora {mode}"
    # a fixed number of rounds: on a busy machine the plugin's own choice may take minutes
    benchmark.pedantic(calls[mode], rounds=15, warmup_rounds=3)
