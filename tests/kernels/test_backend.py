"""The Triton backend as a whole: its operators, what the cases reach, bits from run to run, allocations of a step."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ugnn_fast as uf
from ugnn_fast.testing import TRITON_WIDTHS, sample_graphs

pytestmark = pytest.mark.triton

GRAPHS = sample_graphs()


def test_the_operators():
    # whoever adds one also adds it to tests/ops and to tests/kernels/compile_kernels.py
    assert set(uf.backends()["triton"].ops) == {
        *(
            "ada_propagate",
            "propagate",
            "neighbor_var",
            "neighbor_mean",
            "ada_c",
            "gat_aggregate",
            "solve",
            "ada_solve",
        ),
        *("denoising_energy", "local_smoothness", "drop_edges", "sparse_linear"),
    }


def test_every_pair_of_graph_width_dtype_and_operator_is_tested(request):
    cases: dict = {}
    for item in request.session.items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")
        if isinstance(case, dict) and case.get("backend") == "triton" and item.path.parent.name == "ops":
            cases.setdefault(item.path.stem.removeprefix("test_"), []).append(case)
    # without cases of their own
    ops = set(uf.backends()["triton"].ops) - {"neighbor_mean", "drop_edges", "local_smoothness"}
    if missing := ops - set(cases):
        pytest.skip(f"tests of {missing} are not selected")
    graphs = {name for name, g in GRAPHS.items() if g.num_nodes <= 64 or name.startswith("small")}
    dtypes = {torch.float32, torch.float16, torch.bfloat16}
    everything = [case for of in cases.values() for case in of if "graph" in case]
    # hubs stay narrow
    pairs = {(graph, D) for graph, D in itertools.product(graphs, TRITON_WIDTHS) if "hub" not in graph or D <= 40}
    assert {(case["graph"], case["D"]) for case in everything} >= pairs
    for op, of in cases.items():
        axis = "graph" if "graph" in of[0] else "matrix"
        names = graphs if axis == "graph" else {case[axis] for case in of}
        assert {(case[axis], case["dtype"]) for case in of} == set(itertools.product(names, dtypes)), op
        widths = {D for D in TRITON_WIDTHS if op != "gat_aggregate" or D <= 64}
        assert {(case["D"], case["dtype"]) for case in of} == set(itertools.product(widths, dtypes)), op


def leaf(*shape, seed=0, dtype=torch.float32):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


# name: function(g, x, c)
CALLS = {
    "ada_propagate": lambda g, x, c: uf.ada_propagate(g, x, c, 3, backend="triton"),
    "propagate": lambda g, x, c: uf.propagate(g, x, 2, c=c, keep=0.5, backend="triton"),
    "gat_aggregate": lambda g, x, c: uf.gat_aggregate(
        g, x[:, None], c[:, None], 2 * c[:, None], dropout=0.5, seed=3, backend="triton"
    ),
    "neighbor_var": lambda g, x, c: uf.neighbor_var(g, c[:, None] * x, backend="triton"),
    "ada_c": lambda g, x, c: uf.ada_c(g, c[:, None] * x, x.detach()[0].float(), 9.0, backend="triton"),
    "ada_solve": lambda g, x, c: uf.ada_solve(g, x, c, tol=1e-3, backend="triton"),
    "denoising_energy": lambda g, x, c: uf.denoising_energy(g, x, 2 * x.detach(), c, backend="triton"),
}
CALLS = {name: call for name, call in CALLS.items() if name in uf.backends()["triton"].ops}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_in_every_run(name):
    g = GRAPHS["small_hub"]
    x, c = leaf(g.num_nodes, 3), leaf(g.num_nodes, seed=1)
    runs = []
    for _ in range(2):
        out = CALLS[name](g, x, c)
        runs.append((out, *torch.autograd.grad(out.square().sum(), (x, c))))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


class Calls(TorchDispatchMode):
    """Which operators of torch run, and how many of them make new memory."""

    def __init__(self):
        super().__init__()
        self.names, self.allocations = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func._schema.name)
        self.allocations += any(result.alias_info is None for result in func._schema.returns)
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Calls of our operators, those of the backward pass too."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "ugnn":
            self.calls.append((func._schema.name.removeprefix("ugnn::"), args))
        return func(*args, **(kwargs or {}))


# function(g, x, c, K): K steps, forward and backward
LOOPS = {
    "constant": lambda g, x, c, K: uf.ada_propagate(g, x, 0.5, K, backend="triton"),
    "save": lambda g, x, c, K: uf.ada_propagate(g, x, c, K, memory="save", backend="triton"),
    "recompute": lambda g, x, c, K: uf.ada_propagate(g, x, c, K, memory="recompute", backend="triton"),
    "x alone": lambda g, x, c, K: uf.ada_propagate(g, x, c.detach(), K, backend="triton"),
    "propagate": lambda g, x, c, K: uf.propagate(g, x, K, agg=0.9, skip=0.1, backend="triton"),
    # its backward is a call for every step, as each has a gradient coming in
    "propagate all": lambda g, x, c, K: uf.propagate(
        g, x.detach(), K, agg=torch.ones(K, 1), keep=c.detach(), prev=0.1, norm="row", out="all", backend="triton"
    ),
    "propagate sum": lambda g, x, c, K: uf.propagate(g, x, K, gamma=torch.ones(K + 1), out="sum", backend="triton"),
}


@pytest.mark.plain_memory
@pytest.mark.parametrize("name", LOOPS)
def test_a_step_neither_allocates_nor_waits(name, monkeypatch):
    from ugnn_fast import device
    from ugnn_fast.device import _rows

    g = GRAPHS["small_hub"]
    launches, counts = {4: 0, 8: 0}, {4: [], 8: []}
    for K in launches:
        x, c = leaf(g.num_nodes, 3), leaf(g.num_nodes, seed=1)
        with Recorder() as recorder:
            out = LOOPS[name](g, x, c, K)
            if out.requires_grad:
                out.sum().backward()

        def count(*args, K=K, **options):
            launches[K] += 1

        with monkeypatch.context() as patch:
            # the interpreter copies arguments
            patch.setattr(_rows.Rows, "launch", count)
            for op, args in recorder.calls:
                split = len(g.tensors("triton"))
                with torch.no_grad(), Calls() as calls:
                    device.body(op)(args[:split], *args[split:])
                assert not calls.names & {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"}
                counts[K].append((op, calls.allocations))
    assert launches[8] > launches[4]
    assert counts[8] == counts[4]


@pytest.mark.plain_memory
@pytest.mark.parametrize("on_device", (False, True))
def test_seeds_of_attention_are_on_the_device_before_the_operator(on_device, monkeypatch):
    # a copy from the host inside could not be captured in a CUDA graph; meta stands for a GPU
    from ugnn_fast import device, functional, graph
    from ugnn_fast.device import _rows

    plan, sizes = graph.row_plan(GRAPHS["star"].rowptr)
    monkeypatch.setattr(graph, "row_plan", lambda rowptr: (plan.to(rowptr.device), sizes))
    monkeypatch.setattr(functional, "choose", lambda op, backend, x: "triton")
    monkeypatch.setattr(_rows.Rows, "launch", lambda *args, **options: None)
    g = GRAPHS["star"].to("meta")
    x, src, dst = (torch.rand(shape, device="meta") for shape in ((34, 2, 3), (34, 2), (34, 2)))
    seed = torch.zeros(1, dtype=torch.int64, device="meta") if on_device else 3
    with Recorder() as recorder:
        uf.gat_aggregate(g, x, src, dst, dropout=0.5, seed=seed)
    ((_, args),) = recorder.calls
    tensors, constants = g.tensors("triton"), args[-4:]
    with Calls() as calls:
        y, lse = device.body("gat_aggregate")(tensors, x, src, dst, *constants)
        device.body("gat_aggregate_backward")(tensors, x, src, dst, lse, y, *constants)
    assert calls.allocations and not calls.names & {"aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense"}
