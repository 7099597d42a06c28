"""Peak extra memory of contenders, each in a process of its own: `python -m bench.peak` is that process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

from bench import graphs
from bench.machine import ROOT
from bench.registry import Case, operators
from bench.timing import MEMORY_ENVIRONMENT, fix_threads, peak_extra_bytes
from ugnn_fast import empty_cache


def measure_peaks(case: Case, label: str, modes: tuple[str, ...], threads: int) -> dict[str, float]:
    """Peak extra MB of one call of each mode; empty if that fails."""
    task = {**dataclasses.asdict(case), "contender": label, "modes": modes, "threads": threads}
    child = subprocess.run(
        [sys.executable, "-m", "bench.peak", json.dumps(task)],
        cwd=ROOT,
        env=os.environ | MEMORY_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else {}


def peaks_of(case: Case, label: str, modes: list[str]) -> dict[str, float]:
    op = operators()[case.op]
    contender = op.by_name[label]
    small = contender.make(op.make(graphs.toy(), case.D, case.K).to(contender.dtype))
    for call in small.values():  # loads the code
        call()
    data = graphs.load(case.graph)
    for _ in range(100):  # a large graph may change its form after some steps
        data.graph.tensors(steps=case.K)
    problem = op.make(data, case.D, case.K).to(contender.dtype)
    found = {}
    for mode in modes:
        # each mode pays for its own scratch
        empty_cache()
        calls = contender.make(problem)
        if mode not in calls:
            continue
        if contender.compiled:
            calls[mode]()  # compiles
        found[mode] = peak_extra_bytes(calls[mode]) / 1e6
    return found


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    fix_threads(given["threads"])
    chosen = Case(given["op"], given["graph"], given["D"], given["K"])
    print(json.dumps(peaks_of(chosen, given["contender"], given["modes"])))
