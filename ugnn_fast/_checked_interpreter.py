"""Triton's interpreter with checks and counts; needs TRITON_INTERPRET=1 before triton is imported.

    from ugnn_fast._checked_interpreter import checked

    with checked() as report:
        uf.propagate(g, x, 3, backend="triton")
    report["step_kernel"].launches
    report["step_kernel"].pointers["table_ptr"].load_bytes

Inside, a launch raises `Fault` when

* an active lane is outside the tensor whose pointer it was made from,
* a program loads or stores what another program of the launch stores, or loads again what it has stored itself,
* two lanes of one store have one address,
* there is an atomic operation: sums would depend on their order.

Casts from float32 to bfloat16 round to nearest even, as on a GPU; those of the plain interpreter cut off.

`checked()` returns a dict of `KernelReport` by the name of the kernel. Bytes are those of different addresses of one
access, so that lanes with one address count once; lane bytes count every lane, but once where all lanes have one
address; sectors are the pieces of 32 bytes that an access touches, for allocations that start at a multiple of 32. None
of them knows of caches.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interpreter

# A pointer in a kernel is not the address: argument n starts at n SPAN + SPAN / 2, so that it can be told from others.
SPAN = 1 << 44
SECTOR = 32
NOBODY, SEVERAL = -1, -2  # beside the numbers of programs


class Fault(AssertionError):
    """What a kernel did wrong."""


@dataclass
class PointerReport:
    """Accesses by one pointer argument."""

    load_bytes: int = 0
    store_bytes: int = 0
    sectors: int = 0
    lane_bytes: int = 0
    lanes: int = 0
    active_lanes: int = 0


@dataclass
class KernelReport:
    """Launches of one kernel."""

    launches: int = 0
    programs: int = 0
    pointers: dict[str, PointerReport] = field(default_factory=dict)

    @property
    def load_bytes(self) -> int:
        return sum(pointer.load_bytes for pointer in self.pointers.values())

    @property
    def store_bytes(self) -> int:
        return sum(pointer.store_bytes for pointer in self.pointers.values())

    @property
    def lane_bytes(self) -> int:
        return sum(pointer.lane_bytes for pointer in self.pointers.values())

    @property
    def sectors(self) -> int:
        return sum(pointer.sectors for pointer in self.pointers.values())


Report = dict[str, KernelReport]


class _Allocation:
    """Who has read and who has written what of one storage in this launch, by units of a few bytes."""

    def __init__(self, storage: Any):
        self.address = storage.data_ptr()
        self.bytes = storage.nbytes()
        self.unit = 16

    def start(self) -> None:
        units = -(-self.bytes // self.unit)
        self.reader = np.full(units, NOBODY, np.int64)
        self.writer = np.full(units, NOBODY, np.int64)

    def units(self, offset: np.ndarray, size: int) -> np.ndarray:
        return (offset[:, None] // self.unit + np.arange(size // self.unit)).ravel()


@dataclass
class _Pointer:
    """A tensor argument: where its values lie in its storage."""

    name: str
    allocation: _Allocation
    first: int
    end: int
    report: PointerReport


class _Launch:
    """One launch: stands for the functions of the interpreter that touch memory."""

    def __init__(self, kernel: str, tensors: dict[str, Any], report: KernelReport):
        self.kernel = kernel
        self.pointers: list[_Pointer] = []
        allocations: dict[int, _Allocation] = {}
        for name, tensor in tensors.items():
            storage, size = tensor.untyped_storage(), tensor.element_size()
            allocation = allocations.setdefault(storage.data_ptr(), _Allocation(storage))
            allocation.unit = min(allocation.unit, size)
            first = tensor.storage_offset() * size
            span = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            end = first + (span * size if tensor.numel() else 0)
            own = report.pointers.setdefault(name, PointerReport())
            self.pointers.append(_Pointer(name, allocation, first, end, own))
        for allocation in allocations.values():
            allocation.start()
        self.given = iter(range(len(self.pointers)))
        self.patched: set[int] = set()  # modules of device functions

    def address_of_next(self) -> int:
        """What the kernel gets for its next tensor argument."""
        n = next(self.given)
        return n * SPAN + SPAN // 2 + self.pointers[n].first

    def __getattr__(self, name: str) -> Any:
        if name.startswith("atomic"):
            raise Fault(f"{self.kernel}: atomic operation")
        return getattr(_plain, name)

    @property
    def program(self) -> tuple[int, tuple[int, int, int]]:
        """(number, place in the grid) of the program that runs."""
        builder = interpreter.interpreter_builder
        (x, y, z), (_, ny, nz) = builder.grid_idx, builder.grid_dim
        return (x * ny + y) * nz + z, (x, y, z)

    def fault(self, pointer: _Pointer, what: str) -> Fault:
        return Fault(f"{self.kernel}, program {self.program[1]}, {pointer.name}: {what}")

    def reach(
        self, what: str, ptrs: np.ndarray, mask: np.ndarray, size: int
    ) -> tuple[_Pointer, np.ndarray, np.ndarray]:
        """(pointer, byte offsets of different places in its storage, real addresses) of an access."""
        addresses = ptrs.astype(np.int64)
        active = addresses[np.broadcast_to(mask, ptrs.shape).astype(bool)]
        n = int((active if active.size else addresses).flat[0] // SPAN)
        if not 0 <= n < len(self.pointers):
            raise Fault(f"{self.kernel}, program {self.program[1]}: {what} by a pointer of no argument")
        pointer = self.pointers[n]
        base = n * SPAN + SPAN // 2
        offsets = active - base
        outside = (offsets < pointer.first) | (offsets + size > pointer.end)
        if outside.any():
            at = int(offsets[outside][0]) - pointer.first
            inside = pointer.end - pointer.first
            raise self.fault(pointer, f"{what} of {size} bytes at byte {at} of {inside}, {outside.sum()} lanes outside")
        different = np.unique(offsets)
        report = pointer.report
        report.lanes += ptrs.size
        report.active_lanes += active.size
        report.lane_bytes += size * (1 if different.size == 1 else active.size)
        report.sectors += np.unique(np.concatenate([different, different + size - 1]) // SECTOR).size
        real = (addresses - base + pointer.allocation.address).astype(np.uint64)
        return pointer, different, real

    def load(self, ptrs: np.ndarray, mask: np.ndarray, other: np.ndarray, dtype: Any) -> np.ndarray:
        pointer, offsets, real = self.reach("load", ptrs, mask, dtype.itemsize)
        pointer.report.load_bytes += offsets.size * dtype.itemsize
        me, allocation = self.program[0], pointer.allocation
        at = allocation.units(offsets, dtype.itemsize)
        if (allocation.writer[at] != NOBODY).any():
            raise self.fault(pointer, "load of what a program of this launch has stored")
        before = allocation.reader[at]
        allocation.reader[at] = np.where((before == NOBODY) | (before == me), me, SEVERAL)
        return _plain.load(real, mask, other, dtype)

    def store(self, ptrs: np.ndarray, value: np.ndarray, mask: np.ndarray) -> None:
        pointer, offsets, real = self.reach("store", ptrs, mask, value.dtype.itemsize)
        pointer.report.store_bytes += offsets.size * value.dtype.itemsize
        if offsets.size < np.count_nonzero(np.broadcast_to(mask, ptrs.shape)):
            raise self.fault(pointer, "two lanes store to one address")
        me, allocation = self.program[0], pointer.allocation
        at = allocation.units(offsets, value.dtype.itemsize)
        for table, done in ((allocation.writer, "stored"), (allocation.reader, "loaded")):
            if ((table[at] != NOBODY) & (table[at] != me)).any():
                raise self.fault(pointer, f"store to what another program of this launch has {done}")
        allocation.writer[at] = me
        _plain.store(real, value, mask)


# as they are outside of checked(), also for one inside another
_plain = interpreter._interpreter
_call = interpreter.GridExecutor.__call__
_cast = interpreter.InterpreterBuilder.cast_impl
_convert = interpreter._implicit_cvt
# half of the interpreter's time for nothing: a dict built in every call, a check whose result nobody reads, and, below,
# types and shapes that are made again for every tensor
_dtype = interpreter._get_np_dtype
_scalar_dtype = functools.cache(_dtype)
interpreter._get_np_dtype = lambda kind: (_scalar_dtype if type(kind) is tl.dtype else _dtype)(kind)
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)

_type, _tensor = tl.block_type.__init__, tl.tensor.__init__
_types: dict[tuple, tl.block_type] = {}


def _known_type(cls: type, element: Any, shape: Any) -> tl.block_type:
    """One object for each type of a block."""
    key = element.name, *(getattr(size, "value", size) for size in shape)
    if key not in _types:
        _types[key] = object.__new__(cls)
    return _types[key]


def _new_type(self: tl.block_type, element: Any, shape: Any) -> None:
    if "name" not in self.__dict__:
        _type(self, element, shape)


def _new_tensor(self: tl.tensor, handle: Any, kind: Any) -> None:
    if "_of_tensors" in kind.__dict__:
        self.handle, self.type = handle, kind
        self.shape, self.numel, self.dtype = kind._of_tensors
    else:
        _tensor(self, handle, kind)
        kind._of_tensors = self.shape, self.numel, self.dtype


tl.block_type.__new__, tl.block_type.__init__, tl.tensor.__init__ = _known_type, _new_type, _new_tensor


def _bfloat16_bits(x: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16, to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


@contextlib.contextmanager
def checked() -> Iterator[Report]:
    """Checks every launch inside; see the top of this file. Inside another one, launches count here alone."""
    report: Report = {}
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    device = interpreter.InterpretedFunction
    before = executor.__call__, device.__call__, builder.cast_impl, interpreter._implicit_cvt

    def checked_call(self: Any, *args: Any, **kwargs: Any) -> None:
        named = inspect.signature(self.fn).parameters
        bound = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in named})
        tensors = {k: v for k, v in bound.items() if k not in self.constexprs and hasattr(v, "data_ptr")}
        kernel = report.setdefault(self.fn.__name__, KernelReport())
        kernel.launches += 1
        kernel.programs += int(np.prod(self.grid(bound) if callable(self.grid) else self.grid))
        interpreter._interpreter = _Launch(self.fn.__name__, tensors, kernel)
        try:
            _call(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, Fault):
                cause = cause.__cause__
            raise cause or error from None
        finally:
            interpreter._interpreter = _plain

    def device_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # the interpreter patches the language in every call of a device function: once for a module is enough
        patched = interpreter._interpreter.patched
        if id(self.fn.__globals__) not in patched:
            patched.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    def checked_convert(arg: Any) -> Any:
        converted = _convert(arg)
        if hasattr(arg, "data_ptr"):
            converted.handle.data[0] = interpreter._interpreter.address_of_next()
        return converted

    def checked_cast(self: Any, src: Any, to: Any) -> Any:
        if src.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_bfloat16_bits(src.data), tl.bfloat16)
        if src.dtype.scalar == tl.bfloat16 and to.scalar == tl.float32:
            return interpreter.TensorHandle((src.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        return _cast(self, src, to)

    executor.__call__, device.__call__ = checked_call, device_call
    builder.cast_impl, interpreter._implicit_cvt = checked_cast, checked_convert
    try:
        yield report
    finally:
        executor.__call__, device.__call__, builder.cast_impl, interpreter._implicit_cvt = before
