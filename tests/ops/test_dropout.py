"""dropout and dropout_linear against a float64 statement under the same mask, forward and gradients."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import ops
from ugnn_fast._random import VALUES, keep_from, philox, replica_generators

SEEDS = [3, 2**40 + 1, -5]


def mask(N, F, p, seed):
    """Entry by entry: word f % 4 of the counter (n, f // 4, 0, VALUES)."""
    rows = []
    for n in range(N):
        words = [philox(seed, torch.tensor(n), torch.tensor(f // 4), 0, VALUES)[f % 4] for f in range(F)]
        rows.append(torch.stack(words) >= keep_from(p))
    return torch.stack(rows)


def values(*size, dtype=torch.float64, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("F", [1, 3, 16, 37])
def test_dropout_is_the_stated_mask(F, backend, cpu):
    x = values(6, 3, F).requires_grad_()
    found = uf.dropout(x, 0.4, seed=SEEDS, backend=backend)
    keep = torch.stack([mask(6, F, 0.4, seed) for seed in SEEDS], 1)
    torch.testing.assert_close(found, torch.where(keep, x / 0.6, 0))
    (grad,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(grad, keep.double() / 0.6)
    one = uf.dropout(x[:, 1], 0.4, seed=SEEDS[1], backend=backend)
    assert torch.equal(one, found[:, 1]), "a model among others has its own mask"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_backends_agree(dtype, cpu):
    x = values(300, 2, 70, dtype=dtype)
    found = uf.dropout(x, 0.8, seed=SEEDS[:2])
    expected = uf.dropout(x, 0.8, seed=SEEDS[:2], backend="reference")
    assert torch.equal(found != 0, expected != 0)
    torch.testing.assert_close(found, expected)


def statement(x, weight, bias, relu, p):
    """In plain torch; bias None: none."""
    x = x.relu() if relu else x
    if p:
        x = uf.dropout(x, p, seed=SEEDS[: 1 if x.dim() == 2 else x.shape[1]], backend="reference")
    out = torch.einsum("nf,fd->nd" if x.dim() == 2 else "nrf,rfd->nrd", x, weight)
    return out if bias is None else out + bias


# rows, inputs and outputs: all widths of the kernel, blocks of rows that are not full, beyond the kernel
SIZES = [
    (5, 1, 1),
    (9, 16, 7),
    (1030, 64, 5),
    (70, 37, 15),
    (33, 8, 24),
    (21, 12, 32),
    (3, 256, 3),
    (9, 300, 4),
    (8, 5, 40),
]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.6])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("R", [None, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_dropout_linear_and_its_gradients(size, R, relu, p, with_bias, cpu):
    N, F, D = size
    lead = () if R is None else (R,)
    leaves = [values(N, *lead, F), values(*lead, F, D, seed=1), *([values(*lead, D, seed=2)] if with_bias else [])]
    for leaf in leaves:
        leaf.requires_grad_()
    x, weight, bias = (*leaves, None)[:3]
    seed = SEEDS[: R or 1] if p else None
    found = uf.dropout_linear(x, weight, bias, relu=relu, dropout=p, seed=seed)
    expected = statement(x, weight, bias, relu, p)
    torch.testing.assert_close(found, expected)
    cotangent = values(*found.shape, seed=4)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, cotangent), torch.autograd.grad(expected, leaves, cotangent), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_float32_is_near_float64(cpu):
    x, weight, bias = values(500, 4, 64), values(4, 64, 15, seed=1), values(4, 15, seed=2)
    options = {"relu": True, "dropout": 0.5, "seed": [1, 2, 3, 4]}
    found = uf.dropout_linear(x.float(), weight.float(), bias.float(), **options)
    torch.testing.assert_close(found.double(), uf.dropout_linear(x, weight, bias, **options), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_what_is_dropped_takes_no_part(backend, cpu):
    x = torch.full((4, 8), torch.inf)
    dropped = uf.dropout(torch.ones(4, 8), 0.7, seed=1, backend=backend) == 0
    x[~dropped] = 1.0
    out = uf.dropout_linear(x, torch.ones(8, 2), dropout=0.7, seed=1, backend=backend)
    assert out.isfinite().all()


def test_nan_stays(cpu):
    x = torch.zeros(6, 3)
    x[2, 1] = torch.nan
    out = uf.dropout_linear(x, torch.ones(3, 2), relu=True)
    assert out.isnan().any(1).nonzero().flatten().tolist() == [2]


def test_second_derivatives(cpu):
    x, weight, bias = (t.requires_grad_() for t in (values(5, 2, 4), values(2, 4, 3, seed=1), values(2, 3, seed=2)))
    seeds = torch.tensor(SEEDS[:2])

    def call(x, weight, bias):
        return uf.dropout_linear(x, weight, bias, relu=True, dropout=0.3, seed=seeds)

    assert torch.autograd.gradcheck(call, (x, weight, bias))
    assert torch.autograd.gradgradcheck(call, (x, weight, bias))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_threads(threads, cpu):
    x, weight = values(5000, 3, 16, dtype=torch.float32), values(3, 16, 7, dtype=torch.float32, seed=1)
    before = torch.get_num_threads()

    def run():
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = uf.dropout_linear(*leaves, relu=True, dropout=0.5, seed=SEEDS)
        return [out, *torch.autograd.grad(out.square().sum(), leaves), uf.dropout(x, 0.5, seed=SEEDS)]

    try:
        torch.set_num_threads(1)
        expected = run()
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(run(), expected, strict=True))
    finally:
        torch.set_num_threads(before)


def test_nothing_is_drawn_without_dropout():
    state = torch.get_rng_state()
    x = values(4, 3)
    assert uf.dropout(x, 0.0) is x
    uf.dropout_linear(x, values(3, 2))
    assert torch.equal(state, torch.get_rng_state())


def test_replicas_draw_from_generators_of_their_own():
    """Model r gets the mask that it would get alone, whatever the others do."""
    x = values(50, 3, 8)
    alone = []
    for r in range(3):
        torch.manual_seed(r)
        alone.append(torch.stack([uf.dropout(x[:, r], 0.5) for _ in range(2)]))
    generators = [torch.Generator().manual_seed(r) for r in range(3)]
    with replica_generators(generators):
        together = torch.stack([uf.dropout(x, 0.5) for _ in range(2)])
        with pytest.raises(ValueError, match="2 models must have as many generators, got 3"):
            uf.dropout(x[:, :2], 0.5)
    assert torch.equal(together, torch.stack(alone, 2))


def test_empty(cpu):
    x = torch.zeros(0, 2, 3, requires_grad=True)
    weight = torch.ones(2, 3, 4, requires_grad=True)
    out = uf.dropout_linear(x, weight, dropout=0.5, seed=[1, 2])
    assert out.shape == (0, 2, 4)
    assert torch.equal(torch.autograd.grad(out.sum(), weight)[0], torch.zeros(2, 3, 4))


def test_bad_arguments():
    x, weight = torch.zeros(4, 2, 3), torch.zeros(2, 3, 5)
    with pytest.raises(ValueError, match=r"x must be \[N, F\] or \[N, R, F\], got \[4\]"):
        uf.dropout(torch.zeros(4), 0.5)
    with pytest.raises(TypeError, match=r"x must be a dense floating tensor, got torch.strided torch.int64"):
        uf.dropout(torch.zeros(4, 3, dtype=torch.int64), 0.5)
    with pytest.raises(ValueError, match="seed must be R = 2 ints, got 1"):
        uf.dropout(x, 0.5, seed=1)
    with pytest.raises(ValueError, match=r"weight must be \[R, F, D\] with R = 2 for x \[4, 2, 3\], got \[3, 5\]"):
        uf.dropout_linear(x, weight[0])
    with pytest.raises(ValueError, match="dropout must be < 1"):
        uf.dropout_linear(x, weight, dropout=1.0)


def test_the_limits_of_the_kernel_are_those_of_its_header():
    assert (ops.MAX_INPUTS, ops.MAX_OUTPUTS) == (256, 32)
