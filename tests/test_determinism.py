"""Bit-identical results from run to run and for any number of threads."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import ugnn_fast as uf

# enough work for several threads in every operator; a hub of several pieces, rows of very different lengths
N = 12000


def make_graph(weighted):
    rng = np.random.default_rng(0)
    ends = np.concatenate([rng.zipf(1.6, 30000) % N, np.zeros(9500, np.int64), rng.integers(0, N, 5000)])
    others = np.concatenate([rng.integers(0, N, 30000), np.arange(1, 9501), rng.integers(0, N, 5000)])
    edges = np.stack([ends, others])
    weight = rng.uniform(0.1, 2, len(ends)) if weighted else None
    return uf.Graph.from_edge_index(edges, N, weight, symmetrize=True)


@pytest.fixture(scope="module")
def graphs():
    graphs = {weighted: make_graph(weighted) for weighted in (False, True)}
    assert all(len(g.hubs) and g.rowptr.diff().max() > 2 * 4096 for g in graphs.values())
    return graphs


K = 6
# name: (function, shapes of the tensors beside x)
OPERATORS = {
    "ada_propagate_constant": (lambda g, x: uf.ada_propagate(g, x, 0.7, K), ()),
    "ada_propagate_save": (lambda g, x, c: uf.ada_propagate(g, x, c, K, memory="save"), ((N,),)),
    "ada_propagate_recompute": (lambda g, x, c: uf.ada_propagate(g, x, c, K, memory="recompute"), ((N,),)),
    "ada_propagate_checkpoint": (lambda g, x, c: uf.ada_propagate(g, x, c, K, memory="checkpoint"), ((N,),)),
    "propagate": (lambda g, x: uf.propagate(g, x, K, agg=0.5, skip=0.5), ()),
    "propagate_coefficients": (
        lambda g, x, agg, skip, keep, prev: uf.propagate(g, x, K, agg=agg, skip=skip, keep=keep, prev=prev),
        ((N,), (K, 1), (K, N), (N,)),
    ),
    "propagate_sum": (
        lambda g, x, gamma, c: uf.propagate(g, x, K, gamma=gamma, c=c, norm="row", out="sum"),
        ((K + 1,), (N,)),
    ),
    "propagate_sides": (
        lambda g, x, left, right: uf.propagate(g, x, 2, left=left, right=right, clamp=(-1, 1), out="all"),
        ((N,), (N,)),
    ),
    "propagate_edge_value": (
        lambda g, x, value: uf.propagate(g, x, 2, edge_value=value, norm="row"),
        (("E",),),
    ),
    "solve": (lambda g, x, diag, c: uf.solve(g, x, 2.1 + diag, c=c), ((N,), (N,))),
    "solve_edge_value": (lambda g, x, value: uf.solve(g, x, 2.1, edge_value=value + value[g.reverse]), (("E",),)),
    "ada_solve": (uf.ada_solve, ((N,),)),
    "neighbor_mean": (uf.neighbor_mean, ()),
    "neighbor_var": (uf.neighbor_var, ()),
    "ada_c": (lambda g, x, w, b: uf.ada_c(g, x, w, 9.0, bias=b), (("D",), (1,))),
    "ada_c_mean": (lambda g, x, w, b: uf.ada_c(g, x, w, 9.0, bias=b, stat="mean"), (("D",), (1,))),
    "gat_aggregate": (
        lambda g, x, src, dst: uf.gat_aggregate(g, x[:, None].tile(1, 3, 1), src, dst, dropout=0.5, seed=1),
        ((N, 3), (N, 3)),
    ),
    "denoising_energy": (lambda g, x, c: uf.denoising_energy(g, x, x.detach().flip(0), c), ((N,),)),
}


def outcome(name, g, D, dtype):
    """Result and gradients, each as a contiguous tensor."""
    function, shapes = OPERATORS[name]
    sizes = {"E": g.num_edges, "D": D}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    number = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = [x]
    for shape in shapes:
        shape = [sizes.get(s, s) for s in shape]
        leaves.append(torch.rand(shape, generator=generator).to(number).requires_grad_())
    out = function(g, *leaves)
    cotangent = torch.randn(out.shape, generator=generator).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, cotangent)]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("weighted", "D", "dtype"),
    (
        (False, 1, torch.bfloat16),
        (False, 20, torch.float32),
        (True, 7, torch.float32),
        (True, 2, torch.float64),
    ),
    ids=str,
)
@pytest.mark.parametrize("name", OPERATORS)
def test_threads_do_not_change_a_bit(name, weighted, D, dtype, graphs, threads, cpu):
    expected = None
    for count in (1, 2, 3, 4):
        threads(count)
        got = outcome(name, graphs[weighted], D, dtype)
        expected = expected or got
        for k, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert torch.equal(a, b), f"{'gradient of input ' + str(k - 1) if k else 'result'}, {count} threads"


# on a small graph a thread takes whole replicas, or blocks of columns
REPLICAS = {
    "ada_propagate_constant": lambda g, x, c, w: uf.ada_propagate(g, x, 0.7, 3) + 0 * (c.sum() + w.sum()),
    "ada_propagate_shared": lambda g, x, c, w: uf.ada_propagate(g, x, c[:, 0], 3) + 0 * w.sum(),
    "ada_propagate_save": lambda g, x, c, w: uf.ada_propagate(g, x, c, 3, memory="save") + 0 * w.sum(),
    "ada_propagate_checkpoint": lambda g, x, c, w: uf.ada_propagate(g, x, c, 3, memory="checkpoint") + 0 * w.sum(),
    "propagate": lambda g, x, c, w: uf.propagate(g, x, 3, c=c, skip=0.3) + 0 * w.sum(),
    "neighbor_var": lambda g, x, c, w: uf.neighbor_var(g, x) + 0 * (c.sum() + w.sum()),
    "ada_c": lambda g, x, c, w: uf.ada_c(g, x, w, 9.0) + 0 * c,
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize(("R", "D"), ((7, 5), (3, 70), (1, 300)))
@pytest.mark.parametrize("name", REPLICAS)
def test_threads_that_share_out_replicas_do_not_change_a_bit(name, R, D, dtype, threads, cpu):
    g = uf.datasets.load("cora").graph
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(g.num_nodes, R, D, generator=generator).to(dtype).requires_grad_()
    c, w = (torch.rand(*shape, generator=generator).requires_grad_() for shape in ((g.num_nodes, R), (R, D)))
    expected = None
    for count in (1, 2, 3, 8):
        threads(count)
        out = REPLICAS[name](g, x, c, w)
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
        got = [out.detach(), *torch.autograd.grad(out, (x, c, w), cotangent)]
        expected = expected or got
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)), f"{count} threads"
    # one replica by itself is what it is among others
    if R > 1 and name != "ada_propagate_shared":
        alone = REPLICAS[name](g, x[:, 1:2], c[:, 1:2], w[1:2])
        assert torch.equal(alone[:, 0], expected[0][:, 1])


@pytest.mark.parametrize("name", OPERATORS)
def test_runs_do_not_differ_by_a_bit(name, graphs, cpu):
    first, second = (outcome(name, graphs[False], 7, torch.float32) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_python_threads_do_not_disturb_each_other(graphs, cpu):
    # the interpreter is released while a kernel runs
    names = ["ada_propagate_save", "propagate_sum", "neighbor_var", "ada_c", "denoising_energy"]
    expected = {name: outcome(name, graphs[True], 7, torch.float32) for name in names}
    with ThreadPoolExecutor(4) as pool:
        runs = pool.map(lambda name: (name, outcome(name, graphs[True], 7, torch.float32)), 2 * names)
        for name, got in runs:
            assert all(torch.equal(a, b) for a, b in zip(got, expected[name], strict=True)), name


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("R", (None, 2))
# the second: long columns, whose sums for the gradient take one block of a large table after the other
@pytest.mark.parametrize(("rows", "columns", "entries"), ((N, N, 40000), (20000, 600, 600000)))
def test_sparse_linear_and_threads(rows, columns, entries, R, dtype, threads, cpu):
    # one row and one column are hubs of several pieces
    generator = torch.Generator().manual_seed(0)
    zeros = torch.zeros(columns), torch.zeros(rows)
    i = torch.cat([torch.randint(0, rows, (entries,), generator=generator), zeros[0], torch.arange(rows)]).long()
    j = torch.cat([torch.randint(0, columns, (entries,), generator=generator), torch.arange(columns), zeros[1]]).long()
    x = torch.sparse_coo_tensor(torch.stack([i, j]), torch.ones(len(i)), (rows, columns)).to_sparse_csr().to(dtype)
    lead = () if R is None else (R,)
    weight = torch.randn(*lead, columns, 20, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(*lead, 20, generator=generator).to(dtype).requires_grad_()
    seed = 3 if R is None else [3, 4]
    results = []
    for count in (1, 2, 3, 4):
        threads(count)
        out = uf.sparse_linear(x, weight, bias, dropout=0.3, seed=seed)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), (weight, bias))])
    for got in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(got, results[0], strict=True))


def test_local_smoothness_and_threads(graphs, threads, cpu):
    labels = torch.randint(-1, 3, (N,), generator=torch.Generator().manual_seed(0))
    results = []
    for count in (1, 2, 3, 4):
        threads(count)
        results.append(uf.local_smoothness(graphs[False], labels).nan_to_num(-1))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    "limit", ({"OMP_THREAD_LIMIT": "1"}, {"OMP_THREAD_LIMIT": "3"}, {"OMP_DYNAMIC": "true"}), ids=str
)
def test_fewer_threads_than_asked_for(limit, cpu):
    # OpenMP may give a smaller team than the one that the rows were split for
    code = """
    import torch, ugnn_fast as uf
    torch.set_num_threads(4)
    torch.manual_seed(0)
    N = 20000
    g = uf.Graph.from_edge_index(torch.randint(0, N, (2, 60000)), N, symmetrize=True)
    x, c = torch.randn(N, 16, requires_grad=True), torch.rand(N, requires_grad=True)
    labels = torch.randint(0, 3, (N,))

    def outcome(backend):
        outputs = [
            uf.ada_propagate(g, x, c, 3, backend=backend), uf.propagate(g, x, 3, backend=backend),
            uf.neighbor_var(g, x, backend=backend), uf.ada_c(g, x, torch.ones(16), 2.0, backend=backend),
            uf.denoising_energy(g, x, 2 * x, c, backend=backend), uf.ada_solve(g, x, c, backend=backend),
            uf.gat_aggregate(g, x.view(N, 2, 8), x[:, :2], x[:, 2:4], dropout=0.5, seed=1, backend=backend),
        ]
        loss = sum(out.square().mean().sqrt() for out in outputs)
        grads = torch.autograd.grad(loss, (x, c))
        return *outputs, *(N * grad for grad in grads), uf.local_smoothness(g, labels, backend=backend)

    for got, expected in zip(outcome("cpu"), outcome("reference")):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-2, equal_nan=True)
    """
    environment = {**os.environ, **limit}
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
