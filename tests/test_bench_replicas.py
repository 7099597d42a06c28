"""python -m bench.replicas runs and writes its figures."""

import csv

import pytest
import torch

from bench import replicas

pytest.importorskip("torch_geometric")


def test_a_run_writes_a_table_and_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("UGNN_DATA", raising=False)
    before = torch.get_num_threads()
    try:
        options = ["--repeats", "3", "--seconds", "0.1", "--threads", "1", "--out", str(tmp_path), "--pyg"]
        assert replicas.main(["--models", "gcn", "gat", "appnp", "ada-ugnn", "--replicas", "2", *options]) == 0
    finally:
        torch.set_num_threads(before)
    with (tmp_path / replicas.CSV_NAME).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == replicas.COLUMNS and [row["model"] for row in rows] == ["gcn", "gat", "appnp", "ada-ugnn"]
    assert all(float(row["replicas_ms"]) > 0 and float(row["times_faster_than_pyg"]) > 0 for row in rows)
    text = (tmp_path / replicas.TABLE_NAME).read_text()
    assert "| cora | gcn |" in text and text in capsys.readouterr().out
