"""`ugnn-fast reproduce`: which runs, results that survive a crash, tables, figures."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import cli
from ugnn_fast.experiments import Choice, Settings, paper, reproduce, results, tables
from ugnn_fast.experiments.results import Row, append_results, read_results
from ugnn_fast.experiments.train import Epoch, Run, TrainResult

module = sys.modules["ugnn_fast.experiments.reproduce"]  # the package has a function of that name


pytestmark = pytest.mark.usefixtures("shipped_data_alone")


def row(**changes):
    values = {
        **{"dataset": "cora", "rate": 0, "model": "appnp", "split": 0, "seed": 0, "settings": "a=1", "val": 80.0},
        **{"test": 84.5, "low": 40.0, "high": 90.0, "low_text": 45.0, "high_text": 92.0, "correlation": math.nan},
        **{"best_epoch": 7, "seconds": 1.5, "batch": "0:0", "replicas": 1, "commit": "abc", "machine": "a, b"},
        **{"threads": 2, "date": "2026-01-01 10:00"},
    }
    return Row(**{**values, **changes})


def same(first, second):
    return repr(first) == repr(second)  # nan is not equal to itself


def test_results_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "results.csv"
    batches = [[row(seed=s, replicas=2) for s in (0, 1)], [row(model="gat", correlation=-0.25)]]
    for batch in batches:
        append_results(path, batch)
    assert same(read_results(path), [*batches[0], *batches[1]])
    assert read_results(tmp_path / "none.csv") == []


def test_what_a_crash_left_of_a_batch_does_not_count(tmp_path):
    path = tmp_path / "results.csv"
    first, second = ([row(split=k, seed=s, batch=f"{k}:0", replicas=3) for s in range(3)] for k in range(2))
    append_results(path, first)
    done = path.read_bytes()
    append_results(path, second)
    whole = path.read_bytes()
    for length in range(len(done), len(whole)):
        path.write_bytes(whole[:length])
        assert same(read_results(path), first)
        append_results(path, second)
        assert same(sorted(read_results(path), key=repr), sorted([*first, *second], key=repr))
    for length in range(whole.index(b"\n") + 1):  # of the header
        path.write_bytes(whole[:length])
        assert read_results(path) == []
        append_results(path, first)
        assert path.read_bytes() == done


def test_batches_of_other_sizes_beside_each_other(tmp_path):
    path = tmp_path / "results.csv"
    large, small = ([row(seed=s, replicas=count) for s in range(count)] for count in (3, 2))
    append_results(path, large)
    append_results(path, small)
    assert same(read_results(path), [*small, large[2]])
    path.unlink()
    append_results(path, large[:2])  # torn
    append_results(path, small)
    assert same(read_results(path), small)


def test_a_file_that_is_none_of_results(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("a,b\n")
    with pytest.raises(ValueError, match=r"results.csv, line 1: must be the header dataset,rate,.*, got a,b"):
        read_results(path)
    path.unlink()
    append_results(path, [row()])
    whole = path.read_text()
    for text, message in (
        (whole.replace("84.5", "many"), r"line 2: could not convert"),
        (whole.replace(",low,high,", ",high,low,"), "line 1: must be the header"),
        (whole + "cora,0\n", "line 3: must have 21 columns, got 2"),
        (whole + "x" * 200_000 + "\n", "must be CSV in UTF-8, after line 2: field larger"),
    ):
        path.write_text(text, newline="")
        with pytest.raises(ValueError, match=message):
            read_results(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"results.csv must be CSV in UTF-8"):
        read_results(path)


def test_runs():
    assert module.runs_of("cora", 3) == [Run(0, 0), Run(0, 1), Run(0, 2)]
    thirty = module.runs_of("amazon_photo", 30)
    assert [run.split for run in thirty] == [*range(20), *range(10)]
    assert len(set(thirty)) == 30
    every = module.runs_of("coauthor_cs", None)
    assert sorted(every) == [Run(split, seed) for split in range(20) for seed in range(20)]
    assert every[:30] == thirty
    assert len(module.runs_of("pubmed", None)) == 30
    assert len(module.runs_of("mettack_cora", 30)) == len(module.runs_of("mettack_cora", None)) == 10


def test_each_part_needs_its_runs():
    def graphs(*parts, **options):
        return {(t.dataset, t.rate, t.model) for t in module.plan(Choice(parts=parts, **options))}

    assert graphs("table2") == {(d, 0, m) for d in paper.DATASETS for m in paper.MODELS}
    assert graphs("table3") == {(d, 0, m) for d in paper.DATASETS for m in ("appnp", "ada-ugnn")}
    attacked = {(d, r, m) for d in paper.ATTACKED for r in paper.RATES for m in paper.MODELS}
    assert graphs("robustness") == attacked
    assert graphs("correlation") == {key for key in attacked if key[2] == "ada-ugnn"}
    assert graphs("smoothness") == set()
    assert graphs("table2", datasets=["cora"], models=["gcn"]) == {("cora", 0, "gcn")}
    table = {("gcn", "cora", 0): (Settings(lr=0.123), "mine")}
    (task,) = module.plan(Choice(parts=("table2",), datasets=["cora"], models=["gcn"], table=table))
    assert task.settings.lr == 0.123


def test_low_and_high_smoothness():
    epoch = Epoch(1, 0.0, 0.0, 0.0, 0.0, 0.0)
    result = TrainResult(
        "made", "appnp", Settings(), 0, 0, 1, 2, epoch, [epoch], {},
        right=torch.tensor([True, False, True, False, True, True]),
        smoothness=torch.tensor([0.0, 0.4, 0.5, 1.0, torch.nan, 0.9]), c=None, correlation=None,
    )  # fmt: skip
    found = results.accuracies(result, torch.tensor([0, 1, 2, 3, 4]))
    assert found["test"] == pytest.approx(60)
    assert found["low"] == pytest.approx(200 / 3), "an isolated node counts as 0"
    assert found["high"] == pytest.approx(50)
    assert found["low_text"] == pytest.approx(75) and found["high_text"] == pytest.approx(0)
    assert math.isnan(results.accuracies(result, torch.tensor([0]))["high"])


def test_tables():
    accuracy = {"appnp": (84.0, 85.0, 84.6), "ada-ugnn": (85.0, 86.0, 85.5)}
    rows = [row(model=m, seed=s, test=t) for m, values in accuracy.items() for s, t in enumerate(values)]
    table = tables.table2(rows)
    assert table.head == ["data set", "APPNP", "paper", "ADA-UGNN", "paper", "p"]
    p = tables.p_value(*(tables.sample(rows, "cora", model) for model in accuracy))
    stats = pytest.importorskip("scipy.stats")
    assert p == stats.ttest_ind(accuracy["appnp"], accuracy["ada-ugnn"]).pvalue
    assert table.body[0] == ["Cora", "84.53 ± 0.50", "84.49", "85.50 ± 0.50", "84.79", f"{p:.3f}"]
    assert table.body[1] == ["mean", "84.53", "84.49", "85.50", "84.79", ""]
    assert "mean ± standard deviation of 3 runs" in table.note
    assert "| Cora | 84.53 ± 0.50 | 84.49 |" in table.markdown()
    low = tables.table3(rows, "figures")
    assert low.body[0][:5] == ["Cora", "40.00 ± 0.00", "38.40", "40.00 ± 0.00", "40.17"]
    attacked = [dataclasses.replace(r, dataset="mettack_cora", rate=5, correlation=0.5) for r in rows]
    assert tables.robustness(attacked).body[0][0] == "Cora, 5 %"
    assert tables.correlation(attacked).body == [["Cora of Mettack, 5 %", "0.500 ± 0.000"]]
    time = tables.training_time([dataclasses.replace(r, seconds=100.0) for r in rows])
    assert time.body == [["Cora", "10.0", "10.0"], ["all", "10.0", "10.0"]]
    assert "3 runs of each model" in time.note and "a, b, 2 threads; commits abc; 2026-01-01" in time.note
    assert tables.all_tables([], paper.MODELS) == tables.all_tables([], module.PARTS) == {}


def test_one_run_has_no_spread_and_no_test():
    table = tables.table2([row(), row(model="ada-ugnn")])
    assert table.body[0] == ["Cora", "84.50", "84.49", "84.50", "84.79", ""]


COMMAND = ["reproduce", "table2", "--quick", "--jobs", "1", "--datasets", "cora", "--models", "appnp", "ada-ugnn"]


def test_reproduce_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "_QUICK_EPOCHS", 4)
    assert cli.main(["reproduce", "all", "--quick", "--models", "appnp", "ada-ugnn", "--out", "here"]) == 0
    out, err = capsys.readouterr()
    folder = tmp_path / "here"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("results.csv", "report.html", "smoothness.png"),
        *("table2.md", "table2_time.md", "table3.md", "table3_text.md", "correlation.md"),
    }
    rows = read_results(folder / "results.csv")
    assert len(rows) == 2 * 2 * 3 and {r.dataset for r in rows} == {"cora", "citeseer"}
    assert "| CiteSeer |" in out and "not found, left out: air_usa, mettack_cora" in out
    assert "100%" in err and "ada-ugnn on citeseer, 3 runs" in err
    page = (folder / "report.html").read_text()
    assert page.count("<img ") == 1 and "data:image/png;base64," in page and "http" not in page
    assert "12 training runs" in page
    # nothing is trained a second time, and the tables can be made from the file alone
    monkeypatch.setattr(module, "Trainer", None)
    before = (folder / "table2.md").read_text()
    assert cli.main(["reproduce", "table2", "--quick", "--models", "appnp", "ada-ugnn", "--out", "here"]) == 0
    source = str(folder / "results.csv")
    assert cli.main(["reproduce", "table2", "--quick", "--from", source, "--out", "there"]) == 0
    assert (folder / "table2.md").read_text() == (tmp_path / "there" / "table2.md").read_text() == before
    assert (tmp_path / "there" / "results.csv").read_bytes() == (folder / "results.csv").read_bytes()
    assert cli.main(["reproduce", "table2", "--runs", "5", "--from", source, "--out", "none"]) == 2
    assert "must have runs of table2 with the settings of the table, got none" in capsys.readouterr().err


def test_batches_do_not_depend_on_what_is_done(monkeypatch):
    monkeypatch.setattr(module, "replicas_at_once", lambda *args: 4)
    task = module.Task("cora", 0, "appnp", Settings(), module.runs_of("cora", 10))
    every = list(module._batches(task, None, set()))
    assert [len(batch) for batch in every] == [4, 4, 2]
    done = {module._key(task, run) for run in every[1]}
    assert list(module._batches(task, None, done)) == [every[0], every[2]]


def test_kill_9_loses_the_batch_under_way_only(tmp_path):
    if not hasattr(signal, "SIGKILL"):
        pytest.skip("no SIGKILL")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ugnn_fast.cli", *COMMAND, "--quiet", "--threads", "1"]
    process = subprocess.Popen([*command, "--out", "killed"], env=environment, stdout=subprocess.DEVNULL)
    path = tmp_path / "killed" / "results.csv"
    until = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    rows = len(read_results(path))
    assert rows == 3, "the first batch is there, the second is not"
    for out in ("killed", "whole"):
        subprocess.run([*command, "--out", out], env=environment, check=True, stdout=subprocess.DEVNULL)
    for name in ("table2.md",):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert len(read_results(path)) == 6


def test_several_processes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "_QUICK_EPOCHS", 5)
    for jobs in ("1", "2"):
        assert cli.main([*COMMAND[:4], jobs, *COMMAND[5:], "--threads", "2", "--out", jobs]) == 0
    assert "100%" in capsys.readouterr().err
    one, two = (sorted(read_results(tmp_path / jobs / "results.csv"), key=lambda row: row.run) for jobs in "12")
    assert [row.threads for row in one] == [2] * 6 and [row.threads for row in two] == [1] * 6
    times = {"seconds": 0.0, "threads": 0, "date": ""}
    assert same(*([dataclasses.replace(row, **times) for row in rows] for rows in (one, two)))


def test_processes_by_memory(monkeypatch):
    monkeypatch.setattr(module, "bytes_per_replica", lambda *args: 10)
    monkeypatch.setattr(module, "_PROCESS_BYTES", 5)
    monkeypatch.setattr(module._memory, "total_bytes", lambda: 100)
    task = module.Task("cora", 0, "appnp", Settings(), [])
    batches = [module.Batch(task, [Run()] * size) for size in (1, 2, 1)]
    graphs = module._Graphs(None)
    assert [module._fitting(batches, graphs, n) for n in (1, 2, 8)] == [1, 2, 2]
    assert module._fitting(batches[:1], graphs, 8) == 1 == module._fitting([], graphs, 8)


def test_other_settings_are_other_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_QUICK_EPOCHS", 2)
    assert cli.main([*COMMAND, "--quiet"]) == 0
    monkeypatch.setattr(module, "_QUICK_EPOCHS", 3)
    assert cli.main([*COMMAND, "--quiet"]) == 0
    assert len(read_results(tmp_path / "reproduce" / "results.csv")) == 12


BAD = {
    "what": ("reproduce table9", "invalid choice: 'table9'"),
    "runs": ("reproduce table2 --runs many", "--runs must be paper or a number, got many"),
    "no-runs": ("reproduce table2 --runs 0", "--runs must be in 1..1000000, got 0"),
    "dataset": ("reproduce table2 --datasets nope", "--datasets must be among cora, "),
    "absent": ("reproduce table2 --datasets pubmed", "not found: pubmed"),
    "model": ("reproduce table2 --models mlp", "--models must be among gcn, gat, appnp, ada-ugnn, got mlp"),
    "source": ("reproduce table2 --from none.csv", "source must be a file of results, got none.csv: no such file"),
    "settings": ("reproduce table2 --settings none.csv", "none.csv"),
    "quick-runs": ("reproduce table2 --quick --runs 3", "--quick must come without --runs"),
    "many-runs": ("reproduce table2 --runs 99999999999999999999", "--runs must be in 1..1000000, got 999"),
    "nothing": ("reproduce robustness --datasets cora", "must be something to train, got robustness on cora"),
    "no-model": ("reproduce table3 --datasets cora --models gcn", "got table3 on cora of gcn, which needs no run"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case, capsys, tmp_path):
    line, message = BAD[case]
    assert cli.main([*line.split(), "--quiet"]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_papers_figures_are_complete():
    assert set(paper.TABLE2) == set(paper.TABLE3) == set(paper.DATASETS)
    assert set(tables.NAMES) == {*paper.DATASETS, *paper.ATTACKED}
    for name in paper.DATASETS:
        low, high = paper.TABLE3[name]
        for place, value in enumerate(paper.TABLE2[name][2:]):
            assert low[place] < value < high[place]


def test_the_function_is_public():
    assert callable(reproduce) and uf.experiments.reproduce is reproduce
