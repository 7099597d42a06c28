"""Bad input: an exception that names the argument, what was expected and what came, and nothing else."""

import functools
import math
import re

import numpy as np
import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _memory

N, D, R, K = 6, 3, 2, 4
G = uf.Graph.from_edge_index([[0, 1, 2, 3], [1, 2, 3, 4]], N, symmetrize=True)
E = G.num_edges
X, XR, C = torch.ones(N, D), torch.ones(N, R, D), torch.ones(N)
W = torch.ones(D)
LABELS = torch.zeros(N, dtype=torch.int64)


def meta(*shape):
    return torch.ones(shape, device="meta")


class On:
    """The functions on G with one backend."""

    def __init__(self, backend):
        self.ada = functools.partial(uf.ada_propagate, G, backend=backend)
        self.prop = functools.partial(uf.propagate, G, backend=backend)
        self.mean = functools.partial(uf.neighbor_mean, G, backend=backend)
        self.var = functools.partial(uf.neighbor_var, G, backend=backend)
        self.ada_c = functools.partial(uf.ada_c, G, backend=backend)
        self.gat = functools.partial(uf.gat_aggregate, G, backend=backend)
        self.energy = functools.partial(uf.denoising_energy, G, backend=backend)
        self.smooth = functools.partial(uf.local_smoothness, G, backend=backend)


# each call has one argument that is wrong
CASES = [
    # the graph
    (lambda f: uf.ada_propagate("g", X, 1.0, K), TypeError, "g must be a ugnn_fast.Graph, got str"),
    (lambda f: uf.neighbor_var(None, X), TypeError, "g must be a ugnn_fast.Graph, got NoneType"),
    # x
    (lambda f: f.ada(X.tolist(), 1.0, K), TypeError, "x must be a tensor, got list"),
    (lambda f: f.ada(X.numpy(), 1.0, K), TypeError, "x must be a tensor, got ndarray"),
    (lambda f: f.ada(X.long(), 1.0, K), TypeError, "x must be float32, .*, got torch.int64"),
    (lambda f: f.prop(X.to(torch.complex64), K), TypeError, "x must be float32, .*, got torch.complex64"),
    (lambda f: f.ada(X.to_sparse(), 1.0, K), TypeError, "x must be a dense tensor, got torch.sparse_coo"),
    (lambda f: f.ada(X[:, 0], 1.0, K), ValueError, r"x must be \[N, D\] or \[N, R, D\], got \[6\]"),
    (lambda f: f.prop(X[None, None], K), ValueError, r"x must be \[N, D\] .* got \[1, 1, 6, 3\]"),
    (lambda f: f.ada(X[:-1], 1.0, K), ValueError, r"x must have N = 6 rows.* got \[5, 3\]"),
    (lambda f: f.prop(X[:-1], K), ValueError, r"x must have N = 6 rows.* got \[5, 3\]"),
    (lambda f: f.mean(X[:-1]), ValueError, r"x must have N = 6 rows.* got \[5, 3\]"),
    (lambda f: f.var(X.T), ValueError, r"x must have N = 6 rows.* got \[3, 6\]"),
    (lambda f: f.ada_c(X[:-1], W, 1.0), ValueError, r"x must have N = 6 rows.* got \[5, 3\]"),
    (lambda f: f.ada(meta(N, D), 1.0, K), ValueError, "x must be on cpu .* got meta"),
    (lambda f: f.var(meta(N, D)), ValueError, "x must be on cpu .* got meta"),
    # c
    (lambda f: f.ada(X, C[:-1], K), ValueError, r"c must be \[N\] = \[6\], got \[5\]"),
    (lambda f: f.ada(X, C[:, None], K), ValueError, r"c must be \[N\] = \[6\], got \[6, 1\]"),
    (lambda f: f.ada(X, torch.ones(N, R), K), ValueError, r"c must be \[N\] = \[6\], got \[6, 2\]"),
    (lambda f: f.ada(XR, torch.ones(N, 3), K), ValueError, r"c must be .*\[N, R\] = \[6, 2\], got \[6, 3\]"),
    (lambda f: f.ada(X, C.double(), K), TypeError, "c must be torch.float32 .*float32 x, got torch.float64"),
    (lambda f: f.ada(X.double(), C, K), TypeError, "c must be torch.float64 .*float64 x, got torch.float32"),
    (lambda f: f.ada(X.bfloat16(), C.bfloat16(), K), TypeError, "c must be .*float32 .* got torch.bfloat16"),
    (lambda f: f.ada(X, C.long(), K), TypeError, "c must be torch.float32 .* got torch.int64"),
    (lambda f: f.ada(X, meta(N), K), ValueError, "c must be on cpu .* got meta"),
    (lambda f: f.ada(X, -1.0, K), ValueError, "c must be finite and >= 0, got -1.0"),
    (lambda f: f.ada(X, math.nan, K), ValueError, "c must be finite and >= 0, got nan"),
    (lambda f: f.ada(X, math.inf, K), ValueError, "c must be finite and >= 0, got inf"),
    (lambda f: f.ada(X, "1", K), TypeError, "c must be a number, got str"),
    (lambda f: f.ada(X, True, K), TypeError, "c must be a number, got bool"),
    (lambda f: f.ada(X, None, K), TypeError, "c must be a number, got NoneType"),
    (lambda f: f.prop(X, K, c=C[:-1]), ValueError, r"c must be \[N\] = \[6\], got \[5\]"),
    (lambda f: f.prop(X, K, c=math.nan), ValueError, "c must be finite, got nan"),
    # steps
    (lambda f: f.ada(X, 1.0, -1), ValueError, "steps must be >= 0, got -1"),
    (lambda f: f.prop(X, -3), ValueError, "steps must be >= 0, got -3"),
    (lambda f: f.ada(X, 1.0, 2.0), TypeError, "steps must be an int, got float"),
    (lambda f: f.prop(X, True), TypeError, "steps must be an int, got bool"),
    (lambda f: f.ada(X, 1.0, None), TypeError, "steps must be an int, got NoneType"),
    # choices
    (lambda f: f.ada(X, 1.0, K, memory="all"), ValueError, "memory must be one of .*, got 'all'"),
    (lambda f: f.prop(X, K, memory="none"), ValueError, "memory must be one of .*, got 'none'"),
    (lambda f: f.prop(X, K, norm="col"), ValueError, "norm must be one of sym, row, none, got 'col'"),
    (lambda f: f.prop(X, K, norm="given"), ValueError, "norm must be one of .*, got 'given'"),
    (lambda f: f.prop(X, K, out="first"), ValueError, "out must be one of last, sum, all, got 'first'"),
    (lambda f: f.ada_c(X, W, 1.0, stat="max"), ValueError, "stat must be one of var, mean, got 'max'"),
    # coefficients of propagate
    (lambda f: f.prop(X, K, agg=torch.ones(5)), ValueError, r"agg must be .*\[N\] = \[6\].* got \[5\]"),
    (lambda f: f.prop(X, K, skip=torch.ones(3, 1)), ValueError, r"skip must be .*\[4, 1\].* got \[3, 1\]"),
    (lambda f: f.prop(X, K, keep=torch.ones(K, 5)), ValueError, r"keep must be .*\[4, 6\].* got \[4, 5\]"),
    (lambda f: f.prop(X, K, prev=torch.ones(1)), ValueError, r"prev must be .* got \[1\]"),
    (lambda f: f.prop(X, K, agg=C.double()), TypeError, "agg must be torch.float32 .* got torch.float64"),
    (lambda f: f.prop(X, K, agg=meta(N)), ValueError, "agg must be on cpu .* got meta"),
    (lambda f: f.prop(X, K, agg="1"), TypeError, "agg must be a number, got str"),
    (lambda f: f.prop(X, K, skip=math.inf), ValueError, "skip must be finite, got inf"),
    (lambda f: f.prop(X, K, keep=None), TypeError, "keep must be a number, got NoneType"),
    (lambda f: f.prop(X, K, left=torch.ones(5)), ValueError, r"left must be \[N\] = \[6\], got \[5\]"),
    (lambda f: f.prop(X, K, right=C.double()), TypeError, "right must be torch.float32 .* got torch.float64"),
    (lambda f: f.prop(X, K, left=2.0), TypeError, "left must be a tensor, got float"),
    (lambda f: f.prop(X, K, edge_value=torch.ones(E - 1)), ValueError, rf"edge_value must be .*\[{E}\], got"),
    (lambda f: f.prop(X, K, edge_value=torch.ones(E, 1)), ValueError, r"edge_value must .*, got \[14, 1\]"),
    (lambda f: f.prop(X, K, edge_value=[1.0] * E), TypeError, "edge_value must be a tensor, got list"),
    (lambda f: f.prop(X, K, c=C, edge_value=torch.ones(E)), ValueError, "c and edge_value both give W"),
    (lambda f: f.prop(X, K, gamma=torch.ones(K), out="sum"), ValueError, r"gamma must be .*\[5\], got \[4\]"),
    (lambda f: f.prop(X, K, gamma=[1.0] * 5, out="sum"), TypeError, "gamma must be a tensor, got list"),
    (lambda f: f.prop(X, K, gamma=torch.ones(K + 1)), ValueError, 'gamma goes with out="sum"'),
    (lambda f: f.prop(X, K, out="sum"), ValueError, 'gamma goes with out="sum"'),
    (lambda f: f.prop(X, K, clamp=(1.0, 0.0)), ValueError, r"clamp must be \(lo, hi\).*, got \(1.0, 0.0\)"),
    (lambda f: f.prop(X, K, clamp=(math.nan, 1.0)), ValueError, r"clamp must be \(lo, hi\)"),
    (lambda f: f.prop(X, K, clamp=1.0), (TypeError, ValueError), r"clamp must be \(lo, hi\)"),
    (lambda f: f.prop(X, K, clamp=(0.0,)), (TypeError, ValueError), r"clamp must be \(lo, hi\)"),
    (lambda f: f.prop(X, K, clamp=("a", "b")), (TypeError, ValueError), r"clamp must be \(lo, hi\)"),
    # ada_c
    (lambda f: f.ada_c(X, torch.ones(4), 1.0), ValueError, r"weight must be \[D\] = \[3\], got \[4\]"),
    (lambda f: f.ada_c(X, torch.ones(R, D), 1.0), ValueError, r"weight must be \[D\] = \[3\], got \[2, 3\]"),
    (lambda f: f.ada_c(XR, torch.ones(3, D), 1.0), ValueError, r"weight must be .*\[2, 3\], got \[3, 3\]"),
    (lambda f: f.ada_c(X, W.double(), 1.0), TypeError, "weight must be torch.float32 .* got torch.float64"),
    (lambda f: f.ada_c(X, [1.0] * D, 1.0), TypeError, "weight must be a tensor, got list"),
    (lambda f: f.ada_c(X, W, -1.0), ValueError, "s must be finite and >= 0, got -1.0"),
    (lambda f: f.ada_c(X, W, math.nan), ValueError, "s must be finite and >= 0, got nan"),
    (lambda f: f.ada_c(X, W, "9"), TypeError, "s must be a number, got str"),
    (lambda f: f.ada_c(X, W, 1.0, bias=torch.ones(2)), ValueError, r"bias must be .*, got \[2\]"),
    (lambda f: f.ada_c(X, W, 1.0, bias="0"), TypeError, "bias must be a number, got str"),
    (lambda f: f.ada_c(X, W, 1.0, bias=torch.ones(1).double()), TypeError, "bias must be .*float32 .* got"),
    # local_smoothness
    (lambda f: f.smooth(LABELS[:-1]), ValueError, r"labels must be \[N\] = \[6\], got \[5\]"),
    (lambda f: f.smooth(LABELS.float()), TypeError, "labels must be an int64 or int32 .* got torch.float32"),
    (lambda f: f.smooth(LABELS.tolist()), TypeError, "labels must be an int64 or int32 tensor, got list"),
    (lambda f: f.smooth(LABELS.to("meta")), ValueError, "labels must be on cpu .* got meta"),
    # denoising_energy
    (lambda f: f.energy(X, X[:-1], 1.0), ValueError, r"s must have N = 6 rows.* got \[5, 3\]"),
    (lambda f: f.energy(X, XR, 1.0), ValueError, r"s must be \[6, 3\] .*like f, got \[6, 2, 3\]"),
    (lambda f: f.energy(X, X.double(), 1.0), (TypeError, ValueError), "s must .*32 like f, got .*float64"),
    (lambda f: f.energy(X[:-1], X, 1.0), ValueError, r"f must have N = 6 rows.* got \[5, 3\]"),
    (lambda f: f.energy(X, X, C[:-1]), ValueError, r"c must be \[N\] = \[6\], got \[5\]"),
    (lambda f: f.energy(X, X, -1.0), ValueError, "c must be finite and >= 0, got -1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text[:40] for _, _, text in CASES])
def test_one_bad_argument(call, error, text, backend, recwarn):
    given = [t.clone() for t in (X, XR, C, W, LABELS)]
    with pytest.raises(error, match=text):
        call(On(backend))
    assert all(torch.equal(a, b) for a, b in zip(given, (X, XR, C, W, LABELS), strict=True))
    assert not recwarn.list


def bad_c(value, shape, node):
    c = torch.ones(shape)
    c[node] = value
    return c


@pytest.mark.parametrize("value", (-1e-6, math.nan, math.inf, -math.inf))
@pytest.mark.parametrize("steps", (0, 3))
@pytest.mark.parametrize("replicas", (False, True))
def test_bad_value_of_c_names_the_node(value, steps, replicas, backend):
    x, c = (XR, bad_c(value, (N, R), (4, 1))) if replicas else (X, bad_c(value, (N,), 4))
    for requires_grad in (False, True):
        with pytest.raises(ValueError, match=r"c must be finite and >= 0.*at node 4"):
            uf.ada_propagate(G, x, c.clone().requires_grad_(requires_grad), steps, backend=backend)
    with pytest.raises(ValueError, match=r"c must be finite and >= 0.*at node 4"):
        uf.denoising_energy(G, x, x, c, backend=backend)


def test_first_bad_node_is_named_on_a_large_graph(backend):
    # several threads look; the message must not depend on which one is first
    size = 50000
    g = uf.Graph.from_edge_index([range(size - 1), range(1, size)], size, symmetrize=True)
    c = bad_c(-1.0, (size,), torch.tensor([40000, 7, 20000]))
    for _ in range(3):
        with pytest.raises(ValueError, match=r"at node 7$"):
            uf.ada_propagate(g, torch.ones(size, 4), c, 2, backend=backend)


def test_zero_c_is_allowed(backend):
    assert torch.equal(uf.ada_propagate(G, X, torch.zeros(N), 2, backend=backend), X)


@pytest.mark.float64
def test_numbers_of_other_libraries_are_allowed(backend):
    expected = uf.ada_propagate(G, X, 2.0, 3, backend=backend)
    assert torch.equal(uf.ada_propagate(G, X, 2, 3, backend=backend), expected)
    assert torch.equal(uf.ada_propagate(G, X, np.float64(2.0), np.int64(3), backend=backend), expected)
    assert torch.equal(uf.ada_propagate(G, X, np.float32(2.0), 3, backend=backend), expected)


FUNCTIONS = {
    "ada_propagate": lambda f: f.ada(X, 1.0, K),
    "propagate": lambda f: f.prop(X, K),
    "neighbor_mean": lambda f: f.mean(X),
    "neighbor_var": lambda f: f.var(X),
    "ada_c": lambda f: f.ada_c(X, W, 1.0),
    "gat_aggregate": lambda f: f.gat(XR, XR[..., 0], XR[..., 0]),
    "local_smoothness": lambda f: f.smooth(LABELS),
    "denoising_energy": lambda f: f.energy(X, X, 1.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unknown_or_missing_backend(name):
    with pytest.raises(ValueError, match="backend must be auto or one of reference, cpu, cuda, triton, got 'gpu'"):
        FUNCTIONS[name](On("gpu"))
    for other in ("cuda", "triton"):
        info = uf.backends()[other]
        if not info.runs:
            with pytest.raises(RuntimeError, match=re.escape(f"backend {other} cannot run: {info.reason}")):
                FUNCTIONS[name](On(other))


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(_memory, "SMALL", 0)
    monkeypatch.setattr(_memory, "free_bytes", lambda device: 1000)


def test_too_little_memory_says_how_much_is_needed(little_memory, cpu):
    x, c = torch.ones(N, 16), C.clone().requires_grad_()
    gib = 2 * 1000 * N * 16 * 4 / 2**30
    with pytest.raises(MemoryError, match=rf"ada_propagate.*save.* needs {gib:.2f} GiB.*free.*recompute"):
        uf.ada_propagate(G, x, c, 1000, memory="save")
    with pytest.raises(MemoryError, match=rf"ada_propagate.*recompute.* needs {gib / 4:.2f} GiB.*free"):
        uf.ada_propagate(G, x, c, 1000, memory="recompute")
    with pytest.raises(MemoryError, match=r"propagate.* needs .* GiB.*free"):
        uf.propagate(G, x, 1000, c=c)
    with pytest.raises(MemoryError, match=r"propagate.* needs .* GiB.*free"):
        uf.propagate(G, x, 1000, out="all")
    # nothing is kept for a constant c
    uf.ada_propagate(G, x.requires_grad_(), 1.0, 1000).sum().backward()


def test_absurd_sizes_are_refused_without_being_tried(cpu):
    x, c = torch.ones(N, 64), C.clone().requires_grad_()
    for call in (
        lambda: uf.ada_propagate(G, x, c, 10**10),
        lambda: uf.propagate(G, x, 10**10, c=c),
        lambda: uf.propagate(G, x, 10**10, out="all"),
    ):
        with pytest.raises(MemoryError, match=r"needs \d+\.\d\d GiB, \d+\.\d\d GiB are free on cpu"):
            call()
