"""python -m bench.largest finds a size that trains and one that does not."""

import csv

import torch

from bench import largest


def test_ring_is_a_graph_with_loops():
    g = largest.ring(1001)
    assert g.num_edges == 1001 * (2 * largest.OFFSETS + 1)
    assert torch.equal(g.degree, torch.full((1001,), 2.0 * largest.OFFSETS + 1))


def test_sizes_double_until_memory_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(largest, "attempt", lambda N, gib, threads: made(N))
    asked = []

    def made(N):
        asked.append(N)
        found = {"peak_gib": "1.00", "bytes_per_node": "9", "epoch_s": "0.1"} if N <= 5500 else {"why_not": "too large"}
        return {"limit_gib": 1.0, "nodes": N, "trains": int(N <= 5500), **found}

    assert largest.main(["--nodes", "1000", "--halvings", "2", "--out", str(tmp_path)]) == 0
    assert asked == [1000, 2000, 4000, 8000, 6000, 5000]
    assert "5,000 nodes; smallest that did not: 6,000" in capsys.readouterr().out
    with (tmp_path / largest.CSV_NAME).open(newline="") as file:
        assert [row["trains"] for row in csv.DictReader(file)] == list("111001")


def test_a_process_trains_or_says_why_not():
    row = largest.attempt(3000, 4.0, 1)
    assert row["trains"] == 1 and row["entries"] == 63_000 and float(row["peak_gib"]) < 4
    row = largest.attempt(3_000_000, 0.2, 1)
    assert row["trains"] == 0 and "emory" in row["why_not"]
