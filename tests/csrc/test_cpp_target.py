"""The installed library ugnn::kernels: configured without Python, installed, found and used by a program of its own."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


# cmake and ninja may come from the package index
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def run(*words, **environment):
    environment = {**os.environ, "PATH": PATH, **environment}
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Where the library is installed; compiled for one instruction set, which takes a third of the time."""
    if not all(shutil.which(tool, path=PATH) for tool in ("cmake", "ninja")):
        pytest.skip("cmake or ninja is not there")
    build, prefix = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("prefix")
    # a Python that does not exist: nothing may look for it
    options = ("-DUGNN_PYTHON=OFF", "-DUGNN_ISAS=base", f"-DPython_EXECUTABLE={build}/none")
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options)
    run("cmake", "--build", build)
    run("cmake", "--install", build, "--prefix", prefix)
    return prefix


@pytest.fixture(scope="module")
def programs(prefix, tmp_path_factory):
    """The folder with the programs, built from copies that cannot see the source tree."""
    source, build = tmp_path_factory.mktemp("client"), tmp_path_factory.mktemp("client_build")
    for name in ("CMakeLists.txt", "check_kernels.cpp"):
        shutil.copy(HERE / name, source)
    (snippet,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs" / "backend.md").read_text(), re.DOTALL)
    (source / "snippet.cpp").write_text(snippet)
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    return build


def test_headers_are_all_installed(prefix):
    expected = {path.name for path in (ROOT / "csrc" / "include" / "ugnn").glob("*.h")}
    assert {path.name for path in (prefix / "include" / "ugnn").iterdir()} == expected
    (library,) = prefix.glob("lib*/libugnn_kernels.a")
    assert b"pybind11" not in library.read_bytes()


def test_propagation_is_that_of_dense_loops(programs):
    assert run(programs / "check_kernels", UGNN_ISA="") == "base: 0 errors\n"


def test_the_snippet_of_the_documentation_runs(programs):
    # APPNP with alpha = 1/2 on the path 0 - 1 - 2, x = 1, 0, 0: two steps by hand
    found = [float(word) for word in run(programs / "snippet").split()]
    s01 = 1 / 6**0.5
    first = [0.5 + 0.5 * 0.5, 0.5 * s01, 0.0]
    second = [
        0.5 + 0.5 * (0.5 * first[0] + s01 * first[1]),
        0.5 * (s01 * first[0] + first[1] / 3),
        0.5 * s01 * first[1],
    ]
    assert found == pytest.approx(second, abs=1e-5)
