"""The operators as torch sees them: opcheck, fake tensors, compile, export, autocast, checkpointing."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import ugnn_fast as uf
from ugnn_fast import ops
from ugnn_fast.reference._edges import rows_of
from ugnn_fast.testing import strided

# a Graph keeps these contiguous
OF_GRAPH = (
    *("rowptr", "col", "weight", "degree", "hubs", "order", "near_rowptr", "near_col", "near_weight"),
    *("plan", "reverse"),
)
# storage offsets and strides are compared with those of fake tensors
pytestmark = [pytest.mark.plain_memory, pytest.mark.usefixtures("cpu")]
RECORDED = 30  # nodes


def graph_of(N):
    edges = torch.randint(0, N, (2, 3 * N), generator=torch.Generator().manual_seed(N))
    return uf.Graph.from_edge_index(edges, N, symmetrize=True)


def ada_ugnn(g, x, W, weight):
    scores = torch.relu(x @ W)
    c = uf.ada_c(g, scores.detach(), weight, 9.0)
    return uf.ada_propagate(g, scores, c, 3).log_softmax(-1)


def sparse_linear(g, weight, bias):
    # torch.compile takes no sparse tensor: the adjacency, which is its own transpose, as features
    entries = g.rowptr, g.col, weight.detach().new_ones(g.num_edges), g.col[:0], []
    seeds = torch.arange(1 if weight.dim() == 2 else 2, device="cpu")
    return ops.sparse_linear((*entries, *entries), weight, bias, 0.4, seeds, "cpu")


# name: (function(g, *tensors), shapes of the tensors, "N" and "E" standing for those of the graph)
CALLS = {
    "ada_propagate_constant": (lambda g, x: uf.ada_propagate(g, x, 1.5, 3), (("N", 7),)),
    "ada_propagate": (lambda g, x, c: uf.ada_propagate(g, x, c, 3), (("N", 7), ("N",))),
    "ada_propagate_replicas": (
        lambda g, x, c: uf.ada_propagate(g, x, c, 3, memory="recompute"),
        (("N", 2, 7), ("N", 2)),
    ),
    "propagate": (lambda g, x: uf.propagate(g, x, 3, agg=0.9, skip=0.1), (("N", 7),)),
    "propagate_all": (
        lambda g, x, agg, keep: uf.propagate(g, x, 3, agg=agg, keep=keep, prev=0.1, out="all"),
        (("N", 7), ("N",), (3, 1)),
    ),
    "propagate_sum": (
        lambda g, x, gamma, left: uf.propagate(g, x, 3, gamma=gamma, left=left, out="sum"),
        (("N", 2, 7), (4,), ("N",)),
    ),
    "propagate_c_clamp": (lambda g, x, c: uf.propagate(g, x, 3, c=c, clamp=(-1.0, 1.0)), (("N", 7), ("N",))),
    "propagate_edge_value": (
        lambda g, x, value: uf.propagate(g, x, 3, edge_value=value, norm="row"),
        (("N", 7), ("E",)),
    ),
    "solve": (lambda g, x, diag, c: uf.solve(g, x, 2.5 + diag, c=c), (("N", 7), ("N",), ("N",))),
    "solve_constant": (lambda g, x: uf.solve(g, x, 2.5, norm="none", c=0.02), (("N", 7),)),
    "solve_edge_value": (
        lambda g, x, v: uf.solve(g, x, 2.5, edge_value=v[rows_of(g)] * v[g.col.long()]),
        (("N", 2, 7), ("N",)),
    ),
    "ada_solve": (uf.ada_solve, (("N", 7), ("N",))),
    "ada_solve_replicas": (uf.ada_solve, (("N", 2, 7), ("N", 2))),
    "neighbor_mean": (uf.neighbor_mean, (("N", 7),)),
    "neighbor_var": (uf.neighbor_var, (("N", 7),)),
    "ada_c": (lambda g, x, w, b: uf.ada_c(g, x, w, 9.0, bias=b), (("N", 2, 7), (2, 7), (2,))),
    "ada_c_mean": (lambda g, x, w: uf.ada_c(g, x, w, 9.0, bias=0.5, stat="mean"), (("N", 7), (7,))),
    "gat_aggregate": (uf.gat_aggregate, (("N", 3, 7), ("N", 3), ("N", 3))),
    "gat_aggregate_dropout": (
        lambda g, x, src, dst: uf.gat_aggregate(g, x, src, dst, dropout=0.4, seed=[5, 6]),
        (("N", 4, 7), ("N", 4), ("N", 4)),
    ),
    "denoising_energy": (uf.denoising_energy, (("N", 7), ("N", 7), ("N",))),
    "sparse_linear": (sparse_linear, (("N", 7), (7,))),
    "sparse_linear_replicas": (sparse_linear, ((2, "N", 7), (2, 7))),
    "dropout": (lambda g, x: uf.dropout(x, 0.4, seed=5), (("N", 7),)),
    "dropout_linear": (
        lambda g, x, weight, bias: uf.dropout_linear(x, weight, bias, relu=True, dropout=0.4, seed=[5, 6]),
        (("N", 2, 7), (2, 7, 3), (2, 3)),
    ),
    "ada_ugnn": (ada_ugnn, (("N", 12), (12, 7), (7,))),
}


def inputs_of(name, g, dtype=torch.float32, seed=0):
    sizes = {"N": g.num_nodes, "E": g.num_edges}
    generator = torch.Generator().manual_seed(seed)
    shapes = [[sizes.get(s, s) for s in shape] for shape in CALLS[name][1]]
    return [torch.rand(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def outcome(function, g, leaves):
    """The result, and gradients of a loss in all leaves."""
    out = function(g, *leaves)
    return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]


class Recorder(TorchDispatchMode):
    """Calls of our operators below autograd, those of backward passes too."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "ugnn":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


# without a gradient: the labels are all known, as opcheck takes nan for a difference
OTHERS = {
    "local_smoothness": lambda g: uf.local_smoothness(g, torch.arange(g.num_nodes) % 3),
    "sparse_dense": lambda g: torch.ops.ugnn.sparse_dense(
        g.rowptr, g.col, torch.ones(g.num_edges), g.num_nodes, 0.4, torch.arange(1), "cpu"
    ),
    "reverse": lambda g: torch.ops.ugnn.reverse(g.rowptr, g.col),
}


def recorded(name):
    """[(operator, arguments, whether by forward)] of a call of a public function and of its backward."""
    g = graph_of(RECORDED)
    with Recorder() as recorder:
        if name in OTHERS:
            OTHERS[name](g)
            forward = len(recorder.calls)
        else:
            leaves = inputs_of(name, g)
            out = CALLS[name][0](g, *leaves)
            forward = len(recorder.calls)
            torch.autograd.grad(out.sum(), leaves)
    assert recorder.calls
    return [(func, args, k < forward) for k, (func, args) in enumerate(recorder.calls)]


def test_every_operator_is_called_here():
    ours = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("ugnn::")}
    met = {func._schema.name for name in [*CALLS, *OTHERS] for func, _, _ in recorded(name)}
    assert met == ours


@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_opcheck(name):
    seen = set()
    for func, args, forward in recorded(name):
        if func in seen and not name.startswith("propagate"):
            continue
        seen.add(func)
        plain = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        torch.library.opcheck(func, tuple(plain))
        names = [argument.name for argument in func._schema.arguments]
        given = [
            isinstance(a, torch.Tensor) and a.dim() > 0 and n not in OF_GRAPH for n, a in zip(names, args, strict=True)
        ]
        apart = [strided(a) if there else a for a, there in zip(plain, given, strict=True)]
        torch.library.opcheck(func, tuple(apart), test_utils=("test_schema", "test_faketensor"))
        for got, expected in zip(results(func(*apart)), results(func(*plain)), strict=True):
            assert torch.equal(got, expected)
        tracked = [forward and isinstance(a, torch.Tensor) and a.requires_grad for a in args]
        if any(tracked):
            leaves = [a.clone().requires_grad_() if t else a for a, t in zip(plain, tracked, strict=True)]
            torch.library.opcheck(func, tuple(leaves))


def results(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("device", ("cpu", "cuda"))
@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_fake_tensors_have_the_metadata_of_real_ones(name, device):
    for func, args, _ in recorded(name):
        plain = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        with FakeTensorMode(allow_non_fake_inputs=True):
            fakes = [
                torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=device)
                if isinstance(a, torch.Tensor)
                else a
                for a in plain
            ]
            got = results(func(*fakes))
        for fake, real in zip(got, results(func(*plain)), strict=True):
            assert fake.device.type == device
            assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


@pytest.mark.parametrize("name", CALLS)
def test_compile_with_dynamic_sizes(name):
    function = CALLS[name][0]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for N in (40, 57, 91):
        g = graph_of(N)
        leaves = inputs_of(name, g)
        for got, expected in zip(outcome(compiled, g, leaves), outcome(function, g, leaves), strict=True):
            torch.testing.assert_close(got, expected)
    # once for the first size, once for any
    assert counter.frame_count <= 2


def test_compile_with_inductor():
    g = graph_of(50)
    leaves = inputs_of("ada_ugnn", g)
    torch._dynamo.reset()
    compiled = torch.compile(ada_ugnn, fullgraph=True)
    for got, expected in zip(outcome(compiled, g, leaves), outcome(ada_ugnn, g, leaves), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_compile_chooses_memory_without_a_graph_break(monkeypatch):
    # as on a graph large enough to ask how much memory is free
    monkeypatch.setattr(uf._memory, "SMALL", 0)
    g = graph_of(30)
    leaves = inputs_of("ada_propagate", g)
    torch._dynamo.reset()
    compiled = torch.compile(CALLS["ada_propagate"][0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(g, *leaves), CALLS["ada_propagate"][0](g, *leaves))


def test_compile_does_not_look_at_values():
    g = graph_of(30)
    torch._dynamo.reset()
    compiled = torch.compile(CALLS["ada_propagate"][0], fullgraph=True, backend="aot_eager")
    h = compiled(g, torch.rand(30, 7), torch.full((30,), torch.nan))
    assert h.isnan().all()


class Propagation(torch.nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.graph, self.weight = graph, torch.nn.Parameter(torch.rand(7))

    def forward(self, x):
        return uf.ada_propagate(self.graph, x, uf.ada_c(self.graph, x, self.weight, 9.0), 3)


def test_export():
    model, x = Propagation(graph_of(30)), torch.rand(30, 7)
    exported = torch.export.export(model, (x,))
    assert any("ugnn.ada_propagate" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(x), model(x))


@pytest.mark.parametrize("name", CALLS)
def test_autocast_stores_bfloat16(name):
    g = graph_of(60)
    leaves = inputs_of(name, g)
    expected = outcome(CALLS[name][0], g, leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = outcome(CALLS[name][0], g, leaves)
    # weights and energies stay float32; dropout keeps the dtype, as torch's does
    stays = ("ada_c", "ada_c_mean", "denoising_energy", "dropout")
    assert got[0].dtype == (torch.float32 if name in stays else torch.bfloat16)
    for low, full in zip(got, expected, strict=True):
        # gradients have the dtype of what they belong to
        assert low is got[0] or low.dtype == torch.float32
        scale = full.abs().max().item()
        if name == "ada_ugnn" and low is got[-1]:
            continue  # see the next test
        torch.testing.assert_close(low.float(), full, rtol=0.05, atol=0.03 * scale)


def test_autocast_gradient_of_sums_that_cancel():
    # seven sums over nodes whose terms nearly cancel: of one draw chance decides
    g, errors, exact = graph_of(60), [], []
    for seed in range(64):
        leaves = inputs_of("ada_ugnn", g, seed=seed)
        full = outcome(ada_ugnn, g, leaves)[-1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            errors.append(outcome(ada_ugnn, g, leaves)[-1] - full)
        exact.append(full)
    assert torch.stack(errors).norm() < 0.08 * torch.stack(exact).norm()


# the matrix product of ada_ugnn is torch's
@pytest.mark.parametrize("name", [name for name in CALLS if name != "ada_ugnn"])
def test_autocast_leaves_float64(name):
    g = graph_of(60)
    leaves = inputs_of(name, g, torch.float64)
    expected = outcome(CALLS[name][0], g, leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = outcome(CALLS[name][0], g, leaves)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b)


def test_autocast_takes_coefficients_of_any_precision():
    g = graph_of(30)
    x, c = torch.rand(30, 7), torch.rand(30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = uf.ada_propagate(g, x, c.bfloat16().float(), 3)
        assert torch.equal(uf.ada_propagate(g, x, c.bfloat16(), 3), expected)
        assert torch.equal(uf.ada_propagate(g, x.bfloat16(), c.bfloat16(), 3), expected)
        mixed = uf.ada_propagate(g, x.double(), c, 3), uf.propagate(g, x.double(), 3, agg=c)
    torch.testing.assert_close(mixed[0], uf.ada_propagate(g, x.double(), c.double(), 3))
    torch.testing.assert_close(mixed[1], uf.propagate(g, x.double(), 3, agg=c.double()))


@pytest.mark.parametrize("name", CALLS)
def test_defaults_for_new_tensors_do_not_matter(name):
    g = graph_of(40)
    leaves = inputs_of(name, g)
    expected = outcome(CALLS[name][0], g, leaves)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            got = outcome(CALLS[name][0], g, leaves)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_inference_mode():
    g = graph_of(40)
    x, c = torch.rand(40, 7), torch.rand(40)
    with torch.inference_mode():
        h = uf.ada_propagate(g, x, c, 3)
    assert h.is_inference() and torch.equal(h, uf.ada_propagate(g, x, c, 3))


@pytest.mark.parametrize("name", CALLS)
def test_activation_checkpointing(name):
    g = graph_of(40)
    leaves = inputs_of(name, g)

    def checkpointed(g, *tensors):
        return torch.utils.checkpoint.checkpoint(CALLS[name][0], g, *tensors, use_reentrant=False)

    for got, expected in zip(outcome(checkpointed, g, leaves), outcome(CALLS[name][0], g, leaves), strict=True):
        assert torch.equal(got, expected)
