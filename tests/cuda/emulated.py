"""The CUDA kernels on the emulator: builds the module, and is the launcher of backend "cuda-emulated"."""

import fcntl
import importlib.util
import inspect
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pybind11
from torch import Tensor

from ugnn_fast import _backend, kernels
from ugnn_fast.device import _cuda

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KIND = os.environ.get("UGNN_EMULATED", "plain")  # of the build: plain, asan or traced
# cmake and ninja may come from the package index
_PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def build(
    kind: str, name: str = "ugnn_emulated", csrc: Path = ROOT / "csrc", folder: Path = ROOT / "build" / "emulated"
) -> Path:
    """The module of the kernels in `csrc` as a file; kind: plain, asan or traced."""
    folder = folder / kind
    configure = [
        "cmake", "-S", HERE, "-B", folder, "-G", "Ninja", f"-DUGNN_CSRC={csrc}", f"-DUGNN_BUILDS={kind}",
        f"-DUGNN_NAME={name}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
    ]  # fmt: skip
    # the compiler needs no sanitizer
    environment = {**os.environ, "PATH": _PATH, "LD_PRELOAD": ""}
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of tests begin at once
        for words in (configure, ["cmake", "--build", folder]):
            done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stdout[-4000:] + done.stderr[-4000:])
    (module,) = folder.glob(f"{name}_{kind}.*.so")
    return module


def asan_environment() -> dict[str, str]:
    """For a process that loads the asan module: its library must come first."""
    library = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    # Python does not free all that it has at exit
    return {
        **os.environ,
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(ROOT),
    }


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.name.partition(".")[0], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Emulated(_cuda.Cuda):
    """Launches on the emulator, for tensors on the CPU. In a traced build every launch is checked."""

    def __init__(self, module: ModuleType):
        super().__init__(module.cuda)
        self.module: Any = module
        self.traced = hasattr(module, "traffic")
        self.launches: list[tuple[str, int, bool]] = []  # kernel, calls, whether they were one launch

    def launch(self, name: str, calls: list[tuple], together: bool = False) -> None:
        self.launches.append((name, len(calls), together))
        if self.traced:
            self.module.clear()
            for argument, tensor in self._tensors(name, calls):
                self.module.add_buffer(tensor.data_ptr(), tensor.nbytes, argument)
        self._run(name, 0, 0, calls, together)
        if self.traced:
            errors = self.module.errors()
            if errors:
                raise RuntimeError(f"{name}: " + "; ".join(errors))

    @staticmethod
    def _tensors(name: str, calls: list[tuple]) -> list[tuple[str, Tensor]]:
        """The tensors of all calls, with the names that they have in the Triton kernel."""
        parameters = inspect.signature(kernels.kernel(name).fn).parameters
        names = [parameter.removesuffix("_ptr") for parameter in parameters]
        return [
            (argument, value)
            for call in calls
            for argument, value in zip(names, call, strict=False)
            if isinstance(value, Tensor)
        ]

    def cache_bytes(self, device: Any) -> int:
        return 1 << 20


def install(emulated: Emulated) -> None:
    """Makes "cuda-emulated" a backend."""
    _cuda._launchers[_backend.EMULATED] = emulated
    _backend._BACKENDS[_backend.EMULATED] = _backend.Backend(_backend.EMULATED, True, True, None, _backend.CUDA_OPS)


def uninstall() -> None:
    del _cuda._launchers[_backend.EMULATED]
    del _backend._BACKENDS[_backend.EMULATED]
