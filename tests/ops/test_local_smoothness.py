"""local_smoothness against a count by hand."""

import math

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.testing import sample_graphs

pytestmark = pytest.mark.needs("local_smoothness")
GRAPHS = sample_graphs()


def by_hand(g, labels):
    shares = []
    for i in range(g.num_nodes):
        neighbours = g.col[g.rowptr[i] : g.rowptr[i + 1]].tolist()
        known = [labels[j] for j in neighbours if j != i and labels[j] >= 0]
        defined = known and labels[i] >= 0
        shares.append(sum(label == labels[i] for label in known) / len(known) if defined else math.nan)
    return torch.tensor(shares)


@pytest.mark.parametrize("dtype", (torch.int64, torch.int32))
@pytest.mark.parametrize("graph", GRAPHS)
def test_by_hand(graph, dtype, backend):
    g = GRAPHS[graph]
    labels = torch.randint(-1, 4, (g.num_nodes,), dtype=dtype, generator=torch.Generator().manual_seed(0))
    got = uf.local_smoothness(g, labels, backend=backend)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, by_hand(g, labels.tolist()), equal_nan=True, rtol=1e-7, atol=0)


def test_non_contiguous_labels(backend):
    g = GRAPHS["power_law"]
    labels = torch.randint(0, 3, (g.num_nodes, 2))
    expected = by_hand(g, labels[:, 1].tolist())
    torch.testing.assert_close(uf.local_smoothness(g, labels[:, 1], backend=backend), expected, equal_nan=True)


def test_all_the_same_or_nothing_known(backend):
    g = GRAPHS["chain"]
    assert uf.local_smoothness(g, torch.full((20,), 7), backend=backend).eq(1).all()
    assert uf.local_smoothness(g, torch.full((20,), -1), backend=backend).isnan().all()
