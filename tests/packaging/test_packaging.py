"""What is packed: the list of packages, the sdist, the wheel built from it, an import from elsewhere."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules_on_disk():
    """Import path of every Python file of the package, with the directory kernels/ in its place."""
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ugnn_fast").rglob("*.py")}
    return files | {f"ugnn_fast/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "kernels").rglob("*.py")}


def test_listed_packages_are_those_on_disk():
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert listed == sorted(set(listed))
    assert set(listed) == {path.rpartition("/")[0].replace("/", ".") for path in modules_on_disk()}
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {"ugnn_fast.kernels": "kernels"}
    assert all(
        (ROOT / name.replace("ugnn_fast.kernels", "kernels").replace(".", "/") / "__init__.py").exists()
        for name in listed
    )


def test_version_is_the_same_everywhere():
    text = (ROOT / "ugnn_fast" / "__init__.py").read_text()
    assert re.search(r'__version__ = "(.*)"', text)[1] == PROJECT["project"]["version"]


def test_native_code_includes_no_torch():
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.is_file()]
    assert sources
    for path in sources:
        found = re.findall(r'^\s*#\s*include\s*[<"](?:torch|ATen|c10|caffe2)[/.].*', path.read_text(), re.MULTILINE)
        assert not found, (path, found)
    for path in (ROOT / "csrc" / "include").rglob("*"):
        assert path.is_dir() or not re.search(r"#\s*include\s*[<\"](?:pybind11|Python\.h)", path.read_text()), path


def test_only_kernels_import_triton():
    # the checked interpreter is a tool of tests and benches that nothing else imports
    for path in set((ROOT / "ugnn_fast").rglob("*.py")) - {ROOT / "ugnn_fast" / "_checked_interpreter.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "triton" for name in names), path


def run(*words, cwd, **environment):
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, unpacked. Made from a copy of the tree with a stale library in it."""
    copy, out = tmp_path_factory.mktemp("copy") / "tree", tmp_path_factory.mktemp("sdist")
    skip = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "results", "runs", "venv")
    shutil.copytree(ROOT, copy, ignore=skip)
    (copy / "ugnn_fast" / "_C.stale.so").write_bytes(b"left over")
    run("-c", f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})", cwd=copy)
    (archive,) = out.glob("*.tar.gz")
    assert archive.name == f"ugnn_fast-{PROJECT['project']['version']}.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")
    return out / archive.name.removesuffix(".tar.gz")


def make_wheel(sdist, out, **environment):
    """Builds as `pip install` does, in this environment, and unpacks; the directory to import from."""
    options = (
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--quiet",
        "--wheel-dir",
        str(out / "wheels"),
    )
    run("-m", "pip", "wheel", *options, str(sdist), cwd=out, **environment)
    (wheel,) = (out / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "site")
    return out / "site"


@pytest.fixture(scope="module")
def site(sdist, tmp_path_factory):
    """The wheel, unpacked; compiled as on a processor without AVX, which takes a third of the time."""
    out = tmp_path_factory.mktemp("wheel")
    toolchain = out / "portable.cmake"
    toolchain.write_text("set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR portable)\n")
    return make_wheel(sdist, out, CMAKE_TOOLCHAIN_FILE=str(toolchain))


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_sdist_has_what_a_build_needs(sdist):
    files = files_of(sdist)
    needed = {"pyproject.toml", "setup.py", "CMakeLists.txt", "README.md", "LICENSE", "kernels/__init__.py"}
    needed |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*") if path.is_file()}
    assert needed <= files, needed - files
    assert not [name for name in files if name.endswith((".so", ".o", ".pyc"))]


def test_wheel_has_the_whole_package_and_nothing_else(site):
    files = files_of(site)
    assert modules_on_disk() <= files, modules_on_disk() - files
    data_files = ("py.typed", "data/cora.npz", "data/citeseer.npz", "kernels/launch_table.json")
    assert {f"ugnn_fast/{name}" for name in data_files} <= files
    libraries = [name for name in files if name.endswith(".so")]
    assert len(libraries) == 1 and libraries[0].startswith("ugnn_fast/_C.") and "stale" not in libraries[0]
    tops = {name.partition("/")[0] for name in files}
    assert tops == {"ugnn_fast", f"ugnn_fast-{PROJECT['project']['version']}.dist-info"}
    data = sum((site / name).stat().st_size for name in files if name.endswith(".npz"))
    assert data < 500_000


def test_wheel_holds_no_path_of_this_machine(site, sdist):
    places = {str(ROOT), str(sdist), str(sdist.parent), str(Path.home()), sys.prefix} - {"/", "/root"}
    for name in files_of(site):
        content = (site / name).read_bytes()
        found = [place for place in places if place.encode() in content]
        assert not found, (name, found)


IMPORT = """
import sys
from pathlib import Path
import torch
import ugnn_fast as uf
import ugnn_fast.kernels, ugnn_fast.nn, ugnn_fast.experiments

site = Path({site!r})
for module in (uf, ugnn_fast.kernels, ugnn_fast.nn):
    assert site in Path(module.__file__).parents, module.__file__
assert not any(name.startswith("ugnn_fast.kernels.") for name in sys.modules)
g = uf.datasets.load("cora").graph
h = uf.ada_propagate(g, torch.ones(g.num_nodes, 7), 1.0, 10)
assert h.isfinite().all()
print(uf.backends()["cpu"].runs, uf._native.native and uf._native.native.isa())
"""


def import_from(site, empty, **environment):
    # -S: an editable install of this package must not fill what the wheel lacks
    path = os.pathsep.join([str(site), str(Path(torch.__file__).parents[1])])
    code = textwrap.dedent(IMPORT.format(site=str(site)))
    return run("-S", "-c", code, cwd=empty, PYTHONPATH=path, **environment)


def test_wheel_runs_from_an_empty_directory(site, tmp_path):
    assert import_from(site, tmp_path, UGNN_NATIVE="1").split() == ["True", "base"]


def test_wheel_has_the_command(site):
    (points,) = site.glob("*.dist-info/entry_points.txt")
    assert "ugnn-fast = ugnn_fast.cli:main" in points.read_text()


def test_wheel_without_native_module(sdist, tmp_path):
    site = make_wheel(sdist, tmp_path, UGNN_NATIVE="0")
    assert not [name for name in files_of(site) if name.endswith(".so")]
    assert import_from(site, tmp_path, UGNN_NATIVE="1").split() == ["False", "None"]
