"""What the CUDA kernels ask for, counted on the traced emulator: a model, see bench/cuda_traffic.py."""

import csv
import re

import pytest
import torch

from bench import cuda_traffic
from bench.registry import dtype_name
from bench.traffic_cases import CUDA_CASES, toy_graph
from tests.cuda.emulated import ROOT, build, install, load, uninstall

ROW = r"\| \w+ \| [^|]+ \| (float32|bfloat16) \| \d+ \|"  # of the table


@pytest.fixture(scope="module")
def counting():
    counting = cuda_traffic.Counting(load(build("traced")))
    install(counting)
    yield counting
    uninstall()


@pytest.mark.parametrize("dtype", cuda_traffic.DTYPES)
@pytest.mark.parametrize(
    "name", ["propagate, a_ij", "ada_propagate backward, save", "gat_aggregate backward, receivers"]
)
def test_kernels_ask_for_what_their_step_needs(counting, name, dtype):
    row = cuda_traffic.row_of(counting, name, toy_graph(CUDA_CASES[name].weighted), 40, dtype)
    assert not cuda_traffic.misses([row]), row
    # nothing can be missing from the count; less than 1, as all rows have the hub for a neighbour
    assert float(row["over_with_numbers"]) > 0.9


def test_broken_rows_are_seen(counting):
    """D = 33: rows begin anywhere in a sector."""
    row = cuda_traffic.row_of(counting, "propagate, sym, skip", toy_graph(), 33, torch.float32)
    assert float(row["useful_rows"]) < 0.8


def recorded() -> list[dict[str, str]]:
    with (cuda_traffic.RESULTS / cuda_traffic.CSV_NAME).open(newline="") as file:
        return list(csv.DictReader(file))


def test_recorded_traffic_is_complete_and_that_of_the_docs():
    rows = recorded()
    assert list(rows[0]) == cuda_traffic.COLUMNS
    assert [(row["case"], row["dtype"], int(row["D"])) for row in rows] == [
        (name, dtype_name(dtype), D if CUDA_CASES[name].has_columns else 0)
        for name, dtype, D in cuda_traffic.todo(CUDA_CASES, cuda_traffic.WIDTHS)
    ]
    table = (cuda_traffic.RESULTS / cuda_traffic.CSV_NAME).with_suffix(".md").read_text()
    assert table == cuda_traffic.table(rows)
    shown = [line for line in (ROOT / "docs" / "gpu.md").read_text().split("\n") if re.match(ROW, line)]
    assert shown and set(shown) <= set(table.split("\n"))


def test_recorded_misses_are_those_that_docs_explain():
    over = {row["case"] for row in recorded() if int(row["D"]) % 8 == 0 and cuda_traffic.misses([row])}
    assert over == {"solve, lengths", "kept_degree"}
