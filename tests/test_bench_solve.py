"""The benchmark of the solver: what it compares is the same problem, and a run writes its figures."""

import csv

import pytest
import torch

import ugnn_fast as uf
from bench import solve
from bench.graphs import make_problem
from ugnn_fast.testing import sample_graphs

pytestmark = pytest.mark.usefixtures("cpu")


@pytest.mark.parametrize("kind", solve.KINDS)
def test_steps_lead_to_the_solution(kind):
    problem = make_problem(sample_graphs()["power_law"], 3, 200)
    calls, info, distance = solve.calls_of(problem, kind, 1e-6)
    assert info.converged and distance < 1e-4
    torch.testing.assert_close(calls["k_steps"](), calls["solve"](), rtol=1e-3, atol=1e-4)
    assert calls["gradient"]()[0].shape == problem.x.shape
    few = solve.calls_of(make_problem(problem.g, 3, 2), kind, 1e-6)
    assert few[2] > 0.01


def test_a_run_writes_a_table_and_rows(tmp_path, monkeypatch, capsys):
    before = torch.get_num_threads()
    try:
        options = ["--repeats", "7", "--seconds", "0.1", "--threads", "1", "--out", str(tmp_path)]
        assert solve.main(["--shapes", "cora:2:3", *options]) == 0
    finally:
        torch.set_num_threads(before)
    with (tmp_path / solve.CSV_NAME).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["c"] for row in rows] == list(solve.KINDS) and list(rows[0]) == solve.COLUMNS
    assert all(int(row["iterations"]) > 5 and 0 < float(row["distance"]) < 1 for row in rows)
    assert float(rows[1]["peak_mb"]) > 0
    text = (tmp_path / solve.TABLE_NAME).read_text()
    assert text.count("| cora (2,708 / 13,264), 2 |") == 2 and text in capsys.readouterr().out
    assert uf.__version__ in text


def test_a_missing_graph_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("UGNN_DATA", str(tmp_path))
    before = torch.get_num_threads()
    try:
        assert solve.main(["--shapes", "pubmed", "--threads", "1", "--out", str(tmp_path)]) == 1
    finally:
        torch.set_num_threads(before)
