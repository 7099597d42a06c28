"""Tables in the README come from a file of results."""

import importlib.util
from pathlib import Path

path = Path(__file__).parents[1] / "scripts" / "update_tables.py"
spec = importlib.util.spec_from_file_location("update_tables", path)
update_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(update_tables)


def test_marked_places_are_filled():
    text = "a\n<!-- table2 -->\nold\n<!-- end of table2 -->\nb\n<!-- table3 -->\n<!-- end of table3 -->\n"
    once = update_tables.with_tables(text, {"table2": "| new \\1 |\n"})
    assert once == text.replace("old", "| new \\1 |")
    assert update_tables.with_tables(once, {"table2": "| new \\1 |\n"}) == once
