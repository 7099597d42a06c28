"""The checked interpreter finds planted faults, counts what was asked for, and rounds as a GPU does."""

import pytest
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter

from ugnn_fast._checked_interpreter import Fault, PointerReport, checked

pytestmark = pytest.mark.triton


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, SHIFT: tl.constexpr, EXTRA: tl.constexpr, BLOCK: tl.constexpr):
    """y_i = x_{i + SHIFT} for i < n + EXTRA."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n + EXTRA
    tl.store(y_ptr + offs, tl.load(x_ptr + offs + SHIFT, mask=mask), mask=mask)


def copy(x, y, n, shift=0, extra=0, block=8):
    copy_kernel[(triton.cdiv(n, block),)](x, y, n, shift, extra, block)


def test_a_right_kernel_passes():
    x, y = torch.randn(20), torch.empty(20)
    with checked() as report:
        copy(x, y, 20)
    assert torch.equal(x, y)
    kernel = report["copy_kernel"]
    assert (kernel.launches, kernel.programs) == (1, 3)
    assert kernel.pointers["x_ptr"] == PointerReport(load_bytes=80, sectors=3, lane_bytes=80, lanes=24, active_lanes=20)
    assert kernel.pointers["y_ptr"] == PointerReport(
        store_bytes=80, sectors=3, lane_bytes=80, lanes=24, active_lanes=20
    )
    assert (kernel.load_bytes, kernel.store_bytes, kernel.sectors) == (80, 80, 6)


@pytest.mark.parametrize(("shift", "byte"), ((1, 80), (-1, -4)))
def test_one_past_the_end_and_one_before_the_start(shift, byte):
    # the neighbours in memory belong to a tensor, too; only not to this one
    whole = torch.zeros(60)
    with pytest.raises(Fault, match=f"x_ptr: load of 4 bytes at byte {byte} of 80, 1 lanes outside"), checked():
        copy(whole[20:40], whole[40:], 20, shift=shift)


def test_a_wrong_mask():
    with pytest.raises(Fault, match="y_ptr: store of 4 bytes at byte 80 of 80, 2 lanes outside"), checked():
        copy(torch.zeros(22), torch.zeros(30)[:20], 20, extra=2)


def test_the_fault_of_another_pointer_is_not_hidden():
    # in the launch there is a tensor at that address
    x = torch.zeros(40)
    with pytest.raises(Fault, match="x_ptr"), checked():
        copy(x[:20], x[20:], 20, shift=4)


def test_an_empty_tensor_is_not_read():
    with pytest.raises(Fault, match="x_ptr: load of 4 bytes at byte 0 of 0"), checked():
        copy(torch.zeros(0), torch.zeros(4), 4)


@triton.jit
def sum_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr, ATOMIC: tl.constexpr):
    total = tl.sum(tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    if ATOMIC:
        tl.atomic_add(y_ptr, total)
    else:
        tl.store(y_ptr, total)


def test_two_programs_that_store_to_one_place():
    text = r"program \(1, 0, 0\), y_ptr: store to what another program .* has stored"
    with pytest.raises(Fault, match=text), checked():
        sum_kernel[(2,)](torch.ones(16), torch.zeros(1), 8, False)
    with checked():
        sum_kernel[(1,)](torch.ones(16), torch.zeros(1), 8, False)


def test_atomic_operations_are_refused():
    with pytest.raises(Fault, match="sum_kernel: atomic operation"), checked():
        sum_kernel[(2,)](torch.ones(16), torch.zeros(1), 8, True)


def test_two_programs_that_load_and_store_one_place():
    # in place, each program reads what the one before or behind it writes
    x = torch.zeros(33)
    with pytest.raises(Fault, match=r"y_ptr: store to what another program .* has loaded"), checked():
        copy(x[1:], x[:32], 32)
    x = torch.zeros(64)
    with pytest.raises(Fault, match="x_ptr: load of what a program of this launch has stored"), checked():
        copy(x[:32], x[8:], 32)
    # a program of its own values
    with checked():
        copy(x[:32], x[:32], 32)
    # launches one after the other
    with checked():
        copy(x[:32], x[32:], 32)
        copy(x[32:], x[:32], 32)


@triton.jit
def read_own_kernel(x_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, offs.to(tl.float32))
    tl.store(x_ptr + offs, tl.load(x_ptr + BLOCK - 1 - offs))


def test_a_store_is_not_loaded_again_without_a_barrier():
    with pytest.raises(Fault, match="x_ptr: load of what a program of this launch has stored"), checked():
        read_own_kernel[(1,)](torch.zeros(8), 8)


@triton.jit
def same_place_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr, ALL: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes // 4)
    tl.store(y_ptr + lanes * 0, x, mask=(lanes == 0) | ALL)


def test_lanes_of_one_store_have_places_of_their_own():
    with pytest.raises(Fault, match="y_ptr: two lanes store to one address"), checked():
        same_place_kernel[(1,)](torch.zeros(4), torch.zeros(1), 16, True)


def test_lanes_with_one_address_are_one_request():
    with checked() as report:
        same_place_kernel[(1,)](torch.zeros(4), torch.zeros(1), 16, False)
    pointers = report["same_place_kernel"].pointers
    assert pointers["x_ptr"] == PointerReport(load_bytes=16, sectors=1, lane_bytes=64, lanes=16, active_lanes=16)
    assert pointers["y_ptr"] == PointerReport(store_bytes=4, sectors=1, lane_bytes=4, lanes=16, active_lanes=1)


@triton.jit
def integer_mask_kernel(x_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    # the interpreter has integers in it
    mask = (lanes >= 4) & (tl.full((), -1, tl.int32) < 0)
    tl.store(x_ptr + lanes, lanes.to(tl.float32), mask=mask)


def test_a_mask_of_integers():
    x = torch.zeros(8)
    with checked() as report:
        integer_mask_kernel[(1,)](x, 8)
    assert x.tolist() == [0, 0, 0, 0, 4, 5, 6, 7]
    assert report["integer_mask_kernel"].pointers["x_ptr"].active_lanes == 4


def test_views_of_several_types_in_one_storage():
    storage = torch.zeros(32)
    low = storage[16:].view(torch.bfloat16)[:20]
    with checked():
        copy(torch.ones(20).bfloat16(), low, 20)
        copy(storage[:16], torch.zeros(16), 16)
    assert low.eq(1).all() and storage[:16].eq(0).all()


@triton.jit
def round_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs).to(y_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_casts_round_to_nearest_even(dtype):
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.4e38, 1e-40, 1 + 2**-8, 1 + 3 * 2**-8])
    x = torch.cat([special, torch.randn(1016) * 10 ** (8 * torch.rand(1016) - 4)])
    y = torch.empty(1024, dtype=dtype)
    with checked():
        round_kernel[(1,)](x, y, 1024)
    assert torch.equal(y, x.to(dtype))
    back, nan = torch.empty(1024), torch.empty(1, dtype=dtype)
    with checked():
        round_kernel[(1,)](y, back, 1024)
        round_kernel[(1,)](torch.tensor([torch.nan]), nan, 1)
    assert torch.equal(back, y.float()) and nan.isnan()


def test_nothing_is_left_behind():
    def state():
        functions = (interpreter.GridExecutor, interpreter.InterpretedFunction, interpreter.InterpreterBuilder)
        return [dict(vars(owner)) for owner in functions], interpreter._interpreter, interpreter._implicit_cvt

    before = state()
    with pytest.raises(Fault), checked():
        copy(torch.zeros(4), torch.zeros(5), 4, extra=1)
    assert state() == before


def test_one_inside_another():
    with checked() as outer:
        with checked() as inner:
            copy(torch.zeros(4), torch.zeros(4), 4)
        copy(torch.zeros(4), torch.zeros(4), 4)
        copy(torch.zeros(4), torch.zeros(4), 4)
    assert (outer["copy_kernel"].launches, inner["copy_kernel"].launches) == (2, 1)
