"""Builds ugnn_fast._C by CMake; everything about compiling is in CMakeLists.txt.

UGNN_NATIVE=0 leaves the native module out: the package then runs on its reference backend.
UGNN_CUDA=1 builds the CUDA kernels too (it needs nvcc, no GPU), 0 leaves them out; by default they are built where nvcc
and a GPU are found. UGNN_CUDA_ARCHS, such as "80 90", are the architectures: by default that of the GPU, or 90.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def gpu_architectures():
    """Of the GPUs of this machine, ascending: ["86"]; [] without one."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    found = subprocess.run(asked, capture_output=True, text=True)
    return sorted({line.strip().replace(".", "") for line in found.stdout.split("\n") if line.strip()}, key=int)


def cuda_options():
    """What CMake is told about CUDA kernels."""
    wanted = os.environ.get("UGNN_CUDA")
    if wanted == "0" or (wanted is None and shutil.which("nvcc") is None):
        return ["-DUGNN_CUDA=OFF"]
    own = gpu_architectures()
    if wanted is None and not own:
        return ["-DUGNN_CUDA=OFF"]
    archs = os.environ.get("UGNN_CUDA_ARCHS", "").split() or own or ["90"]
    return ["-DUGNN_CUDA=ON", f"-DUGNN_CUDA_ARCHS={';'.join(archs)}"]


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        source = Path(__file__).resolve().parent
        out = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = source / "build" / f"cmake-{sys.implementation.cache_tag}"
        configure = [
            "cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DUGNN_OUTPUT_DIR={out}", *cuda_options(),
        ]  # fmt: skip
        subprocess.run([str(word) for word in configure], check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)


native = os.environ.get("UGNN_NATIVE", "1") != "0"
setup(
    ext_modules=[Extension("ugnn_fast._C", [])] if native else [],
    cmdclass={"build_ext": CMakeBuild},
)
