"""Random numbers without a state: Philox4x32-10, the same words as csrc/include/ugnn/philox.h."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

# fourth word of the counter: what the numbers are for (Stream in philox.h)
DROP_EDGE, ATTENTION, FEATURES, VALUES = 0, 1, 2, 3

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

# of the replicas in training, see replica_generators
_generators: Sequence[torch.Generator] | None = None


@contextmanager
def replica_generators(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Within, seeds for R models side by side are drawn one from each of R generators.

    So model r gets the masks that it would get alone, with torch's default generator in the state of generator r.
    """
    global _generators
    before, _generators = _generators, generators
    try:
        yield
    finally:
        _generators = before


def draw_seeds(R: int, device: torch.device) -> Tensor:
    """int64 [R] on a device, from torch's default generator of the CPU or those of the replicas."""
    if _generators is None:
        seeds = torch.randint(-(2**63), 2**63 - 1, (R,), dtype=torch.int64, device="cpu")
        return seeds.to(device, non_blocking=True)
    if len(_generators) != R:
        raise ValueError(f"{R} models must have as many generators, got {len(_generators)}")
    seeds = torch.cat([torch.randint(-(2**63), 2**63 - 1, (1,), generator=g) for g in _generators])
    return seeds.to(device, non_blocking=True)


def philox(
    seed: Tensor | int, c0: Tensor, c1: Tensor, c2: Tensor | int, c3: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words in 0..2^32 - 1 (int64) for each counter (c0, c1, c2, c3), with the 64-bit seed as the key."""
    key0, key1 = seed & _MASK, seed >> 32 & _MASK
    words = [torch.as_tensor(c, dtype=torch.int64, device=c0.device) for c in (c0, c1, c2, c3)]
    for _ in range(10):
        high0, low0 = _product(_MULTIPLIERS[0], words[0])
        high1, low1 = _product(_MULTIPLIERS[1], words[2])
        words = [high1 ^ words[1] ^ key0, low1, high0 ^ words[3] ^ key1, low0]
        key0, key1 = key0 + _WEYL[0] & _MASK, key1 + _WEYL[1] & _MASK
    w0, w1, w2, w3 = torch.broadcast_tensors(*words)
    return w0, w1, w2, w3


def _product(factor: int, value: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of factor * value; int64 holds no 64-bit unsigned product, so by halves of value."""
    upper, lower = factor * (value >> 16), factor * (value & 0xFFFF)  # each below 2^48
    carried = upper + (lower >> 16)
    return carried >> 16, (carried & 0xFFFF) << 16 | lower & 0xFFFF


def keep_from(drop: float) -> int:
    """A value is kept if its word is at least this; drop is the probability of losing it."""
    return int(drop * 2**32)


def kept_entries(row: Tensor, col: Tensor, drop_seed: int, keep_from: int) -> Tensor:
    """Which entries (row, col) of a graph are kept, bool [E]: loops, and a share on which both directions agree."""
    if keep_from == 0:
        return torch.ones_like(row, dtype=torch.bool)
    col = col.long()
    word = philox(drop_seed, torch.minimum(row, col), torch.maximum(row, col), 0, DROP_EDGE)[0]
    return (word >= keep_from) | (row == col)
