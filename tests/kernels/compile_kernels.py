"""Compiles what the operators launch for GPUs that are not here: registers, shared memory and spills of every kernel.

    python tests/kernels/compile_kernels.py --update    # writes resources.csv anew
    python tests/kernels/compile_kernels.py sm_90       # prints the figures of some targets of one maker

Operators are called as ever, forward and backward, but a launch ends after the compiler: Triton specialises its
arguments for each target, and nothing is computed. So every version of a kernel is one that the package launches.
"""

import csv
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).with_name("resources.csv")
TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32)}
TARGETS |= {"gfx942": ("hip", "gfx942", 64)}
WIDTHS = (8, 16, 40, 64, 128)


def calls():
    """(name, function(x), x) of the calls to compile; propagation in all widths, others in one."""
    import numpy as np
    import torch

    import ugnn_fast as uf

    edges = np.stack([np.zeros(300, np.int64), np.arange(1, 301)])
    plain = uf.Graph.from_edge_index(edges, symmetrize=True)
    weighted = uf.Graph.from_edge_index(edges, edge_weight=np.linspace(1, 2, 300), symmetrize=True)
    N, E = plain.num_nodes, plain.num_edges
    # as a call on a GPU with a random seed has it
    view = uf.drop_edges(plain, 0.5, seed=2**40 + 1)
    options = {"backend": "triton"}

    def leaf(*shape):
        return torch.rand(shape, requires_grad=True)

    def several(x):
        coefficients = {"agg": leaf(N), "skip": leaf(3, 1), "keep": leaf(3, N), "prev": leaf(N), "left": leaf(N)}
        return uf.propagate(weighted, x, 3, c=leaf(N), **coefficients, right=leaf(N), clamp=(0, 1), **options)

    def sparse_linear(x):
        features = torch.eye(N).to_sparse_csr()
        weight = leaf(N, x.shape[-1]).to(x.dtype)
        return uf.sparse_linear(features.to(x.dtype), weight, x[0], dropout=0.4, seed=2**40 + 1, **options)

    def dense(x):
        entries = x.detach().to_sparse_csr()
        parts = entries.crow_indices(), entries.col_indices().int(), entries.values()
        return uf.ops.sparse_dense((), *parts, x.shape[1], 0.4, torch.tensor([2**40 + 1]), "triton")

    def gat(g, x, q):
        heads = x[:, None].expand(N, 4, -1)
        return uf.gat_aggregate(g, heads, leaf(N, 4), leaf(N, 4), dropout=q, seed=2**40 + 1, **options)

    functions = {
        "ada_propagate": lambda x: uf.ada_propagate(plain, x, leaf(N), 3, memory="save", **options),
        "propagate": lambda x: uf.propagate(plain, x, 3, agg=0.9, skip=0.1, **options),
        "ada_propagate constant": lambda x: uf.ada_propagate(weighted, x, 0.5, 3, **options),
        "ada_propagate x alone": lambda x: uf.ada_propagate(plain, x, torch.rand(N), 3, **options),
        "ada_propagate replicas": lambda x: uf.ada_propagate(
            weighted, x[:, None].expand(N, 2, -1), leaf(N, 2), 3, memory="recompute", **options
        ),
        "ada_propagate drop_edges": lambda x: uf.ada_propagate(view, x, leaf(N), 3, memory="save", **options),
        "propagate several": several,
        "propagate sum": lambda x: uf.propagate(plain, x, 3, gamma=leaf(4), norm="row", out="sum", **options),
        "propagate all": lambda x: uf.propagate(weighted, x, 3, norm="none", out="all", **options),
        "propagate edge_value": lambda x: uf.propagate(weighted, x, 3, edge_value=leaf(E), **options),
        "neighbor_mean": lambda x: uf.neighbor_mean(plain, x, **options),
        "neighbor_var": lambda x: uf.neighbor_var(weighted, x, **options),
        "ada_c": lambda x: uf.ada_c(plain, x, leaf(x.shape[-1]), 9.0, bias=leaf(1), **options),
        "ada_c mean": lambda x: uf.ada_c(weighted, x, leaf(x.shape[-1]), 9.0, stat="mean", **options),
        "gat_aggregate": lambda x: gat(plain, x, 0.0),
        "gat_aggregate dropout": lambda x: gat(view, x, 0.4),
        "solve": lambda x: uf.solve(plain, x, leaf(N) + 2, c=leaf(N), max_iter=2, **options),
        "ada_solve": lambda x: uf.ada_solve(weighted, x, leaf(N), max_iter=2, **options),
        "denoising_energy": lambda x: uf.denoising_energy(plain, x, x.detach(), leaf(N), **options),
        "sparse_linear": sparse_linear,
        "sparse_linear dense": dense,
        "drop_edges": lambda x: uf.drop_edges(weighted, 0.5, seed=2**40 + 1, **options).degree,
        "local_smoothness": lambda x: uf.local_smoothness(plain, torch.arange(N) % 3, **options),
    }
    has = uf.backends()["triton"].ops
    for n, (name, function) in enumerate(functions.items()):
        for m, D in enumerate(WIDTHS):
            if name.split()[0] in has and (name in ("ada_propagate", "propagate") or m == n % len(WIDTHS)):
                dtype = (torch.float32, torch.bfloat16)[(n + m) % 2]
                yield (
                    f"{name} D{D} {dtype}".replace("torch.", ""),
                    function,
                    torch.rand(N, D).to(dtype).requires_grad_(),
                )


def kernels():
    """Names of the kernels of the package."""
    import importlib
    import pkgutil

    from triton.runtime.jit import JITFunction

    from ugnn_fast import kernels

    modules = [importlib.import_module(f"ugnn_fast.kernels.{m.name}") for m in pkgutil.iter_modules(kernels.__path__)]
    names = {name for module in modules for name, value in vars(module).items() if isinstance(value, JITFunction)}
    return {name for name in names if name.endswith("_kernel")}


def compiled(targets):
    """{(kernel, variant): {target: compiled kernel}}; targets of one maker."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction
    from ugnn_fast.kernels import _launch

    import ugnn_fast as uf

    class Driver:
        """What Triton asks before it compiles; device n is target n."""

        device = 0

        def get_current_device(self):
            return self.device

        def get_current_stream(self, device):
            return 0

        def get_current_target(self):
            return GPUTarget(*TARGETS[targets[self.device]])

    run = JITFunction.run
    results: dict = {}
    call = ""

    def compile_only(self, *args, grid, warmup, **options):
        versions = []
        for Driver.device, target in enumerate(targets):
            given = {
                name: value for name, value in options.items() if name != "maxnreg" or TARGETS[target][0] == "cuda"
            }
            versions.append(run(self, *args, grid=grid, warmup=True, **given))
        hubs = "hubs" if options.get("HUBS") else "rows"
        known = [key for key in results if key[0] == self.__name__ and key[1].startswith(f"{call}, {hubs} ")]
        if all(results[key][targets[0]] is not versions[0] for key in known):
            key = (self.__name__, f"{call}, {hubs} {len(known) + 1}")
            results[key] = dict(zip(targets, versions, strict=True))

    # tensors of the CPU stand for those of a GPU
    backend = uf._backend
    backend._BACKENDS["triton"] = dataclasses.replace(backend._BACKENDS["triton"], runs=True, reason=None)
    backend._interpreting = lambda: True
    # what kernels would have computed is not there, and whoever looks at it shall see the same every time
    uf.functional.value_checks = lambda x: False
    torch.empty, torch.empty_like, torch.Tensor.new_empty = torch.ones, torch.ones_like, torch.Tensor.new_ones
    if TARGETS[targets[0]][0] == "hip":
        shipped = _launch.shipped_table()
        own = {("any", *key[1:]): config for key, config in shipped.items() if key[0] == "hip"}
        _launch.shipped_table = lambda: shipped | own
    driver.set_active(Driver())
    JITFunction.run = compile_only
    for name, function, x in calls():
        call = name
        out = function(x)
        if out.requires_grad:
            torch.autograd.backward(out, torch.ones_like(out))
    return results


def figures(kernel, target):
    """(registers, bytes of shared memory, spills) of a compiled kernel."""
    import triton

    if target.startswith("gfx"):
        text = kernel.asm["amdgcn"]
        registers, *spills = (int(re.search(rf"\.{name}:\s*(\d+)", text)[1]) for name in (
            "vgpr_count", "vgpr_spill_count", "sgpr_spill_count",
        ))  # fmt: skip
        return registers, kernel.metadata.shared, sum(spills)
    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [folder / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    # registers are spilled to the stack, and nothing else is there
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", text).groups())
    return registers, kernel.metadata.shared, stack


def resources(targets):
    """{(kernel, variant): {target: "registers/shared memory/spills"}}."""
    versions = compiled(targets)
    if missing := kernels() - {kernel for kernel, _ in versions}:
        sys.exit(f"no call here launches {', '.join(sorted(missing))}")
    return {
        key: {target: "/".join(map(str, figures(kernel, target))) for target, kernel in of.items()}
        for key, of in versions.items()
    }


def in_processes():
    """resources() of all targets, each process with some of them."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    rows: dict = {}
    with tempfile.TemporaryDirectory(prefix="ugnn-triton-") as cache:
        started = [
            subprocess.Popen(
                [sys.executable, __file__, *share], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**environment, "TRITON_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"},
            )
            for share in (("sm_80", "sm_90"), ("sm_100",), ("gfx942",))
        ]  # fmt: skip
        for process in started:
            out, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(errors[-4000:])
            for row in csv.DictReader(out.splitlines()):
                key = row.pop("kernel"), row.pop("variant")
                rows.setdefault(key, {}).update(row)
    return rows


def read(path=TABLE):
    with open(path, newline="") as file:
        return {(row.pop("kernel"), row.pop("variant")): row for row in csv.DictReader(file)}


def write(rows, file):
    """A line for each variant, `registers/bytes of shared memory/spills` for each target."""
    targets = [target for target in TARGETS if any(target in row for row in rows.values())]
    writer = csv.DictWriter(file, ("kernel", "variant", *targets), lineterminator="\n")
    writer.writeheader()
    for (kernel, variant), row in sorted(rows.items()):
        writer.writerow({"kernel": kernel, "variant": variant, **row})


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        rows = in_processes()
        with open(TABLE, "w", newline="") as table:
            write(rows, table)
    else:
        write(resources(sys.argv[1:]), sys.stdout)
