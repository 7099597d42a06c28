"""`import ugnn_fast` in a fresh process: with and without the native module, and what it does not import."""

import dataclasses
import os
import subprocess
import sys
import textwrap
import types

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _backend


def run_python(code, **environment):
    """Standard output of a program; it must succeed without a word on standard error."""
    environment = {**os.environ, "PYTHONWARNINGS": "error::UserWarning", **environment}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


# the native module is not there
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "ugnn_fast._C":
            raise ImportError("No module named 'ugnn_fast._C'")

sys.meta_path.insert(0, Hidden())
"""

COMPUTE = """
import torch, ugnn_fast as uf
info = uf.backends()["cpu"]
assert not info.built and not info.runs and info.ops == (), info
assert uf.backends()["reference"].runs and "ada_propagate" in uf.backends()["reference"].ops
g = uf.Graph.from_edge_index([[0, 1, 1], [1, 2, 2]], 4, symmetrize=True)
assert g.num_edges == 8 and g.reverse.shape == (8,)
x = torch.tensor([[1.0], [2.0], [4.0], [8.0]], requires_grad=True)
c = torch.ones(4, requires_grad=True)
h = uf.ada_propagate(g, x, c, 1)
d = [2, 3, 2, 1]
for i, neighbours in enumerate(([0, 1], [0, 1, 2], [1, 2], [3])):
    expected = (2 * x[i] + sum(2 * x[j] / (d[i] * d[j]) ** 0.5 for j in neighbours)) / 4
    assert (h[i] - expected).abs() < 1e-6, (i, h[i], expected)
h.sum().backward()
for function in (uf.neighbor_var, uf.neighbor_mean):
    assert function(g, x).shape == x.shape
assert uf.ada_c(g, x, torch.ones(1), 2.0).shape == (4,)
assert uf.gat_aggregate(g, x[:, None], x, x, dropout=0.5, seed=1).shape == (4, 1, 1)
assert uf.propagate(g, x, 2, out="all").shape == (3, 4, 1)
assert uf.denoising_energy(g, x, x, c).item() > 0
assert uf.local_smoothness(g, torch.tensor([0, 0, 1, 1]))[1] == 0.5
try:
    uf.ada_propagate(g, x, c, 1, backend="cpu")
except RuntimeError as error:
    assert info.reason in str(error), error
else:
    raise AssertionError("backend cpu ran without the native module")
print(info.reason)
"""


def test_switched_off():
    assert "UGNN_NATIVE=0" in run_python(COMPUTE, UGNN_NATIVE="0")


def test_not_built():
    reason = run_python(HIDE + COMPUTE, UGNN_NATIVE="1")
    assert "not built" in reason and "No module named 'ugnn_fast._C'" in reason and "pip install" in reason


def test_broken_library_is_reported_not_raised(tmp_path):
    code = """
    import importlib.machinery, importlib.util, sys

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "ugnn_fast._C":
                loader = importlib.machinery.ExtensionFileLoader(name, PATH)
                return importlib.util.spec_from_file_location(name, PATH, loader=loader)

    sys.meta_path.insert(0, Broken())
    """
    broken = tmp_path / "_C.so"
    broken.write_bytes(b"not a library")
    reason = run_python(f"PATH = {str(broken)!r}\n" + textwrap.dedent(code) + COMPUTE, UGNN_NATIVE="1")
    assert "invalid ELF header" in reason or "too short" in reason


def test_built(cpu):
    code = """
    import ugnn_fast as uf
    info = uf.backends()["cpu"]
    assert info.built and info.runs and info.reason is None
    assert set(info.ops) == set(uf.backends()["reference"].ops)
    """
    run_python(code)


@pytest.mark.parametrize(
    ("run", "wanted"), ((("triton", "cuda"), "triton"), (("cuda",), "cuda"), (("triton",), "triton"), ((), "reference"))
)
def test_auto_on_a_gpu(run, wanted, monkeypatch):
    found = {
        name: dataclasses.replace(info, runs=name in run, ops=_backend.CUDA_OPS) for name, info in uf.backends().items()
    }
    monkeypatch.setattr(_backend, "_BACKENDS", found)
    x = types.SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32)
    assert _backend.choose("propagate", "auto", x) == wanted


def test_nothing_heavy_is_imported():
    code = """
    import sys
    import torch
    before = set(sys.modules)
    import ugnn_fast
    extra = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(*sorted(extra), *(name for name in sys.modules if name.startswith("ugnn_fast.kernels.")))
    """
    extra = set(run_python(code).split())
    # torch may import triton by itself
    assert not any(name.startswith("ugnn_fast.kernels.") for name in extra)
    assert not extra & {
        "scipy",
        "matplotlib",
        "networkx",
        "tqdm",
        "pandas",
        "torch_geometric",
        "dgl",
    }
    assert "ugnn_fast" in extra


def test_optional_packages_may_be_missing():
    code = """
    import sys
    for missing in ("scipy", "matplotlib", "tqdm", "networkx", "triton"):
        sys.modules[missing] = None
    import ugnn_fast as uf
    import torch
    g = uf.datasets.load("cora").graph
    assert uf.ada_propagate(g, torch.ones(g.num_nodes, 2), 1.0, 2).isfinite().all()
    """
    run_python(code)


def test_all_public_names_of_the_operators_exist():
    import ugnn_fast as uf

    assert set(uf.__all__) >= {
        "Backend", "Graph", "ada_c", "ada_propagate", "backends", "denoising_energy", "gat_aggregate",
        "local_smoothness", "neighbor_mean", "neighbor_var", "propagate", "set_checks",
    }  # fmt: skip
    for name in uf.__all__:
        assert getattr(uf, name).__doc__ or name == "__version__"
    assert uf.backends().keys() == {"reference", "cpu", "cuda", "triton"}
    for name, info in uf.backends().items():
        assert info.name == name and (info.reason is None) == info.runs
