"""python -m bench.sparse_linear runs, and refuses to time what is wrong."""

import csv

import pytest

from bench import sparse_linear as bench

pytestmark = [pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.usefixtures("cpu")]
FAST = ["--data", "cora", "-D", "8", "--repeats", "7", "--seconds", "0.2", "--no-memory"]


def test_a_run_writes_rows_and_a_table(tmp_path, capsys):
    names = [bench.OURS, "torch_csr_transposed"]
    assert bench.main([*FAST, "--contenders", *names, "--out", str(tmp_path)]) == 0
    with open(tmp_path / "sparse_linear.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["contender"] for row in rows] == names
    assert list(rows[0]) == bench.COLUMNS
    assert float(rows[0]["ratio"]) == 1 and float(rows[1]["ratio"]) > 0
    text = (tmp_path / "sparse_linear.md").read_text()
    assert text in capsys.readouterr().out and "| torch_csr_transposed |" in text


@pytest.mark.parametrize("name", bench.CONTENDERS)
def test_contenders_are_right(name):
    assert bench.max_error(name, bench.features("cora"), 5) < bench.TOLERANCE


def test_a_wrong_contender_is_not_timed(tmp_path, capsys, monkeypatch):
    wrong = {**bench.CONTENDERS, "wrong": lambda x, p: lambda weight, bias: 1.01 * bench.ours(x, p)(weight, bias)}
    monkeypatch.setattr(bench, "CONTENDERS", wrong)
    assert bench.main([*FAST, "--contenders", bench.OURS, "wrong", "--out", str(tmp_path)]) == 1
    assert "wrong is wrong: relative error" in capsys.readouterr().out
    assert "| wrong |" not in (tmp_path / "sparse_linear.md").read_text()
