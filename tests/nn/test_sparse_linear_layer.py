"""The layer uf.nn.SparseLinear: sparse and dense input, masks, replicas, the dense product for full matrices."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.nn import SparseLinear
from ugnn_fast.nn import sparse_linear as module
from ugnn_fast.reference._random import FEATURES, philox

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

N, IN, OUT, R = 30, 20, 7, 3


def features(share=0.3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(N, IN, generator=generator, dtype=dtype)
    return dense * (torch.rand(N, IN, generator=generator) < share)


def layer(seed=0, **options):
    torch.manual_seed(seed)
    return SparseLinear(IN, OUT, **options).double()


@pytest.mark.parametrize("share", (0.3, 1.0))
@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("replicas", (None, R))
@pytest.mark.parametrize("layout", ("dense", "sparse"))
def test_without_dropout_it_is_a_product(layout, replicas, bias, share):
    x, net = features(share), layer(bias=bias, dropout=0.5, replicas=replicas).eval()
    out = net(x if layout == "dense" else x.to_sparse_csr())
    expected = x @ net.weight if replicas is None else torch.einsum("ni,rio->nro", x, net.weight)
    expected = expected + net.bias if bias else expected
    assert out.shape == ((N, OUT) if replicas is None else (N, R, OUT))
    torch.testing.assert_close(out, expected)
    upstream = torch.randn(out.shape, dtype=torch.float64)
    parameters = list(net.parameters())
    assert len(parameters) == 1 + bias
    got, wanted = (torch.autograd.grad(y, parameters, upstream) for y in (out, expected))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def drawn_seed():
    return int(torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64))


@pytest.mark.parametrize("share", (0.3, module.DENSE_FROM + 0.2))
def test_the_mask_does_not_depend_on_the_product_chosen(share, monkeypatch, cpu):
    x = features(share).to_sparse_csr()
    calls = []
    dense = module.ops.sparse_dense
    monkeypatch.setattr(module.ops, "sparse_dense", lambda *args: calls.append(1) or dense(*args))
    net = layer(dropout=0.4)
    outs = []
    for limit in (0.0, 2.0):
        monkeypatch.setattr(module, "DENSE_FROM", limit)
        torch.manual_seed(5)
        out = net(x)
        outs.append([out, *torch.autograd.grad(out.square().sum(), net.parameters())])
        following = torch.rand(1)
    assert len(calls) == 1
    for a, b in zip(*outs, strict=True):
        torch.testing.assert_close(a, b)
    torch.manual_seed(5)
    seed = drawn_seed()
    assert torch.equal(torch.rand(1), following), "one seed is drawn"
    i, j = torch.arange(N)[:, None].expand(N, IN), torch.arange(IN).expand(N, IN)
    keep = philox(seed, i, j, 0, FEATURES)[0] >= int(0.4 * 2**32)
    torch.testing.assert_close(outs[0][0], (x.to_dense() * keep / 0.6) @ net.weight + net.bias)


def test_full_matrices_take_the_dense_product_and_others_do_not(monkeypatch, cpu):
    net, calls = layer(dropout=0.5), []
    dense = module.ops.sparse_dense
    monkeypatch.setattr(module.ops, "sparse_dense", lambda *args: calls.append(1) or dense(*args))
    for share, expected in ((0.3, 0), (1.0, 1)):
        calls.clear()
        net(features(share).to_sparse_csr())
        assert len(calls) == expected


@pytest.mark.parametrize("share", (0.3, 1.0))
@pytest.mark.parametrize("layout", ("dense", "sparse"))
def test_dropout_is_on_in_training_only(layout, share):
    x = features(share)
    x = x if layout == "dense" else x.to_sparse_csr()
    net = layer(dropout=0.5)
    assert not torch.equal(net(x), net(x))
    torch.manual_seed(1)
    first = net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x), first)
    state = torch.get_rng_state()
    assert torch.equal(net.eval()(x), net(x))
    assert torch.equal(torch.get_rng_state(), state)
    still = layer(dropout=0.0)
    assert torch.equal(still(x), still.eval()(x))


def test_a_sparse_replica_draws_what_a_layer_of_its_own_would():
    x, many = features().to_sparse_csr(), layer(dropout=0.5, replicas=R)
    torch.manual_seed(3)
    out = many(x)
    torch.manual_seed(3)
    for r in range(R):
        one = SparseLinear(IN, OUT, dropout=0.5).double()
        torch.manual_seed(3)
        for _ in range(r):
            drawn_seed()
        one.load_state_dict({name: value[r] for name, value in many.state_dict().items()})
        torch.testing.assert_close(out[:, r], one(x))


@pytest.mark.parametrize("layout", ("dense", "sparse"))
def test_replicas_have_masks_of_their_own(layout):
    x, net = features(), layer(dropout=0.5, replicas=R)
    with torch.no_grad():
        net.weight[:] = net.weight[:1].clone()
        net.bias[:] = net.bias[:1].clone()
    out = net(x if layout == "dense" else x.to_sparse_csr())
    assert not torch.equal(out[:, 0], out[:, 1])


def test_a_dense_input_for_each_replica():
    net, x = layer(replicas=R), torch.randn(N, R, IN, dtype=torch.float64, requires_grad=True)
    out = net(x)
    for r in range(R):
        torch.testing.assert_close(out[:, r], x[:, r] @ net.weight[r] + net.bias[r])
    out.sum().backward()
    assert x.grad.abs().min() > 0


def test_dense_input_has_a_gradient():
    net, x = layer(), features().requires_grad_()
    net(x).sum().backward()
    torch.testing.assert_close(x.grad, net.weight.sum(1).expand(N, IN))


def test_parameters():
    torch.manual_seed(0)
    net = SparseLinear(400, 30, replicas=2)
    assert {name: tuple(p.shape) for name, p in net.named_parameters()} == {"weight": (2, 400, 30), "bias": (2, 30)}
    for parameter in net.parameters():
        assert 0.04 < parameter.abs().max() <= 0.05
    before = net.weight.clone()
    net.reset_parameters()
    assert not torch.equal(net.weight, before)
    assert SparseLinear(4, 3, bias=False).bias is None
    assert repr(SparseLinear(4, 3, bias=False, dropout=0.5)) == "SparseLinear(4, 3, bias=False, dropout=0.5)"
    assert repr(net) == "SparseLinear(400, 30, dropout=0, replicas=2)"


def test_low_precision(cpu):
    x, net = features(dtype=torch.float32), SparseLinear(IN, OUT).bfloat16()
    out = net(x.bfloat16().to_sparse_csr())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.float(), x.bfloat16().float() @ net.weight.float() + net.bias.float(), rtol=0.02, atol=0.02
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert SparseLinear(IN, OUT)(x.to_sparse_csr()).dtype == torch.bfloat16


def test_it_learns(cpu):
    # the weight that made y is found again, under dropout
    torch.manual_seed(0)
    x = features(dtype=torch.float32).to_sparse_csr()
    y = x.to_dense() @ torch.randn(IN, OUT)
    net = SparseLinear(IN, OUT, dropout=0.1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(200):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    (
        ({"dropout": 1.0}, ValueError, "dropout must be < 1, got 1.0"),
        ({"dropout": "a"}, TypeError, "dropout must be a number, got str"),
        ({"replicas": 0}, ValueError, r"replicas must be in 1..2\^31 - 1, got 0"),
        ({"in_features": 2.5}, TypeError, "in_features must be an int, got float"),
        ({"out_features": 0}, ValueError, r"out_features must be in 1..2\^31 - 1, got 0"),
    ),
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        SparseLinear(**{"in_features": 3, "out_features": 2, **options})


@pytest.mark.parametrize(
    ("x", "error", "message"),
    (
        (lambda: [1.0], TypeError, "x must be a tensor, got list"),
        (lambda: features().to_sparse(), TypeError, "x must be dense or torch sparse CSR, got torch.sparse_coo"),
        (lambda: features()[:, 1:], ValueError, r"x must be \[N, in_features\] = \[N, 20\], got \[30, 19\]"),
        (lambda: features()[:, 1:].to_sparse_csr(), ValueError, r"x must be .* = \[N, 20\], got \[30, 19\]"),
        (lambda: features()[0], ValueError, r"x must be .* = \[N, 20\], got \[20\]"),
        (lambda: features()[:, None], ValueError, r"x must be .* = \[N, 20\], got \[30, 1, 20\]"),
        (lambda: features().float(), TypeError, "x must be torch.float64 like the parameters, got torch.float32"),
        (lambda: features().to_sparse_csr().requires_grad_(), ValueError, "x must not require grad when it is sparse"),
    ),
)
def test_bad_input(x, error, message):
    with pytest.raises(error, match=message):
        layer()(x())


def test_a_wrong_number_of_replicas():
    with pytest.raises(ValueError, match=r"x must be .* got \[30, 2, 20\]"):
        layer(replicas=R)(torch.ones(N, 2, IN, dtype=torch.float64))
    assert uf.nn.SparseLinear is SparseLinear
