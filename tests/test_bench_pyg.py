"""bench.pyg: a wrong contender is noticed, and a run writes its CSV and table."""

import csv
import sys
from pathlib import Path

import pytest
import torch

# bench/ is part of the checkout, not of the installed package
sys.path.append(str(Path(__file__).parents[1]))

pytest.importorskip("torch_geometric")

import ugnn_fast as uf
from bench import pyg

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, on sparse CSR tensors


def small_graph():
    pairs = torch.randint(0, 50, (2, 120), generator=torch.Generator().manual_seed(0))
    return uf.Graph.from_edge_index(pairs, 50, symmetrize=True)


@pytest.mark.parametrize("layer", pyg.LAYERS)
def test_contenders_agree(layer):
    calls = {name: pyg.make_call(layer, name, small_graph(), 4) for name in pyg.contenders_of(layer)}
    expected = calls[pyg.THEIRS]()
    for call in calls.values():
        assert pyg.why_wrong(call(), expected) is None
    assert pyg.why_wrong([2 * t + 1 for t in expected], expected).startswith("result is off by")
    if len(expected) > 1:
        assert pyg.why_wrong([expected[0], 2 * expected[1] + 1], expected).startswith("gradient of x is off by")


def test_a_run_writes_table_and_csv(tmp_path, monkeypatch):
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    run = ["--layers", "SGConv", "LabelPropagation", "--graph", "cora", "--width", "3", "--repeats", "1"]
    try:
        assert pyg.main([*run, "--seconds", "0.1", "--threads", "1", "--no-memory", "--out", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(before)
    with (tmp_path / "pyg.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["contender"] for row in rows] == 2 * [pyg.THEIRS, f"{pyg.THEIRS} csr", pyg.OURS]
    assert all(float(row["p50_ms"]) > 0 for row in rows)
    table = (tmp_path / "pyg.md").read_text().splitlines()
    assert table[-2].startswith("| SGConv K=2 |")
    assert "cora (N = 2,708, E = 13,264 with loops), D = 3" in table[0]
