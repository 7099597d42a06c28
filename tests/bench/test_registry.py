"""The registry is complete, its contenders are right, and the bytes of its models are those of the formulas."""

from dataclasses import replace

import pytest
import torch

import ugnn_fast as uf
from bench import graphs, registry
from bench.baselines.structure import Structure
from bench.baselines.torch_csr import TorchCsr
from bench.baselines.torch_csr_factored import TorchCsrFactored
from bench.ops.ada_propagate import OP as ADA
from bench.registry import OURS, Case, Gather, errors, parse_case, why_wrong
from ugnn_fast._native import native

pytestmark = [
    pytest.mark.skipif(native is None, reason="the native module is not built"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]

OPERATORS = registry.operators()
# what torch.compile takes minutes for is the function of another contender
PAIRS = [(op, label) for op in OPERATORS.values() for label, c in op.by_name.items() if not c.compiled]


def test_all_operators_and_their_peers_are_there():
    named = {"propagate", "ada_propagate", "neighbor_var", "gat_aggregate", "sparse_linear", "ada_solve", "epoch"}
    assert named <= set(OPERATORS)
    libraries = {"torch_scatter", "torch_csr", "torch_spmm_reduce", "torch_sparse", "pyg", "dgl", "scipy", "numba"}
    for name in ("propagate", "ada_propagate"):
        assert libraries | {"torch_csr_factored", "torch_csr compiled"} <= set(OPERATORS[name].by_name)
    assert {"pyg", "pyg sparse", "torch_scatter"} <= set(OPERATORS["epoch"].by_name)
    for op in OPERATORS.values():
        assert op.by_name[OURS].exact and len(op.by_name) == len(op.contenders)
        assert op.default_cases() and op.modes
        assert any(not c.ours and c.exact for c in op.contenders)


@pytest.mark.parametrize(("op", "label"), PAIRS, ids=[f"{op.name}-{label}" for op, label in PAIRS])
def test_contender_agrees_with_float64(op, label):
    """With D = 17 the torch baselines go another way than with D = 3."""
    contender = op.by_name[label]
    for D, K in ((3, 4), (17, 1)):
        problem = replace(op.make(graphs.load("toy"), D, K), dropout=0.0)
        if reason := contender.why_not(problem):
            pytest.skip(reason)
        calls = contender.make(problem.to(contender.dtype))
        assert set(calls) <= set(op.modes)
        if not contender.exact:
            assert all(call() for call in calls.values())
            continue
        found = errors(op.results, calls, op.expected(problem))
        assert why_wrong(contender, found) is None
        if contender.dtype == torch.float32 and op.name != "epoch":
            assert max(found.values()) < 1e-5


def test_expected_of_solve_is_that_of_the_reference():
    op = OPERATORS["ada_solve"]
    problem = op.make(graphs.load("toy"), 3, 1)
    x, c = (tensor.double().requires_grad_() for tensor in problem.inputs)
    f = uf.ada_solve(problem.g, x, c, tol=1e-12, backend="reference")
    right = f.detach(), *torch.autograd.grad(f, (x, c), problem.grad.double())
    for found, one in zip(op.expected(problem), right, strict=True):
        torch.testing.assert_close(found, one)


def test_expected_in_column_blocks_is_the_whole(monkeypatch):
    problem = ADA.make(graphs.load("toy"), 5, 3)
    at_once = ADA.expected(problem)
    monkeypatch.setattr(registry, "_REFERENCE_BYTES", 1)
    for one, other in zip(ADA.expected(problem), at_once, strict=True):
        torch.testing.assert_close(one, other)


def test_of_a_large_problem_some_columns_are_checked(monkeypatch):
    whole = ADA.make(graphs.load("toy"), 6, 3)
    assert registry.sampled(whole) is whole
    monkeypatch.setattr(registry, "_CHECKED_VALUES", 1)
    problem = registry.sampled(whole)
    assert problem.checked == (0, 2, 5) and problem.grad.any(0).tolist() == [True, False, True, False, False, True]
    h, grad_x, grad_c = ADA.expected(problem)
    torch.testing.assert_close(h, ADA.expected(whole)[0][:, problem.checked])
    calls = ADA.by_name["ugnn_fast"].make(problem)
    assert max(errors(ADA.results, calls, (h, grad_x, grad_c), problem.checked).values()) < 1e-5
    assert max(errors(ADA.results, calls, (h, grad_x, 1.1 * grad_c), problem.checked).values()) > 0.05


@pytest.mark.parametrize("function", [TorchCsr, TorchCsrFactored])
@pytest.mark.parametrize("D", [3, 16])
def test_baseline_keeps_its_states_over_a_second_forward(function, D):
    problem = ADA.make(graphs.load("toy"), D, 3)
    structure = Structure(problem.g)
    x, c = (tensor.clone().requires_grad_() for tensor in problem.inputs)
    h = function.apply(structure, x, c, 3)
    second = function.apply(structure, 5 * x, c + 1, 3)
    torch.autograd.grad(second, (x, c), problem.grad)
    _, *expected = ADA.expected(problem)
    for grad, right in zip(torch.autograd.grad(h, (x, c), problem.grad), expected, strict=True):
        torch.testing.assert_close(grad.double(), right, rtol=1e-4, atol=1e-4)


def test_bytes_of_a_gather():
    rowptr, col = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32)
    # 5 passes: 3 rows of 7 halves and their ids, 2 row pointers
    assert Gather(rowptr, col, 2, 7, 5).bytes(2) == 5 * (3 * (14 + 4) + 2 * 8)


def test_bytes_of_the_models():
    data = graphs.load("toy")
    N, E, nnz, D, K = 70, data.graph.num_edges, data.x._nnz(), 3, 2
    one_pass, table = E * (4 * D + 4) + 8 * N, 4 * N * D

    def found(name, mode, itemsize=4):
        op = OPERATORS[name]
        return op.work(op.make(data, D, K), mode, itemsize).bytes(itemsize)

    assert found("ada_propagate", "fwd") == K * (one_pass + 2 * table)
    assert found("ada_propagate", "fwdbwd") == K * (2 * one_pass + 8 * table)
    assert found("ada_propagate", "fwd", 2) == K * (E * (2 * D + 4) + 8 * N + table)
    assert found("propagate", "fwdbwd") == 2 * found("propagate", "fwd") == 2 * K * (one_pass + 2 * table)
    assert found("neighbor_var", "fwd") == one_pass + table
    assert found("gat_aggregate", "fwd") == E * (4 * 8 * D + 4) + 8 * N + 8 * table + 4 * 8 * E
    # rows of the weight, ids and values of entries, row pointers, the result
    assert found("sparse_linear", "fwd") == nnz * (4 * D + 4) + 8 * N + 4 * nnz + table
    assert found("drop_edges", "fwd") < found("propagate", "fwd")
    assert found("epoch", "epoch") > 2 * found("sparse_linear", "fwd")


def test_case_must_be_complete():
    assert parse_case("propagate", "cora:7:10") == Case("propagate", "cora", 7, 10)
    for text in ("nothing", "cora:7", "cora:x:2", "cora:0:2"):
        with pytest.raises(ValueError, match="a case must"):
            parse_case("propagate", text)


def test_generated_graphs():
    g = graphs.load("power_law-1e3-1e4").graph
    assert g.num_nodes == 1000 and g.num_edges == 10_000
    assert g.degree.max() > 10 * g.degree.mean()
    assert graphs.power_law(1000, 10_000).col.equal(g.col)
    for name in ("power_law-10", "power_law-x-3", "power_law-1e3-10", "power_law-10-100"):
        with pytest.raises(ValueError, match="power_law"):
            graphs.load(name)


def test_graphs_in_another_order():
    g, longest_first = graphs.load("toy").graph, graphs.load("toy@degree").graph
    assert g.perm is None and longest_first.perm is not None
    assert longest_first.degree.equal(g.degree.sort(descending=True).values)
    with pytest.raises(ValueError, match="method must be one of"):
        graphs.load("toy@size")
