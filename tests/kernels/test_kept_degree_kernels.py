"""Degrees under DropEdge: the same mask as the other backends', sums in float64."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _backend
from ugnn_fast.testing import sample_graphs

pytestmark = pytest.mark.triton
DEVICE = "cpu" if _backend._interpreting() or not torch.cuda.is_available() else "cuda"


@pytest.mark.parametrize("name", ("one_node", "isolated", "star", "weighted", "no_self_loops", "no_edges", "empty"))
def test_degrees_are_those_of_the_reference(name):
    g = sample_graphs()[name].to(DEVICE)
    for q, seed in ((0.1, 0), (0.4, 2**63 + 11), (0.9, 7)):
        found, right = (uf.drop_edges(g, q, seed=seed, backend=b) for b in ("triton", "reference"))
        torch.testing.assert_close(found.degree, right.degree, rtol=1e-6 if g.weight is not None else 0, atol=0)


@pytest.mark.parametrize("weighted", (False, True))
def test_hub(weighted):
    from ugnn_fast.device.step import rsqrt_degree

    torch.manual_seed(0)
    weight = torch.rand(600) + 0.1 if weighted else None
    ends = torch.stack([torch.zeros(600, dtype=torch.int64), torch.arange(1, 601)])
    g = uf.Graph.from_edge_index(ends, 601, weight, symmetrize=True).to(DEVICE)
    view = uf.drop_edges(g, 0.3, seed=1, backend="triton")
    exact = uf.reference.degrees(view, torch.float64)
    torch.testing.assert_close(view.degree, exact.float(), rtol=1e-7, atol=0)
    torch.testing.assert_close(
        rsqrt_degree(view.tensors("triton"), torch.float64, "triton"), exact.rsqrt(), rtol=1e-14, atol=0
    )


def test_views_share_the_plan():
    g = sample_graphs()["star"].to(DEVICE)
    plan = g.tensors("triton")[9]
    assert uf.drop_edges(g, 0.5, seed=1, backend="triton").tensors("triton")[9] is plan
