"""The bound of a kernel: a bare gather with the same graph, rows, threads and passes, timed in the same run.

It sums rows of neighbours and writes one row: no weights, no epilogue (gather.cpp). Rows are padded as those of the
kernels. Rows of a small graph are also taken by length, as our kernels take them; the faster order counts, with the
best prefetch. On larger graphs our kernels may run in an order of communities: how fast a bare gather is there, a run
on NAME@community says.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bench.machine import compiled
from bench.registry import Gather, Results, Work
from ugnn_fast._graph_build import NEAR_NODES
from ugnn_fast.ops._native_call import padded_width, result

LABEL = "bare gather"
_DTYPES = {4: torch.float32, 2: torch.bfloat16}
# (hint, distance): none, into all caches, past the first one
_PREFETCH = ((0, 0), *itertools.product((1, 2), (16, 32, 64, 128, 192)))
_CHAINS = (1, 2)
_LITTLE = 1 << 23  # neighbour values


@functools.cache
def library() -> ctypes.CDLL:
    """gather.cpp, compiled for this machine; RuntimeError where there is no compiler."""
    try:
        loaded = ctypes.CDLL(str(compiled("gather.cpp", "-march=native", "-fopenmp")))
    except RuntimeError as error:
        raise RuntimeError(f"no bound is measured: {error}") from None
    pointer, number, whole = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    table = [pointer, pointer, number, whole]
    loaded.bare_gather.argtypes = [pointer, pointer, number, *table, number, whole, number, whole, whole]
    return loaded


def padded(width: int, itemsize: int) -> int:
    """Values of a row in the tables of the kernels, in whole vectors."""
    return -(-padded_width(_DTYPES[itemsize], width) // 4) * 4


def orders(gather: Gather) -> list[tuple[Tensor, Tensor]]:
    """(rowptr, col) as given, and of a small square matrix with its rows in order of their length."""
    given = gather.rowptr, gather.col
    N = len(gather.rowptr) - 1
    if gather.table_rows != N or N > NEAR_NODES:
        return [given]
    lengths = gather.rowptr.diff()
    order = lengths.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(N)
    near_rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths[order].cumsum(0)])
    within = torch.arange(len(gather.col)) - near_rowptr[:-1].repeat_interleave(lengths[order])
    entries = gather.rowptr[order].repeat_interleave(lengths[order]) + within
    return [given, (near_rowptr, place[gather.col.long()[entries]].int())]


class Way(NamedTuple):
    """How rows are fetched ahead (hint, distance), in how many chains a row is summed, and by how many threads."""

    hint: int
    distance: int
    chains: int
    threads: int


def passes_of(rowptr: Tensor, col: Tensor, table_rows: int, width: int, itemsize: int) -> Callable[[int, Way], Tensor]:
    """call(passes, way) -> a table, of zeros that lie in memory."""
    N, columns = len(rowptr) - 1, padded(width, itemsize)
    # written, as pages that never were are all the same one; in huge pages, as the tables of our kernels
    table, out = (result((rows, columns), _DTYPES[itemsize]).fill_(0) for rows in (table_rows, N))
    gather = library().bare_gather

    def call(passes: int, way: Way) -> Tensor:
        addresses = rowptr.data_ptr(), col.data_ptr(), N, table.data_ptr(), out.data_ptr()
        # of a square matrix a pass reads what the one before has written
        for count in [passes] if table_rows == N else [1] * passes:
            gather(*addresses, columns, itemsize, count, *way)
        return out

    return call


def bound_call(work: Work, itemsize: int, threads: int) -> tuple[Callable[[], Results], str]:
    """A call that does all gathers of the work, each in the best way found, and what these are."""
    calls, chosen = [], []
    for gather in work.gathers:
        passes = min(gather.passes, 2)
        # one thread is faster only where there is little to do
        counts = {1, threads} if len(gather.col) * gather.width < _LITTLE else {threads}
        ways = [Way(*prefetch, chains, n) for prefetch, chains, n in itertools.product(_PREFETCH, _CHAINS, counts)]
        tried = []
        for order, (rowptr, col) in zip(("as given", "by length"), orders(gather), strict=False):
            call = passes_of(rowptr, col, gather.table_rows, gather.width, itemsize)
            tried += [(_seconds(call, passes, way), order, way, call) for way in ways]
        # the best of them a few times more, as one time says little
        tried.sort(key=lambda entry: entry[0])
        again = [
            (min(_seconds(call, passes, way) for _ in range(3)), order, way, call) for _, order, way, call in tried[:6]
        ]
        _, order, way, call = min(again, key=lambda entry: entry[0])
        calls.append((call, gather.passes, way))
        hint = ("no prefetch", f"T0 {way.distance} ahead", f"T1 {way.distance} ahead")[way.hint]
        chosen.append(f"{order}, {hint}, chains {way.chains}, threads {way.threads}")

    def run() -> Results:
        return tuple(call(passes, way) for call, passes, way in calls)

    return run, "; ".join(chosen)


def _seconds(call: Callable[[int, Way], object], passes: int, way: Way) -> float:
    start = time.perf_counter()
    call(passes, way)
    return time.perf_counter() - start
