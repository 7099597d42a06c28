"""Block sizes and warps of the kernels, from a table; never tuned behind the user's back, as sums depend on them."""

from typing import NamedTuple

import torch


class Config(NamedTuple):
    slots: int  # rows, or entries of one row, that a program works on at a time
    block: int  # columns of a program
    warps: int


def row_config(width: int, dtype: torch.dtype) -> Config:
    """For rows of `width` values of this type."""
    block = 1
    while block < min(width, 128):
        block *= 2
    slots = max(8, 256 // block)
    return Config(slots, block, 4)
