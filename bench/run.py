"""`ugnn-fast bench`: operators and training epochs against the same computation with other libraries, in one process.

Every contender is checked against float64 first, result and gradients; a wrong one is named and not timed. Then the
contenders take turns with each other and with a bare gather, the bound, so that a change of the machine's speed meets
all of them. A sample counts only if our threads waited under 2 % of it for a core. Peak memory is measured in other
processes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench import against, bound, graphs, plots, report
from bench.machine import RESULTS, Progress, machine, now
from bench.peak import measure_peaks
from bench.registry import (
    DTYPES,
    MODES,
    OURS,
    Calls,
    Case,
    Contender,
    Op,
    Problem,
    errors,
    operators,
    parse_case,
    sampled,
    why_wrong,
)
from bench.timing import MIN_SAMPLES, fix_threads, measure, stream_bandwidth

QUICK_SIZES = {"D": 5, "K": 3}
# GRAPH:D:K, in which E, D or K grows: 20 entries a node
GROWTH = (
    *(f"power_law-{E // 20}-{E}:16:2" for E in (10**4, 10**5, 10**6, 2 * 10**6, 5 * 10**6, 10**7, 2 * 10**7)),
    *(f"power_law-100000-2000000:{D}:2" for D in (3, 8, 16, 32, 64, 128)),
    *(f"power_law-100000-2000000:16:{K}" for K in (2, 4, 6, 8, 10)),
)
GROWTH_CONTENDERS = (OURS, f"{OURS} recompute", f"{OURS} bfloat16", "torch_csr", "torch_csr_factored")


@dataclass
class Options:
    """What shall be measured; None: what the operators have by default."""

    ops: Sequence[str] | None = None
    graphs: Sequence[str] | None = None
    dims: Sequence[int] | None = None
    steps: Sequence[int] | None = None
    modes: Sequence[str] | None = None
    dtypes: Sequence[str] = ("float32", "bfloat16")
    contenders: Sequence[str] | None = None
    threads: Sequence[int] = (2,)
    repeats: int = 15
    seconds: float = 60.0  # for each case, mode and number of threads; may be exceeded to get MIN_SAMPLES
    limit: float = 30.0  # a contender whose call takes longer is left out
    memory: bool = True
    quick: bool = False
    growth: bool = False  # in place of the operators' cases: GROWTH
    against: str | None = None  # a commit, in place of other libraries
    out: Path | None = None  # RESULTS

    def check(self) -> None:
        """ValueError if one cannot be."""
        known = operators()
        labels = {label for op in known.values() for label in op.by_name}
        modes = {mode for op in known.values() for mode in op.modes}
        for name, given, allowed in (
            ("op", self.ops, list(known)),
            ("mode", self.modes, sorted(modes)),
            ("dtype", self.dtypes, list(DTYPES)),
            ("contenders", self.contenders, sorted(labels)),
        ):
            for value in given or ():
                if value not in allowed:
                    raise ValueError(f"--{name} must be among {', '.join(allowed)}, got {value}")
        for name, least, numbers in (
            ("dim", 1, self.dims),
            ("steps", 1, self.steps),
            ("threads", 1, self.threads),
            ("repeats", MIN_SAMPLES, [self.repeats]),
        ):
            for number in numbers or ():
                if number < least:
                    raise ValueError(f"--{name} must be >= {least}, got {number}")
        for name, value in (("seconds", self.seconds), ("limit", self.limit)):
            if not value > 0:
                raise ValueError(f"--{name} must be > 0, got {value}")


def listing() -> str:
    """Operators, their cases and contenders, as text."""
    lines = []
    for op in operators().values():
        lines += [f"{op.name}: {op.what}", f"  modes: {' '.join(op.modes)}; cases: {' '.join(op.cases)}"]
        lines += [f"  {contender.label:28}{contender.what}" for contender in op.contenders]
    return "\n".join(lines)


def cases_of(op: Op, options: Options) -> list[Case]:
    """The operator's own cases, on the graphs, widths and steps that are asked for."""
    own = op.default_cases()
    if options.growth:
        own = [parse_case(op.name, text) for text in GROWTH]
    if options.quick and not options.graphs:
        own = [Case(op.name, graphs.TOY, **QUICK_SIZES)]
    chosen = []
    for name in options.graphs or dict.fromkeys(case.graph for case in own):
        same = [case for case in own if case.graph == name.partition(graphs.ORDER)[0]] or own[:1]
        chosen += [dataclasses.replace(case, graph=name) for case in same]
    found = [
        dataclasses.replace(case, D=D, K=K)
        for case in chosen
        for D in options.dims or [case.D]
        for K in options.steps or [case.K]
    ]
    return list(dict.fromkeys(found))


def all_cases(options: Options) -> list[Case]:
    """Of all operators that are asked for; growth is that of ada_propagate, another commit is compared on Cora."""
    known = operators()
    names = options.ops or (["ada_propagate"] if options.growth else known)
    if options.against is not None and not options.graphs:
        options = dataclasses.replace(options, graphs=["cora"])
    return [case for name in names for case in cases_of(known[name], options)]


def contenders_of(op: Op, options: Options) -> list[Contender]:
    """Those named, else all of the chosen types; in a quick run nothing is compiled."""
    if options.contenders:
        return [contender for contender in op.contenders if contender.label in options.contenders]
    if options.growth:
        return [contender for contender in op.contenders if contender.label in GROWTH_CONTENDERS]
    types = [DTYPES[name] for name in options.dtypes]
    return [c for c in op.contenders if c.dtype in types and not (options.quick and c.compiled)]


@dataclass
class Checked:
    """Calls and largest error of every contender that is right; why others are left out; whether none was wrong."""

    calls: dict[str, Calls]
    max_error: dict[str, float]
    left_out: dict[str, str]
    all_right: bool = True


def checked_calls(
    op: Op, problem: Problem, contenders: Sequence[Contender], say: Callable[[str], None], limit: float = float("inf")
) -> Checked:
    exact = dataclasses.replace(problem, dropout=0.0)
    exact = sampled(exact) if op.apart else exact
    if exact.checked is not None:
        say(f"  columns that are checked: {', '.join(map(str, exact.checked))}")
    expected = op.expected(exact)
    found = Checked({}, {}, {})
    for contender in contenders:
        reason = contender.why_not(problem)
        wrong = None
        if reason is None:
            try:
                made = contender.make(exact.to(contender.dtype))
                start = time.perf_counter()
                error = errors(op.results, made, expected, exact.checked) if contender.exact else {}
                wrong = why_wrong(contender, error)
                if time.perf_counter() - start > limit:
                    reason = _too_slow(made, limit)
                if problem.dropout or exact.checked is not None:
                    made = contender.make(problem.to(contender.dtype))
            except Exception as failure:  # a contender that fails shall not end the run of the others
                # torch has no error of its own for memory on the CPU
                if isinstance(failure, MemoryError) or "DefaultCPUAllocator" in str(failure):
                    reason = "needs more memory than there is"
                else:
                    wrong = f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
        if wrong:
            say(f"  {contender.label} is WRONG and not timed: {wrong}")
            found.left_out[contender.label] = f"wrong: {wrong}"
            found.all_right = False
        elif reason:
            say(f"  {contender.label} is left out: {reason}")
            found.left_out[contender.label] = reason
        else:
            found.calls[contender.label] = made
            found.max_error[contender.label] = max(error.values(), default=float("nan"))
    return found


def _too_slow(calls: Calls, limit: float) -> str | None:
    """Once more, without what only the first call does."""
    for mode, call in calls.items():
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds > limit:
            return f"a call of {mode} takes {seconds:.0f} s, more than --limit {limit:g}"
    return None


def bounds_of(
    op: Op,
    problem: Problem,
    mode: str,
    contenders: Sequence[Contender],
    threads: int,
    say: Callable[[str], None],
) -> dict[str, tuple[Callable[[], object], str]]:
    """label -> (call of the bare gather, how it is done), for each type among the contenders."""
    found = {}
    try:
        for itemsize in sorted({contender.dtype.itemsize for contender in contenders}, reverse=True):
            label = bound.LABEL if itemsize == 4 else f"{bound.LABEL} bfloat16"
            found[label] = bound.bound_call(op.work(problem, mode, itemsize), itemsize, threads)
    except RuntimeError as missing:
        say(f"  {missing}")
    return found


def run_case(
    case: Case, options: Options, path: Path, progress: Progress, bandwidth: dict[str, float], common: dict
) -> tuple[list[dict], bool]:
    """Rows of one case, which are in the CSV when this returns, and whether every contender was right."""
    op = operators()[case.op]
    try:
        problem = op.make(graphs.load(case.graph), case.D, case.K)
    except (ValueError, OSError) as missing:
        progress.say(f"{case} is left out: {missing}")
        return [], True
    g = problem.g
    progress.say(f"{case}: N {g.num_nodes:,}, E {g.num_edges:,}; checking against float64")
    most = max(options.threads)
    fix_threads(most)
    contenders = contenders_of(op, options)
    if any(contender.compiled for contender in contenders):
        torch._dynamo.reset()  # after some shapes it would no longer compile
    checked = checked_calls(op, problem, contenders, progress.say, options.limit)
    modes = tuple(mode for mode in op.modes if mode in (options.modes or op.modes))
    peaks: dict[str, dict[str, float]] = {}
    for at, label in enumerate(checked.calls if options.memory else ()):
        progress.stage(f"{case} peak memory of {label} ({at + 1}/{len(checked.calls)})", options.seconds)
        peaks[label] = measure_peaks(case, label, modes, most)
        if not peaks[label]:
            progress.say(f"  {label}: peak memory could not be measured")
    rows: list[dict] = []
    for threads in options.threads:
        fix_threads(threads)
        for mode in modes:
            calls = {label: made[mode] for label, made in checked.calls.items() if mode in made}
            if not calls:
                continue
            bounds = bounds_of(op, problem, mode, [op.by_name[label] for label in calls], threads, progress.say)
            calls |= {label: call for label, (call, _) in bounds.items()}

            def show(samples: int, left: float, mode: str = mode) -> None:
                progress.stage(f"{case} {mode}: {samples}/{options.repeats} samples", left)

            samples = measure(calls, options.repeats, options.seconds, show)
            measured = report.Measured(op, case, problem, mode, threads, samples, checked.max_error, peaks, bounds)
            done = report.rows_of(measured, bandwidth, common)
            done += report.left_out_rows(measured, checked.left_out, common)
            report.append(path, report.COLUMNS, done)  # at once: nothing is lost
            for row in done:
                progress.say(report.line(row))
            rows += done
    return rows, checked.all_right


def run(options: Options) -> int:
    """Measures, and writes bench.csv, bench.md and pictures. 1 if a contender was wrong or nothing was measured."""
    options.check()
    out = RESULTS if options.out is None else options.out
    path = out / report.CSV_NAME
    out.mkdir(parents=True, exist_ok=True)
    report.check_columns(path, report.COLUMNS)
    if options.quick:
        options = dataclasses.replace(options, repeats=MIN_SAMPLES, seconds=min(options.seconds, 2.0), memory=False)
    cases = all_cases(options)
    if options.against is not None:
        return against.run(options.against, cases, options)
    fix_threads(max(options.threads))
    progress, bandwidth = Progress(), stream_bandwidth(1 << 20 if options.quick else None)
    common = {"date": now(), **machine()}
    progress.say(f"{common['machine']}, copy {bandwidth['copy']:.1f} GB/s, triad {bandwidth['triad']:.1f} GB/s")
    all_right, rows = True, []
    for at, case in enumerate(cases):
        progress.later = options.seconds * len(MODES) * len(options.threads) * (len(cases) - at - 1)
        done, right = run_case(case, options, path, progress, bandwidth, common)
        all_right, rows = all_right and right, rows + done
    if rows:
        write_report(out)
    return 0 if all_right and rows else 1


def write_report(out: Path) -> None:
    """Table and pictures of the latest rows of each case in the CSV."""
    rows = report.read_latest(out / report.CSV_NAME)
    text = report.table(rows)
    (out / report.TABLE_NAME).write_text(text)
    print(text)
    try:
        for path in plots.draw(rows, out):
            print(f"picture {path}")
    except ImportError as missing:
        print(f"no pictures: {missing}")
