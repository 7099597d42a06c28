"""Which backends there are, which one a call takes, and why another one cannot."""

import importlib.util
import os
import warnings
from dataclasses import dataclass

import torch

from ugnn_fast import _native

# operators of the public API that have kernels; all of them exist in plain torch
OPS = (
    "ada_propagate",
    "ada_solve",
    "solve",
    "propagate",
    "neighbor_var",
    "neighbor_mean",
    "ada_c",
    "gat_aggregate",
    "local_smoothness",
    "denoising_energy",
    "drop_edges",
    "sparse_linear",
    "dropout",
    "dropout_linear",
)
_TRITON_OPS = tuple(op for op in OPS if op not in ("dropout", "dropout_linear"))
_DTYPES = {
    "cpu": (torch.float32, torch.float64, torch.bfloat16),
    "triton": (torch.float32, torch.float16, torch.bfloat16),
    "cuda": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
}
CUDA_OPS = (
    *("ada_propagate", "propagate", "neighbor_mean", "gat_aggregate", "solve", "ada_solve"),
    *("neighbor_var", "ada_c", "denoising_energy", "local_smoothness", "drop_edges", "sparse_linear"),
)


@dataclass(frozen=True)
class Backend:
    """One way to compute: is it built, does it run here, if not why, and which operators it has."""

    name: str
    built: bool
    runs: bool
    reason: str | None
    ops: tuple[str, ...]


def _all() -> dict[str, Backend]:
    native = _native.native is not None
    return {
        "reference": Backend("reference", True, True, None, OPS),
        "cpu": Backend("cpu", native, native, _native.reason, OPS if native else ()),
        "cuda": _cuda(),
        "triton": _triton(),
    }


def _cuda() -> Backend:
    if not hasattr(_native.native, "cuda"):
        missing = "the native module was built without CUDA kernels (UGNN_CUDA=1 builds them, with nvcc)"
        return Backend("cuda", False, False, missing, ())
    reason = None if torch.cuda.is_available() else "no GPU was found"
    return Backend("cuda", True, reason is None, reason, CUDA_OPS)


def _interpreting() -> bool:
    """Whether Triton kernels run in its interpreter, on tensors of the CPU; triton reads this when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def _triton() -> Backend:
    if importlib.util.find_spec("triton") is None:
        return Backend("triton", False, False, "triton is not installed", ())
    reason = None
    if not torch.cuda.is_available() and not _interpreting():
        reason = "no GPU was found (TRITON_INTERPRET=1 runs the kernels in Triton's interpreter)"
    return Backend("triton", True, reason is None, reason, _TRITON_OPS)


EMULATED = "cuda-emulated"  # CUDA kernels on the CPU: tests/cuda makes it a backend
_BACKENDS = _all()
_warned: set[tuple] = set()


def backends() -> dict[str, Backend]:
    """Backends by name."""
    return dict(_BACKENDS)


def choose(op: str, backend: str, x: torch.Tensor) -> str:
    """The backend that computes `op` on x: the one asked for, or the best one for its device and dtype."""
    device, dtype = x.device.type, x.dtype
    if backend == "auto":
        backend = "cpu" if device == "cpu" else "reference"
        if device == "cuda":
            backend = "triton" if _BACKENDS["triton"].runs else "cuda"
        if not _BACKENDS[backend].runs:
            return "reference"
    elif backend not in _BACKENDS:
        raise ValueError(f"backend must be auto or one of {', '.join(_BACKENDS)}, got {backend!r}")
    if backend == "reference":
        return backend
    info = _BACKENDS[backend]
    if not info.runs:
        raise RuntimeError(f"backend {backend} cannot run: {info.reason}")
    on_cpu = backend in ("cpu", EMULATED) or (backend == "triton" and _interpreting())
    wanted = "cpu" if on_cpu else "cuda"
    if device != wanted:
        raise RuntimeError(f"backend {backend} needs tensors on {wanted}, got {device}")
    if op not in info.ops:
        _warn_once((op, backend), f"{op}: backend {backend} does not have it, the reference computes it")
        return "reference"
    if dtype not in _DTYPES[backend.removesuffix("-emulated")]:
        _warn_once((op, backend, dtype), f"{op}: backend {backend} has no {dtype} kernel, the reference computes it")
        return "reference"
    return backend


def _warn_once(key: tuple, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, stacklevel=4)
