"""The examples run, and write what they say."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_denoise(tmp_path):
    pytest.importorskip("matplotlib")
    options = ["--out", str(tmp_path), "--size", "16", "--steps", "30", "--quick"]
    # threads that spin while they wait would wait for each other on a busy machine
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "denoise.py"), *options],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "100%" in done.stderr and "written:" in done.stdout
    with (tmp_path / "denoise.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["problem"] for row in rows} == {"grid", "Cora"}
    for problem in ("grid", "Cora"):
        error = {row["method"]: float(row["rmse"]) for row in rows if row["problem"] == problem}
        assert len(error) == 8
        assert all(value < 0.9 * error["noisy"] for method, value in error.items() if method != "noisy"), error
        assert all(f"{value:.4f}" in done.stdout for value in error.values())
    assert (tmp_path / "denoise.png").read_bytes().startswith(b"\x89PNG")
