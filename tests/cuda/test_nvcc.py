"""nvcc compiles the kernels for all architectures: registers, the link, a module that loads without a driver."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
import pytest

from bench.cuda_registers import main_kernels, nvcc_version, read_ptxas
from tests.cuda.emulated import ROOT

ARCHS = ("80", "86", "90", "100", "120")
RECORDED = ROOT / "bench" / "results" / "cuda_registers.json"
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")


def run(*words, **options):
    done = subprocess.run(
        [str(word) for word in words], env={**os.environ, "PATH": PATH}, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the module, and what ptxas said."""
    folder = Path(os.environ.get("UGNN_NVCC_BUILD") or tmp_path_factory.mktemp("nvcc"))
    run(
        "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", "-DUGNN_ISAS=base", "-DUGNN_CUDA=ON", "-DUGNN_CUDA_REPORT=ON",
        f"-DUGNN_CUDA_ARCHS={';'.join(ARCHS)}", f"-DUGNN_OUTPUT_DIR={folder}/module",
    )  # fmt: skip
    text = run("cmake", "--build", folder)
    return folder, text


def test_registers(built):
    found = read_ptxas(built[1])
    assert {arch for arch, _ in found} == {f"sm_{arch}" for arch in ARCHS}
    spilling = [kernel for kernel, used in found.items() if used["spill"] or used["stack"]]
    assert not spilling
    assert all(found[kernel]["registers"] <= 64 for kernel in main_kernels(found))
    recorded = json.loads(RECORDED.read_text())
    # what has changed must be recorded: python -m bench.cuda_registers
    if recorded["nvcc"] == nvcc_version():
        assert {f"{arch} {name}": used["registers"] for (arch, name), used in found.items()} == recorded["registers"]


def test_nothing_is_missing_at_the_link(built, tmp_path):
    toolkit = run("nvcc", "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull).split("\n")
    (libraries,) = (line.partition("=")[2].replace('"', "").split() for line in toolkit if "LIBRARIES=" in line)
    run(
        "g++", "-shared", "-o", tmp_path / "all.so", "-Wl,-z,defs", "-Wl,--whole-archive", built[0] / "libugnn_cuda.a",
        "-Wl,--no-whole-archive", *libraries, "-lcudart_static", "-ldl", "-lrt", "-lpthread",
    )  # fmt: skip


def test_the_module_loads_without_a_driver(built):
    (module,) = (built[0] / "module").glob("_C*.so")
    # torch first: the module takes its OpenMP
    program = f"""
import importlib.util
import torch
spec = importlib.util.spec_from_file_location("_C", {str(module)!r})
m = importlib.util.module_from_spec(spec)
spec.loader.exec_module(m)
rows = (1, 1, 1, 1, 1, 0, 1, None, 0, 0)
try:
    m.cuda.edge_dot(0, 0, 0, [(*rows, 16, 16, 16, 4, 4)], False)
except RuntimeError as error:
    print(error)
try:
    m.cuda.edge_dot(0, 0, 0, [rows], False)
except ValueError as error:
    print(error)
"""
    if subprocess.run(["nvidia-smi"], capture_output=True).returncode if shutil.which("nvidia-smi") else True:
        first, second = run(sys.executable, "-c", program).strip().split("\n")
        assert first.startswith("CUDA error 35: CUDA driver version is insufficient") or "CUDA error 100" in first
        assert second == "too few arguments for this kernel"
