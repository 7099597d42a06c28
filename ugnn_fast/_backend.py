"""Which backends there are, which one a call takes, and why another one cannot."""

import warnings
from dataclasses import dataclass

import torch

from ugnn_fast import _native

# operators of the public API that have kernels; all of them exist in plain torch
OPS = (
    "ada_propagate",
    "propagate",
    "neighbor_var",
    "neighbor_mean",
    "ada_c",
    "local_smoothness",
    "denoising_energy",
    "sparse_linear",
)
_CPU_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


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
    later = "this version has no {} kernels"
    return {
        "reference": Backend("reference", True, True, None, OPS),
        "cpu": Backend("cpu", native, native, _native.reason, OPS if native else ()),
        "cuda": Backend("cuda", False, False, later.format("CUDA"), ()),
        "triton": Backend("triton", False, False, later.format("Triton"), ()),
    }


_BACKENDS = _all()
_warned: set[tuple] = set()


def backends() -> dict[str, Backend]:
    """Backends by name."""
    return dict(_BACKENDS)


def choose(op: str, backend: str, x: torch.Tensor) -> str:
    """The backend that computes `op` on x: the one asked for, or the best one for its device and dtype."""
    device, dtype = x.device.type, x.dtype
    if backend == "auto":
        if device == "cpu" and _BACKENDS["cpu"].runs:
            if dtype in _CPU_DTYPES:
                return "cpu"
            _warn_once((op, "cpu", dtype), f"{op}: the cpu backend has no {dtype} kernel, the reference computes it")
        return "reference"
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be auto or one of {', '.join(_BACKENDS)}, got {backend!r}")
    if backend == "reference":
        return backend
    info = _BACKENDS[backend]
    if not info.runs:
        raise RuntimeError(f"backend {backend} cannot run: {info.reason}")
    if device != "cpu":
        raise RuntimeError(f"backend cpu needs tensors on the CPU, got {device}")
    if dtype not in _CPU_DTYPES:
        _warn_once((op, backend, dtype), f"{op}: backend {backend} has no {dtype} kernel, the reference computes it")
        return "reference"
    return backend


def _warn_once(key: tuple, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, stacklevel=4)
