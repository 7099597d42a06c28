"""The bench of dropped edges runs, writes its files and refuses bad options."""

import csv

import pytest

from bench import drop_edges


def test_run_writes_a_row_for_each_share(tmp_path, capsys):
    options = ["--shapes", "cora:3:1", "--repeats", "7", "--seconds", "0.1", "--threads", "1"]
    assert drop_edges.main([*options, "--out", str(tmp_path)]) == 0
    with (tmp_path / drop_edges.CSV_NAME).open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["q"]) for row in rows] == list(drop_edges.DROPS)
    assert all(float(row["ratio"]) > 0 and row["graph"] == "cora" for row in rows)
    assert (tmp_path / drop_edges.TABLE_NAME).read_text() in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--shapes", "cora"[:2]], ["--repeats", "2"]])
def test_bad_options(options):
    with pytest.raises(SystemExit):
        drop_edges.main(options)
