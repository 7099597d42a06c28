"""ugnn-fast bench: a run writes CSV, table and pictures, names who is left out, and refuses bad arguments."""

import csv

import pytest
import torch

from bench import bound, overhead, peak, report, run
from bench.ops.ada_propagate import OP
from bench.registry import MODES, OURS, Case, Contender
from bench.run import Options, all_cases, cases_of, checked_calls, contenders_of
from ugnn_fast import _bench_command, cli
from ugnn_fast._native import native

pytestmark = [
    pytest.mark.skipif(native is None, reason="the native module is not built"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]


@pytest.fixture(autouse=True)
def threads_as_before(monkeypatch):
    """The threads that a run fixes do not outlive the test."""
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    yield
    torch.set_num_threads(before)


def bench(*arguments):
    return cli.main(["bench", *map(str, arguments)])


def rows_in(folder):
    with (folder / report.CSV_NAME).open(newline="") as file:
        return list(csv.DictReader(file))


def test_quick_run_writes_csv_table_and_pictures(tmp_path, capsys):
    names = [OURS, "torch_csr", "numba", f"{OURS} bfloat16"]
    quick = ["--quick", "--seconds", 0.1, "--threads", 1, "--out", tmp_path]
    assert bench("--op", "ada_propagate", "epoch", "--contenders", *names, "pyg", *quick) == 0
    said = capsys.readouterr()
    rows = rows_in(tmp_path)
    of_ada = [row for row in rows if row["op"] == "ada_propagate"]
    assert {row["mode"] for row in of_ada} == set(MODES)
    assert {report.label_of(row) for row in of_ada} == {*names, "pyg", bound.LABEL, f"{bound.LABEL} bfloat16"}
    for row in rows:
        assert (row["graph"], row["N"], row["threads"]) == ("toy", "70", "1")
        if not row["p50_ms"]:
            assert row["note"].startswith("left out: ") and row["contender"] == "numba"
            assert "numba is left out: " in said.err
            continue
        assert 0 < float(row["p20_ms"]) <= float(row["p50_ms"]) <= float(row["p80_ms"])
        assert int(row["samples"]) >= 7 and float(row["model_mb"]) > 0
        if row["contender"] != bound.LABEL:
            assert float(row["max_error"]) < (1e-4 if row["dtype"] == "float32" else 5e-2)

    one, other = (
        next(row for row in of_ada if row["contender"] == name and row["mode"] == "fwd") for name in (OURS, bound.LABEL)
    )
    assert float(one["bound_share"]) == pytest.approx(float(other["p50_ms"]) / float(one["p50_ms"]), rel=0.02)
    peers = [row for row in of_ada if row["contender"] in ("torch_csr", "pyg") and row["mode"] == "fwd"]
    best = min(peers, key=lambda row: float(row["p50_ms"]))
    assert one["best_peer"] == best["contender"]
    assert float(one["speedup"]) == pytest.approx(float(best["p50_ms"]) / float(one["p50_ms"]), rel=0.02)

    table = (tmp_path / report.TABLE_NAME).read_text()
    assert table in said.out
    assert f"| toy (70 / {one['E']}), 5, 3 | fwd | 1 | {OURS} | {one['p50_ms']} (" in table
    assert "## epoch" in table
    for name in ("speedup", "roofline"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "growth.png").exists()  # nothing grew


def test_series_that_grow_make_a_picture(tmp_path):
    sizes = ["power_law-200-1000", "power_law-400-2000", "power_law-800-4000"]
    quick = ["--quick", "--seconds", 0.1, "--threads", 1, "--mode", "fwd", "--out", tmp_path]
    assert bench("--op", "propagate", "--contenders", OURS, "--graph", *sizes, *quick) == 0
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert {int(row["E"]) for row in rows_in(tmp_path)} == {1000, 2000, 4000}


def test_run_appends_and_table_is_of_the_latest(tmp_path):
    quick = ["--quick", "--seconds", 0.1, "--threads", 1, "--mode", "fwd", "--out", tmp_path]
    assert bench("--op", "neighbor_var", "--contenders", OURS, *quick) == 0
    path = tmp_path / report.CSV_NAME
    latest = report.read_latest(path)
    assert latest[0]["peak_mb"] == "" and latest[0]["speedup"] == ""  # nothing to compare with
    old = latest[0] | {"date": "1999-01-01T00:00:00+00:00", "p50_ms": "123456"}
    report.append(path, report.COLUMNS, [old])
    assert report.read_latest(path) == latest
    assert "123456" not in report.table(report.read_latest(path))
    # of another case it is the latest
    report.append(path, report.COLUMNS, [old | {"graph": "cora"}])
    assert report.read_latest(path) == [*latest, old | {"graph": "cora"}]
    assert "1999-01-01 to 2" in report.table(report.read_latest(path))


def test_short_table():
    row = dict.fromkeys(report.COLUMNS, "") | {"date": "2026-11-18T07:00:00+00:00", "op": "propagate", "mode": "fwdbwd"}
    row |= {"graph": "large_toy", "N": "1000", "E": "2000", "D": "5", "K": "3", "dtype": "float32", "threads": "2"}
    plain = row | {"contender": "torch_csr_plain", "p50_ms": "6"}
    ours = row | {"contender": OURS, "p50_ms": "2", "peak_mb": "7.5", "speedup": "3", "best_peer": "torch_csr_plain"}
    ours |= {"speedup_all": "2", "best_other": "numba", "bound_share": "0.501", "bound_ms": "1"}
    rows = [ours, plain, row | {"contender": "numba", "p50_ms": "4"}, ours | {"threads": "1", "p50_ms": "9"}]
    rows.append(ours | {"dtype": "bfloat16", "p50_ms": "1.5"})
    line = "| propagate, toy (1,000 / 2,000), 5, 3 | {} | 2 (7.5) | 1.5 | numba 4 | 2x | 4x | 3x |"
    assert report.short_table(rows).splitlines()[-1] == line.format(" |  | ")
    rows.append(ours | {"mode": "fwd", "p50_ms": "0.5", "speedup_all": "2.5", "bound_share": "0.701"})
    assert report.short_table(rows).splitlines()[-1] == line.format("0.5 | 2.5x | 70%")
    assert report.short_table(rows).count("propagate") == 1
    # without gradients
    assert report.short_table(rows[-1:]).splitlines()[-1].endswith("| 0.5 | 2.5x | 70% |  |  |  |  |  |  |")


def test_peak_memory_is_that_of_the_child():
    found = peak.measure_peaks(Case("propagate", "cora", 64, 1), OURS, MODES, 1)
    table = 2708 * 64 * 4 / 1e6
    assert set(found) == set(MODES) and found["fwd"] == pytest.approx(2 * table, abs=table)
    assert peak.measure_peaks(Case("propagate", "nowhere", 8, 1), OURS, MODES, 1) == {}


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_wrong_contender_is_named_and_not_timed(factor):
    def make(problem):
        calls = OP.by_name["torch_csr"].make(problem)
        h, dx, dc = calls["fwdbwd"]()
        return calls | {"fwdbwd": lambda: (h, dx, dc * factor)}

    said = []
    given = [OP.by_name["torch_csr"], Contender("broken", make, "dC is off")]
    problem = OP.make(run.graphs.load("toy"), 3, 2)
    found = checked_calls(OP, problem, given, said.append)
    assert list(found.calls) == ["torch_csr"]
    assert not found.all_right and "broken" in found.left_out
    assert len(said) == 1 and "broken" in said[0] and "dC of fwdbwd off by" in said[0]


def test_slow_contender_is_left_out():
    said = []
    problem = OP.make(run.graphs.load("toy"), 3, 2)
    found = checked_calls(OP, problem, [OP.by_name["torch_csr"]], said.append, limit=1e-9)
    assert not found.calls and found.all_right and "more than --limit" in said[0]


def test_contender_without_memory_is_left_out():
    def make(problem):
        return {"fwd": lambda: torch.empty(2**60), "fwdbwd": lambda: torch.empty(2**60)}

    said = []
    problem = OP.make(run.graphs.load("toy"), 3, 2)
    found = checked_calls(OP, problem, [Contender("greedy", make, "wants an exabyte")], said.append)
    assert found.all_right and found.left_out == {"greedy": "needs more memory than there is"}


def test_cases():
    own = cases_of(OP, Options())
    assert own == OP.default_cases()
    grown = cases_of(OP, Options(graphs=["cora", "citeseer"], dims=[3, 5]))
    assert [str(case) for case in grown] == [f"ada_propagate {g}:{D}:10" for g in ("cora", "citeseer") for D in (3, 5)]
    assert [str(case) for case in cases_of(OP, Options(quick=True))] == ["ada_propagate toy:5:3"]
    assert [str(case) for case in cases_of(OP, Options(graphs=["flickr@rcm"]))] == ["ada_propagate flickr@rcm:9:2"]


def test_growth_is_of_one_operator_with_few_contenders():
    cases = all_cases(Options(growth=True))
    assert {case.op for case in cases} == {"ada_propagate"} and len(set(cases)) == len(cases)
    assert str(cases[0]) == "ada_propagate power_law-500-10000:16:2"
    assert {case.D for case in cases} >= {3, 128} and {case.K for case in cases} >= {2, 10}
    assert "power_law-1000000-20000000" in {case.graph for case in cases}
    labels = [contender.label for contender in contenders_of(OP, Options(growth=True))]
    assert sorted(labels) == sorted(run.GROWTH_CONTENDERS)


def test_another_commit_is_compared_on_cora(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(run.against, "run", lambda *arguments: given.extend(arguments) or 0)
    assert bench("--against", "HEAD~1", "--op", "propagate", "ada_solve", "--out", tmp_path) == 0
    assert given[0] == "HEAD~1" and [str(case) for case in given[1]] == ["propagate cora:7:10", "ada_solve cora:3:1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--op", "nothing"], "--op must be among propagate"),
        (["--contenders", "nobody"], "--contenders must be among"),
        (["--mode", "back"], "--mode must be among epoch, fwd, fwdbwd, got back"),
        (["--dtype", "float8"], "--dtype must be among"),
        (["--dim", "0"], "--dim must be >= 1, got 0"),
        (["--steps", "-1"], "--steps must be >= 1, got -1"),
        (["--threads", "0"], "--threads must be >= 1, got 0"),
        (["--repeats", "3"], "--repeats must be >= 7, got 3"),
        (["--seconds", "0"], "--seconds must be > 0, got 0"),
        (["--limit", "nan"], "--limit must be > 0, got nan"),
    ],
)
def test_bad_arguments(tmp_path, capsys, arguments, text):
    assert bench(*arguments, "--out", tmp_path) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_measured_is_a_failure(tmp_path, capsys):
    assert bench("--op", "propagate", "--graph", "nowhere", "--quick", "--threads", 1, "--out", tmp_path) == 1
    assert "propagate nowhere:7:10 is left out: name must be one of" in capsys.readouterr().err


def test_csv_with_other_columns_is_refused(tmp_path, capsys):
    (tmp_path / report.CSV_NAME).write_text("a,b\n1,2\n")
    assert bench("--quick", "--out", tmp_path) == 2
    assert "must have the columns" in capsys.readouterr().err


def test_list(capsys):
    assert bench("--list") == 0
    said = capsys.readouterr().out
    assert "ada_propagate: K steps" in said and "torch_csr_factored" in said


def test_harness_that_is_not_there_is_a_clear_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_bench_command, "__file__", str(tmp_path / "site-packages" / "ugnn_fast" / "x.py"))
    assert bench("--quick") == 2
    assert "bench must lie beside the package" in capsys.readouterr().err


def test_overhead(tmp_path, capsys):
    assert overhead.main(["--repeats", "7", "--seconds", "0.1", "--threads", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    with (tmp_path / overhead.CSV_NAME).open(newline="") as file:
        rows = list(csv.DictReader(file))
    calls = [row["call"] for row in rows]
    assert calls[:3] == list(overhead.LIMITS) and "x.clone()" in calls
    for row in rows:
        assert row["call"] in printed
        assert 0 < float(row["p20_us"]) <= float(row["p50_us"]) <= float(row["p80_us"])
        assert (float(row["kernel_us"]) > 0) == ("clone" not in row["call"])


def test_density_of_a_small_matrix():
    from bench.density import ratio

    assert ratio(4, 0.5, 0.3, 7, 0.1, rows=50) > 0
