"""All cases of the Triton kernels in the checked interpreter, and a dated summary of them: make test-gpu-full.

The cases are those of tests/ops, with the whole product of graph, width, dtype, operator and mode. They run in parts,
some hundred cases of one operator each, two at a time. A part that has passed is not run again until kernels, package
or tests change, so that the run can be stopped and continued; build/gpu_full has what the parts printed.
"""

import argparse
import datetime
import hashlib
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
# what the outcome of a part depends on
SOURCES = ("kernels", "ugnn_fast", "tests/ops", "tests/conftest.py")
CASES = 300  # of a part
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--whole-product"]


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def parts():
    """Number of cases of each part, (file, k, n): the k-th of n shares of the tests of a file."""
    run = subprocess.run(
        [*PYTEST, "--collect-only", "tests/ops"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    found = Counter(re.findall(r"^(tests/ops/\w+\.py)::", run.stdout, re.M))
    if not found:
        sys.exit(run.stdout + run.stderr)
    shares = {file: -(-count // CASES) for file, count in found.items()}
    return {
        (file, k, shares[file]): len(range(k - 1, count, shares[file]))
        for file, count in found.items()
        for k in range(1, shares[file] + 1)
    }


def run_part(file, k, n, log):
    """(passed, failed, seconds); what was printed goes to the log."""
    start = time.monotonic()
    with open(log.with_suffix(".part"), "w") as out:
        subprocess.run(
            [*PYTEST, file, f"--share={k}/{n}"], cwd=ROOT, env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT
        )
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
    changed = bool(git("status", "--porcelain", "--untracked-files=no", *SOURCES))
    state = hashlib.sha1(git("ls-tree", "HEAD", *SOURCES).encode()).hexdigest()[:10]
    folder = ROOT / "build/gpu_full" / (state + "-changed" * changed)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = parts()
    print(f"{sum(wanted.values())} cases in {len(wanted)} parts, logs in {folder}", flush=True)
    results, jobs = {}, {}
    with ThreadPoolExecutor(options.processes) as pool:
        for part, count in wanted.items():
            file, k, n = part
            log = folder / f"{Path(file).stem}-{k}-{n}.txt"
            if log.exists() and not changed and outcome(log)[:2] == [count, 0]:
                results[part] = outcome(log)
            else:
                jobs[pool.submit(run_part, file, k, n, log)] = part
        for job in as_completed(jobs):
            part = jobs[job]
            results[part] = job.result()
            passed, failed, seconds = results[part]
            done = sum(wanted[part] for part in results)
            print(f"{done}/{sum(wanted.values())} {part}: {passed} passed, {failed} failed, {seconds} s", flush=True)
    lines = [
        "# All cases of the Triton kernels",
        "",
        f"Written by `make test-gpu-full` on {datetime.date.today()} at commit {commit}{' with changes' * changed}.",
        "Every combination of graph, width, dtype, operator and mode, other arguments drawn: forward and gradients",
        "against float64, with bounds and races checked, in Triton's interpreter. No GPU was used.",
        f"triton {version('triton')}, torch {version('torch')}, Python {platform.python_version()}.",
        "",
        "| tests | cases | passed | failed | minutes of a process |",
        "| --- | --- | --- | --- | --- |",
    ]
    for file in dict.fromkeys(file for file, _, _ in wanted):
        own = [part for part in wanted if part[0] == file]
        passed, failed, seconds = (sum(results[part][k] for part in own) for k in range(3))
        op = Path(file).stem.removeprefix("test_")
        count = sum(wanted[part] for part in own)
        lines.append(f"| {op} | {count} | {passed} | {failed} | {seconds / 60:.0f} |")
    SUMMARY.write_text("\n".join(lines) + "\n")
    bad = [part for part in wanted if results[part][0] != wanted[part]]
    print(f"summary in {SUMMARY}")
    if bad:
        sys.exit(f"not passed: {bad}")


if __name__ == "__main__":
    main()
