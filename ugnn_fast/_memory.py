"""How much memory there is, and an error before a call that cannot get what it needs."""

import os
from pathlib import Path

import torch

from ugnn_fast._native import native

# below this nobody runs out of memory, and asking the system costs more than a small call
SMALL = 64 << 20


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text().strip())
    except (OSError, ValueError):
        return None


def free_bytes(device: torch.device) -> int:
    """Memory that a new tensor on this device could take."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = 1 << 62
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass
    # a container may allow less
    limit = _read_number("/sys/fs/cgroup/memory.max")
    used = _read_number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def total_bytes() -> int:
    """Memory of the machine, or what a container allows of it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, _read_number("/sys/fs/cgroup/memory.max") or total)


def require(bytes_needed: int, device: torch.device, what: str, hint: str = "") -> None:
    """Raises MemoryError, with figures, when `what` needs more than there is."""
    if bytes_needed < SMALL:
        return
    free = free_bytes(device)
    if bytes_needed > free and native is not None:
        native.pool_clear()
        free = free_bytes(device)
    if bytes_needed > free:
        raise MemoryError(
            f"{what} needs {bytes_needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free on {device}{hint}"
        )


def fits_a_quarter(bytes_needed: int, device: torch.device) -> bool:
    """Whether so much stays under a quarter of the free memory, what the package keeps between calls included."""
    if bytes_needed < SMALL:
        return True
    pool = native.pool_bytes() if native is not None and device.type == "cpu" else 0
    return bytes_needed < (free_bytes(device) + pool) // 4
