"""The GPU harness without a GPU: the whole of it runs in Triton's interpreter, and no speed is shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from bench import gpu, graphs
from bench.ops.ada_propagate import OP
from bench.registry import errors, node_problem, why_wrong
from bench.timing import Samples
from ugnn_fast._backend import _interpreting

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(torch.cuda.is_available() or _interpreting(), reason="this is for a machine without a GPU")
def test_without_a_gpu_it_works_and_shows_no_speed():
    names = ["ugnn_fast triton", "torch_csr"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--contenders", *names], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.endswith(": right")] == [f"{n}: right" for n in names]
    assert "works" in done.stdout
    assert not re.search(r"\d\s*(ms|GB|MB|us|x)\b", done.stdout)


def test_message_passing_agrees_with_float64():
    pytest.importorskip("torch_geometric")
    problem = node_problem(graphs.toy().graph, 3, 2)
    contender = gpu.contenders()["pyg"]
    found = errors(OP.results, contender.make(problem), OP.expected(problem))
    assert why_wrong(contender, found) is None


def test_rows_and_table():
    """The figures of a row, from samples that are known."""
    labels = ("torch_csr", "pyg")
    problem = node_problem(graphs.toy().graph, 4, 2)
    N, E = problem.g.num_nodes, problem.g.num_edges
    samples = {label: Samples(1, taken=[(0.0, 1.0 + at)] * 7) for at, label in enumerate(labels)}
    peaks, errors = dict.fromkeys(labels), dict.fromkeys(labels, 1e-6)
    common = dict.fromkeys(("date", "gpu", "driver", "torch", "triton", "ugnn_fast", "launch_table", "commit"), "?")
    rows = gpu.rows_of(gpu.Case("ada_propagate", "toy", 4, 2), problem, "fwd", samples, errors, peaks, 2.0, common)
    assert set(rows[0]) == set(gpu.COLUMNS)
    no_reuse = 2 * (E * (16 + 4) + 8 * N + 2 * N * 16)
    compulsory = 2 * (4 * E + 8 * N + 3 * N * 16)
    assert float(rows[0]["no_reuse_mb"]) == pytest.approx(no_reuse / 1e6, rel=1e-3)
    assert float(rows[0]["no_reuse_ms"]) == pytest.approx(no_reuse / 2e6, rel=1e-3)
    assert float(rows[0]["compulsory_ms"]) == pytest.approx(compulsory / 2e6, rel=1e-3)
    assert "| toy (70 / " in gpu.table(rows) and "| pyg | 2 (2 - 2) |" in gpu.table(rows)
