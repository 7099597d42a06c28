"""Faults planted into the kernels must be found, by the build that is there for them."""

import shutil
import subprocess
import sys

import pytest
import torch

import ugnn_fast as uf
from tests.cuda.emulated import ROOT, Emulated, asan_environment, build, install, load, uninstall

HUBS = [[0] * 600, list(range(1, 601))]
# fault: file, text, what stands there instead
FAULTS = {
    "one_past": ("rows.cuh", "if (own_entry < task.length) {", "if (own_entry <= task.length) {"),
    "wrong_mask": ("rows.cuh", "__shfl_xor_sync(kAllLanes, sums[k], step)", "__shfl_xor_sync(0xffffu, sums[k], step)"),
    "lanes_leave": (
        "step.cuh",
        "const int i = task.i, r",
        "if (lanes.lane == 31) return;\n    const int i = task.i, r",
    ),
    "no_barrier": (
        "solve.cuh",
        "  __syncthreads();\n  if (warp > 0 ||",
        "  if (warp > 0 ||",
    ),
    "no_grid_sync": ("launch.cuh", "if (k + hubs > 0) grid.sync();", ""),
}
# float32 alone: the others are the same code
OTHER_TYPES = """    case DType::kDouble:
      return body(double{});
    case DType::kBFloat16:
      return body(__nv_bfloat16{});
    case DType::kHalf:
      return body(__half{});
"""


def planted(fault, kind, folder):
    """The module with a fault in it, as a file."""
    csrc = folder / "csrc"
    shutil.copytree(ROOT / "csrc", csrc)
    include = csrc / "include" / "ugnn"
    changes = [("launch.cuh", OTHER_TYPES, "    default:\n      break;\n"), FAULTS[fault]]
    for name, old, new in changes:
        text = (include / name).read_text()
        assert text.count(old) == 1, f"{old!r} must stand once in {name}"
        (include / name).write_text(text.replace(old, new))
    return build(kind, f"ugnn_{fault}", csrc, folder)


@pytest.fixture
def run_planted(tmp_path, monkeypatch):
    """Runs three steps on a hub, or another operator, in a module with a fault."""

    def run(fault, kind, operator=lambda g, x: uf.propagate(g, x, 3, backend="cuda-emulated")):
        install(Emulated(load(planted(fault, kind, tmp_path))))
        monkeypatch.setenv("UGNN_CUDA_STEPS", "together")
        g = uf.Graph.from_edge_index(HUBS, symmetrize=True)
        operator(g, torch.randn(g.num_nodes, 8))

    yield run
    uninstall()


def test_a_wrong_mask_is_found(run_planted):
    with pytest.raises(RuntimeError, match="a collective without the lane that calls it"):
        run_planted("wrong_mask", "plain")


def test_a_lane_that_leaves_is_found(run_planted):
    with pytest.raises(RuntimeError, match=r"a collective waits for a lane|lanes meet in different collectives"):
        run_planted("lanes_leave", "plain")


def test_a_read_past_the_end_is_found_by_the_trace(run_planted):
    with pytest.raises(RuntimeError, match="out of bounds: load at byte 7204 of col of 7204"):
        run_planted("one_past", "traced")


def test_a_missing_grid_sync_is_found(run_planted):
    with pytest.raises(RuntimeError, match="race: "):
        run_planted("no_grid_sync", "traced")


def test_a_missing_barrier_of_a_kernel_is_found(run_planted):
    with pytest.raises(RuntimeError, match="race: load in shared memory"):
        run_planted("no_barrier", "traced", lambda g, x: uf.ada_solve(g, x, 1.0, backend="cuda-emulated"))


def test_a_read_past_the_end_is_found_by_the_address_sanitizer(tmp_path):
    module = planted("one_past", "asan", tmp_path)
    program = f"""
import torch
import ugnn_fast as uf
from pathlib import Path
from tests.cuda.emulated import Emulated, install, load
install(Emulated(load(Path({str(module)!r}))))
g = uf.Graph.from_edge_index({HUBS}, symmetrize=True)
uf.propagate(g, torch.randn(g.num_nodes, 8), 1, backend='cuda-emulated')
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=asan_environment(), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-3000:]
    assert "0 bytes to the right of 7204-byte region" in done.stderr, done.stderr[-3000:]


@pytest.fixture(scope="module")
def traced():
    return load(build("traced"))


def block_sums(traced, stride, barrier):
    values, out = torch.randn(256), torch.empty(2)
    traced.clear()
    for name, tensor in (("values", values), ("out", out)):
        traced.add_buffer(tensor.data_ptr(), tensor.nbytes, name)
    traced.block_sums(values.data_ptr(), out.data_ptr(), 2, stride, barrier)
    return values, out


def test_a_barrier_orders_shared_memory(traced):
    values, out = block_sums(traced, 1, True)
    assert traced.errors() == []
    torch.testing.assert_close(out, values.view(2, -1).sum(1))


def test_a_missing_barrier_is_found(traced):
    block_sums(traced, 1, False)
    assert any("race: load in shared memory" in error for error in traced.errors())


def test_bank_conflicts_are_counted(traced):
    waves = []
    for stride in (1, 32):
        block_sums(traced, stride, True)
        instructions, count = traced.shared_memory()
        waves.append(count - instructions)
    # a store of four warps in two blocks: 32 waves each when all lanes meet in one bank
    assert waves == [0, 2 * 4 * 31]


def test_a_barrier_that_not_all_reach_is_found(traced):
    with pytest.raises(RuntimeError, match="not all threads reach the barrier"):
        traced.half_waits()
