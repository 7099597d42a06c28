"""sparse_linear and sparse_dense by the Triton kernels: rows and columns of every kind, masks, the layer."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import ops
from ugnn_fast._random import FEATURES, philox
from ugnn_fast._sparse import sparse_features
from ugnn_fast.nn import SparseLinear
from ugnn_fast.nn import sparse_linear as module
from ugnn_fast.testing import check_operator, strided

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore:Sparse")]

SEEDS = (2**63 + 11, -3)


def features(N=20, F=320):
    """Short rows, one of middle length, a hub of two pieces, empty rows and columns."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(N, F, generator=generator) * (torch.rand(N, F, generator=generator) < 0.03)
    dense[3] = torch.randn(F, generator=generator)
    dense[5, :100] = 0.5
    dense[8:10] = 0
    dense[:, 40:44] = 0
    return dense


def mask_of(dense, dropout, seed):
    N, F = dense.shape
    row, col = torch.arange(N)[:, None].expand(N, F), torch.arange(F).expand(N, F)
    return (philox(seed % 2**64, row, col, 0, FEATURES)[0] >= int(dropout * 2**32)).double() / (1 - dropout)


@pytest.mark.parametrize("transposed", (False, True), ids=("long_rows", "long_columns"))
@pytest.mark.parametrize(
    ("D", "R", "dropout", "dtype"),
    (
        (8, None, 0.4, torch.float32),
        (3, 2, 0.4, torch.float32),
        (3, None, 0.0, torch.float16),
        (8, 1, 0.4, torch.bfloat16),
    ),
)
def test_statement(D, R, dropout, dtype, transposed):
    dense = (features().t() if transposed else features()).to(dtype)
    x, lead, seeds = dense.to_sparse_csr(), () if R is None else (R,), SEEDS[: R or 1]
    torch.manual_seed(1)
    inputs = {"weight": torch.randn(*lead, dense.shape[1], D).to(dtype), "bias": torch.randn(*lead, D).to(dtype)}

    def operator(weight, bias):
        return uf.sparse_linear(x, strided(weight), strided(bias), dropout=dropout, seed=list(seeds), backend="triton")

    def statement(weight, bias, store):
        masks = [mask_of(dense, dropout, seed) if dropout else 1 for seed in seeds]
        weights = [weight] if R is None else weight
        each = [(dense.double() * mask).to(w.dtype) @ w for mask, w in zip(masks, weights, strict=True)]
        return store((each[0] if R is None else torch.stack(each, dim=1)) + bias)

    tolerance = {"factor": 8.0, "units": 64.0}
    check_operator(operator, statement, inputs, wrt=list(inputs), dtype=dtype, **tolerance)


@pytest.mark.parametrize("seed", (1, *SEEDS))
@pytest.mark.parametrize("dropout", (0.2, 1 - 2**-32))
def test_masks_are_those_of_the_definition(dropout, seed):
    dense = torch.ones(9, 21)
    x, eye = dense.to_sparse_csr(), torch.eye(21, requires_grad=True)
    expected = mask_of(dense, dropout, seed) != 0
    out = uf.sparse_linear(x, eye, dropout=dropout, seed=seed, backend="triton")
    assert torch.equal(out != 0, expected)
    # the gradient of weight for ones in one row is that row of the mask
    (grad,) = torch.autograd.grad(out[4].sum(), eye)
    assert torch.equal(grad != 0, expected[4][:, None].expand(21, 21))


@pytest.mark.parametrize("dropout", (0.0, 0.4))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_dense_features(dropout, dtype):
    dense = features().to(dtype)
    seed = torch.tensor([9]) if dropout else None
    entries = sparse_features(dense.to_sparse_csr())[:3]
    got = ops.sparse_dense((), *entries, dense.shape[1], dropout, seed, "triton")
    expected = dense.double() * (mask_of(dense, dropout, 9) if dropout else 1)
    assert torch.equal(got == 0, expected == 0)
    torch.testing.assert_close(got, expected.to(dtype))


def test_what_is_dropped_meets_no_infinity():
    x, kept = torch.ones(8, 8).to_sparse_csr(), mask_of(torch.ones(8, 8), 0.5, 1) > 0
    weight = torch.ones(8, 2)
    weight[3] = torch.inf
    out = uf.sparse_linear(x, weight, dropout=0.5, seed=1, backend="triton")
    assert torch.equal(out[:, 0].isinf(), kept[:, 3])


@pytest.mark.parametrize("shape", ((0, 4), (4, 0), (5, 3)))
def test_no_entries(shape):
    x, weight = torch.zeros(shape).to_sparse_csr(), torch.randn(shape[1], 3, requires_grad=True)
    out = uf.sparse_linear(x, weight, torch.ones(3), dropout=0.5, seed=1, backend="triton")
    assert torch.equal(out, torch.ones(shape[0], 3))
    out.sum().backward()
    assert torch.equal(weight.grad, torch.zeros(shape[1], 3))


def test_x_is_planned_once_and_only_for_kernels_that_ask():
    x, weight = features().to_sparse_csr(), torch.randn(320, 3)
    uf.sparse_linear(x, weight, backend="reference")
    assert sparse_features(x).plan_sizes == []
    uf.sparse_linear(x, weight, backend="triton")
    planned = sparse_features(x)
    assert planned.plan_sizes[2] == 2 and planned.t_plan_sizes == [320, 320, 0]
    uf.sparse_linear(x, weight, backend="triton")
    assert sparse_features(x) is planned


def test_double_backward():
    # linear in the weight, so squared
    x, weight = features().to_sparse_csr(), torch.randn(320, 2, requires_grad=True)
    results = []
    for backend in ("triton", "reference"):
        out = uf.sparse_linear(x, weight, dropout=0.3, seed=4, backend=backend)
        (grad,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
        results.append(torch.autograd.grad(grad.sum(), weight)[0])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-3)


def test_the_layer_makes_a_full_matrix_dense(monkeypatch):
    torch.manual_seed(0)
    dense = torch.randn(30, 20)
    net, calls, made = SparseLinear(20, 7, dropout=0.4), [], ops.sparse_dense
    # backend="auto" takes Triton for tensors on a device only
    monkeypatch.setattr(module, "choose", lambda *_: "triton")
    monkeypatch.setattr(module.ops, "sparse_dense", lambda *args: calls.append(args[-1]) or made(*args))
    torch.manual_seed(5)
    out = net(dense.to_sparse_csr())
    torch.manual_seed(5)
    seed = int(torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64))
    assert calls == ["triton"]
    torch.testing.assert_close(out, (dense * mask_of(dense, 0.4, seed)).float() @ net.weight + net.bias)
