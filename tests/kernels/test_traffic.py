"""Bytes that kernels request, and lanes without work."""

import pytest
import torch
from ugnn_fast.kernels._launch import row_config
from ugnn_fast.kernels.tune import FAMILIES, Measurement, candidates, power_law_graph

import ugnn_fast as uf
from bench import traffic
from ugnn_fast._row_plan import row_plan

pytestmark = [pytest.mark.triton, pytest.mark.plain_memory]

# narrow 16-bit rows are where the rest weighs most; test_launch_table.py looks at what bench.traffic has recorded
NARROW = ("propagate, sym, skip", "propagate, a_ij", "ada_propagate, c_j", "ada_propagate backward, save")
CASES = [*((name, 8, torch.bfloat16) for name in NARROW), ("propagate, sym, skip", 40, torch.float32)]


@pytest.mark.parametrize(("name", "D", "dtype"), CASES)
def test_propagation_requests_little_more_than_its_operands(name, D, dtype):
    row = traffic.row_of(name, traffic.toy_graph(traffic.CASES[name].weighted), D, dtype)
    assert not traffic.too_much([row]), row
    # nothing can be missing from the count
    assert float(row["over_no_reuse_with_operand"]) > 1


def short_rows() -> uf.Graph:
    """Rows of 1 to 7 entries."""
    random = torch.Generator().manual_seed(0)
    g = uf.Graph.from_edge_index(torch.randint(0, 300, (2, 430), generator=random), 300, symmetrize=True)
    row, col = g.edge_index
    left = (g.rowptr.diff() < 8)[row] & (g.rowptr.diff() < 8)[col]
    return uf.Graph.from_edge_index(g.edge_index[:, left], 300)


@pytest.mark.parametrize("D", [8, 33])
def test_idle_lanes_are_those_that_the_formula_says(D):
    g = short_rows()
    found = traffic.count(traffic.CASES["propagate, sym, skip"], g, D, torch.float32)
    length = g.rowptr.diff()[row_plan(g.rowptr)[0][: g.num_nodes].long()]
    expected = traffic.idle_lanes(length, D, row_config(D, torch.float32))
    assert 1 - found["active_lanes"] / found["lanes"] == pytest.approx(expected)
    assert expected <= 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_what_tune_measures_runs(family):
    g = Measurement(torch.device("cpu"), nodes=40, mean_degree=4)
    for config in list(candidates(8, 4))[:2]:
        g.launch_of(family, 8, torch.float32, config)()


def test_power_law_graph_is_one():
    g = power_law_graph(2000, 15)
    length = g.rowptr.diff().sort().values
    assert 13 < g.num_edges / 2000 < 15
    assert length[-1] > 20 * length[1000]
