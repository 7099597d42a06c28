"""Launches of the CUDA kernels of ugnn_fast._C, which take the arguments of the Triton kernels of the same names."""

import os
from typing import Any

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
# position of the first table of rows among a kernel's arguments, whose type is that of all of them; 10 if not here
_TABLE = {
    **dict.fromkeys(("neighbor_var_bwd", "kept_degree", "local_smoothness", "sparse_linear"), 11),
    "sparse_dense": 2,
    **dict.fromkeys(("gat_aggregate_fwd", "gat_aggregate_bwd"), 16),
    **dict.fromkeys(("residual", "products", "update"), 0),
    "lengths": 4,
}


def _table(name: str, calls: list[tuple]) -> Tensor:
    return calls[0][_TABLE.get(name, 10)]


class Cuda:
    """The launchers of a native module, for tensors on a GPU."""

    def __init__(self, kernels: Any):
        self.kernels = kernels

    def launch(self, name: str, calls: list[tuple], together: bool = False) -> None:
        """Kernel `name` with calls[0], calls[1], ... in this order; together: in one launch."""
        device = _table(name, calls).device
        stream = torch.cuda.current_stream(device).cuda_stream
        self._run(name, device.index, stream, calls, together)

    def _run(self, name: str, device: int, stream: int, calls: list[tuple], together: bool) -> None:
        addresses = [tuple(a.data_ptr() if isinstance(a, Tensor) else a for a in call) for call in calls]
        dtype = DTYPES[_table(name, calls).dtype]
        getattr(self.kernels, name)(dtype, device, stream, addresses, together)

    def cache_bytes(self, device: torch.device) -> int:
        """Of the cache that all multiprocessors share."""
        return torch.cuda.get_device_properties(device).L2_cache_size

    def together(self, name: str, calls: list[tuple]) -> bool:
        """Whether one launch for all of them is better: if what they touch stays in the cache, launches take the time.

        UGNN_CUDA_STEPS=together or apart decides otherwise.
        """
        choice = os.environ.get("UGNN_CUDA_STEPS", "auto")
        if choice != "auto":
            return choice == "together"
        tensors = {(a.data_ptr(), a.nbytes) for call in calls for a in call if isinstance(a, Tensor)}
        return 2 * sum(size for _, size in tensors) <= self.cache_bytes(_table(name, calls).device)


class Batch:
    """Calls of one kernel that may run as one launch: collected while it is entered, launched when it is left."""

    def __init__(self, cuda: Cuda):
        self.cuda = cuda
        self.name = ""
        self.calls: list[tuple] = []

    def add(self, name: str, call: tuple) -> None:
        self.name = name
        self.calls.append(call)

    def __enter__(self) -> None:
        pass

    def __exit__(self, failed: Any, *_: Any) -> None:
        calls, self.calls = self.calls, []
        if failed is not None or not calls:
            return
        limit = self.cuda.kernels.MAX_CALLS
        for k in range(0, len(calls), limit):
            some = calls[k : k + limit]
            self.cuda.launch(self.name, some, len(some) > 1 and self.cuda.together(self.name, some))


_launchers: dict[str, Cuda] = {}  # by backend; tests add one of their own


def launcher(backend: str) -> Cuda:
    """That of a backend which runs CUDA kernels."""
    if backend not in _launchers:
        from ugnn_fast._native import native

        _launchers[backend] = Cuda(native.cuda)  # type: ignore[union-attr]
    return _launchers[backend]
