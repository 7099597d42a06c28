"""Launches of a kernel over all rows of a planned matrix."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ugnn_fast import kernels  # type: ignore[attr-defined]
from ugnn_fast.device import _cuda
from ugnn_fast.kernels._launch import REGISTERS, on_device, row_config


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


class Rows:
    """The rows of a planned matrix: grids, and scratch for the sums of hub pieces."""

    def __init__(self, rowptr: Tensor, plan: Tensor, sizes: list[int], backend: str):
        self.rowptr, self.plan, self.sizes = rowptr, plan, sizes
        self.num_rows = rowptr.shape[0] - 1
        self.num_hubs = self.num_rows - sizes[1]
        self.batch = None if backend == "triton" else _cuda.Batch(_cuda.launcher(backend))
        self.collecting = False

    def partial(self, tables: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Scratch for `tables` sums of `width` columns of every piece, [tables, pieces, width].

        A kernel needs the pointer even if there is no hub: the compiler does not know that.
        """
        return torch.empty((tables, self.sizes[2], width), dtype=dtype, device=self.rowptr.device)

    def blocks(self, D: int, dtype: torch.dtype, family: str = "step") -> tuple[Any, int]:
        """How a Triton kernel is launched for D columns, and in how many blocks it takes them.

        CUDA kernels share out the columns by themselves.
        """
        if self.batch is not None:
            return None, min(D, 1)
        config = row_config(D, dtype, self.rowptr.device, family)
        return config, cdiv(D, config.block)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Launches inside it are of one kernel, which a backend may run as one."""
        self.collecting = True
        with self.batch or contextlib.nullcontext():
            yield
        self.collecting = False

    def launch(self, kernel: str, columns: int, config: Any, *args: Any, **constants: Any) -> None:
        """kernel(rowptr, plan, sizes..., *args) for all rows, `columns` programs to each group of rows.

        The CUDA kernel of this name needs no config.
        """
        if not columns:
            return
        short, middle, pieces = self.sizes
        first = (self.rowptr, self.plan, self.num_rows, short, middle, pieces)
        if self.batch is not None:
            # DROP is what keep_from says
            flags = [value for name, value in constants.items() if name != "DROP"]
            with contextlib.nullcontext() if self.collecting else self.batch:
                self.batch.add(kernel, (*first, *args, *flags))
            return
        programs = cdiv(short, config.slots) + middle - short + pieces
        shape = {"SLOTS": config.slots, "BLOCK_D": config.block, "num_warps": config.warps, **REGISTERS}
        triton_kernel = kernels.kernel(kernel)
        with on_device(self.rowptr.device.index):
            if programs:
                triton_kernel[(programs, columns)](*first, *args, **constants, **shape, HUBS=False)
            if self.num_hubs:
                triton_kernel[(self.num_hubs, columns)](*first, *args, **constants, **shape, HUBS=True)
