"""The operators on the emulated CUDA kernels: the tests of the other backends, forward and gradients."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import ugnn_fast as uf
from tests.cuda.emulated import KIND, ROOT
from tests.cuda.test_gpu import check_one_launch
from tests.ops import (
    test_ada_c,
    test_ada_propagate,
    test_ada_solve,
    test_denoising_energy,
    test_drop_edges,
    test_gat_aggregate,
    test_local_smoothness,
    test_neighbor_var,
    test_propagate,
    test_solve,
    test_sparse_linear,
)
from ugnn_fast import testing
from ugnn_fast._random import kept_entries
from ugnn_fast._sparse import sparse_features
from ugnn_fast.testing import case_id, pairwise, product_of, sample_graphs, strided

BACKEND = "cuda-emulated"
# one column, idle lanes, whole vectors and parts of them, several blocks
WIDTHS = (1, 2, 3, 4, 7, 8, 12, 16, 33, 40, 64, 72, 130, 256)


@functools.cache
def graphs():
    """Sample graphs, and hubs of several pieces beside rows of middle length; none that stands for a larger one."""
    rng = np.random.default_rng(0)
    spokes = np.stack([np.zeros(700, np.int64), np.arange(1, 701)])
    second = np.stack([np.full(300, 5), np.arange(20, 320)])
    middle = np.stack([np.full(100, 7), np.arange(100, 200)])
    hubs = np.concatenate([spokes, second, middle], axis=1)
    left_out = ("hub", "weighted_hub", "empty", "small_power_law", "small_hub")
    found = {name: g for name, g in sample_graphs().items() if name not in left_out}
    make = functools.partial(uf.Graph.from_edge_index, symmetrize=True)
    return found | {"hubs": make(hubs), "weighted_hubs": make(hubs, edge_weight=rng.uniform(0.1, 3, hubs.shape[1]))}


SHARED = {
    "backend": [BACKEND],
    "graph": list(graphs()),
    "D": WIDTHS,
    "dtype": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    "R": (None, 1, 3),
    "layout": (torch.Tensor.contiguous, strided),
    "steps": ("together", "apart"),
    "seed": (1, 2, 3, 4),
}


# those that share out the pairs of graph and width in the slow builds
SHARING = (
    *("ada_propagate", "propagate", "gat_aggregate", "solve", "ada_solve"),
    *("neighbor_var", "ada_c", "denoising_energy"),
)


def cases(op, valid, shared=SHARED, **axes):
    """A pairwise cover; in slow builds graphs and widths meet in the cases of several operators together.

    With --whole-product every graph, width, dtype and schedule, other values drawn.
    """
    axes = shared | axes
    if testing.whole_product:
        multiplied = {name: axes[name] for name in ("graph", "matrix", "D", "dtype", "seed") if name in axes}
        return product_of(multiplied, {name: axis for name, axis in axes.items() if name not in multiplied}, valid)

    def asked(**pair):
        if set(pair) != {"graph", "D"} or KIND == "plain":
            return True
        turn = (axes["graph"].index(pair["graph"]) + axes["D"].index(pair["D"])) % len(SHARING)
        return turn == SHARING.index(op)

    return pairwise(axes, valid, asked=asked)


def small(graph, D, R, **_):
    return D * (R or 1) <= (80 if "hub" in graph else 300)


def valid_ada_propagate(graph, R, c, **case):
    return small(graph, R=R, **case) and test_ada_propagate.valid(graph=graph, R=R, c=c, **case)


def valid_propagate(clamp, wrt, dtype, **case):
    # a rounded value may fall on the other side of a bound: no gradient to compare
    if clamp is not None and wrt != "" and dtype == torch.float16:
        return False
    return small(**case) and test_propagate.valid(clamp=clamp, wrt=wrt, dtype=dtype, **case)


ADA_PROPAGATE = cases(
    "ada_propagate",
    valid_ada_propagate,
    c=("number", "scalar", "node", "replica"),
    K=(1, 2, 5),
    memory=("auto", "save", "recompute", "checkpoint"),
    wrt=("", "x", "c", "xc"),
)
PROPAGATE = cases(
    "propagate",
    valid_propagate,
    W=("one", "c_number", "c_node", "c_replica", "edge_value"),
    norm=("sym", "row", "none", "left", "right", "both"),
    K=(1, 2, 3, 5),
    out=("last", "sum", "all"),
    clamp=test_propagate.CLAMPS,
    wrt=("", "x", "all"),
    **dict.fromkeys(test_propagate.COEFFICIENTS, test_propagate.FORMS),
)


def valid_gat_aggregate(graph, D, R, H, **_):
    # R heads of one seed each are tested by themselves
    return R is None and small(graph, D, H)


def valid_solve(graph, D, R, **case):
    # tens of iterations
    small_enough = graphs()[graph].num_nodes * D * (R or 1) <= 4000
    return small_enough and (R is not None or "replica" not in case.values())


GAT_AGGREGATE = cases(
    "gat_aggregate", valid_gat_aggregate, H=(1, 2, 3, 4, 5, 8, 12, 70), q=(0.0, 0.6), slope=(0.2, 0.0, 1.5)
)
SOLVE = cases(
    "solve",
    valid_solve,
    W=("one", "number", "node", "replica", "edge"),
    diag=("number", "node", "replica"),
    norm=("sym", "none"),
)
ADA_SOLVE = cases("ada_solve", valid_solve, c=("number", "scalar", "node", "replica"))


@pytest.fixture
def run(emulated, use_backend, monkeypatch):
    """Runs a test of another backend on a case here."""

    def run_case(module, case):
        monkeypatch.setattr(module, "GRAPHS", graphs(), raising=False)
        monkeypatch.setenv("UGNN_CUDA_STEPS", case.get("steps", "auto"))
        emulated.module.set_seed(case["seed"])
        module.test_statement(case, use_backend)
        assert emulated.launches, "no kernel ran"

    return run_case


@pytest.mark.parametrize("case", ADA_PROPAGATE, ids=case_id)
def test_ada_propagate_statement(case, run):
    run(test_ada_propagate, case)


@pytest.mark.parametrize("case", PROPAGATE, ids=case_id)
def test_propagate_statement(case, run):
    run(test_propagate, case)


@pytest.mark.parametrize("case", GAT_AGGREGATE, ids=case_id)
def test_gat_aggregate_statement(case, run):
    run(test_gat_aggregate, case)


@pytest.mark.parametrize("case", SOLVE, ids=case_id)
def test_solve_statement(case, run):
    run(test_solve, case)


@pytest.mark.parametrize("case", ADA_SOLVE, ids=case_id)
def test_ada_solve_statement(case, run):
    run(test_ada_solve, case)


# operators of one launch, and the names of their kernels
ALONE = {name: axis for name, axis in SHARED.items() if name != "steps"}
FEATURES = {name: axis for name, axis in ALONE.items() if name != "graph"} | {
    "matrix": [name for name in test_sparse_linear.MATRICES if "long" not in name or "small" in name],
    "dropout": (0.0, 0.4),
    "bias": (True, False),
}
ONE_LAUNCH = {
    "neighbor_var": (
        test_neighbor_var,
        cases("neighbor_var", small, ALONE, stat=("var",)),
        {"neighbor_stat", "neighbor_var_bwd"},
    ),
    "ada_c": (
        test_ada_c,
        cases(
            "ada_c",
            lambda **case: small(**case) and test_ada_c.valid(**case),
            ALONE,
            weight=("shared", "replica"),
            bias=("none", "scalar", "replica"),
            stat=("mean", "var"),
            s=(9.0, 0.5),
            wrt=("x", "weight", "x weight bias"),
        ),
        {"neighbor_stat", "neighbor_var_bwd", "step"},
    ),
    "denoising_energy": (
        test_denoising_energy,
        cases(
            "denoising_energy",
            lambda **case: small(**case) and test_denoising_energy.valid(**case),
            ALONE,
            c=("number", "node", "replica"),
            wrt=("", "x", "xsc"),
        ),
        {"edge_energy", "step"},
    ),
    "sparse_linear": (
        test_sparse_linear,
        cases("sparse_linear", lambda matrix, D, **_: "long" not in matrix or D <= 33, FEATURES),
        {"sparse_linear"},
    ),
}


@pytest.mark.parametrize(
    "op, case", [(op, case) for op, (_, of, _) in ONE_LAUNCH.items() for case in of],
    ids=lambda value: value if isinstance(value, str) else case_id(value),
)  # fmt: skip
def test_statement_of_one_launch(op, case, emulated, run):
    module, _, kernels = ONE_LAUNCH[op]
    if case.get("matrix") in ("empty", "no_columns"):
        emulated.launches.append(("sparse_linear", 0, False))  # there is nothing to launch
    run(module, case)
    # denoising_energy and ada_c with weights in float64 add up degrees
    assert {name for name, *_ in emulated.launches} <= kernels | {"kept_degree"}


MEAN_AND_VAR = (uf.neighbor_mean, uf.neighbor_var)
# tests of one backend, with what they take beside it
OTHERS = [
    (test_ada_propagate.test_c_of_a_node_alone_has_no_gradient, {"K": 4}),
    (test_neighbor_var.test_gradcheck, {"function": uf.neighbor_var, "D": 9}),
    *((test_neighbor_var.test_a_large_offset_costs_no_digits, {"graph": name}) for name in ("weighted", "hubs")),
    (test_neighbor_var.test_variance_of_equal_values_is_zero, {}),
    (test_neighbor_var.test_a_node_without_neighbours_has_mean_and_variance_zero, {}),
    *((test_neighbor_var.test_nan_stays_among_neighbours, {"function": f, "D": 9}) for f in MEAN_AND_VAR),
    *(
        (test_neighbor_var.test_nothing_to_compute, {"function": f, "shape": shape})
        for f in MEAN_AND_VAR
        for shape in ((0, 4), (5, 0), (5, 0, 3), (5, 3, 0))
    ),
    (test_ada_c.test_is_in_float32_beside_bfloat16, {}),
    *((test_ada_c.test_saturated_sigmoid, {"sign": sign}) for sign in (-1, 1)),
    (test_ada_c.test_s_zero, {}),
    *((test_ada_c.test_gradcheck, {"stat": stat, "D": 9}) for stat in ("mean", "var")),
    *(
        (test_ada_c.test_nothing_to_sum, {"shape": shape, "stat": stat})
        for shape in ((0, 4), (5, 0), (0, 2, 3), (5, 2, 0), (5, 0, 3))
        for stat in ("mean", "var")
    ),
    (test_denoising_energy.test_gradcheck, {"D": 9}),
    (test_denoising_energy.test_double_backward, {}),
    *((test_denoising_energy.test_nothing_to_sum, {"shape": shape}) for shape in ((0, 4), (5, 0), (5, 2, 0))),
    *((test_local_smoothness.test_by_hand, {"graph": name, "dtype": torch.int64}) for name in graphs()),
    (test_local_smoothness.test_all_the_same_or_nothing_known, {}),
    *((test_drop_edges.test_operators_see_the_kept_edges_only, {"name": name}) for name in graphs()),
    *((test_sparse_linear.test_gradcheck, {"D": 9, "R": R}) for R in (None, 2)),
    *(
        (test_sparse_linear.test_the_mask_is_that_of_the_definition, {"seed": seed, "dropout": 0.5})
        for seed in (0, 2**63 + 11, -3)
    ),
    (test_sparse_linear.test_replicas_are_single_runs, {}),
    *((test_sparse_linear.test_nan_and_infinity_stay_in_their_rows, {"dropout": q}) for q in (0.0, 0.5)),
    (test_sparse_linear.test_what_is_dropped_meets_no_infinity, {}),
    (test_sparse_linear.test_stored_zeros_count_as_entries, {}),
    *(
        (test_gat_aggregate.test_masks_are_the_documented_words, {"H": H, "seed": seed})
        for H, seed in ((3, 12345), (9, -1))
    ),
    (test_gat_aggregate.test_replicas_draw_what_a_single_model_would, {}),
    *(
        (test_gat_aggregate.test_large_scores_do_not_overflow, {"name": name, "offset": offset})
        for name, offset in (("hub", 1e4), ("power_law", -1e4))
    ),
    (test_gat_aggregate.test_equal_scores_give_the_mean, {}),
    (test_gat_aggregate.test_a_row_without_entries_is_zero, {}),
    *(
        (test_gat_aggregate.test_nan_stays_in_its_head_among_neighbours, {"where": where})
        for where in ("x", "src", "dst")
    ),
    (test_gat_aggregate.test_a_score_of_minus_infinity_takes_a_neighbour_out, {}),
    (test_gat_aggregate.test_gradcheck, {"H": 3, "D": 2, "q": 0.5, "slope": 0.2}),
    (test_solve.test_replicas_are_solved_as_if_alone, {}),
    (test_solve.test_info, {"tol": 1e-5, "dtype": torch.float32}),
    (test_solve.test_too_few_iterations, {}),
    (test_solve.test_rounding_is_the_limit, {}),
    *((test_solve.test_indefinite_matrix, {"diag": diag}) for diag in (0.3, "node")),
    (test_solve.test_a_column_that_is_not_finite, {"bad": torch.nan}),
    *(
        (test_solve.test_very_small_and_large_values, {"dtype": dtype, "large": large})
        for dtype, large in ((torch.float32, False), (torch.float64, True))
    ),
    (test_solve.test_zero_x, {}),
    (test_ada_solve.test_a_node_without_neighbors_keeps_its_value, {}),
]


def other_id(value):
    if callable(value):
        return f"{value.__module__.rpartition('test_')[2]}-{value.__name__.removeprefix('test_')}"
    return "-".join(getattr(v, "__name__", str(v)) for v in value.values()) or "once"


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("test, given", OTHERS, ids=other_id)
def test_of_the_other_backends(test, given, emulated, monkeypatch):
    module = sys.modules[test.__module__]
    monkeypatch.setattr(module, "GRAPHS", graphs() | {"hub": graphs()["hubs"]}, raising=False)
    test(**given, backend=BACKEND)
    assert emulated.launches or 0 in given.get("shape", ())


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("graph", ("power_law", "weighted_hub"))
def test_what_is_to_run_on_a_gpu(graph, emulated):
    check_one_launch(graph, BACKEND, "cpu")
    assert len({name for name, *_ in emulated.launches}) == 7


@pytest.mark.parametrize("graph", graphs())
def test_degrees_of_kept_edges(graph, emulated):
    g = graphs()[graph]
    for q, seed in ((0.1, 0), (0.4, 2**63 + 11), (0.9, 7)):
        got, right = (uf.drop_edges(g, q, seed=seed, backend=backend) for backend in (BACKEND, "reference"))
        torch.testing.assert_close(got.degree, right.degree, rtol=1e-6 if g.weight is not None else 0, atol=0)
    assert {name for name, *_ in emulated.launches} == {"kept_degree"}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("dropout", (0.0, 0.4))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_dense_features(dtype, dropout, emulated):
    dense = test_sparse_linear.MATRICES["small_long_rows"].to(dtype)
    seed = torch.tensor([9]) if dropout else None
    entries = sparse_features(dense.to_sparse_csr())[:3]
    got = uf.ops.sparse_dense((), *entries, dense.shape[1], dropout, seed, BACKEND)
    expected = dense.double() * (test_sparse_linear.mask_of(dense, dropout, 9) if dropout else 1)
    assert torch.equal(got == 0, expected == 0) and emulated.launches == [("sparse_dense", 1, False)]
    torch.testing.assert_close(got, expected.to(dtype))


@pytest.mark.parametrize("graph", ("power_law", "hubs"))
def test_the_schedule_changes_no_bit_of_attention_or_a_solution(graph, emulated):
    g = graphs()[graph]
    inputs = test_gat_aggregate.inputs_of(g, 5, 4).values()
    results = []
    for seed in range(1, 5):
        emulated.module.set_seed(seed)
        leaves = [t.clone().requires_grad_() for t in inputs]
        y = uf.gat_aggregate(g, *leaves, dropout=0.4, seed=1, backend=BACKEND)
        f = uf.solve(g, leaves[0][:, 0], 1.5, tol=1e-3, backend=BACKEND)
        results.append((f, y, *torch.autograd.grad(y.square().sum(), leaves)))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("graph", ("power_law", "hubs"))
def test_attention_on_dropped_edges(graph, emulated):
    g = uf.drop_edges(graphs()[graph], 0.6, seed=5)
    inputs = test_gat_aggregate.inputs_of(g, 3, 4, torch.float64).values()
    results = []
    for backend in ("cpu", BACKEND):
        leaves = [t.clone().requires_grad_() for t in inputs]
        y = uf.gat_aggregate(g, *leaves, dropout=0.4, seed=1, backend=backend)
        results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for got, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, expected)
    assert {name for name, *_ in emulated.launches} == {"gat_aggregate_fwd", "gat_aggregate_bwd"}


@pytest.mark.parametrize("graph", ("power_law", "hubs"))
def test_the_schedule_does_not_change_a_bit(graph, emulated, monkeypatch):
    g = graphs()[graph]
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 12), torch.rand(g.num_nodes)
    results = []
    for seed in range(1, 5):
        for steps in ("together", "apart"):
            monkeypatch.setenv("UGNN_CUDA_STEPS", steps)
            emulated.module.set_seed(seed)
            leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
            h = uf.ada_propagate(g, *leaves, 3, backend=BACKEND)
            results.append((h, *torch.autograd.grad(h.square().sum(), leaves)))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("graph", ("weighted", "hubs"))
@pytest.mark.parametrize("drop", (0.3, 0.9))
def test_dropped_edges(graph, drop, emulated):
    g = uf.drop_edges(graphs()[graph], drop, seed=-3)
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 8).double(), torch.rand(g.num_nodes).double()
    results = []
    for backend in ("cpu", BACKEND):
        leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
        h = uf.ada_propagate(g, *leaves, 2, backend=backend)
        results.append((h, *torch.autograd.grad(h.square().sum(), leaves)))
    for got, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, expected)
    i, j = g.edge_index
    kept = kept_entries(i, j, *g.tensors(BACKEND)[-2:])
    products = torch.ops.ugnn.edge_dot(*g.tensors(BACKEND), x, x.sin(), BACKEND)
    torch.testing.assert_close(products, torch.where(kept, (x[i] * x[j].sin()).sum(1), 0))
    # degrees in float64 are added up again
    degrees = set() if g.weight is None else {"kept_degree"}
    assert {name for name, *_ in emulated.launches} == {"step", "ada_propagate_bwd", "edge_dot"} | degrees


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
def test_mean_of_neighbours(dtype, emulated):
    g = graphs()["weighted_hubs"]
    x = torch.randn(g.num_nodes, 5).to(dtype)
    got, expected = (uf.neighbor_mean(g, x, backend=backend) for backend in (BACKEND, "reference"))
    assert emulated.launches
    torch.testing.assert_close(got, expected)


def test_cora_takes_one_launch(emulated, monkeypatch):
    """The K = 10 steps of forward on a graph that fits the cache of any GPU."""
    monkeypatch.setattr(emulated, "cache_bytes", lambda device: 40 << 20)
    monkeypatch.delenv("UGNN_CUDA_STEPS", raising=False)
    g = uf.datasets.load("cora").graph
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 7)
    got = uf.propagate(g, x, 10, agg=0.9, skip=0.1, backend=BACKEND)
    assert emulated.launches == [("step", 10, True)]
    torch.testing.assert_close(got, uf.propagate(g, x, 10, agg=0.9, skip=0.1, backend="reference"))


@pytest.mark.skipif("UGNN_EMULATED" in os.environ, reason="one build is enough")
def test_triton_need_not_be_installed(emulated):
    code = """
import sys
sys.modules["triton"] = None
import torch
import ugnn_fast as uf
from tests.cuda.emulated import Emulated, build, install, load
install(Emulated(load(build("plain"))))
assert not uf.backends()["triton"].built
g = uf.datasets.load("cora").graph
x, c = torch.randn(g.num_nodes, 3, requires_grad=True), torch.rand(g.num_nodes, requires_grad=True)
for backend in ("cuda-emulated", "cpu"):
    h = uf.ada_propagate(g, x, c, 2, backend=backend)
    print(*(float(t.double().norm()) for t in torch.autograd.grad(h.square().sum(), (x, c))))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    got, expected = ([float(number) for number in line.split()] for line in run.stdout.splitlines())
    assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.skipif("UGNN_EMULATED" in os.environ, reason="one build is enough")
def test_more_steps_than_one_launch_takes(emulated, monkeypatch):
    monkeypatch.setenv("UGNN_CUDA_STEPS", "together")
    g = graphs()["chain"]
    x = torch.randn(g.num_nodes, 4)
    steps = emulated.kernels.MAX_CALLS + 3
    got = uf.propagate(g, x, steps, backend=BACKEND)
    assert emulated.launches == [("step", emulated.kernels.MAX_CALLS, True), ("step", 3, True)]
    torch.testing.assert_close(got, uf.propagate(g, x, steps, backend="reference"))
