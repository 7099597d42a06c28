"""The package, and the module with CUDA kernels in it, under other versions of torch: neither is built for one of them.

    python scripts/test_torch_versions.py 2.10.0 2.15.0 --module build/nvcc/module/_C.cpython-311-x86_64-linux-gnu.so

Each version gets a virtual environment in build/torch, which takes gigabytes where torch is built for CUDA. There the
CPU kernels are compared with the reference, gradients too, and the module is loaded without a driver: a launch raises.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# each in a process of its own: the second module has the same names as that of the package
PACKAGE = """
import torch

import ugnn_fast as uf

g = uf.datasets.load("cora").graph
torch.manual_seed(0)
x, c = torch.randn(g.num_nodes, 7, requires_grad=True), torch.rand(g.num_nodes, requires_grad=True)
results = []
for backend in ("cpu", "reference"):
    h = uf.ada_propagate(g, x, c, 10, backend=backend)
    results.append([h, *torch.autograd.grad(h.square().sum(), (x, c))])
for a, b in zip(*results):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
print(f"torch {torch.__version__} (CUDA {torch.version.cuda}): the CPU kernels agree with the reference")
"""
MODULE = """
import importlib.util
import sys

import torch

spec = importlib.util.spec_from_file_location("_C", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
rows = (1, 1, 1, 1, 1, 0, 1, None, 0, 0)
try:
    module.cuda.edge_dot(0, 0, 0, [(*rows, 16, 16, 16, 4, 4)], False)
except RuntimeError as error:
    print(f"torch {torch.__version__}: the module loads, a launch raises: {error}")
else:
    sys.exit("a launch without a device must raise")
"""


def python_with(version):
    """The interpreter of an environment with this torch."""
    folder = ROOT / "build/torch" / version
    python = folder / "bin/python"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"torch=={version}", "numpy"], check=True)
        (folder / "done").touch()
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="of torch, as pip knows it")
    parser.add_argument("--module", type=Path, help="an _C with CUDA kernels, as tests/cuda/test_nvcc.py builds it")
    options = parser.parse_args()
    programs = [[PACKAGE]]
    if options.module is not None:
        programs.append([MODULE, options.module.resolve(strict=True)])
    failed = [
        version
        for version in options.versions
        for program in programs
        if subprocess.run([python_with(version), "-c", *program], cwd=ROOT).returncode
    ]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
