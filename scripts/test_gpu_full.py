"""All cases of the GPU kernels without a GPU, and a dated summary of them for each backend: make test-gpu-full.

They run in parts, some hundred cases of one operator each, two at a time. A part that has passed is not run again until
kernels, package or tests change, so that a run can be stopped and continued; build/gpu_full has what parts printed.
After a change of one operator --tests runs its cases alone; the summary keeps the other rows, each with its commit.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CASES = 300  # of a part
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--whole-product"]


class Backend(NamedTuple):
    title: str
    tests: str
    operator: str  # of what pytest collects, as a pattern: the tests of one row of the summary
    environment: dict[str, str]
    sources: tuple[str, ...]  # what the outcome of a part depends on
    text: str

    @property
    def env(self):
        return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **self.environment}


SOURCES = ("kernels", "ugnn_fast", "tests/ops", "tests/conftest.py")
BACKENDS = {
    "triton": Backend(
        "Triton", "tests/ops", r"^(tests/ops/\w+\.py)::", {"TRITON_INTERPRET": "1"}, SOURCES,
        "Every combination of graph, width, dtype, operator and mode, other arguments drawn: forward and gradients\n"
        "against float64, with bounds and races checked, in Triton's interpreter. No GPU was used.",
    ),
    "cuda": Backend(
        "CUDA", "tests/cuda/test_operators.py", r"^(tests/cuda/test_operators\.py::test_\w*statement\w*)\[",
        {"UGNN_EMULATED": "traced"}, (*SOURCES, "csrc", "tests/cuda"),
        "Every combination of graph, width, dtype, operator and four schedules of threads, modes and other arguments\n"
        "drawn: forward and gradients against float64, bounds and races checked, on the emulator. No GPU was used.",
    ),
}  # fmt: skip


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def parts(backend):
    """Number of cases of each part, (tests, k, n): the k-th of n shares of the tests of an operator."""
    run = subprocess.run(
        [*PYTEST, "--collect-only", backend.tests], cwd=ROOT, env=backend.env, capture_output=True, text=True
    )
    found = Counter(re.findall(backend.operator, run.stdout, re.M))
    if not found:
        sys.exit(run.stdout + run.stderr)
    shares = {tests: -(-count // CASES) for tests, count in found.items()}
    return {
        (tests, k, shares[tests]): len(range(k - 1, count, shares[tests]))
        for tests, count in found.items()
        for k in range(1, shares[tests] + 1)
    }


def run_part(backend, tests, k, n, log):
    """(passed, failed, seconds); what was printed goes to the log."""
    start = time.monotonic()
    with open(log.with_suffix(".part"), "w") as out:
        subprocess.run(
            [*PYTEST, tests, f"--share={k}/{n}"], cwd=ROOT, env=backend.env, stdout=out, stderr=subprocess.STDOUT
        )
        out.write(f"\nseconds {time.monotonic() - start:.0f}\n")
    log.with_suffix(".part").rename(log)
    return outcome(log)


def outcome(log):
    text = log.read_text()
    passed, failed, seconds = (re.search(word, text) for word in (r"(\d+) passed", r"(\d+) failed", r"seconds (\d+)"))
    return [int(found[1]) if found else 0 for found in (passed, failed, seconds)]


def name_of(tests):
    """The operator of some tests."""
    return re.sub(r".*/test_|.*::test_|\.py$|_statement", "", tests)


def rows_of(summary):
    """Lines of the table of a summary by their first column."""
    text = summary.read_text() if summary.exists() else ""
    return {found[1]: found[0] for found in re.finditer(r"^\| (\w+) \| \d.*$", text, re.M)}


def run_all(name, chosen, processes):
    """Writes the summary of a backend; parts that did not pass."""
    backend, summary = BACKENDS[name], ROOT / f"docs/gpu_full_{name}.md"
    changed = bool(git("status", "--porcelain", "--untracked-files=no", *backend.sources))
    commit = git("rev-parse", "--short", "HEAD") + " with changes" * changed
    state = hashlib.sha1(git("ls-tree", "HEAD", *backend.sources).encode()).hexdigest()[:10]
    folder = ROOT / "build/gpu_full" / f"{name}-{state}{'-changed' * changed}"
    folder.mkdir(parents=True, exist_ok=True)
    known = parts(backend)
    wanted = {part: count for part, count in known.items() if not chosen or name_of(part[0]) in chosen}
    if not wanted:
        sys.exit(f"--tests must be among {', '.join(dict.fromkeys(name_of(part[0]) for part in known))}")
    print(f"{sum(wanted.values())} cases in {len(wanted)} parts, logs in {folder}", flush=True)
    results, jobs = {}, {}
    with ThreadPoolExecutor(processes) as pool:
        for part, count in wanted.items():
            tests, k, n = part
            log = folder / f"{name_of(tests)}-{k}-{n}.txt"
            if log.exists() and not changed and outcome(log)[:2] == [count, 0]:
                results[part] = outcome(log)
            else:
                jobs[pool.submit(run_part, backend, tests, k, n, log)] = part
        for job in as_completed(jobs):
            part = jobs[job]
            results[part] = job.result()
            passed, failed, seconds = results[part]
            done = sum(wanted[part] for part in results)
            print(f"{done}/{sum(wanted.values())} {part}: {passed} passed, {failed} failed, {seconds} s", flush=True)
    packages = ("triton", "torch") if name == "triton" else ("torch",)
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    lines = [
        f"# All cases of the {backend.title} kernels",
        "",
        "Written by `make test-gpu-full`.",
        backend.text,
        f"{versions}, Python {platform.python_version()}.",
        "",
        "| tests | cases | passed | failed | minutes of a process | date | commit |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = rows_of(summary)
    for tests in dict.fromkeys(tests for tests, _, _ in wanted):
        own = [part for part in wanted if part[0] == tests]
        passed, failed, seconds = (sum(results[part][k] for part in own) for k in range(3))
        cells = (name_of(tests), sum(wanted[part] for part in own), passed, failed, f"{seconds / 60:.0f}")
        rows[cells[0]] = f"| {' | '.join(map(str, cells))} | {datetime.date.today()} | {commit} |"
    names = dict.fromkeys(name_of(tests) for tests, _, _ in known)
    summary.write_text("\n".join(lines + [rows.get(name, f"| {name} | not run |") for name in names]) + "\n")
    print(f"summary in {summary}")
    return [part for part in wanted if results[part][0] != wanted[part]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", help="triton, cuda; by default both")
    parser.add_argument("--tests", nargs="+", metavar="NAME", help="operators, as in the summary; by default all")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    names = options.backends or list(BACKENDS)
    if unknown := set(names) - set(BACKENDS):
        parser.error(f"backends must be among {', '.join(BACKENDS)}, got {', '.join(sorted(unknown))}")
    if bad := [part for name in names for part in run_all(name, options.tests, options.processes)]:
        sys.exit(f"not passed: {bad}")


if __name__ == "__main__":
    main()
