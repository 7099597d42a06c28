"""ada_propagate against the equation of the denoising step in dense float64, forward and gradients."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _memory, testing
from ugnn_fast.testing import (
    HUB_TOLERANCE,
    case_id,
    check_operator,
    degrees,
    entries,
    operator_cases,
    product,
    sample_graphs,
)

pytestmark = pytest.mark.needs("ada_propagate")
GRAPHS = sample_graphs()


def statement(x, c, *, g, steps, store):
    """H <- 2 b X + b W H, W_ij = a_ij (c_i + c_j) / sqrt(d_i d_j), 1 / b_i = 2 + c_i + sum_j a_ij c_j/d_i"""
    if x.dim() == 3:
        columns = [c[:, r] if c.dim() == 2 else c for r in range(x.shape[1])]
        runs = [statement(x[:, r], columns[r], g=g, steps=steps, store=store) for r in range(x.shape[1])]
        return torch.stack(runs, dim=1)
    i, j, a = entries(g, x.dtype)
    d = degrees(g, x.dtype)
    connected, d = d > 0, torch.where(d > 0, d, 1)
    c = c.expand(g.num_nodes)
    mean = product(g, a, c[:, None])[:, 0] / d
    b = torch.where(connected, 1 / (2 + c + mean), 0.5)[:, None]
    W = a * (c[i] + c[j]) / (d[i] * d[j]).sqrt()
    h = x
    for _ in range(steps):
        h = store(2 * b * x + b * product(g, W, h))
    return h


def valid(graph, R, c, **_):
    if c == "replica" and R is None:
        return False
    # one number that sums 20000 gradients is a single draw of rounding: nothing to compare with
    return "hub" not in graph or c != "scalar"


# in the whole product save alone, which is what auto takes on small graphs
MEMORY = ("save", "recompute", "checkpoint", *(() if testing.whole_product else ("auto",)))
CASES = operator_cases(
    "ada_propagate",
    valid,
    modes=("c", "memory"),
    c=("number", "scalar", "node", "replica"),
    K=(0, 1, 2, 5),
    memory=MEMORY,
    wrt=("", "x", "c", "xc"),
)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, R, dtype = GRAPHS[case["graph"]], case["R"], case["dtype"]
    N, layout = g.num_nodes, case["layout"]
    torch.manual_seed(1)
    coefficients = torch.float64 if dtype == torch.float64 else torch.float32
    c_shape = {"number": (), "scalar": (), "node": (N,), "replica": (N, R)}[case["c"]]
    inputs = {
        "x": torch.randn((N, case["D"]) if R is None else (N, R, case["D"])).to(dtype),
        "c": 3 * torch.rand(c_shape, dtype=coefficients),
    }

    def operator(x, c):
        c = c.item() if case["c"] == "number" else layout(c)
        return uf.ada_propagate(g, layout(x), c, case["K"], backend=backend, memory=case["memory"])

    wrt = [name for name in case["wrt"] if name == "x" or case["c"] != "number"]
    tolerance = HUB_TOLERANCE if "hub" in case["graph"] else {}
    check_operator(operator, lambda **t: statement(**t, g=g, steps=case["K"]), inputs, wrt=wrt, **tolerance)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("graph", ("power_law", "weighted", "hub"))
@pytest.mark.parametrize("R", (None, 2))
@pytest.mark.parametrize("K", (1, 2, 3, 10, 14))
def test_memory_modes_agree_to_the_bit(graph, dtype, R, K, cpu):
    g = GRAPHS[graph]
    torch.manual_seed(0)
    x = torch.randn((g.num_nodes, 9) if R is None else (g.num_nodes, R, 9)).to(dtype)
    c = torch.rand(g.num_nodes, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    results = []
    for memory in ("save", "recompute", "checkpoint"):
        leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
        h = uf.ada_propagate(g, *leaves, K, memory=memory)
        results.append((h, *torch.autograd.grad(h.float().square().sum(), leaves)))
    for saved, *others in zip(*results, strict=True):
        assert all(torch.equal(saved, other) for other in others)


@pytest.mark.float64
@pytest.mark.parametrize("D", (1, 3, 9))
@pytest.mark.parametrize("graph", ("one_node", "isolated", "two_components", "weighted_no_self_loops"))
def test_gradcheck(graph, D, backend):
    g = GRAPHS[graph]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 2, D, dtype=torch.float64, requires_grad=True)
    c = torch.rand(g.num_nodes, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, c: uf.ada_propagate(g, x, c, 3, backend=backend), (x, c), fast_mode=True)


@pytest.mark.float64
def test_double_backward_for_constant_c(backend):
    g = GRAPHS["weighted"]
    x = torch.randn(g.num_nodes, 3, dtype=torch.float64, requires_grad=True)

    def cubed(x):
        return uf.ada_propagate(g, x**2, 1.5, 3, backend=backend) ** 2

    assert torch.autograd.gradgradcheck(cubed, x, fast_mode=True)


@pytest.mark.parametrize("wrt", ("x", "c"))
def test_double_backward_is_refused_for_c_per_node(wrt, cpu):
    g = GRAPHS["star"]
    x, c = torch.randn(g.num_nodes, 3), torch.rand(g.num_nodes)
    leaf = (x if wrt == "x" else c).requires_grad_()
    (grad,) = torch.autograd.grad(uf.ada_propagate(g, x, c, 2).square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match=r"ada_propagate: double backward is not offered.*reference"):
        grad.sum().backward()


@pytest.mark.parametrize("K", (1, 4))
def test_c_of_a_node_alone_has_no_gradient(K, backend):
    # Terms that cancel are sums of rounded values, which must cancel too. Triton's interpreter cuts bfloat16 off.
    g, dtype = GRAPHS["isolated"], torch.float16 if backend == "triton" else torch.bfloat16
    random = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, g.num_nodes, 72, generator=random).to(dtype)
    c = (9 * torch.rand(g.num_nodes, generator=random)).requires_grad_()
    (grad_c,) = torch.autograd.grad(uf.ada_propagate(g, x, c, K, backend=backend), c, grad)
    assert grad_c[[1, 4, 7]].abs().max() > 0.1
    assert grad_c[[0, 2, 3, 5, 6, 8]].abs().max() < 1e-4


@pytest.mark.parametrize("memory", ("save", "recompute", "checkpoint"))
@pytest.mark.parametrize("D", (3, 5, 7, 14, 15, 40))
@pytest.mark.parametrize("bits", (0x3F807FC0, 0x3F807F80, 0x3F80FF80))
def test_bits_of_c_that_look_like_no_number(bits, D, memory, cpu):
    # beside 16-bit columns c is two values whose bits may say nan or infinity
    g = GRAPHS["power_law"]
    c = torch.full((g.num_nodes,), bits, dtype=torch.int32).view(torch.float32).requires_grad_()
    x = torch.randn(g.num_nodes, D, dtype=torch.bfloat16, requires_grad=True)
    h = uf.ada_propagate(g, x, c, 4, memory=memory)
    grads = torch.autograd.grad(h.float().square().sum(), (x, c))
    exact = uf.ada_propagate(g, x.detach().double(), c.detach().double(), 4)
    torch.testing.assert_close(h.double(), exact, rtol=0.02, atol=0.02)
    assert all(grad.isfinite().all() for grad in grads)


def test_two_forwards_before_one_backward(backend):
    g = GRAPHS["small_power_law"]
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 5, requires_grad=True), torch.rand(g.num_nodes, requires_grad=True)
    first, second = (uf.ada_propagate(g, s * x, s * c, 3, backend=backend).square().sum() for s in (1, 2))
    both = torch.autograd.grad(first + second, (x, c))
    alone = []
    for s in (1, 2):
        alone.append(torch.autograd.grad(uf.ada_propagate(g, s * x, s * c, 3, backend=backend).square().sum(), (x, c)))
    for got, one, two in zip(both, *alone, strict=True):
        torch.testing.assert_close(got, one + two)


def test_backward_twice_and_in_place_changes(cpu):
    g = GRAPHS["chain"]
    x, c = torch.randn(g.num_nodes, 4, requires_grad=True), torch.rand(g.num_nodes, requires_grad=True)
    h = uf.ada_propagate(g, x, c, 2)
    loss = h.sum()
    once = torch.autograd.grad(loss, (x, c), retain_graph=True)
    again = torch.autograd.grad(loss, (x, c), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    h.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    # a constant c needs nothing for its backward, so its result may be changed
    h = uf.ada_propagate(g, x, 0.5, 2)
    loss = h.sum()
    h.detach().zero_()
    loss.backward()


@pytest.mark.parametrize("bad", (torch.nan, torch.inf))
@pytest.mark.parametrize("D", (1, 3, 9))
@pytest.mark.parametrize("c", (1.5, "node"))
def test_nan_stays_within_k_hops(bad, D, c, backend):
    g, K = GRAPHS["chain"], 3
    x = torch.randn(g.num_nodes, D)
    x[10, D // 2] = bad
    c = torch.rand(g.num_nodes) + 0.1 if c == "node" else c
    reached = torch.zeros(g.num_nodes, D, dtype=torch.bool)
    reached[10 - K : 10 + K + 1, D // 2] = True
    assert torch.equal(~uf.ada_propagate(g, x, c, K, backend=backend).isfinite(), reached)


@pytest.mark.parametrize("shape", ((0, 4), (5, 0), (5, 0, 3), (5, 3, 0), (0, 2, 3)))
@pytest.mark.parametrize("K", (0, 3))
def test_nothing_to_compute(shape, K, backend):
    g = uf.Graph.from_edge_index([[], []], shape[0])
    x, c = torch.ones(shape, requires_grad=True), torch.rand(shape[0], requires_grad=True)
    h = uf.ada_propagate(g, x, c, K, backend=backend)
    assert h.shape == shape
    h.sum().backward()
    assert x.grad.shape == shape


def test_no_step_is_a_copy(backend):
    x = torch.randn(20, 3)
    h = uf.ada_propagate(GRAPHS["chain"], x, 1.0, 0, backend=backend)
    assert torch.equal(h, x) and h.data_ptr() != x.data_ptr()


@pytest.mark.float64
def test_is_propagate_with_its_own_b(backend):
    g = GRAPHS["weighted"]
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 7, dtype=torch.float64), torch.rand(g.num_nodes, dtype=torch.float64)
    _, _, a = entries(g)
    b = 1 / (2 + c + product(g, a, c[:, None])[:, 0] / degrees(g))
    h = uf.propagate(g, x, 4, agg=b, skip=2 * b, c=c, backend=backend)
    torch.testing.assert_close(uf.ada_propagate(g, x, c, 4, backend=backend), h)


def saved_sizes(function):
    """Numbers of floating elements that autograd keeps, those of inputs and outputs left out."""
    sizes = []

    def pack(tensor):
        if tensor.is_floating_point():
            sizes.append((tensor.data_ptr(), tensor.numel()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out, *inputs = function()
    known = {t.data_ptr() for t in (out, *inputs)}
    return sum(size for address, size in sizes if address not in known)


@pytest.mark.parametrize(
    ("c", "memory", "tables"),
    (("number", "save", 0), ("node", "save", 64), ("node", "recompute", 10), ("node", "checkpoint", 7)),
)
def test_what_is_kept_for_backward(c, memory, tables, cpu):
    g, D, K = GRAPHS["power_law"], 16, 32
    N = g.num_nodes
    x = torch.randn(N, D, requires_grad=True)
    c = 0.5 if c == "number" else torch.rand(N, requires_grad=True)

    def call():
        inputs = [x, g.degree] + ([c] if tables else [])
        return uf.ada_propagate(g, x, c, K, memory=memory), *inputs

    # b [N] beside the tables
    assert saved_sizes(call) == tables * N * D + (N if tables else 0)


def test_auto_recomputes_when_memory_is_scarce(cpu, monkeypatch):
    g, D, K = GRAPHS["power_law"], 16, 6
    N = g.num_nodes
    x, c = torch.randn(N, D, requires_grad=True), torch.rand(N, requires_grad=True)
    monkeypatch.setattr(_memory, "SMALL", 0)
    monkeypatch.setattr(_memory, "native", None)  # nor anything in the pool
    for free, tables in ((8 * K * N * D * 4 + 4, 2 * K), (8 * K * N * D * 4 - 4, 2)):
        monkeypatch.setattr(_memory, "free_bytes", lambda device, free=free: free)
        assert saved_sizes(lambda: (uf.ada_propagate(g, x, c, K), x, c, g.degree)) == tables * N * D + N


def test_float16_falls_back_with_one_warning(cpu, monkeypatch):
    monkeypatch.setattr(uf._backend, "_warned", set())
    g = GRAPHS["chain"]
    x = torch.randn(g.num_nodes, 3, dtype=torch.float16)
    with pytest.warns(UserWarning, match=r"ada_propagate.*float16.*reference") as seen:
        h = uf.ada_propagate(g, x, 1.0, 2)
        uf.ada_propagate(g, x, 1.0, 2)
    assert len(seen) == 1 and h.dtype == torch.float16
    torch.testing.assert_close(h, uf.ada_propagate(g, x.float(), 1.0, 2).half(), atol=1e-3, rtol=1e-3)
