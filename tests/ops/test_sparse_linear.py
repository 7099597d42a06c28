"""sparse_linear against a dense float64 product under the same mask, forward and gradients."""

import gc
import math
import weakref

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _sparse, ops
from ugnn_fast._random import FEATURES, philox
from ugnn_fast._sparse import sparse_features
from ugnn_fast.testing import TRITON_WIDTHS, WIDTHS, backend_cases, case_id, check_operator, strided

pytestmark = [pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.needs("sparse_linear")]


def csr(dense):
    return dense.to_sparse_csr()


def random_dense(N, F, share=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(N, F, generator=generator)
    return dense * (torch.rand(N, F, generator=generator) < share)


def with_long_rows():
    """Rows and columns of all lengths: one block, several, a hub with several pieces; and empty ones."""
    dense = random_dense(70, 9000, 0.01)
    dense[7, :] = torch.randn(9000, generator=torch.Generator().manual_seed(1))
    dense[9, :700] = 0.5
    dense[20:30, :] = 0
    dense[:, 100:130] = 0
    return dense


MATRICES = {
    "empty": torch.zeros(0, 4),
    "no_columns": torch.zeros(4, 0),
    "no_entries": torch.zeros(5, 3),
    "one": torch.ones(1, 1),
    "row": random_dense(1, 40),
    "column": random_dense(70, 1),
    "some": random_dense(50, 40),
    "full": random_dense(30, 20, 1.0),
    "long_rows": with_long_rows(),
    "long_columns": with_long_rows().t(),
    # for Triton's interpreter
    "small_long_rows": with_long_rows()[5:12, :350],
    "small_long_columns": with_long_rows()[5:12, :350].t(),
}


def mask_of(dense, dropout, seed):
    """keep / (1 - q) for every place of x, from the definition in docs/math.md."""
    N, F = dense.shape
    row, col = torch.arange(N)[:, None].expand(N, F), torch.arange(F).expand(N, F)
    return (philox(seed, row, col, 0, FEATURES)[0] >= int(dropout * 2**32)).double() / (1 - dropout)


def seeds_of(R):
    return 5 if R is None else list(range(5, 5 + R))


SHARED = {
    "R": (None, 1, 3), "dropout": (0.0, 0.4), "layout": (torch.Tensor.contiguous, strided), "bias": (True, False)
}  # fmt: skip
CASES = backend_cases(
    "sparse_linear",
    {
        "cpu": {"matrix": [name for name in MATRICES if "small" not in name], "D": WIDTHS, **SHARED},
        "reference": {"matrix": [name for name in MATRICES if "long" not in name], "D": (1, 7), **SHARED},
        "triton": {
            "matrix": [name for name in MATRICES if "long" not in name or "small" in name], "D": TRITON_WIDTHS, **SHARED
        },
    },
    lambda matrix, D, **_: "long" not in matrix or D <= 33,
    modes=("dropout", "bias"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend, layout, dropout = use_backend(case["backend"]), case["layout"], case["dropout"]
    dense = MATRICES[case["matrix"]].to(case["dtype"])
    x, R = csr(dense), case["R"]
    lead = () if R is None else (R,)
    torch.manual_seed(1)
    inputs = {"weight": torch.randn(*lead, dense.shape[1], case["D"]).to(case["dtype"])}
    if case["bias"]:
        inputs["bias"] = torch.randn(*lead, case["D"]).to(case["dtype"])
    seeds = seeds_of(R)

    def operator(weight, bias=None):
        bias = None if bias is None else layout(bias)
        return uf.sparse_linear(x, layout(weight), bias, dropout=dropout, seed=seeds, backend=backend)

    def statement(weight, store, bias=None):
        each = []
        for r, w in enumerate([weight] if R is None else weight):
            mask = mask_of(dense, dropout, ([seeds] if R is None else seeds)[r]) if dropout else 1
            each.append((dense.double() * mask).to(w.dtype) @ w)
        out = each[0] if R is None else torch.stack(each, dim=1)
        return store(out if bias is None else out + bias)

    # a row of thousands of entries is one draw of rounding; here they are few
    tolerance = {"factor": 8.0, "units": 64.0} if "long" in case["matrix"] else {}
    check_operator(operator, statement, inputs, wrt=list(inputs), dtype=case["dtype"], **tolerance)


@pytest.mark.float64
@pytest.mark.parametrize("R", (None, 2))
@pytest.mark.parametrize("D", (1, 3, 9))
def test_gradcheck(D, R, backend):
    x = csr(MATRICES["some"].double())
    lead = () if R is None else (R,)
    weight = torch.randn(*lead, 40, D, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(*lead, D, dtype=torch.float64, requires_grad=True)

    def function(weight, bias):
        return uf.sparse_linear(x, weight, bias, dropout=0.3, seed=seeds_of(R), backend=backend)

    assert torch.autograd.gradcheck(function, (weight, bias), fast_mode=True)
    # linear in the weight, so squared
    assert torch.autograd.gradgradcheck(lambda w, b: function(w, b) ** 2, (weight, bias), fast_mode=True)


def mask_by(backend, x, dropout, seed):
    """The mask as the operator applies it, forward and backward, dense."""
    N, F = x.shape
    eye = torch.eye(F, dtype=x.dtype, requires_grad=True)
    out = uf.sparse_linear(x, eye, dropout=dropout, seed=seed, backend=backend)
    # with row i upstream in column i alone, column i of the gradient of weight is row i of the masked x
    (grad,) = torch.autograd.grad(out, eye, torch.eye(N, F, dtype=x.dtype))
    return out.detach(), grad[:, :N].T


@pytest.mark.parametrize("seed", (0, 1, 2**31 + 5, 2**63 + 11, 2**64 - 1, -3))
@pytest.mark.parametrize("dropout", (1e-9, 0.2, 0.5, 0.99, 1 - 2**-32))
def test_the_mask_is_that_of_the_definition(seed, dropout, backend):
    x = csr(torch.ones(9, 21))
    forward, backward = mask_by(backend, x, dropout, seed)
    expected = mask_of(x.to_dense(), dropout, seed % 2**64).float()
    torch.testing.assert_close(forward, expected)
    torch.testing.assert_close(backward, expected)


def test_the_mask_belongs_to_places_not_to_entries(cpu):
    # the same places are lost whatever else is stored
    full, part = csr(torch.ones(40, 30)), MATRICES["some"][:40, :30].ne(0).float()
    one, other = (mask_by("cpu", x, 0.5, 3)[0] for x in (full, csr(part)))
    assert torch.equal(one * part, other)


@pytest.mark.float64
def test_the_mean_over_seeds_is_the_product_without_dropout(backend):
    x, weight = csr(MATRICES["some"].double()), torch.randn(40, 3, dtype=torch.float64)
    runs = torch.stack([uf.sparse_linear(x, weight, dropout=0.4, seed=s, backend=backend) for s in range(800)])
    exact = x.to_dense() @ weight
    # variance of a sum of independent terms, each x w (keep / (1 - q))
    deviation = ((x.to_dense() ** 2 @ weight**2) * 0.4 / 0.6).sqrt()
    off = (runs.mean(0) - exact).abs()
    assert (off <= 5 * deviation / math.sqrt(800) + 1e-12).all()
    torch.testing.assert_close(runs.std(0), deviation, rtol=0.2, atol=0.02)


def test_replicas_are_single_runs(backend):
    x, R = csr(MATRICES["some"]), 3
    weight, bias = torch.randn(R, 40, 9, requires_grad=True), torch.randn(R, 9)
    many = uf.sparse_linear(x, weight, bias, dropout=0.5, seed=[3, 1, 2**40], backend=backend)
    (grad,) = torch.autograd.grad(many.square().sum(), weight)
    for r, seed in enumerate((3, 1, 2**40)):
        w = weight[r].detach().requires_grad_()
        one = uf.sparse_linear(x, w, bias[r], dropout=0.5, seed=seed, backend=backend)
        assert torch.equal(many[:, r], one)
        torch.testing.assert_close(grad[r], torch.autograd.grad(one.square().sum(), w)[0])


@pytest.mark.parametrize("sizes", ((40, 0), (2, 40, 0)))
def test_no_columns_of_the_weight(sizes, backend):
    weight = torch.zeros(sizes, requires_grad=True)
    out = uf.sparse_linear(csr(MATRICES["some"]), weight, backend=backend)
    assert out.shape == (50, *sizes[:-2], sizes[-1])
    assert torch.autograd.grad(out.sum(), weight)[0].shape == sizes


@pytest.mark.parametrize("dropout", (0.0, 0.4))
def test_many_rows_of_few_columns(dropout, cpu):
    # the gradient of the weight sums thousands of rows of a table beyond the caches: block after block of it
    dense, R, D = random_dense(20000, 600, 0.05), 2, 40
    dense[:3000, 5] = 1.0  # a hub among the columns
    dense[:, 9] = 0
    weight, upstream = torch.randn(R, 600, D, requires_grad=True), torch.randn(20000, R, D)
    out = uf.sparse_linear(csr(dense), weight, dropout=dropout, seed=[3, 4])
    (grad,) = torch.autograd.grad(out, weight, upstream)
    for r in range(R):
        x = dense.double() * (mask_of(dense, dropout, 3 + r) if dropout else 1)
        torch.testing.assert_close(grad[r].double(), x.t() @ upstream[:, r].double(), rtol=1e-4, atol=1e-4)


def test_seeds_come_from_the_default_generator(backend):
    x, weight = csr(MATRICES["some"]), torch.randn(3, 40, 4)

    def run(weight, dropout=0.5):
        return uf.sparse_linear(x, weight, dropout=dropout, backend=backend)

    torch.manual_seed(0)
    first, second = run(weight), run(weight)
    torch.manual_seed(0)
    assert torch.equal(run(weight), first)
    assert not torch.equal(first, second)
    assert not torch.equal(run(weight[:1].expand(3, -1, -1))[:, 0], run(weight[:1])[:, 0])
    # one seed after the other, as three single calls would draw them
    torch.manual_seed(0)
    for r in range(3):
        assert torch.equal(run(weight[r]), first[:, r])
    state = torch.get_rng_state()
    run(weight, dropout=0.0)
    assert torch.equal(torch.get_rng_state(), state), "nothing to draw without dropout"


@pytest.mark.parametrize("dropout", (0.0, 0.5))
def test_nan_and_infinity_stay_in_their_rows(dropout, backend):
    dense = torch.ones(6, 5)
    kept = mask_of(dense, dropout, 0) > 0
    bad = {(0, 1): torch.nan, (3, 2): torch.inf, (4, 4): -torch.inf}
    for place, value in bad.items():
        dense[place] = value
    weight = torch.ones(5, 3, requires_grad=True)
    out = uf.sparse_linear(csr(dense), weight, dropout=dropout, seed=0, backend=backend)
    rows = torch.tensor([any(i == r and kept[i, j] for i, j in bad) for r in range(6)])
    assert torch.equal(~out.isfinite(), rows[:, None].expand(6, 3))
    out.backward(torch.ones_like(out))
    columns = torch.tensor([any(j == c and kept[i, j] for i, j in bad) for c in range(5)])
    assert torch.equal(~weight.grad.isfinite(), columns[:, None].expand(5, 3))


def test_what_is_dropped_meets_no_infinity(backend):
    x, kept = csr(torch.ones(8, 8)), mask_of(torch.ones(8, 8), 0.5, 1) > 0
    weight = torch.ones(8, 2)
    weight[3] = torch.inf
    out = uf.sparse_linear(x, weight, dropout=0.5, seed=1, backend=backend)
    assert torch.equal(out[:, 0].isinf(), kept[:, 3])


def test_stored_zeros_count_as_entries(backend):
    x = torch.sparse_csr_tensor(
        torch.tensor([0, 2, 2, 3]), torch.tensor([0, 2, 1]), torch.tensor([0.0, 2.0, 0.0]), (3, 3)
    )
    weight = torch.tensor([[1.0], [torch.nan], [3.0]])
    out = uf.sparse_linear(x, weight, backend=backend)
    torch.testing.assert_close(out, torch.tensor([[6.0], [0.0], [torch.nan]]), equal_nan=True)


@pytest.mark.parametrize("index", (torch.int32, torch.int64))
def test_index_types(index, backend):
    x = csr(MATRICES["some"])
    other = torch.sparse_csr_tensor(x.crow_indices().to(index), x.col_indices().to(index), x.values(), x.shape)
    weight = torch.randn(40, 3)
    torch.testing.assert_close(uf.sparse_linear(other, weight, backend=backend), x.to_dense() @ weight)


def test_x_is_prepared_once_and_freed_with_it(monkeypatch):
    x, built, build = csr(MATRICES["some"]), [], _sparse._build
    monkeypatch.setattr(_sparse, "_build", lambda x: built.append(1) or build(x))
    weight = torch.randn(40, 3)
    for _ in range(3):
        uf.sparse_linear(x, weight)
    assert len(built) == 1
    kept = weakref.ref(sparse_features(x).t_values)
    del x
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("part", ("values", "col_indices"))
def test_a_change_in_place_is_seen(part, backend):
    x = csr(torch.diag(torch.arange(1.0, 5.0)))
    weight = torch.randn(4, 3, requires_grad=True)
    uf.sparse_linear(x, weight, backend=backend)
    getattr(x, part)().copy_(getattr(x, part)().flip(0).clone())
    out = uf.sparse_linear(x, weight, backend=backend)
    torch.testing.assert_close(out, x.to_dense() @ weight)
    (grad,) = torch.autograd.grad(out.sum(), weight)
    torch.testing.assert_close(grad, x.to_dense().sum(0)[:, None].expand(4, 3))


def test_inference_mode(backend):
    with torch.inference_mode():
        x, weight = csr(MATRICES["some"]), torch.randn(40, 3)
        for _ in range(2):
            torch.testing.assert_close(uf.sparse_linear(x, weight, backend=backend), x.to_dense() @ weight)


def test_a_bfloat16_x_in_an_autocast_region_of_float32_parameters(cpu):
    x, weight = csr(MATRICES["some"].bfloat16()), torch.randn(40, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = uf.sparse_linear(x, weight, torch.zeros(9), dropout=0.5, seed=1)
        wide = uf.sparse_linear(x, weight.double(), dropout=0.5, seed=1)
    assert got.dtype == torch.bfloat16 and wide.dtype == torch.float64
    expected = uf.sparse_linear(x, weight.bfloat16(), torch.zeros(9).bfloat16(), dropout=0.5, seed=1)
    assert torch.equal(got, expected)
    torch.testing.assert_close(wide.float(), got.float(), rtol=0.03, atol=0.1)


W = torch.ones(40, 3)


def X():
    return csr(MATRICES["some"])


BAD = {
    "not a tensor": (lambda f: f([1.0], W), TypeError, "x must be a tensor, got list"),
    "dense x": (lambda f: f(X().to_dense(), W), TypeError, "x must be torch sparse CSR, got torch.strided"),
    "coo": (lambda f: f(X().to_sparse_coo(), W), TypeError, "x must be torch sparse CSR, got torch.sparse_coo"),
    "int x": (lambda f: f(csr(torch.ones(2, 40).long()), W), TypeError, "x must be float32.*, got torch.int64"),
    "x requires grad": (
        lambda f: f(csr(MATRICES["some"]).requires_grad_(), W),
        ValueError,
        "x must not require grad when it is sparse",
    ),
    "batch": (
        lambda f: f(torch.ones(2, 3, 40).to_sparse_csr(), W),
        ValueError,
        r"x must be \[N, F\] with one value per entry, got \[2, 3, 40\]",
    ),
    "weight not a tensor": (lambda f: f(X(), 1.0), TypeError, "weight must be a tensor, got float"),
    "sparse weight": (lambda f: f(X(), W.to_sparse()), TypeError, "weight must be a dense tensor, got"),
    "weight rows": (lambda f: f(X(), W[1:]), ValueError, r"weight must be \[F, D\] .* F = 40, .* got \[39, 3\]"),
    "weight vector": (lambda f: f(X(), W[:, 0]), ValueError, r"weight must be \[F, D\] .* got \[40\]"),
    "no replicas": (lambda f: f(X(), W.expand(0, -1, -1)), ValueError, r"weight must be .* R >= 1, got \[0, 40, 3\]"),
    "weight dtype": (lambda f: f(X(), W.double()), TypeError, "weight must be torch.float32 like x, got torch.float64"),
    "weight device": (lambda f: f(X(), W.to("meta")), ValueError, "weight must be on cpu like x, got meta"),
    "bias shape": (lambda f: f(X(), W, torch.ones(4)), ValueError, r"bias must be \[D\] = \[3\], got \[4\]"),
    "bias of replicas": (
        lambda f: f(X(), W.expand(2, -1, -1), torch.ones(3)),
        ValueError,
        r"bias must be \[R, D\] = \[2, 3\], got \[3\]",
    ),
    "bias dtype": (lambda f: f(X(), W, torch.ones(3).bfloat16()), TypeError, "bias must be torch.float32 like x"),
    "dropout 1": (lambda f: f(X(), W, dropout=1), ValueError, "dropout must be < 1, got 1"),
    "dropout negative": (lambda f: f(X(), W, dropout=-0.5), ValueError, "dropout must be finite and >= 0, got -0.5"),
    "dropout nan": (lambda f: f(X(), W, dropout=math.nan), ValueError, "dropout must be finite and >= 0, got nan"),
    "seed type": (lambda f: f(X(), W, dropout=0.5, seed=1.5), TypeError, "seed must be an int or .* got 1.5"),
    "seed bool": (lambda f: f(X(), W, dropout=0.5, seed=True), TypeError, "seed must be an int or .* got True"),
    "seed size": (lambda f: f(X(), W, dropout=0.5, seed=2**64), ValueError, "seed must fit in 64 bits, got 18446744"),
    "seeds": (lambda f: f(X(), W, dropout=0.5, seed=[1, 2]), ValueError, "seed must be one int, got 2"),
    "seeds of replicas": (
        lambda f: f(X(), W.expand(3, -1, -1), dropout=0.5, seed=1),
        ValueError,
        "seed must be R = 3 ints, got 1",
    ),
    "backend": (lambda f: f(X(), W, backend="gpu"), ValueError, "backend must be auto or one of .* got 'gpu'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call(uf.sparse_linear)


@pytest.mark.parametrize(
    "crow, col",
    [
        ([0, 2, 1, 3], [0, 1, 0]),
        ([0, 1, 2, 3], [0, 1, 4]),
        ([0, 1, 2, 3], [0, -1, 1]),
        ([0, 3, 3, 3], [2, 1, 0]),
        ([0, 3, 3, 3], [1, 1, 2]),
        ([0, 1, 2, 4], [0, 1, 2]),
    ],
    ids=["pointers", "column too large", "column negative", "columns not sorted", "column twice", "too few entries"],
)
def test_a_tensor_that_is_not_csr_is_refused(crow, col):
    crow, col = torch.tensor(crow), torch.tensor(col)
    x = torch.sparse_csr_tensor(crow, col, torch.ones(3), size=(3, 4), check_invariants=False)
    with pytest.raises(ValueError, match="x must be a valid sparse CSR tensor, got one for which"):
        uf.sparse_linear(x, torch.ones(4, 2))


@pytest.mark.parametrize("dropout", (0.0, 0.3))
@pytest.mark.parametrize("matrix", [name for name in MATRICES if name != "no_columns"])
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_dense_features_have_the_same_mask(matrix, dropout, dtype, cpu):
    dense = MATRICES[matrix].to(dtype)
    seed = torch.tensor([9]) if dropout else None
    got = ops.sparse_dense((), *sparse_features(csr(dense))[:3], dense.shape[1], dropout, seed, "cpu")
    expected = dense.double() * mask_of(dense, dropout, 9)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected.to(dtype))
    assert torch.equal(got == 0, expected == 0)
