"""The functions of ugnn_fast.testing: right input passes, wrong input fails."""

import itertools
import os

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast._row_plan import row_plan
from ugnn_fast.testing import (
    assert_no_worse_than_torch,
    case_id,
    check_operator,
    degrees,
    entries,
    operator_cases,
    pairwise,
    product,
    sample_graphs,
    strided,
)


def test_every_backend_ran(backends_that_ran, kernels_that_ran, request):
    # a suite that skips itself is red; UGNN_NATIVE=0 says that there shall be no native module
    if not any({"backend", "use_backend"} & set(item.fixturenames) for item in request.session.items):
        pytest.skip("no test with a backend was selected")
    if uf._backend._interpreting():
        assert backends_that_ran == {"triton"} and kernels_that_ran
        return
    assert backends_that_ran >= ({"reference"} if os.environ.get("UGNN_NATIVE") == "0" else {"reference", "cpu"})


def test_memory_of_the_package_starts_as_nan():
    # as a module of the package would call them; see tests/conftest.py
    names = {"__name__": "ugnn_fast.ops.anything", "torch": torch, "x": torch.zeros(3)}
    for call in ("torch.empty(2, 3)", "torch.empty_like(x)", "x.new_empty(4)", "x.new_empty((), dtype=torch.bfloat16)"):
        assert eval(call, names).isnan().all(), call
    assert eval("torch.empty(3, dtype=torch.int64)", names).shape == (3,)


def test_sample_graphs_are_what_they_are_called():
    graphs = sample_graphs()
    assert graphs["empty"].num_nodes == 0 and graphs["one_node"].num_nodes == 1
    assert graphs["isolated"].degree.eq(1).any()
    assert graphs["star"].rowptr.diff().max() == graphs["star"].num_nodes
    assert graphs["chain"].rowptr.diff().max() == 3
    assert graphs["power_law"].rowptr.diff().max() > 8 * graphs["power_law"].rowptr.diff().double().mean()
    reached = product(graphs["two_components"], torch.ones(graphs["two_components"].num_edges), torch.eye(24))
    assert reached[:12, 12:].eq(0).all()
    for name in ("weighted", "weighted_no_self_loops", "weighted_hub"):
        assert graphs[name].weight is not None
    for name in ("no_self_loops", "weighted_no_self_loops", "no_edges"):
        assert not graphs[name].self_loops and graphs[name].degree.eq(0).any()
    for name in ("hub", "weighted_hub"):
        assert graphs[name].hubs.tolist() == [0]
    assert row_plan(graphs["small_hub"].rowptr)[1][2] >= 2
    assert all(g.num_nodes <= 512 for name, g in graphs.items() if name not in ("hub", "weighted_hub"))


@pytest.mark.parametrize("graph", ("weighted", "weighted_hub"))
def test_product_is_a_matrix_product(graph):
    g = sample_graphs()[graph]
    h, values = (
        torch.randn(g.num_nodes, 2, dtype=torch.float64),
        torch.randn(g.num_edges, dtype=torch.float64),
    )
    expected = torch.sparse_coo_tensor(g.edge_index, values, (g.num_nodes,) * 2) @ h
    torch.testing.assert_close(product(g, values, h), expected)
    torch.testing.assert_close(degrees(g), product(g, entries(g)[2], torch.ones_like(h))[:, 0])


def test_strided_has_the_same_values():
    x = torch.randn(3, 4)
    assert torch.equal(strided(x), x) and not strided(x).is_contiguous()


def test_pairwise_covers_every_valid_pair():
    axes = {"a": range(3), "b": "xyz", "c": (True, False), "d": range(4)}

    def valid(a, b, **_):
        return (a, b) != (1, "y")

    cases = pairwise(axes, valid)
    assert cases == pairwise(axes, valid) and len(cases) < 3 * 3 * 2 * 4 / 2
    assert all(valid(**case) for case in cases)
    for (m, first), (n, second) in itertools.combinations(axes.items(), 2):
        met = {(case[m], case[n]) for case in cases}
        expected = set(itertools.product(first, second)) - ({(1, "y")} if (m, n) == ("a", "b") else set())
        assert met == expected


def test_operator_cases_reach_every_graph_and_width_with_every_backend():
    cases = operator_cases("ada_propagate", lambda c, **_: c != 1, c=(0, 1, 2))
    assert all(case["c"] != 1 for case in cases)
    assert {case["graph"] for case in cases if case["backend"] == "cpu"} == {
        name for name in sample_graphs() if "small" not in name
    }
    assert {case["dtype"] for case in cases if case["backend"] == "reference"} == {
        torch.float32, torch.float64, torch.bfloat16,
    }  # fmt: skip
    assert case_id({"graph": "star", "D": 33, "R": None, "dtype": torch.float32}) == "star-D33-RNone-float32"


def test_as_good_as_torch_passes():
    exact = torch.randn(100, dtype=torch.float64)
    assert_no_worse_than_torch(exact.float(), exact.float(), exact)
    assert_no_worse_than_torch(exact.clone(), exact, exact)
    assert_no_worse_than_torch(exact.bfloat16(), exact.bfloat16(), exact)
    assert_no_worse_than_torch(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.float64))
    nan = torch.tensor([1.0, torch.nan, torch.inf])
    assert_no_worse_than_torch(nan, nan, nan.double())


def off_by(exact, got, plain=None, **options):
    with pytest.raises(AssertionError) as error:
        assert_no_worse_than_torch(got, exact.to(got.dtype) if plain is None else plain, exact, **options)
    return str(error.value)


def test_one_wrong_element_fails_and_is_named():
    exact = torch.randn(50, 7, dtype=torch.float64)
    got = exact.float()
    got[31, 4] += 1e-4
    text = off_by(exact, got, name="gradient of x")
    assert text.startswith("gradient of x: largest error") and "at [31, 4]" in text


def test_all_elements_a_little_off_fail():
    # each within what the worst element of plain torch is off, but not all of them by chance
    exact = torch.ones(10000, dtype=torch.float64)
    plain = exact.float()
    plain[0] += 1e-4
    assert "root mean square" in off_by(exact, exact.float() + 1e-4, plain)


def test_wrong_scale_and_sign_show_as_vectors():
    exact = torch.randn(50, dtype=torch.float64)
    assert "norm ratio 2.000000, cosine 1.000000" in off_by(exact, 2 * exact.float())
    assert "norm ratio 1.000000, cosine -1.000000" in off_by(exact, -exact.float())


def test_wrong_shape_and_non_finite_values_fail():
    exact = torch.ones(4, dtype=torch.float64)
    assert "must be [4], got [4, 1]" in off_by(exact, torch.ones(4, 1))
    got = torch.ones(4)
    got[2] = torch.nan
    assert "must be finite, got nan at [2], expected 1.0" in off_by(exact, got)
    exact[1] = torch.nan
    assert "must be [nan] at [1]" in off_by(exact, torch.ones(4), torch.ones(4))
    with pytest.raises(TypeError, match=r"exact must be float64, got torch\.float32"):
        assert_no_worse_than_torch(torch.ones(2), torch.ones(2), torch.ones(2))


def test_twice_the_error_of_torch_is_the_limit():
    exact = torch.ones(10, dtype=torch.float64)
    plain = exact.float() + 1e-3
    assert_no_worse_than_torch(exact.float() + 1.9e-3, plain, exact)
    off_by(exact, exact.float() + 2.1e-3, plain)
    assert_no_worse_than_torch(exact.float() + 2.9e-3, plain, exact, factor=3)


def check(operator, dtype=torch.float32, wrt=("x", "y")):
    torch.manual_seed(0)
    inputs = {"x": torch.randn(20, 3).to(dtype), "y": torch.rand(20, dtype=torch.float32)}
    check_operator(operator, lambda x, y, store: store(x * y[:, None]), inputs, wrt=wrt)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x * y[:, None]).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return (grad * y[:, None]).to(x.dtype), 1.001 * (grad * x).float().sum(1)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_check_operator(dtype):
    check(lambda x, y: (x.float() * y[:, None]).to(dtype), dtype)
    with pytest.raises(AssertionError, match="result: largest error"):
        check(lambda x, y: (1.05 * x.float() * y[:, None]).to(dtype), dtype)
    with pytest.raises(AssertionError, match="result: largest error"):
        check(lambda x, y: (x.float() * y[:, None]).to(dtype).detach() * 0, dtype)


def test_check_operator_sees_wrong_and_lost_gradients():
    check(WrongGradient.apply, wrt=("x",))
    with pytest.raises(AssertionError, match="gradient of y: largest error"):
        check(WrongGradient.apply)
    with pytest.raises(AssertionError, match="gradient of y: largest error"):
        check(lambda x, y: x * y.detach()[:, None])
    with pytest.raises(AssertionError, match="gradient of x: largest error"):
        check(lambda x, y: (x * y[:, None]).detach())
