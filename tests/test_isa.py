"""Every instruction set that this machine can run gives the same results, on memory full of garbage."""

import os
import subprocess
import sys
import textwrap

import pytest

from ugnn_fast._native import native

ISAS = ("base", "avx2", "avx512")

# every width up to more than one slice, in all types and weightings, against the reference in float64
PROGRAM = """
import torch, ugnn_fast as uf
from ugnn_fast._native import native
from ugnn_fast.ops import _native_call
from ugnn_fast.testing import sample_graphs

_native_call.NEAR_BYTES = 0  # else tables of bfloat16 x would be floats

assert native.isa() == "{isa}", native.isa()
graphs = sample_graphs()
torch.manual_seed(0)

def outcome(function, leaves, backend):
    leaves = [t.clone().requires_grad_() for t in leaves]
    out = function(*leaves, backend=backend)
    return out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))

def compare(name, dtype, function, *leaves):
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}[dtype]
    exact = [t.double() for t in leaves]
    for got, expected in zip(outcome(function, leaves, "cpu"), outcome(function, exact, "reference")):
        scale = 1 + expected.abs().max().item()
        error = (got.double() - expected).abs().max().item() if got.numel() else 0.0
        assert error <= tolerance * scale, f"{name} {dtype} {leaves[0].shape}: {error} of {scale}"

def tol_of(x):
    return 1e-13 if x.dtype == torch.float64 else 1e-6

def all_operators(g, D, dtype):
    N = g.num_nodes
    number = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn(N, D).to(dtype)
    c, value = torch.rand(N).to(number), torch.rand(g.num_edges).to(number)
    weight = torch.randn(D).to(number) / D
    compare("ada_propagate", dtype, lambda x, c, **o: uf.ada_propagate(g, x, c, 3, **o), x, c)
    compare("constant c", dtype, lambda x, **o: uf.ada_propagate(g, x, 0.7, 2, **o), x)
    compare("propagate", dtype, lambda x, c, **o: uf.propagate(g, x, 3, c=c, keep=0.3, prev=0.2, **o), x, c)
    compare("edge_value", dtype, lambda x, v, **o: uf.propagate(g, x, 2, edge_value=v, **o), x, value)
    same = (value + value[g.reverse]) / 2
    compare("solve", dtype, lambda x, v, **o: uf.solve(g, x, 2.0, edge_value=v, tol=tol_of(x), **o), x, same)
    compare("ada_solve", dtype, lambda x, c, **o: uf.ada_solve(g, x, c, tol=tol_of(x), **o), x, c)
    compare("neighbor_var", dtype, lambda x, **o: uf.neighbor_var(g, x, **o), x)
    compare("ada_c", dtype, lambda x, w, **o: uf.ada_c(g, x, w, 3.0, **o), x, weight)
    heads = x.reshape(N, 1, D).tile(1, 3, 1)
    scores = torch.randn(2, N, 3).to(number)
    gat = lambda x, src, dst, **o: uf.gat_aggregate(g, x, src, dst, dropout=0.3, seed=D, **o)
    compare("gat_aggregate", dtype, gat, heads, *scores)
    compare("dropout", dtype, lambda x, **o: uf.dropout(x, 0.4, seed=D, **o), x)
    table, bias = torch.randn(D, 1 + D % 33).to(dtype), torch.randn(1 + D % 33).to(dtype)
    layer = lambda x, w, b, **o: uf.dropout_linear(x, w, b, relu=True, dropout=0.4, seed=D, **o)
    compare("dropout_linear", dtype, layer, x, table, bias)
    compare("energy", dtype, lambda x, c, **o: uf.denoising_energy(g, x, 0 * x, c, **o), x, c)

def sparse_linear(D, dtype, dense):
    x, exact = dense.to(dtype).to_sparse_csr(), dense.to(dtype).double().to_sparse_csr()
    weight, bias = torch.randn(2, dense.shape[1], D).to(dtype), torch.randn(2, D).to(dtype)
    for options in ({}, {"dropout": 0.4, "seed": [1, 2**63]}):
        def function(weight, bias, backend):
            return uf.sparse_linear(x if backend == "cpu" else exact, weight, bias, backend=backend, **options)
        compare("sparse_linear", dtype, function, weight, bias)

words = torch.randn(40, 60) * (torch.rand(40, 60) < 0.3)
for D in range(1, 71):
    dtype = (torch.float32, torch.bfloat16, torch.float32, torch.float64)[D % 4]
    sparse_linear(D, dtype, words)
    for name in ("weighted_no_self_loops", "power_law"):
        all_operators(graphs[name], D, dtype)
    if D in (1, 2, 4, 9, 12, 16, 24, 33):
        all_operators(graphs["two_components"], D, torch.float32)
        all_operators(graphs["two_components"], D, torch.bfloat16)
for D in (1, 3, 16):
    all_operators(graphs["weighted_hub"], D, torch.float32)
    sparse_linear(D, torch.float32, torch.randn(3, 9000))
labels = torch.randint(-1, 3, (graphs["power_law"].num_nodes,))
got = uf.local_smoothness(graphs["power_law"], labels)
expected = uf.local_smoothness(graphs["power_law"], labels, backend="reference")
assert torch.equal(got.nan_to_num(-1), expected.nan_to_num(-1))
print("done")
"""


# inputs that end where a page begins that may not be touched, with every width
AT_THE_EDGE = """
import ctypes, mmap
import torch, ugnn_fast as uf
from ugnn_fast import ops
from ugnn_fast.ops import _native_call
from ugnn_fast.testing import sample_graphs

_native_call.NEAR_BYTES = 0  # else tables of bfloat16 x would be floats

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def at_the_edge(values):
    size = values.numel() * values.element_size()
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    base = libc.mmap(None, room + mmap.PAGESIZE, 3, 0x22, -1, 0)  # to read and write, private, anonymous
    assert base and libc.mprotect(base + room, mmap.PAGESIZE, 0) == 0
    memory = (ctypes.c_char * size).from_address(base + room - size)
    return torch.frombuffer(memory, dtype=values.dtype).view(values.shape).copy_(values)

for name in ("chain", "weighted_no_self_loops"):
    g = sample_graphs()[name]
    N, E = g.num_nodes, g.num_edges
    for D in range(1, 71):
        dtype = (torch.float32, torch.bfloat16, torch.float32, torch.float64)[D % 4]
        number = torch.float64 if dtype == torch.float64 else torch.float32
        x, cotangent = (at_the_edge(torch.rand(N, D).to(dtype)) for _ in range(2))
        c, value, weight = (at_the_edge(torch.rand(size).to(number)) for size in (N, E, D))
        for leaf in (x, c, value, weight):
            leaf.requires_grad_()
        for out in (
            uf.ada_propagate(g, x, c, 2), uf.ada_propagate(g, x, 0.5, 2), uf.propagate(g, x, 1, norm="none"),
            uf.propagate(g, x, 2, c=c, keep=0.5), uf.propagate(g, x, 2, edge_value=value), uf.neighbor_var(g, x),
            uf.solve(g, x, 3 + c, edge_value=value + value[g.reverse]), uf.ada_solve(g, x, c),
        ):
            out.backward(cotangent)
        uf.ada_c(g, x, weight, 1.0).sum().backward()
        H = 1 + D % 9
        heads, src, dst = (at_the_edge(torch.rand(shape).to(t)) for shape, t in (
            ((N, H, D), dtype), ((N, H), number), ((N, H), number)))
        for leaf in (heads, src, dst):
            leaf.requires_grad_()
        uf.gat_aggregate(g, heads, src, dst, dropout=0.3, seed=1).sum().backward()
        entries = at_the_edge(g.rowptr), at_the_edge(g.col), at_the_edge(torch.ones(E).to(dtype))
        seed = at_the_edge(torch.tensor([3]))
        for chance in ((0.0, None), (0.5, seed)):
            ops.sparse_linear((*entries, g.col[:0], []) * 2, x, x[0], *chance, "cpu").backward(cotangent)
            ops.sparse_dense((), *entries, N, *chance, "cpu")
        table, bias = (at_the_edge(torch.rand(shape).to(dtype)) for shape in ((D, H), (H,)))
        for relu, chance in ((False, 0.0), (True, 0.3)):
            uf.dropout_linear(x, table.requires_grad_(), bias, relu=relu, dropout=chance, seed=seed).sum().backward()
        uf.dropout(x, 0.4, seed=seed).backward(cotangent)
        uf.denoising_energy(g, x, x.detach(), c).backward()
print("done")
"""


def run_program(code, **environment):
    # glibc fills what malloc returns, and what is freed, with these bytes: 3e38 in float32 and bfloat16
    environment = {**os.environ, "MALLOC_PERTURB_": str(0xFF ^ 0x7F), "OMP_NUM_THREADS": "2", **environment}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("program", (PROGRAM, AT_THE_EDGE), ids=("results", "inputs_at_the_edge_of_memory"))
def test_instruction_set(program, isa, cpu):
    run = run_program(program.replace("{isa}", isa), UGNN_ISA=isa)
    if f"run on this CPU, got {isa}" in run.stderr:
        pytest.skip(f"this CPU does not run {isa}")
    assert run.returncode == 0 and "done" in run.stdout, run.stderr[-3000:]


def test_base_always_runs(cpu):
    run = run_program("from ugnn_fast._native import native; print(native.isa())", UGNN_ISA="base")
    assert run.stdout.split() == ["base"], run.stderr


@pytest.mark.parametrize("name", ("nonsense", "AVX2"))
def test_unknown_instruction_set(name, cpu):
    code = """
    import torch, ugnn_fast as uf
    g = uf.Graph.from_edge_index([[0], [1]], 2, symmetrize=True)
    uf.ada_propagate(g, torch.ones(2, 3), 1.0, 2)
    """
    run = run_program(code, UGNN_ISA=name)
    assert run.returncode == 1, run.stderr
    assert f"UGNN_ISA must be base, avx2 or avx512 and run on this CPU, got {name}" in run.stderr


def test_the_fastest_one_is_chosen(cpu):
    # the empty value is as good as none
    run = run_program("from ugnn_fast._native import native; print(native.isa())", UGNN_ISA="")
    with open("/proc/cpuinfo") as file:
        flags = set(next((line for line in file if line.startswith("flags")), "").split())
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma"} <= flags:
        expected = "avx512"
    else:
        expected = "avx2" if {"avx2", "fma"} <= flags else "base"
    assert run.stdout.split() == [expected], run.stderr
    assert native.isa() in ISAS
