"""All cases of the Triton kernels in the checked interpreter, and a dated summary of them: make test-gpu-full.

The cases are those of tests/ops, with the whole product of graph, width, dtype, operator and mode. They run in parts,
one operator on one graph each, two at a time. A part that has passed at this commit is not run again, so that the run
can be stopped and continued; build/gpu_full has what the parts printed.
"""

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMMARY = ROOT / "docs/gpu_full.md"
ENVIRONMENT = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
OTHERS = ("tests/ops", "others")
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--whole-product"]


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def parts():
    """Number of cases of each (file, graph); the tests without cases are a part of their own."""
    run = subprocess.run(
        [*PYTEST, "--collect-only", "tests/ops"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    found = re.findall(r"^(tests/ops/\w+\.py)::(?:test_statement\[triton-(\w+)-)?", run.stdout, re.M)
    if not found:
        sys.exit(run.stdout + run.stderr)
    return Counter((file, graph) if graph else OTHERS for file, graph in found)


def run_part(file, graph, log):
    """(passed, failed, seconds); what was printed goes to the log."""
    start = time.monotonic()
    words = "not test_statement" if (file, graph) == OTHERS else f"test_statement and triton-{graph}-"
    with open(log.with_suffix(".part"), "w") as out:
        subprocess.run([*PYTEST, file, "-k", words], cwd=ROOT, env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT)
        out.write(f"\nseconds {time.monotonic() - start:.0f}\n")
    log.with_suffix(".part").rename(log)
    return outcome(log)


def outcome(log):
    text = log.read_text()
    passed, failed, seconds = (re.search(word, text) for word in (r"(\d+) passed", r"(\d+) failed", r"seconds (\d+)"))
    return [int(found[1]) if found else 0 for found in (passed, failed, seconds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    commit = git("rev-parse", "--short", "HEAD")
    if git("status", "--porcelain", "--untracked-files=no"):
        commit += "-changed"
    folder = ROOT / "build/gpu_full" / commit
    folder.mkdir(parents=True, exist_ok=True)
    wanted = parts()
    print(f"{sum(wanted.values())} cases in {len(wanted)} parts, logs in {folder}", flush=True)
    results, jobs = {}, {}
    with ThreadPoolExecutor(options.processes) as pool:
        for (file, graph), count in wanted.items():
            log = folder / f"{Path(file).stem}-{graph}.txt"
            if log.exists() and "changed" not in commit and outcome(log)[:2] == [count, 0]:
                results[file, graph] = outcome(log)
            else:
                jobs[pool.submit(run_part, file, graph, log)] = file, graph
        for job in as_completed(jobs):
            part = jobs[job]
            results[part] = job.result()
            passed, failed, seconds = results[part]
            done = sum(wanted[part] for part in results)
            print(f"{done}/{sum(wanted.values())} {part[0]} {part[1]}: {passed} passed, {failed} failed, {seconds} s",
                  flush=True)  # fmt: skip
    lines = [
        "# All cases of the Triton kernels",
        "",
        f"Written by `make test-gpu-full` on {datetime.date.today()} at commit {commit}.",
        "Every combination of graph, width, dtype, operator and mode, other arguments drawn: forward and gradients",
        "against float64, with bounds and races checked, in Triton's interpreter. No GPU was used.",
        f"triton {version('triton')}, torch {version('torch')}, Python {platform.python_version()}.",
        "",
        "| tests | graphs | cases | passed | failed | minutes of a process |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for file in dict.fromkeys(file for file, _ in wanted):
        own = [part for part in wanted if part[0] == file]
        passed, failed, seconds = (sum(results[part][k] for part in own) for k in range(3))
        op = "others" if own == [OTHERS] else Path(file).stem.removeprefix("test_")
        count = sum(wanted[part] for part in own)
        lines.append(f"| {op} | {len(own)} | {count} | {passed} | {failed} | {seconds / 60:.0f} |")
    SUMMARY.write_text("\n".join(lines) + "\n")
    bad = [part for part in wanted if results[part][0] != wanted[part]]
    print(f"summary in {SUMMARY}")
    if bad:
        sys.exit(f"not passed: {bad}")


if __name__ == "__main__":
    main()
