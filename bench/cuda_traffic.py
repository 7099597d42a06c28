"""What the CUDA kernels ask the memory for: a model from the traced emulator, not a measurement.

`python -m bench.cuda_traffic` counts the 32-byte sectors that warps ask for on a power-law graph. It knows nothing
of caches: `asked` is what a kernel would move if nothing were in them twice, `bound` what it would move if every sector
held nothing but what is wanted: once the row of every neighbour, its column number and weight; once the row's own data.
"""

import json
from pathlib import Path

import numpy as np
import torch

import ugnn_fast as uf
from tests.cuda.emulated import Emulated, build, install, load
from ugnn_fast import _backend

RESULTS = Path(__file__).parent / "results" / "cuda_traffic.json"
# arguments that a kernel reads one row of D columns at a time
ROWS = {"table", "u", "v", "x", "h", "before", "s", "out", "next", "grad_x", "total", "partial"}
SECTOR = 32


def power_law(N: int, ends: int) -> uf.Graph:
    """Each node joins `ends` nodes that already have many neighbours."""
    rng = np.random.default_rng(0)
    nodes = list(range(ends))
    for i in range(ends, N):
        for j in rng.choice(nodes, ends):
            nodes += [i, int(j)]
    pairs = np.array(nodes[ends:]).reshape(-1, 2).T
    return uf.Graph.from_edge_index(pairs, N, symmetrize=True)


class Counting(Emulated):
    """Adds up the traffic by kernel."""

    def __init__(self, module):
        super().__init__(module)
        self.sums: dict = {}

    def launch(self, name, calls, together=False):
        super().launch(name, calls, together)
        for argument, _, _, sectors, wanted in self.module.traffic():
            # out of edge_dot is a number of each entry, not a row
            kind = "rows" if argument in ROWS and (name, argument) != ("edge_dot", "out") else "numbers"
            sums = self.sums.setdefault(name, {"rows": [0, 0], "numbers": [0, 0]})
            sums[kind][0] += sectors * SECTOR
            sums[kind][1] += wanted


def measure(emulated: Counting, g: uf.Graph, D: int, dtype: torch.dtype) -> dict:
    """Bytes asked for and wanted by each kernel, in one step forward and backward, and one edge_dot."""
    emulated.sums = {}
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, D).to(dtype)
    c = torch.rand(g.num_nodes)
    found = {}
    for name, weights in (("step", None), ("step, c", c)):
        uf.propagate(g, x, 1, c=weights, norm="row", skip=0.1, backend=_backend.EMULATED)
        found[name] = emulated.sums.pop("step")
    torch.ops.ugnn.edge_dot(*g.tensors(_backend.EMULATED), x, x, _backend.EMULATED)
    found["edge_dot"] = emulated.sums.pop("edge_dot")
    c.requires_grad_()
    h = uf.ada_propagate(g, x, c, 1, memory="save", backend=_backend.EMULATED)
    torch.autograd.grad(h.float().sum(), c)
    return found | {"ada_propagate_bwd": emulated.sums["ada_propagate_bwd"]}


def main() -> None:
    emulated = Counting(load(build("traced")))
    install(emulated)
    g = power_law(400, 8)
    E = g.num_edges
    print(f"Model, not a measurement. Power-law graph, {g.num_nodes} nodes, {E} entries, rows of 1 to", end=" ")
    print(f"{int(g.rowptr.diff().max())} entries; one step.\n")
    print("| kernel | dtype | D | sectors per entry | useful, rows | useful, all | asked / bound |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    table = []
    for dtype in (torch.float32, torch.bfloat16):
        for D in (8, 16, 33, 64, 128, 256):
            for kernel, sums in measure(emulated, g, D, dtype).items():
                asked = sum(part[0] for part in sums.values())
                wanted = sum(part[1] for part in sums.values())
                row = {
                    "kernel": kernel, "dtype": str(dtype).removeprefix("torch."), "D": D,
                    "sectors_per_entry": asked / SECTOR / E, "useful_rows": sums["rows"][1] / sums["rows"][0],
                    "useful": wanted / asked, "asked_over_bound": asked / bound(kernel, g, D, dtype),
                }  # fmt: skip
                table.append(row)
                numbers = " | ".join(f"{value:.3f}" for value in list(row.values())[3:])
                print(f"| {kernel} | {row['dtype']} | {D} | {numbers} |", flush=True)
    RESULTS.write_text(json.dumps(table, indent=1) + "\n")


def bound(kernel: str, g: uf.Graph, D: int, dtype: torch.dtype) -> int:
    """Bytes of the entries and rows if nothing else came along, and no neighbour's row were there already."""
    N, E, row = g.num_nodes, g.num_edges, D * dtype.itemsize
    graph = 4 * E + 8 * (N + 1) + 4 * N  # columns, row pointers, the plan
    if kernel == "edge_dot":
        return graph + E * (row + dtype.itemsize) + N * row
    if kernel == "step":
        return graph + E * row + 4 * N + 2 * N * row  # left, x, out
    # c of the neighbour, and of the row
    weighted = graph + E * (row + 4) + 4 * N
    if kernel == "step, c":
        return weighted + 4 * N + 2 * N * row
    return weighted + N * (4 * 4 + 3 * row + 2 * 4 * D)  # rho, b, grad_c twice, u, v, s, grad_x twice


if __name__ == "__main__":
    main()
