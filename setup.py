"""Builds ugnn_fast._C by CMake; everything about compiling is in CMakeLists.txt.

UGNN_NATIVE=0 leaves the native module out: the package then runs on its reference backend.
"""

import os
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        source = Path(__file__).resolve().parent
        out = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = source / "build" / f"cmake-{sys.implementation.cache_tag}"
        configure = [
            "cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DUGNN_OUTPUT_DIR={out}",
        ]  # fmt: skip
        subprocess.run([str(word) for word in configure], check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)


native = os.environ.get("UGNN_NATIVE", "1") != "0"
setup(
    ext_modules=[Extension("ugnn_fast._C", [])] if native else [],
    cmdclass={"build_ext": CMakeBuild},
)
