"""The CSV of all runs, and Markdown tables of the latest rows of each case in it.

The file is appended to and never edited; the rows of one run share their date.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from bench import bound
from bench.registry import OURS, Case, Contender, Op, Problem, dtype_name
from bench.timing import MIN_SAMPLES, Samples

CSV_NAME, TABLE_NAME = "bench.csv", "bench.md"
_PLAIN = "torch_csr_plain"
CASE = ("op", "graph", "D", "K", "mode", "threads")

# fmt: off
COLUMNS = [
    "date", "op", "contender", "mode",
    "graph", "N", "E", "D", "K", "dtype", "threads",
    "p20_ms", "p50_ms", "p80_ms", "samples", "rejected_share",
    "peak_mb",
    "model_mb", "gb_per_s", "bound_ms", "bound_share",
    "speedup", "best_peer", "speedup_all", "best_other", "max_error",
    "table_mb", "note",
    "copy_gb_per_s", "triad_gb_per_s",
    "machine", "cores", "torch", "ugnn_fast", "isa", "commit",
]
# fmt: on


@dataclass
class Measured:
    """What a case gave in one mode with one number of threads."""

    op: Op
    case: Case
    problem: Problem
    mode: str
    threads: int
    samples: dict[str, Samples]
    max_error: dict[str, float]
    peaks: dict[str, dict[str, float]]
    bounds: dict[str, tuple[object, str]]  # label -> call, how it is done

    def identity(self, name: str, dtype: str) -> dict[str, object]:
        g, case = self.problem.g, self.case
        return {
            **{"op": case.op, "contender": name, "mode": self.mode, "graph": case.graph},
            **{"N": g.num_nodes, "E": g.num_edges, "D": case.D, "K": case.K, "dtype": dtype},
            "threads": self.threads,
        }

    def contender(self, label: str) -> Contender | None:
        """None for a bare gather."""
        return self.op.by_name.get(label)

    def best(self, fused: bool) -> str | None:
        """The fastest of the others that give the result; without kernels of our own, unless fused."""
        medians = {
            label: taken.quantiles()[1]
            for label, taken in self.samples.items()
            if (c := self.contender(label)) is not None and not c.ours and c.exact and (fused or not c.fused)
        }
        return min(medians, key=medians.__getitem__, default=None)


def rows_of(found: Measured, bandwidth: dict[str, float], common: dict[str, object]) -> list[dict[str, object]]:
    """The CSV rows, a contender each; bare gathers last."""
    p50 = {label: taken.quantiles()[1] for label, taken in found.samples.items()}
    peer, other = found.best(False), found.best(True)
    rows = []
    for label, taken in found.samples.items():
        contender = found.contender(label)
        half = "bfloat16" in label
        itemsize = 2 if half else 4
        work = found.op.work(found.problem, found.mode, itemsize)
        gathered = f"{bound.LABEL} bfloat16" if half else bound.LABEL
        p20, median, p80 = taken.quantiles()
        compared = contender is not None and contender.ours and contender.exact
        peak = found.peaks.get(label, {}).get(found.mode)
        moved = work.bytes(itemsize)
        table = max(gather.table_rows * bound.padded(gather.width, itemsize) * itemsize for gather in work.gathers)
        error = found.max_error.get(label)
        name = bound.LABEL if contender is None else contender.name
        rows.append(
            {
                **common,
                **found.identity(name, "bfloat16" if half else dtype_name(contender.dtype) if contender else "float32"),
                **{"p20_ms": f"{p20:.4g}", "p50_ms": f"{median:.4g}", "p80_ms": f"{p80:.4g}"},
                "samples": len(taken.counted),
                "rejected_share": f"{taken.rejected_share:.2f}",
                "peak_mb": "" if peak is None else f"{peak:.1f}",
                "model_mb": f"{moved / 1e6:.4g}",
                "gb_per_s": f"{moved / median / 1e6:.4g}",
                "bound_ms": f"{p50[gathered]:.4g}" if gathered in p50 else "",
                "bound_share": f"{p50[gathered] / median:.3g}" if gathered in p50 else "",
                "speedup": f"{p50[peer] / median:.3g}" if compared and peer else "",
                "best_peer": peer if compared and peer else "",
                "speedup_all": f"{p50[other] / median:.3g}" if compared and other else "",
                "best_other": other if compared and other else "",
                "max_error": "" if error is None or error != error else f"{error:.1e}",
                "table_mb": f"{table / 1e6:.4g}",
                "note": found.bounds[label][1] if contender is None else _note(contender, taken),
                "copy_gb_per_s": f"{bandwidth['copy']:.4g}",
                "triad_gb_per_s": f"{bandwidth['triad']:.4g}",
            }
        )
    return rows


def _note(contender: Contender, taken: Samples) -> str:
    notes = [] if contender.exact else ["not the operator's result"]
    if taken.clean < MIN_SAMPLES:
        notes.append("machine busy: least disturbed samples")
    return "; ".join(notes)


def left_out_rows(found: Measured, left_out: dict[str, str], common: dict[str, object]) -> list[dict[str, object]]:
    """Rows without times, that say why."""
    rows = []
    for label, reason in left_out.items():
        contender = found.op.by_name[label]
        row = {**common, **found.identity(contender.name, dtype_name(contender.dtype)), "note": f"left out: {reason}"}
        rows.append({column: row.get(column, "") for column in COLUMNS})
    return rows


def append(path: Path, columns: list[str], rows: list[dict[str, object]]) -> None:
    """Adds rows to a CSV file, which gets its header when it is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def check_columns(path: Path, columns: list[str]) -> None:
    """Raises ValueError, before hours of measuring, if rows would not fit the file that is there."""
    if path.exists():
        with path.open(newline="") as file:
            found = next(csv.reader(file), [])
        if found != columns:
            raise ValueError(f"{path} must have the columns {columns}, got {found}; move it or choose another --out")


def read_latest(path: Path) -> list[dict[str, str]]:
    """Of each case the rows of the run with the latest date; contenders in different runs did not take turns."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} must hold at least one row, got none")
    latest: dict[tuple, str] = {}
    for row in rows:
        latest[case_of(row)] = max(row["date"], latest.get(case_of(row), ""))
    return [row for row in rows if row["date"] == latest[case_of(row)]]


def case_of(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in CASE)


def label_of(row: dict[str, str]) -> str:
    return row["contender"] if row["dtype"] == "float32" else f"{row['contender']} {row['dtype']}"


def line(row: dict) -> str:
    """What the terminal shows of a row."""
    if not row["p50_ms"]:
        return f"  {row['mode']:7}{row['threads']:>2}  {label_of(row):28}{row['note']}"
    gain = f"  {row['speedup']}x {row['best_peer']}" if row["speedup"] else ""
    share = f"  {float(row['bound_share']):.0%} of the bound" if row["bound_share"] else ""
    memory = f"  {row['peak_mb']:>8} MB" if row["peak_mb"] else ""
    times = f"{row['p50_ms']:>9} ms"
    return f"  {row['mode']:7}{row['threads']:>2}  {label_of(row):28}{times}{memory}{share}{gain}"


def by_case(rows: list[dict[str, str]]) -> dict[tuple[str, ...], dict[str, dict[str, str]]]:
    """CASE -> contender -> row, in the order of the rows."""
    cases: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in rows:
        cases.setdefault(case_of(row), {})[label_of(row)] = row
    return cases


def table(rows: list[dict[str, str]]) -> str:
    """Markdown: a part for each operator, in it a line for each case, mode, number of threads and contender."""
    parts = [
        f"Median ms of a call (p20 - p80), peak extra MB, bytes by model per second, share of the bound, and times"
        f" {OURS} in float32; contenders took turns. fwdbwd: with gradients. Bound: a bare gather of the same rows,"
        f" `{bound.LABEL}`. {_about(rows)}"
    ]
    cases = by_case(rows)
    for op in dict.fromkeys(key[0] for key in cases):
        parts.append(
            f"\n## {op}\n\n| graph (N / E), D, K | mode | threads | contender | ms | peak MB | GB/s | of bound |"
            " times ours |\n| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |"
        )
        for (name, graph, D, K, mode, threads), found in cases.items():
            if name != op:
                continue
            ours = found.get(OURS, {}).get("p50_ms")
            for label, row in found.items():
                case = f"{graph} ({int(row['N']):,} / {int(row['E']):,}), {D}, {K}"
                parts.append(f"| {case} | {mode} | {threads} | {label} | {_cells(row, ours)} |")
    return "\n".join(parts) + "\n"


def _about(rows: list[dict[str, str]]) -> str:
    """Where and when they were measured, and how quiet it was there."""
    every = {
        name: ", ".join(sorted({row[name] for row in rows if row[name]}))
        for name in ("machine", "cores", "isa", "torch", "ugnn_fast", "commit")
    }
    noise = max((float(row["rejected_share"]) for row in rows if row["rejected_share"]), default=0)
    copy = sorted(float(row["copy_gb_per_s"]) for row in rows if row["copy_gb_per_s"]) or [float("nan")]
    dates = sorted({row["date"][:10] for row in rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"{every['machine']}, {every['cores']} cores, {every['isa']}, copy {copy[0]:.3g} to {copy[-1]:.3g} GB/s, torch"
        f" {every['torch']}, ugnn_fast {every['ugnn_fast']}, commit {every['commit']}, {when};"
        f" at most {100 * noise:.0f} % of a contender's samples were rejected as disturbed."
    )


def short_table(rows: list[dict[str, str]]) -> str:
    """Markdown: a line for each case, ours beside the fastest of the others, with the most threads of that case."""
    lines = [
        "Median ms of a call, how many times longer the fastest of the others takes, and the share of the bound, a"
        " bare gather of the same rows; at most: how many times faster than that other the bound itself is. An epoch"
        f" is training and evaluation. {_about(rows)}\n",
        "| operator, graph (N / E), D, K | forward | times | of bound | with gradients (peak extra MB) | bfloat16 |"
        f" fastest other | times | at most | times {_PLAIN} |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {' | '.join(_short_cells(modes))} |" for modes in _modes_of_cases(rows)]
    return "\n".join(lines) + "\n"


def _modes_of_cases(rows: list[dict[str, str]]) -> list[dict[str, dict[str, dict[str, str]]]]:
    """mode -> contender -> row, of each case that we were timed in; operators by name, small graphs first."""
    cases: dict[tuple, dict[str, dict[str, dict[str, str]]]] = {}
    # with the most threads last, which stays
    for (op, graph, D, K, mode, _), found in sorted(by_case(rows).items(), key=lambda case: int(case[0][-1])):
        if found.get(OURS, {}).get("p50_ms"):
            cases.setdefault((op, int(found[OURS]["N"]), graph, int(D), int(K)), {})[mode] = found
    return [cases[key] for key in sorted(cases)]


def _short_cells(modes: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    found = next(iter(modes.values()))[OURS]
    graph = f"{found['graph'].removeprefix('large_')} ({int(found['N']):,} / {int(found['E']):,})"
    cells = [f"{found['op']}, {graph}, {found['D']}, {found['K']}"]
    forward = modes.get("fwd", {}).get(OURS, {})
    share = forward.get("bound_share")
    cells += [forward.get("p50_ms", ""), _times(forward.get("speedup_all")), f"{float(share):.0%}" if share else ""]
    training = next((contenders for mode, contenders in modes.items() if mode != "fwd"), {})
    ours = training.get(OURS, {})
    if not ours:
        return cells + [""] * 6
    half, plain = (training.get(name, {}).get("p50_ms", "") for name in (f"{OURS} bfloat16", _PLAIN))
    other = ours["best_other"]
    longer = float(training[other]["p50_ms"]) if other else 0.0
    return [
        *cells,
        ours["p50_ms"] + (f" ({ours['peak_mb']})" if ours["peak_mb"] else ""),
        half,
        f"{other} {longer:.4g}" if other else "",
        _times(ours["speedup_all"]),
        f"{longer / float(ours['bound_ms']):.3g}x" if other and ours["bound_ms"] else "",
        f"{float(plain) / float(ours['p50_ms']):.3g}x" if plain else "",
    ]


def _times(speedup: str | None) -> str:
    return f"{speedup}x" if speedup else ""


def _cells(row: dict[str, str], ours: str | None) -> str:
    if not row["p50_ms"]:
        return f"{row['note']} | | | |"
    ratio = f"{float(row['p50_ms']) / float(ours):.2f}" if ours else ""
    share = f"{float(row['bound_share']):.0%}" if row["bound_share"] else ""
    times = f"{row['p50_ms']} ({row['p20_ms']} - {row['p80_ms']})"
    return f"{times} | {row['peak_mb']} | {row['gb_per_s']} | {share} | {ratio}"
