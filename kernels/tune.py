"""`ugnn-fast tune`: measures launch configurations on the GPU that is there and writes the best to the user's table."""

import functools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from ugnn_fast.kernels import _launch
from ugnn_fast.kernels._launch import FAMILIES, Config, Key, Table

import ugnn_fast as uf
from ugnn_fast.device.step import Stepper, per_node, rsqrt_degree

# those of the table that are measured
WIDTHS = (8, 16, 32, 64, 128)
DTYPES = (torch.float32, torch.bfloat16)
# a configuration must be faster than the shipped one by this factor to replace it: less is noise
GAIN = 0.98

# (family, width, dtype, configuration) -> milliseconds
Timer = Callable[[str, int, torch.dtype, Config], float]


def candidates(width: int, item_size: int, warp: int = 32) -> Iterator[Config]:
    """Tiles of 2 to 256 slots of which a thread has 8, 16 or 32 bytes; wide rows also in halves."""
    for block in (width, width // 2) if width >= 64 else (width,):
        for warps in (2, 4, 8):
            for vector in (8, 16, 32):
                slots = vector * warp * warps // (block * item_size)
                if 2 <= slots <= 256:
                    yield Config(slots, block, warps)


def tuned(device: str, timer: Timer, say: Callable[[str], None], warp: int = 32) -> Table:
    """The entries of this device that are faster than what the shipped table has for it."""
    found: Table = {}
    todo = [(family, dtype, width) for family in FAMILIES for dtype in DTYPES for width in WIDTHS]
    for n, (family, dtype, width) in enumerate(todo):
        key: Key = (device, family, dtype.itemsize, width)
        now = _shipped(key)
        times = {now: timer(family, width, dtype, now)}
        for config in candidates(width, dtype.itemsize, warp):
            if config not in times:
                times[config] = timer(family, width, dtype, config)
        best = min(times, key=times.__getitem__)
        if times[best] < GAIN * times[now]:
            found[key] = best
        else:
            best = now
        name = f"{family}, {str(dtype).removeprefix('torch.')}, width {width}"
        say(f"[{n + 1}/{len(todo)}] {name}: {best} {times[best]:.3f} ms, shipped {now} {times[now]:.3f} ms")
    return found


def _shipped(key: Key) -> Config:
    table = _launch.shipped_table()
    names = (key[0], *(("hip",) if torch.version.hip else ()), "any")
    return next(table[own] for name in names if (own := (name, *key[1:])) in table)


def tune(say: Callable[[str], None]) -> tuple[str, int, Path]:
    """Measures on the current GPU and writes; returns its name, the number of entries and the file."""
    if not torch.cuda.is_available():
        raise ValueError("tune needs a GPU to measure on, and torch finds none")
    path = _launch.user_path()
    if path is None:
        raise ValueError(f"tune needs a file to write, and {_launch.VARIABLE} is empty")
    if path.exists():
        _launch.read_table(path)  # a broken one is reported before the work
    device = torch.device("cuda", torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(device)
    found = tuned(properties.name, Measurement(device), say, getattr(properties, "warp_size", 32))
    write(found, properties.name, path)
    return properties.name, len(found), path


def write(found: Table, device: str, path: Path) -> None:
    """Puts the entries of a device into the table of the user; those of other devices stay."""
    before = _launch.read_table(path) if path.exists() else {}
    _launch.write_table({key: config for key, config in before.items() if key[0] != device} | found, path)


class Measurement:
    """Times one launch of a family on a power-law graph, with a second-level cache that holds none of its tables."""

    def __init__(self, device: torch.device, nodes: int = 200_000, mean_degree: int = 15, calls: int = 15):
        self.device, self.calls = device, calls
        self.g = power_law_graph(nodes, mean_degree).to(device)
        cuda = device.type == "cuda"
        cache = torch.cuda.get_device_properties(device).L2_cache_size if cuda else 1
        self.flush = torch.empty(2 * cache, dtype=torch.int8, device=device)

    def __call__(self, family: str, width: int, dtype: torch.dtype, config: Config) -> float:
        """Median milliseconds."""
        launch = self.launch_of(family, width, dtype, config)
        launch()  # compiles
        torch.cuda.synchronize(self.device)
        times = []
        for _ in range(self.calls):
            self.flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launch()
            end.record()
            torch.cuda.synchronize(self.device)
            times.append(start.elapsed_time(end))
        return statistics.median(times)

    def launch_of(self, family: str, width: int, dtype: torch.dtype, config: Config) -> Callable[[], Any]:
        graph, N = self.g.tensors("triton"), self.g.num_nodes

        def table(dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.ones(N, width, dtype=dtype, device=self.device)

        c, rho, x = torch.ones(N, device=self.device), rsqrt_degree(graph, torch.float32, "triton"), table()
        stepper = Stepper(graph, x, c=per_node(c), sums=2, family=family, backend="triton")
        stepper.config, stepper.columns = config, width // config.block
        if family == "step":
            agg, s, following = per_node(rho), table(), table()
            return functools.partial(stepper.step, x, right=rho, agg=agg, skip=agg, x=x, s=s, following=following)
        if family == "edge_dot":
            stepper.columns = 1
            out = torch.empty(self.g.num_edges, dtype=dtype, device=self.device)
            return functools.partial(stepper.launch, "edge_dot", x, table(), out)
        sums = torch.zeros((2, N, stepper.columns), device=self.device)
        return functools.partial(
            stepper.launch, "ada_propagate_bwd", x, *stepper.c[:3], stepper.partial, rho, c, table(), table(),
            table(torch.float32), table(), *sums,
        )  # fmt: skip


def power_law_graph(nodes: int, mean_degree: float, exponent: float = 0.6, seed: int = 0) -> uf.Graph:
    """Nodes with loops, and edges whose ends have chances as 1 / rank^exponent, in random order of the nodes."""
    random = torch.Generator().manual_seed(seed)
    chance = torch.arange(1, nodes + 1, dtype=torch.float64).pow(-exponent).cumsum(0)
    drawn = torch.rand((2, int(nodes * (mean_degree - 1) / 2)), generator=random, dtype=torch.float64)
    ends = torch.searchsorted(chance, drawn * chance[-1]).clamp(max=nodes - 1)
    order = torch.randperm(nodes, generator=random)
    return uf.Graph.from_edge_index(order[ends], nodes, symmetrize=True)
