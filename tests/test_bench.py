"""The benchmark: its contenders are right, its samples honest, and a run writes all that it should."""

import csv
import sys
from pathlib import Path

import pytest
import torch

# bench/ is part of the checkout, not of the installed package
sys.path.append(str(Path(__file__).parents[1]))

import ugnn_fast as uf
from bench import contenders, report, run, timing
from bench.baselines.structure import Structure
from bench.baselines.torch_csr import TorchCsr
from bench.baselines.torch_csr_factored import TorchCsrFactored
from bench.contenders import CONTENDERS, OURS, Contender
from bench.graphs import make_problem, parse_shape, reference_results
from ugnn_fast._native import native

needs_native = pytest.mark.skipif(native is None, reason="the native module is not built")


@pytest.fixture
def small_run(monkeypatch):
    """The threads that a run fixes do not outlive the test, and bandwidth is taken on small arrays."""
    before = torch.get_num_threads()
    monkeypatch.setattr(run, "stream_bandwidth", lambda: timing.stream_bandwidth(1 << 20))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    yield
    torch.set_num_threads(before)


def small_graph() -> uf.Graph:
    """300 random pairs on 100 nodes, a hub, and nodes with nothing but their loop."""
    random = torch.Generator().manual_seed(1)
    pairs = torch.randint(0, 90, (2, 300), generator=random)
    hub = torch.stack([torch.zeros(80, dtype=torch.long), torch.arange(80)])
    return uf.Graph.from_edge_index(torch.cat([pairs, hub], 1), 100, symmetrize=True)


# D = 16 is where the torch baselines change their way
@pytest.mark.parametrize(("D", "K"), [(3, 4), (16, 3), (5, 1), (20, 1)])
@pytest.mark.parametrize("label", CONTENDERS)
def test_contender_agrees_with_float64(label, D, K):
    contender = CONTENDERS[label]
    if contender.name == OURS and native is None:
        pytest.skip("the native module is not built")
    problem = make_problem(small_graph(), D, K)
    calls = contender.make(problem.to(contender.dtype))
    found = contenders.errors(contender, calls, reference_results(problem))
    assert contenders.why_wrong(contender, found) is None
    if contender.dtype == torch.float32:
        assert max(found.values()) < 1e-5


def test_reference_in_column_blocks_is_the_reference(monkeypatch):
    problem = make_problem(small_graph(), 5, 3)
    at_once = reference_results(problem)
    monkeypatch.setattr("bench.graphs._REFERENCE_BYTES", 1)
    for one, other in zip(reference_results(problem), at_once, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("function", [TorchCsr, TorchCsrFactored])
@pytest.mark.parametrize("D", [3, 16])
def test_baseline_keeps_its_states_over_a_second_forward(function, D):
    problem = make_problem(small_graph(), D, 3)
    structure = Structure(problem.g)
    x, c = problem.x.clone().requires_grad_(), problem.c.clone().requires_grad_()
    h = function.apply(structure, x, c, 3)
    second = function.apply(structure, 5 * x, c + 1, 3)
    torch.autograd.grad(second, (x, c), problem.grad)
    _, *expected = reference_results(problem)
    for grad, right in zip(torch.autograd.grad(h, (x, c), problem.grad), expected, strict=True):
        torch.testing.assert_close(grad.double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_wrong_contender_is_named_and_not_timed(factor):
    def make(problem):
        calls = CONTENDERS["torch_csr"].make(problem)
        h, dx, dc = calls["fwdbwd"]()
        return calls | {"fwdbwd": lambda: (h, dx, dc * factor)}

    said = []
    given = [CONTENDERS["torch_csr"], Contender("broken", make, "dC is off")]
    calls, _, all_right = run.checked_calls(make_problem(small_graph(), 3, 2), given, said.append)
    assert list(calls) == ["torch_csr"]
    assert not all_right
    assert len(said) == 1 and "broken" in said[0] and "dC off by" in said[0]


def test_bytes_of_the_model():
    # 2 steps of: 10 rows of 3 floats and their ids, 4 row pointers, X in and H out
    assert contenders.model_bytes("fwd", 4, 10, 3, 2, 4) == 2 * (10 * (12 + 4) + 8 * 4 + 2 * 4 * 12)
    assert contenders.model_bytes("fwdbwd", 4, 10, 3, 2, 4) == 2 * (2 * (160 + 32) + 8 * 48)


def test_disturbed_samples_do_not_count():
    samples = timing.Samples(calls=1, taken=[(0.0, 2.0)] * 8 + [(0.5, 90.0)] * 2)
    assert samples.quantiles() == (2, 2, 2)
    assert len(samples.counted) == 8
    assert samples.rejected_share == pytest.approx(0.2)


def test_least_disturbed_samples_count_where_too_few_are_clean():
    samples = timing.Samples(calls=1, taken=[(0.1 * i, 1.0 + i) for i in range(20)])
    assert samples.clean == 1
    assert samples.counted == [1.0 + i for i in range(timing.MIN_SAMPLES)]


def test_calls_take_turns_from_another_start_each_round(monkeypatch):
    monkeypatch.setattr(timing, "waited_ns", lambda: 0)
    monkeypatch.setattr(timing, "_SAMPLE_SECONDS", 0)  # one call is one sample
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    result = timing.measure(calls, repeats=7, seconds=60)
    assert "".join(order[-21:]) == "abcbcacababcbcacababc"
    assert all(samples.clean == 7 for samples in result.values())


def test_busy_machine_ends_the_run_all_the_same(monkeypatch):
    clock = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr(timing, "waited_ns", lambda: next(clock))  # a second of waiting in every sample
    result = timing.measure({"a": lambda: None}, repeats=7, seconds=60)["a"]
    assert result.clean == 0 and result.rejected_share == 1
    assert result.count == timing.MAX_ATTEMPTS * 7
    assert len(result.counted) == timing.MIN_SAMPLES


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads /proc")
def test_peak_memory_of_a_known_call():
    def call():
        torch.ones(25_000_000)  # 100 MB that are gone when the call ends
        return torch.ones(5_000_000)

    assert timing.peak_extra_bytes(call) == pytest.approx(100e6, rel=0.1)


def test_shape_must_be_known_or_complete():
    assert parse_shape("cora") == parse_shape("cora:7:10")
    for text in ("nothing", "cora:7", "cora:x:2", "cora:0:2"):
        with pytest.raises(ValueError, match="shape must"):
            parse_shape(text)


@needs_native
def test_run_writes_csv_table_and_picture(tmp_path, capsys, small_run):
    names = ["ugnn_fast", "torch_csr", "scipy"]
    arguments = ["--shapes", "cora:2:2", "nowhere:2:2", "--contenders", *names]
    options = ["--repeats", "7", "--seconds", "0.2", "--threads", "1", "--out", str(tmp_path)]
    assert run.main(arguments + options) == 0
    said = capsys.readouterr()
    assert "nowhere:2:2 is left out" in said.err

    with (tmp_path / report.CSV_NAME).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["mode"], row["contender"]) for row in rows] == [(m, n) for m in ("fwd", "fwdbwd") for n in names]
    for row in rows:
        ours = row["contender"] == OURS
        empty = {column for column in report.COLUMNS if row[column] == ""}
        assert empty == (set() if ours else {"speedup", "best_other"})
        assert float(row["p20_ms"]) <= float(row["p50_ms"]) <= float(row["p80_ms"])
        assert int(row["samples"]) >= 7
        assert int(row["N"]) == 2708 and int(row["E"]) == 13264
        assert float(row["max_error"]) < 1e-5
    others = [float(row["p50_ms"]) for row in rows[1:3]]
    assert float(rows[0]["speedup"]) == pytest.approx(min(others) / float(rows[0]["p50_ms"]), rel=0.01)

    table = (tmp_path / report.TABLE_NAME).read_text()
    assert table in said.out
    assert "| cora (2,708 / 13,264), 2, 2 | fwdbwd |" in table
    assert rows[0]["p50_ms"] in table and f"{float(rows[0]['speedup']):.2f}x" in table
    assert (tmp_path / report.PICTURE_NAME).read_bytes().startswith(b"\x89PNG")


@needs_native
def test_run_appends_and_report_takes_the_latest(tmp_path, capsys, small_run):
    arguments = ["--shapes", "cora:2:2", "--modes", "fwd", "--no-memory", "--contenders", "ugnn_fast"]
    options = ["--repeats", "7", "--seconds", "0.1", "--threads", "1", "--out", str(tmp_path)]
    assert run.main(arguments + options) == 0
    path = tmp_path / report.CSV_NAME
    row = report.read_latest(path)[0]
    assert row["peak_mb"] == "" and row["speedup"] == ""  # nothing to compare with
    report.append(path, report.COLUMNS, [row | {"date": "1999-01-01T00:00:00+00:00", "p50_ms": "123456"}])
    assert report.read_latest(path) == [row]
    assert report.main(["--out", str(tmp_path)]) == 0
    assert "123456" not in capsys.readouterr().out


def test_run_refuses_a_csv_with_other_columns(tmp_path, small_run):
    (tmp_path / report.CSV_NAME).write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="must have the columns"):
        run.main(["--shapes", "cora", "--threads", "1", "--out", str(tmp_path)])


def test_nothing_measured_is_a_failure(tmp_path, capsys, small_run):
    assert run.main(["--shapes", "nowhere:2:2", "--threads", "1", "--out", str(tmp_path)]) == 1
    assert "nowhere:2:2 is left out: name must be one of" in capsys.readouterr().err


@needs_native
def test_overhead(tmp_path, capsys, small_run):
    assert run.main(["--overhead", "--repeats", "7", "--seconds", "0.1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    with (tmp_path / "overhead.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    calls = [row["call"] for row in rows]
    assert calls[:3] == list(run.OVERHEAD_LIMITS) and "x.clone()" in calls
    for row in rows:
        assert row["call"] in printed
        assert 0 < float(row["p20_us"]) <= float(row["p50_us"]) <= float(row["p80_us"])
        assert (float(row["kernel_us"]) > 0) == ("clone" not in row["call"])
