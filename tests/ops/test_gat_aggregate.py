"""gat_aggregate against the definition in float64, forward and gradients; its masks, its softmax, its seeds."""

import pytest
import torch
import torch.nn.functional as F

import ugnn_fast as uf
from ugnn_fast.reference.gat_aggregate import attention_mask
from ugnn_fast.testing import (
    HUB_TOLERANCE,
    assert_no_worse_than_torch,
    case_id,
    check_operator,
    entries,
    operator_cases,
    sample_graphs,
)

pytestmark = pytest.mark.needs("gat_aggregate")
GRAPHS = sample_graphs()


def attention_of(g, src, dst, slope):
    """alpha [E, H], one head after the other; rows of up to 512 nodes by a dense softmax."""
    i, j, _ = entries(g)
    e = F.leaky_relu(dst[i] + src[j], slope)
    if g.num_nodes > 512:
        largest = torch.stack([torch.segment_reduce(h.detach(), "max", offsets=g.rowptr) for h in e.t()], 1)
        powers = (e - largest[i]).exp()
        return powers / torch.zeros_like(dst).index_add(0, i, powers)[i]
    columns = []
    for head in e.unbind(1):
        dense = torch.full((g.num_nodes, g.num_nodes), -torch.inf, dtype=e.dtype).index_put((i, j), head)
        columns.append(dense.softmax(1)[i, j])
    return torch.stack(columns, 1)


def statement_of(g, x, src, dst, slope, kept):
    """sum_j kept_ij alpha_ij x_j; kept [E, H] is mask / (1 - q)."""
    i, j, _ = entries(g)
    alpha = attention_of(g, src, dst, slope) * kept.to(x.dtype)
    return torch.zeros_like(x).index_add(0, i, alpha[:, :, None] * x[j])


def kept_of(g, H, q, seeds):
    i, j, _ = entries(g)
    return attention_mask(i, j, H, q, torch.tensor(seeds)).double() / (1 - q) if q else torch.ones(g.num_edges, H)


def inputs_of(g, H, D, dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    number = torch.float64 if dtype == torch.float64 else torch.float32
    src, dst = (2 * torch.randn(g.num_nodes, H).to(number) for _ in range(2))
    return {"x": torch.randn(g.num_nodes, H, D).to(dtype), "src": src, "dst": dst}


CASES = operator_cases(
    "gat_aggregate",
    lambda D, R, **case: R is None and D <= 64,
    modes=("H", "q"),
    H=(1, 3, 4, 8),
    q=(0.0, 0.6),
    slope=(0.2, 0.0, 1.5),
)
# several slices of heads, slices that begin between four heads, parts of one head
WIDE = [
    {"backend": "cpu", "graph": "power_law", "D": D, "dtype": dtype, "R": None, "layout": torch.Tensor.contiguous}
    | {"H": H, "q": 0.4, "slope": 0.2}
    for H, D in ((5, 20), (12, 12), (70, 1), (1, 130), (2, 70), (64, 2))
    for dtype in (torch.float32, torch.float64, torch.bfloat16)
]


@pytest.mark.parametrize("case", CASES + WIDE, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, H, q, slope = GRAPHS[case["graph"]], case["H"], case["q"], case["slope"]
    inputs = inputs_of(g, H, case["D"], case["dtype"])
    layout, kept = case["layout"], kept_of(g, H, q, [7])

    def operator(x, src, dst):
        return uf.gat_aggregate(
            g, *map(layout, (x, src, dst)), negative_slope=slope, dropout=q, seed=7, backend=backend
        )

    def statement(x, src, dst, store):
        return store(statement_of(g, x, src, dst, slope, kept))

    tolerance = HUB_TOLERANCE if "hub" in case["graph"] else {"factor": 4.0, "units": 16.0}
    check_operator(operator, statement, inputs, wrt=["x", "src", "dst"], **tolerance)


@pytest.mark.float64
@pytest.mark.parametrize("slope", (0.0, 0.2, 1.0, 1.5))
@pytest.mark.parametrize(("H", "D", "q"), ((1, 3, 0.0), (3, 2, 0.5), (8, 8, 0.5), (1, 9, 0.5)))
def test_gradcheck(H, D, q, slope, backend):
    g = GRAPHS["no_self_loops"]
    leaves = [t.requires_grad_() for t in inputs_of(g, H, D, torch.float64).values()]
    assert torch.autograd.gradcheck(
        lambda *t: uf.gat_aggregate(g, *t, negative_slope=slope, dropout=q, seed=3, backend=backend),
        leaves,
        fast_mode=True,
    )


@pytest.mark.float64
def test_gatconv_of_torch_geometric(backend):
    pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    g = GRAPHS["weighted"]
    H, D = 4, 6
    x, src, dst = (t.requires_grad_() for t in inputs_of(g, H, D, torch.float64).values())
    conv = pyg.GATConv(5, D, heads=H, add_self_loops=False)
    edges = g.edge_index.flip(0)
    alpha = conv.edge_updater(edges, alpha=(src, dst), edge_attr=None, size=None)
    expected = conv.propagate(edges, x=(x, x), alpha=alpha, size=None)
    found = uf.gat_aggregate(g, x, src, dst, backend=backend)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    for a, b in zip(*(torch.autograd.grad(y, (x, src, dst), weight) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


def mask_by_values(g, H, q, seed, backend):
    """The kept entries, read from the result: x has a column for every node."""
    N = g.num_nodes
    x = torch.eye(N)[:, None, :].expand(N, H, N)
    zeros = torch.zeros(N, H)
    y = uf.gat_aggregate(g, x, zeros, zeros, dropout=q, seed=seed, backend=backend)
    i, j, _ = entries(g)
    return y[i, :, j] > 0


@pytest.mark.parametrize("seed", (0, 12345, 2**63, 2**64 - 1, -1))
@pytest.mark.parametrize("H", (1, 3, 8, 9))
def test_masks_are_the_documented_words(H, seed, backend):
    g = GRAPHS["two_components"]
    i, j, _ = entries(g)
    key = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
    found = mask_by_values(g, H, 0.5, seed, backend)
    assert torch.equal(found, attention_mask(i, j, H, 0.5, key))
    assert 0.3 < found.double().mean() < 0.7


def test_directions_and_heads_have_masks_of_their_own(cpu):
    g = GRAPHS["power_law"]
    kept = mask_by_values(g, 8, 0.5, 1, "cpu")
    assert not torch.equal(kept, kept[g.reverse])
    assert len({tuple(column.tolist()) for column in kept.t()}) == 8


@pytest.mark.parametrize("name", ("power_law", "hub"))
def test_backward_draws_the_mask_of_forward(name, cpu):
    # y is linear in x, so <y(x), w> = <x, grad of it> for the same mask only
    g = GRAPHS[name]
    x, src, dst = inputs_of(g, 8, 8, torch.float64).values()
    w = torch.randn_like(x)
    x.requires_grad_()
    y = uf.gat_aggregate(g, x, src, dst, dropout=0.6, seed=11)
    (grad,) = torch.autograd.grad(y, x, w)
    torch.testing.assert_close((y * w).sum(), (x * grad).sum())
    (other,) = torch.autograd.grad(uf.gat_aggregate(g, x, src, dst, dropout=0.6, seed=12), x, w)
    assert not torch.allclose(grad, other)


@pytest.mark.float64
def test_expectation_over_seeds_is_the_result_without_dropout(backend):
    g = GRAPHS["star"]
    x, src, dst = inputs_of(g, 4, 3, torch.float64).values()
    runs = torch.stack(
        [uf.gat_aggregate(g, x, src, dst, dropout=0.5, seed=seed, backend=backend) for seed in range(600)]
    )
    expected = uf.gat_aggregate(g, x, src, dst, backend=backend)
    error = (runs.mean(0) - expected).abs()
    assert (error <= 5 * runs.std(0) / 600**0.5 + 1e-12).all()
    assert runs.std(0).max() > 0.1


def test_replicas_draw_what_a_single_model_would(backend):
    g, R, H = GRAPHS["power_law"], 3, 5
    x, src, dst = inputs_of(g, R * H, 4).values()
    seeds = [4, 2**64 - 9, 77]
    found = uf.gat_aggregate(g, x, src, dst, dropout=0.5, seed=seeds, backend=backend)
    as_tensor = torch.tensor([4, -9, 77])
    assert torch.equal(found, uf.gat_aggregate(g, x, src, dst, dropout=0.5, seed=as_tensor, backend=backend))
    for r, seed in enumerate(seeds):
        part = slice(r * H, (r + 1) * H)
        one = uf.gat_aggregate(g, x[:, part], src[:, part], dst[:, part], dropout=0.5, seed=seed, backend=backend)
        torch.testing.assert_close(found[:, part], one)


def test_seed_none_follows_the_generator_of_torch(backend):
    g = GRAPHS["power_law"]
    x, src, dst = inputs_of(g, 2, 3).values()

    def run(q):
        return uf.gat_aggregate(g, x, src, dst, dropout=q, backend=backend)

    torch.manual_seed(5)
    first, second = run(0.5), run(0.5)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(run(0.5), first)
    state = torch.get_rng_state()
    run(0.0)
    uf.gat_aggregate(g, x, src, dst, dropout=0.5, seed=1, backend=backend)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("offset", (1e4, -1e4))
@pytest.mark.parametrize("name", ("power_law", "hub"))
def test_large_scores_do_not_overflow(name, offset, backend):
    g = GRAPHS["small_hub" if name == "hub" and backend == "triton" else name]
    x, src, dst = inputs_of(g, 2, 3).values()
    # steps that float32 holds beside the offset
    src, dst = (src * 8).round() / 8 + offset, (dst * 8).round() / 8
    got = uf.gat_aggregate(g, x, src, dst, backend=backend)
    kept = torch.ones(g.num_edges, 2)
    plain = statement_of(g, x, src, dst, 0.2, kept)
    exact = statement_of(g, x.double(), src.double(), dst.double(), 0.2, kept)
    assert_no_worse_than_torch(got, plain, exact, **HUB_TOLERANCE)


def test_weights_far_below_one_keep_their_digits(cpu):
    # node 1 hears itself with e = 0 and node 0 with e = -t: its value is exp(-t) / (1 + exp(-t))
    t = torch.linspace(0, 87, 4000)
    g = uf.Graph.from_edge_index([[0], [1]], 2, symmetrize=True)
    H = t.numel()
    src = torch.stack([-t, torch.zeros(H)])
    x = torch.tensor([1.0, 0.0]).reshape(2, 1, 1).expand(2, H, 1)
    y = uf.gat_aggregate(g, x, src, torch.zeros(2, H), negative_slope=1.0)[1, :, 0].double()
    exact = (-t.double()).exp() / (1 + (-t.double()).exp())
    # exp is off by less than two units in the last place, and two more operations follow
    assert ((y - exact).abs() / exact).max() < 4 * torch.finfo(torch.float32).eps


@pytest.mark.float64
def test_equal_scores_give_the_mean(backend):
    g = GRAPHS["weighted"]  # edge weights do not count
    x = torch.randn(g.num_nodes, 2, 3, dtype=torch.float64)
    scores = torch.full((g.num_nodes, 2), 0.7, dtype=torch.float64)
    plain = uf.Graph.from_edge_index(g.edge_index, g.num_nodes)
    found = uf.gat_aggregate(g, x, scores, scores, backend=backend)
    torch.testing.assert_close(found, uf.neighbor_mean(plain, x))


def test_a_row_without_entries_is_zero(backend):
    g = GRAPHS["no_edges"]
    leaves = [t.requires_grad_() for t in inputs_of(g, 2, 3).values()]
    y = uf.gat_aggregate(g, *leaves, backend=backend)
    assert y.eq(0).all()
    for grad in torch.autograd.grad(y.sum(), leaves):
        assert grad.eq(0).all()


@pytest.mark.parametrize("where", ("x", "src", "dst"))
def test_nan_stays_in_its_head_among_neighbours(where, backend):
    g, H, D = GRAPHS["chain"], 3, 2
    inputs = inputs_of(g, H, D)
    inputs[where][10, 1] = torch.nan
    y = uf.gat_aggregate(g, *inputs.values(), backend=backend)
    reached = torch.zeros(g.num_nodes, H, D, dtype=torch.bool)
    reached[10 : 11 if where == "dst" else 12, 1] = True
    if where != "dst":
        reached[9, 1] = True
    assert torch.equal(y.isnan(), reached)


@pytest.mark.float64
def test_a_score_of_minus_infinity_takes_a_neighbour_out(backend):
    g = GRAPHS["hub"]
    x, src, dst = inputs_of(g, 1, 2, torch.float64).values()
    src[1:9000] = -torch.inf  # more than the first pieces of the hub's row
    got = uf.gat_aggregate(g, x, src, dst, backend=backend)[0]
    row = g.col[: g.rowptr[1]].long()
    row = row[(row == 0) | (row >= 9000)]
    alpha = F.leaky_relu(dst[0] + src[row], 0.2).softmax(0)
    torch.testing.assert_close(got, (alpha[:, :, None] * x[row]).sum(0))


@pytest.mark.parametrize("shape", ((0, 2, 3), (5, 0, 3), (5, 2, 0)))
def test_nothing_to_compute(shape, backend):
    g = uf.Graph.from_edge_index([[], []], shape[0])
    leaves = [torch.ones(size, requires_grad=True) for size in (shape, shape[:2], shape[:2])]
    y = uf.gat_aggregate(g, *leaves, dropout=0.5, seed=1, backend=backend)
    assert y.shape == shape
    y.sum().backward()
    assert all(leaf.grad.shape == leaf.shape for leaf in leaves)


def test_double_backward(cpu):
    g = GRAPHS["star"]
    leaves = [t.requires_grad_() for t in inputs_of(g, 2, 3, torch.float64).values()]
    (grad,) = torch.autograd.grad(uf.gat_aggregate(g, *leaves).sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match=r"gat_aggregate: double backward is not offered.*reference"):
        grad.sum().backward()


N, H, D = 6, 4, 3
G = uf.Graph.from_edge_index([[0, 1, 2, 3], [1, 2, 3, 4]], N, symmetrize=True)
X, S = torch.ones(N, H, D), torch.ones(N, H)
BAD = [
    (lambda f: uf.gat_aggregate("g", X, S, S), TypeError, "g must be a ugnn_fast.Graph, got str"),
    (lambda f: f(X.tolist(), S, S), TypeError, "x must be a tensor, got list"),
    (lambda f: f(X[:, 0], S, S), ValueError, r"x must be \[N, H, D\], got \[6, 3\]"),
    (lambda f: f(X[1:], S, S), ValueError, r"x must have N = 6 rows.* got \[5, 4, 3\]"),
    (lambda f: f(X.long(), S, S), TypeError, "x must be float32, .*, got torch.int64"),
    (lambda f: f(X, S[:, 1:], S), ValueError, r"att_src must be \[N, H\] = \[6, 4\], got \[6, 3\]"),
    (lambda f: f(X, S, S[1:]), ValueError, r"att_dst must be \[N, H\] = \[6, 4\], got \[5, 4\]"),
    (lambda f: f(X, S.double(), S), TypeError, "att_src must be torch.float32 .* got torch.float64"),
    (lambda f: f(X.bfloat16(), S, S.bfloat16()), TypeError, "att_dst must be torch.float32 .* got torch.bfloat16"),
    (lambda f: f(X, S, 1.0), TypeError, "att_dst must be a tensor, got float"),
    (lambda f: f(X, S.to("meta"), S), ValueError, "att_src must be on cpu .* got meta"),
    (lambda f: f(X, S, S, negative_slope=-0.1), ValueError, "negative_slope must be finite and >= 0, got -0.1"),
    (lambda f: f(X, S, S, negative_slope="0"), TypeError, "negative_slope must be a number, got str"),
    (lambda f: f(X, S, S, dropout=1.0), ValueError, "dropout must be < 1, got 1.0"),
    (lambda f: f(X, S, S, dropout=-0.1), ValueError, "dropout must be finite and >= 0, got -0.1"),
    (lambda f: f(X, S, S, seed=1.5), TypeError, "seed must be an int or a sequence of ints, got 1.5"),
    (lambda f: f(X, S, S, seed=[1, "2"]), TypeError, "seed must be an int or a sequence of ints, got .*'2'"),
    (lambda f: f(X, S, S, seed=True), TypeError, "seed must be an int or a sequence of ints, got True"),
    (lambda f: f(X, S, S, seed=2**64), ValueError, f"seed must fit in 64 bits, got {2**64}"),
    (lambda f: f(X, S, S, seed=[1, 2, 3]), ValueError, "seed must be one seed, or R .* divisor of H = 4, got 3"),
    (lambda f: f(X, S, S, seed=[]), ValueError, "seed must be one seed, or R .* divisor of H = 4, got 0"),
    (lambda f: f(X, S, S, seed=torch.ones(2)), TypeError, "seed must be an int64 tensor .* got torch.float32"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[text[:40] for _, _, text in BAD])
def test_bad_input(call, error, text, backend):
    with pytest.raises(error, match=text):
        call(lambda *args, **options: uf.gat_aggregate(G, *args, **options, backend=backend))
