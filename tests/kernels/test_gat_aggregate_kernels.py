"""gat_aggregate's Triton kernels where they have cases of their own: hubs in pieces, parts of a head, views, masks."""

import pytest
import torch
import torch.nn.functional as F

import ugnn_fast as uf
from ugnn_fast.reference._edges import kept
from ugnn_fast.reference.gat_aggregate import attention_mask
from ugnn_fast.testing import case_id, check_operator, entries, sample_graphs, strided


def hub_graph():
    """A hub of 300 neighbours, which are two pieces, a middle row of 40, short ones, and nodes without entries."""
    torch.manual_seed(0)
    hub = torch.stack([torch.zeros(300, dtype=torch.long), torch.arange(1, 301)])
    middle = torch.stack([torch.full((40,), 5), torch.arange(10, 50)])
    return uf.Graph.from_edge_index(
        torch.cat([hub, middle, torch.randint(0, 301, (2, 40))], 1), 304, symmetrize=True, self_loops=False
    )


GRAPHS = sample_graphs() | {"hub_300": hub_graph()}


def inputs_of(g, H, D, dtype=torch.float32):
    torch.manual_seed(1)
    x, src, dst = torch.randn(g.num_nodes, H, D), torch.randn(g.num_nodes, H), torch.randn(g.num_nodes, H)
    return {"x": x.to(dtype), "src": 2 * src, "dst": 2 * dst}


def statement_of(view, x, src, dst, slope, q, seeds):
    """The definition over the entries that a view of a graph keeps."""
    i, j, _ = entries(view)
    left = kept(view)
    i, j = i[left], j[left]
    e = F.leaky_relu(dst[i] + src[j], slope)
    rows = i[:, None].expand_as(e)
    largest = torch.full_like(dst, -torch.inf).scatter_reduce(0, rows, e.detach(), "amax")
    powers = (e - largest[i]).exp()
    alpha = powers / torch.zeros_like(dst).index_add(0, i, powers)[i]
    if q:
        alpha = alpha * attention_mask(i, j, dst.shape[1], q, torch.tensor(seeds)) / (1 - q)
    return torch.zeros_like(x).index_add(0, i, alpha[:, :, None] * x[j])


CASES = [
    {"backend": "triton", "graph": graph, "H": H, "D": D, "dtype": dtype, "drop": drop, "q": q, "seeds": seeds}
    for graph, H, D, dtype, drop, q, seeds in (
        ("hub_300", 3, 8, torch.float32, 0.0, 0.5, [7]),
        ("hub_300", 1, 136, torch.float16, 0.0, 0.0, [0]),
        ("hub_300", 1, 7, torch.float16, 0.5, 0.0, [0]),
        ("star", 1, 33, torch.float32, 0.5, 0.4, [5]),
        ("no_self_loops", 6, 4, torch.float16, 0.6, 0.4, [5, -6]),
        ("weighted", 10, 3, torch.float32, 0.3, 0.4, [1, 2**63 - 1]),
        ("isolated", 2, 130, torch.float32, 0.0, 0.4, [5]),
        ("chain", 12, 2, torch.float32, 0.0, 0.4, [1, 2, 3]),
    )
]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend, q, seeds = use_backend(case["backend"]), case["q"], case["seeds"]
    g = GRAPHS[case["graph"]]
    view = uf.drop_edges(g, case["drop"], seed=3)

    def operator(x, src, dst):
        inputs = map(strided, (x, src, dst))
        return uf.gat_aggregate(view, *inputs, dropout=q, seed=seeds, backend=backend)

    def statement(x, src, dst, store):
        return store(statement_of(view, x, src, dst, 0.2, q, seeds))

    inputs = inputs_of(g, case["H"], case["D"], case["dtype"])
    check_operator(operator, statement, inputs, wrt=["x", "src", "dst"], factor=4.0, units=16.0)


@pytest.mark.parametrize("backend", ["triton"])
def test_masks_are_the_documented_words(backend, use_backend):
    use_backend(backend)
    g, H, q, seeds = GRAPHS["two_components"], 10, 0.5, torch.tensor([3, -4])
    N = g.num_nodes
    i, j, _ = entries(g)
    x = torch.eye(N)[:, None, :].expand(N, H, N)  # a column for every node
    y = uf.gat_aggregate(g, x, torch.zeros(N, H), torch.zeros(N, H), dropout=q, seed=seeds, backend=backend)
    assert torch.equal(y[i, :, j] > 0, attention_mask(i, j, H, q, seeds))


@pytest.mark.parametrize("backend", ["triton"])
def test_a_row_that_lost_its_entries_is_zero(backend, use_backend):
    use_backend(backend)
    view = uf.drop_edges(GRAPHS["no_self_loops"], 0.9, seed=1)
    lost = view.degree == 0
    leaves = [t.requires_grad_() for t in inputs_of(view, 2, 3).values()]
    y = uf.gat_aggregate(view, *leaves, backend=backend)
    assert lost.sum() > 10
    assert torch.equal(y.eq(0).flatten(1).all(1), lost)
    for grad in torch.autograd.grad(y.sum(), leaves):
        assert grad[lost].eq(0).all()
        assert grad.isfinite().all()


@pytest.mark.parametrize("backend", ["triton"])
def test_scores_of_minus_infinity(backend, use_backend):
    use_backend(backend)
    g = GRAPHS["hub_300"]
    x, src, dst = inputs_of(g, 1, 2).values()
    row = g.col[: g.rowptr[1]].long()
    src[row[:270]] = -torch.inf  # the whole first piece of the hub, and the only neighbour of many nodes
    src[0] = -torch.inf
    got = uf.gat_aggregate(g, x, src, dst, backend=backend)
    alpha = F.leaky_relu(dst[0] + src[row], 0.2).softmax(0)
    torch.testing.assert_close(got[0], (alpha[:, :, None] * x[row]).sum(0))
    expected = uf.gat_aggregate(g, x, src, dst, backend="reference")
    assert expected.isnan().any()
    assert torch.equal(got.isnan(), expected.isnan())


@pytest.mark.parametrize("backend", ["triton"])
def test_the_same_bits_every_time(backend, use_backend):
    use_backend(backend)
    g = GRAPHS["hub_300"]

    def run():
        leaves = [t.requires_grad_() for t in inputs_of(g, 4, 4).values()]
        y = uf.gat_aggregate(g, *leaves, dropout=0.5, seed=1, backend=backend)
        return y, *torch.autograd.grad(y.square().sum(), leaves)

    assert all(map(torch.equal, run(), run()))
