"""Timing on a machine that others use too, its memory bandwidth, and the peak memory of a call."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ugnn_fast._native import native

# A sample counts only if our threads waited less than this share of it for a core.
MAX_WAITED = 0.02
# No result rests on fewer samples than this.
MIN_SAMPLES = 7
# On a busy machine: samples taken at most, and time spent at most, as multiples of what was asked for.
MAX_ATTEMPTS = 6
MAX_OVERTIME = 3
# Calls shorter than this are repeated inside a sample.
_SAMPLE_SECONDS = 0.01
# Before a sample of calls shorter than this one call is not timed: the contender before has had the caches.
_WARM_SECONDS = 0.05

Call = Callable[[], object]


def waited_ns() -> int:
    """Time that the threads of this process have waited on the run queue; 0 where the system does not say."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(path.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # the thread has ended
            continue
    return total


@dataclass
class Samples:
    """(share of the sample waited for a core, milliseconds per call) of every sample taken."""

    calls: int
    warmed: bool = False  # by a call before each sample
    taken: list[tuple[float, float]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.taken)

    @property
    def clean(self) -> int:
        return sum(waited < MAX_WAITED for waited, _ in self.taken)

    @property
    def rejected_share(self) -> float:
        return 1 - self.clean / self.count

    @property
    def counted(self) -> list[float]:
        """The undisturbed samples; if these are too few, the least disturbed ones."""
        ordered = sorted(self.taken)
        return [ms for _, ms in ordered[: max(self.clean, MIN_SAMPLES)]]

    def quantiles(self) -> tuple[float, float, float]:
        """20th, 50th and 80th percentile in milliseconds."""
        p20, p50, p80 = np.percentile(self.counted, (20, 50, 80))
        return float(p20), float(p50), float(p80)


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def samples_of(call: Call) -> Samples:
    """For samples of so many calls that they are long enough for the clock."""
    one = min(_seconds(call) for _ in range(2))
    if one < 10 * _SAMPLE_SECONDS:
        one = min(_seconds(call) for _ in range(10))
    return Samples(min(1000, max(1, round(_SAMPLE_SECONDS / max(one, 1e-7)))), one < _WARM_SECONDS)


def take(call: Call, samples: Samples) -> None:
    """Adds a sample."""
    if samples.warmed:
        call()  # wakes the threads and fills the caches
    waited = waited_ns()
    start = time.perf_counter_ns()
    for _ in range(samples.calls):
        call()
    elapsed = time.perf_counter_ns() - start
    samples.taken.append(((waited_ns() - waited) / elapsed, elapsed / samples.calls / 1e6))


def measure(
    calls: dict[str, Call],
    repeats: int,
    seconds: float,
    progress: Callable[[int, float], None] = lambda samples, left: None,
) -> dict[str, Samples]:
    """Times the calls in turn, a sample each per round, each round beginning with another one.

    Ends when every call has `repeats` undisturbed samples, or MIN_SAMPLES of them once `seconds` have passed.
    A call that does not get them is tried until it has MAX_ATTEMPTS times as many samples, or MIN_SAMPLES of
    any kind after MAX_OVERTIME times `seconds`. progress(samples so far, seconds left) follows each round.
    """
    names = list(calls)
    result = {}
    for name, call in calls.items():
        call()  # warm up
        result[name] = samples_of(call)
    gc.collect()
    gc.disable()
    try:
        start, rounds = time.perf_counter(), 0
        while True:
            passed = time.perf_counter() - start
            wanted = repeats if passed < seconds else min(repeats, MIN_SAMPLES)
            most = MAX_ATTEMPTS * wanted if passed < MAX_OVERTIME * seconds else MIN_SAMPLES
            open_names = [name for name in names if result[name].clean < wanted and result[name].count < most]
            if not open_names:
                return result
            for at in range(len(names)):
                name = names[(rounds + at) % len(names)]
                if name in open_names:
                    take(calls[name], result[name])
            rounds += 1
            fewest = min(result[name].clean for name in names)
            per_round = (time.perf_counter() - start) / rounds
            until_wanted = max(repeats - fewest, 1) * per_round
            until_enough = max(MIN_SAMPLES - fewest, 0) * per_round
            progress(fewest, max(min(until_wanted, seconds - passed), until_enough))
    finally:
        gc.enable()


class _TimedKernels:
    """The native module with a clock around every call."""

    def __init__(self) -> None:
        self.ns = 0

    def __getattr__(self, name: str):
        kernel = getattr(native, name)

        def timed(*args):
            start = time.perf_counter_ns()
            result = kernel(*args)
            self.ns += time.perf_counter_ns() - start
            return result

        return timed


def kernel_microseconds(call: Call) -> float:
    """Median time that a call spends inside the kernels of ada_propagate."""
    module = sys.modules["ugnn_fast.ops.ada_propagate"]  # the package shows the operator under this name
    found = []
    for _ in range(200):
        module.native = clock = _TimedKernels()
        try:
            call()
        finally:
            module.native = native
        found.append(clock.ns / 1000)
    return statistics.median(found)


def stream_bandwidth(array_bytes: int | None = None) -> dict[str, float]:
    """GB/s of copy (a = b) and triad (a = b + s c) with torch, best of 10; by default beyond every cache."""
    n = (array_bytes or _beyond_cache()) // 4
    a, b, c = torch.zeros(n), torch.ones(n), torch.ones(n)
    work = {
        "copy": (lambda: a.copy_(b), 2),
        "triad": (lambda: torch.add(b, c, alpha=3.0, out=a), 3),
    }
    return {
        name: arrays * 4 * n / min(_seconds(call) for _ in range(10)) / 1e9 for name, (call, arrays) in work.items()
    }


def _beyond_cache() -> int:
    """Twice the largest cache, 64 MB to 1 GB."""
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    largest = max((int(size.read_text().strip().rstrip("K")) * 1024 for size in caches), default=0)
    return min(max(2 * largest, 64 << 20), 1 << 30)


# Buffers above 64 KB come from the system and go back at once, so that VmHWM sees them.
MEMORY_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peak_extra_bytes(call: Call) -> int:
    """How far the resident memory of this process rises above where it stands, at most, during one call.

    VmHWM after the call less VmHWM before it, which is set back to the present size first. For a process of
    its own, started with MEMORY_ENVIRONMENT. The kernel's count is exact to a few hundred KB.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water()
    kept = call()
    after = high_water()
    del kept
    return after - before


def high_water() -> int:
    """The most resident memory that this process ever had; unlike ru_maxrss nothing of the one that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def fix_threads(threads: int) -> None:
    """The same number of threads for torch, MKL and our kernels (which ask torch), here and in children."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch.set_num_threads(threads)
