"""`ugnn-fast bench --against COMMIT`: our operators in this tree against another commit.

The commit is built in a worktree of its own. By time: a process of each tree, which take turns. By instructions: one
call in each under callgrind, on one thread; these repeat, and show what a busy machine hides. valgrind knows no
AVX-512, so they are those of the AVX2 kernels.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.machine import RESULTS, ROOT, Progress, compiled, git, machine, now
from bench.registry import Case, operators
from bench.timing import MAX_ATTEMPTS, Samples

CSV_NAME, TABLE_NAME = "against.csv", "against.md"
# fmt: off
COLUMNS = [
    "date", "op", "mode", "graph", "N", "E", "D", "K", "threads", "base",
    "base_p20_ms", "base_p50_ms", "base_p80_ms", "p20_ms", "p50_ms", "p80_ms", "time_ratio",
    "base_instructions", "instructions", "instruction_ratio", "samples", "rejected_share", "note",
    "machine", "cores", "torch", "ugnn_fast", "isa", "commit",
]
# fmt: on


@contextlib.contextmanager
def built(base: str, say) -> Iterator[Path]:
    """The tree of a commit with its native module, in a folder that goes away."""
    try:
        name = git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    except (OSError, subprocess.CalledProcessError):
        raise ValueError(f"--against must be a commit of {ROOT}, got {base}") from None
    with tempfile.TemporaryDirectory(prefix="ugnn-bench-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), name)
        try:
            say(f"building {name[:10]}")
            _build(tree)
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def _build(tree: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tree,
        env=os.environ | {"PATH": path, "UGNN_CUDA": "0"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ValueError(f"the commit cannot be built: {done.stderr.strip()[-1000:]}")


class Process:
    """A worker with the package of one tree, and this tree's bench."""

    def __init__(self, tree: Path, folder: Path, threads: int, before: Sequence[str] = ()):
        links = folder / "links"
        links.mkdir(exist_ok=True)
        if not (links / "bench").exists():
            (links / "bench").symlink_to(ROOT / "bench")
        # passive: a worker that waits for its turn must not spin
        paths = {"PYTHONPATH": os.pathsep.join([str(links), str(tree)]), "OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "bench.worker", str(threads)],
            cwd=links,
            env=os.environ | paths | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        package = Path(self._read()["package"]).resolve()
        if tree.resolve() not in package.parents:
            self.close()
            raise ValueError(f"the worker must import ugnn_fast from {tree}, got {package}")

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ValueError(f"the worker has ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, **asked: Any) -> dict[str, Any]:
        """The answer; RuntimeError if it is an error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def interleaved(workers: Sequence[Process], repeats: int) -> list[Samples]:
    """A sample of each per round, each round beginning with another one, until all have `repeats` undisturbed ones."""
    samples = [Samples(calls=1) for _ in workers]
    for turn in range(MAX_ATTEMPTS * repeats):
        if all(taken.clean >= repeats for taken in samples):
            break
        for at in range(len(workers)):
            which = (turn + at) % len(workers)
            found = workers[which].ask(sample=1)
            samples[which].taken.append((found["waited"], found["ms"]))
    return samples


def why_no_instructions() -> str | None:
    """What keeps callgrind from counting, or None."""
    if shutil.which("valgrind") is None:
        return "instructions are not counted: valgrind was not found"
    try:
        compiled("requests.cpp")
    except RuntimeError as error:
        return f"instructions are not counted: the requests to callgrind (valgrind/callgrind.h) do not compile: {error}"
    return None


def instructions(tree: Path, folder: Path, case: Case, mode: str) -> int:
    """Of one call, on one thread."""
    out = folder / f"callgrind-{tree.name}.out"
    valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
    with Process(tree, folder, 1, valgrind) as worker:
        worker.ask(case=[case.op, case.graph, case.D, case.K], mode=mode)
        worker.ask(instructions=str(compiled("requests.cpp")))
    for line in out.read_text().splitlines():
        if line.startswith("totals:"):
            return int(line.split()[1])
    raise RuntimeError(f"callgrind wrote no totals to {out.name}")


def row_of(case: Case, mode: str, trees: Sequence[Path], folder: Path, count: bool, options) -> dict[str, object]:
    """One case in both trees, the other one first."""
    threads, note, numbers = max(options.threads), "", ["", ""]
    with Process(trees[0], folder, threads) as base, Process(trees[1], folder, threads) as here:
        workers = base, here
        sizes = [worker.ask(case=[case.op, case.graph, case.D, case.K], mode=mode) for worker in workers]
        samples = interleaved(workers, options.repeats)
    if count:
        try:
            numbers = [str(instructions(tree, folder, case, mode)) for tree in trees]
        except (RuntimeError, ValueError) as failure:
            note = f"instructions were not counted: {failure}"
    times = [taken.quantiles() for taken in samples]
    names = [f"{prefix}p{p}_ms" for prefix in ("base_", "") for p in (20, 50, 80)]
    return {
        **{"op": case.op, "mode": mode, "graph": case.graph, **sizes[1], "D": case.D, "K": case.K},
        "threads": threads,
        **dict(zip(names, [f"{ms:.4g}" for found in times for ms in found], strict=True)),
        "time_ratio": f"{times[0][1] / times[1][1]:.3g}",
        **{"base_instructions": numbers[0], "instructions": numbers[1]},
        "instruction_ratio": f"{int(numbers[0]) / int(numbers[1]):.4g}" if numbers[0] else "",
        "samples": min(len(taken.counted) for taken in samples),
        "rejected_share": f"{max(taken.rejected_share for taken in samples):.2f}",
        "note": note,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    row = rows[0]
    lines = [
        f"{row['base']} against {row['commit']}: median ms of a call and instructions (one thread, AVX2), and how many"
        f" times as much the former takes. {row['machine']}, {row['threads']} threads, {row['isa']}, torch"
        f" {row['torch']}, {row['date'][:10]}.",
        "",
        "| operator, graph, D, K | mode | ms before | ms | ratio | instructions before | instructions | ratio |",
        f"| --- | --- |{' ---: |' * 6}",
    ]
    for row in rows:
        case = f"{row['op']}, {row['graph']}, {row['D']}, {row['K']}"
        keys = ("base_p50_ms", "p50_ms", "time_ratio", "base_instructions", "instructions", "instruction_ratio")
        lines.append(f"| {case} | {row['mode']} | {' | '.join(str(row[key]) for key in keys)} |")
    return "\n".join(lines) + "\n"


def run(base: str, cases: Sequence[Case], options) -> int:
    """Compares, appends to against.csv and writes against.md; 1 if nothing could be compared."""
    out = RESULTS if options.out is None else options.out
    out.mkdir(parents=True, exist_ok=True)
    path = out / CSV_NAME
    report.check_columns(path, COLUMNS)
    progress, rows = Progress(), []
    if missing := why_no_instructions():
        progress.say(missing)
    common = {"date": now(), "base": base, **machine()}
    with built(base, progress.say) as tree:
        for case in cases:
            known = operators()[case.op].modes
            for mode in (mode for mode in known if mode in (options.modes or known)):
                try:
                    row = {**common, **row_of(case, mode, (tree, ROOT), tree.parent, missing is None, options)}
                except (RuntimeError, ValueError) as failure:
                    progress.say(f"{case} {mode} is left out: {failure}")
                    continue
                report.append(path, COLUMNS, [row])
                progress.say(
                    f"{case} {mode}: {row['time_ratio']}x by time, {row['instruction_ratio']}x by instructions"
                )
                rows.append(row)
    if not rows:
        return 1
    text = table(rows)
    (out / TABLE_NAME).write_text(text)
    print(text)
    return 0
