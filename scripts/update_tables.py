"""Makes the tables and figures of docs/experiments/ from its results.csv, and puts tables into the README.

    python scripts/update_tables.py

In the README, what stands between <!-- NAME --> and <!-- end of NAME --> becomes the table NAME (table2,
table2_time, table3, robustness, correlation; speed, from bench/results/bench.csv).
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # bench is not installed

from bench import report  # noqa: E402
from bench.machine import RESULTS  # noqa: E402
from bench.registry import operators  # noqa: E402
from ugnn_fast.experiments import Choice, reproduce  # noqa: E402

FOLDER = ROOT / "docs" / "experiments"


def with_tables(text: str, tables: dict[str, str]) -> str:
    """The text with every marked place filled from the tables that are there."""
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text = mark.sub(lambda found, table=table: f"{found[1]}{table}{found[2]}", text)
    return text


def own_cases(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Of rows of bench.csv those of the operators' own cases, without what was measured for growth or an order."""
    known = {(case.op, case.graph, case.D, case.K) for op in operators().values() for case in op.default_cases()}
    return [row for row in rows if (row["op"], row["graph"], int(row["D"]), int(row["K"])) in known]


def main() -> int:
    tables, _ = reproduce(Choice(runs=None), FOLDER, source=str(FOLDER / "results.csv"), progress_bar=False)
    readme = ROOT / "README.md"
    made = {name: table.markdown() for name, table in tables.items()}
    made["speed"] = report.short_table(own_cases(report.read_latest(RESULTS / report.CSV_NAME)))
    readme.write_text(with_tables(readme.read_text(), made))
    print(f"{', '.join(made) or 'no tables'}: {FOLDER} and the README")
    return 0


if __name__ == "__main__":
    sys.exit(main())
