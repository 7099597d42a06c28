"""Every kernel compiles for GPUs of both makers without spills, and takes what resources.csv says."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
import compile_kernels

UPDATE = "if that is right: python tests/kernels/compile_kernels.py --update"


@pytest.fixture(scope="module")
def rows():
    return compile_kernels.in_processes()


def test_nothing_spills(rows):
    spilling = [
        f"{kernel}, {variant}, {target}: {value}"
        for (kernel, variant), row in rows.items()
        for target, value in row.items()
        if not value.endswith("/0")
    ]
    assert not spilling, "registers/shared memory/spills:\n" + "\n".join(spilling)


def test_registers_and_shared_memory_are_those_of_the_table(rows):
    table = compile_kernels.read()
    changed = [
        f"{kernel}, {variant}, {target}: {table.get((kernel, variant), {}).get(target)} in the table, {value} now"
        for (kernel, variant), row in rows.items()
        for target, value in row.items()
        if table.get((kernel, variant), {}).get(target) != value
    ]
    changed += [f"{kernel}, {variant}: in the table, not compiled now" for kernel, variant in set(table) - set(rows)]
    assert not changed, f"registers/shared memory/spills changed; {UPDATE}\n" + "\n".join(sorted(changed))


def test_every_target_is_there(rows):
    assert all(list(row) and set(row) == set(compile_kernels.TARGETS) for row in rows.values())
