"""Makes the tables and figures of docs/experiments/ from its results.csv, and puts tables into the README.

    python scripts/update_tables.py

In the README, what stands between <!-- NAME --> and <!-- end of NAME --> becomes the table NAME (table2,
table2_time, table3, robustness, correlation).
"""

import re
import sys
from pathlib import Path

from ugnn_fast.experiments import Choice, reproduce

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "experiments"


def with_tables(text: str, tables: dict[str, str]) -> str:
    """The text with every marked place filled from the tables that are there."""
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text = mark.sub(lambda found, table=table: f"{found[1]}{table}{found[2]}", text)
    return text


def main() -> int:
    tables, _ = reproduce(Choice(runs=None), FOLDER, source=str(FOLDER / "results.csv"), progress_bar=False)
    readme = ROOT / "README.md"
    made = {name: table.markdown() for name, table in tables.items()}
    readme.write_text(with_tables(readme.read_text(), made))
    print(f"{', '.join(made) or 'no tables'}: {FOLDER} and the README")
    return 0


if __name__ == "__main__":
    sys.exit(main())
