"""bench --against: two trees take turns, a commit that is none is refused, and missing tools are named."""

import contextlib
import shutil
import subprocess

import pytest

from bench import against
from bench.machine import ROOT, git
from bench.registry import Case
from bench.run import Options
from ugnn_fast import cli
from ugnn_fast._native import native

CASE = Case("propagate", "toy", 3, 2)


@pytest.fixture
def tree(tmp_path):
    """The package of this tree once more, in place of another commit."""
    if native is None:
        pytest.skip("the native module is not built")
    shutil.copytree(ROOT / "ugnn_fast", tmp_path / "tree" / "ugnn_fast", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "tree"


def test_two_trees_take_turns(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(against, "built", lambda base, say: contextlib.nullcontext(tree))
    monkeypatch.setattr(against, "why_no_instructions", lambda: "instructions are not counted: said so")
    options = Options(threads=[1], repeats=7, modes=["fwd"], out=tmp_path / "out")
    cases = [CASE, Case("propagate", "nowhere", 3, 2)]
    assert against.run("HEAD", cases, options) == 0
    said = capsys.readouterr()
    assert "instructions are not counted: said so" in said.err
    assert "propagate nowhere:3:2 fwd is left out" in said.err
    (row,) = against.report.read_latest(tmp_path / "out" / against.CSV_NAME)
    assert (row["op"], row["mode"], row["N"], row["base"], row["instructions"]) == (
        "propagate",
        "fwd",
        "70",
        "HEAD",
        "",
    )
    assert int(row["samples"]) >= 7
    assert float(row["time_ratio"]) == pytest.approx(float(row["base_p50_ms"]) / float(row["p50_ms"]), rel=0.02)
    assert (tmp_path / "out" / against.TABLE_NAME).read_text() in said.out


def test_package_must_come_from_the_tree(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must import ugnn_fast from"):
        against.Process(tmp_path / "empty", tmp_path, 1)


def test_samples_alternate():
    class Fake:
        def __init__(self, name):
            self.name = name

        def ask(self, sample):
            order.append(self.name)
            return {"waited": 0.0, "ms": 1.0}

    order = []
    samples = against.interleaved([Fake("a"), Fake("b")], 7)
    assert "".join(order) == "abbaabbaabbaab" and [taken.clean for taken in samples] == [7, 7]


def test_totals_of_callgrind_are_read(tmp_path, monkeypatch):
    class Fake(contextlib.nullcontext):
        def __init__(self, tree, folder, threads, before):
            super().__init__(self)
            assert threads == 1 and "--instr-atstart=no" in before
            (folder / "callgrind-tree.out").write_text("events: Ir\n1 2\n\ntotals: 12345\n")

        def ask(self, **asked):
            return {}

    monkeypatch.setattr(against, "Process", Fake)
    monkeypatch.setattr(against, "compiled", lambda source: tmp_path)
    assert against.instructions(tmp_path / "tree", tmp_path, CASE, "fwd") == 12345


def test_without_valgrind_it_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "valgrind was not found" in against.why_no_instructions()


def test_commit_that_is_none_is_refused(tmp_path, capsys):
    try:
        git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    assert cli.main(["bench", "--against", "no-such-commit", "--out", str(tmp_path)]) == 2
    assert "--against must be a commit of" in capsys.readouterr().err
