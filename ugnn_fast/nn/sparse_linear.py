"""A linear layer with dropout on its input, which may be sparse: the first layer of the models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ugnn_fast import ops
from ugnn_fast._backend import choose
from ugnn_fast._checks import check_share, check_size, shape
from ugnn_fast._random import draw_seeds
from ugnn_fast._sparse import sparse_features
from ugnn_fast.dropping import dropout_linear
from ugnn_fast.functional import sparse_linear

# Share of stored entries from which x is made dense, with its mask, in every call, for torch's matrix product.
# From a sweep on one thread, which `python -m bench.density` repeats (AMD EPYC 9004, avx512, 2026-11):
# both take the same time at 0.57 to 0.88 for 64 columns, 0.58 to 0.7 for 16, 0.4 to 0.75 for 256, masked or not.
DENSE_FROM = 0.6


class SparseLinear(nn.Module):
    """dropout(x) @ weight + bias, for x [N, in_features] dense or torch sparse CSR.

    Returns [N, out_features]; with replicas=R, R layers side by side with weights and masks of their own,
    [N, R, out_features], for which a dense x may also be [N, R, in_features]. weight: [in, out] or [R, in, out].
    Dropout in training mode only; its masks come from torch's default generator. A sparse x gets no gradient.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        replicas: int | None = None,
    ):
        super().__init__()
        self.in_features = check_size(in_features, "in_features")
        self.out_features = check_size(out_features, "out_features")
        self.dropout = check_share(dropout, "dropout")
        self.replicas = None if replicas is None else check_size(replicas, "replicas")
        lead = () if replicas is None else (replicas,)
        self.weight = nn.Parameter(torch.empty(*lead, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(*lead, out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew, uniform in +-1/sqrt(in_features) like torch.nn.Linear."""
        for parameter in self.parameters():
            init_uniform(parameter, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        check_input(x, self.in_features, self.weight.dtype, replicas=self.replicas)
        return self.product(x, self.dropout if self.training else 0.0)

    def product(self, x: Tensor, p: float, *, relu: bool = False) -> Tensor:
        """The layer on a checked x, with dropout p whatever the mode; relu: of x, which is dense then, before it."""
        if x.layout is torch.sparse_csr:
            backend = None if self.replicas is not None else _dense_backend(x, self.weight)
            if backend is None:
                return sparse_linear(x, self.weight, self.bias, dropout=p)
            seed = None if p == 0 else draw_seeds(1, x.device)
            x, p = ops.sparse_dense((), *sparse_features(x)[:3], self.in_features, p, seed, backend), 0.0
        elif self.replicas is not None and x.dim() == 2:
            x = x.unsqueeze(1).expand(-1, self.replicas, -1)
        return dropout_linear(x, self.weight, self.bias, relu=relu, dropout=p)

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        return f"{self.in_features}, {self.out_features}{bias}, dropout={self.dropout:g}{replicas}"


def _dense_backend(x: Tensor, weight: Tensor) -> str | None:
    """The backend that makes x dense, if that is faster than the sparse product."""
    if x._nnz() <= DENSE_FROM * x.shape[0] * x.shape[1]:
        return None
    chosen = choose("sparse_linear", "auto", weight)
    return None if chosen == "reference" else chosen


def check_input(
    x: Any, in_features: int, dtype: torch.dtype, *, rows: int | None = None, replicas: int | None = None
) -> None:
    """x is [N, in_features], dense or sparse CSR, or a dense [N, replicas, in_features], of the parameters' dtype."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.layout not in (torch.strided, torch.sparse_csr):
        raise TypeError(f"x must be dense or torch sparse CSR, got {x.layout}")
    several = replicas is not None and x.layout is torch.strided and x.dim() == 3
    if (
        x.dim() != 2 + several
        or x.shape[-1] != in_features
        or (rows is not None and x.shape[0] != rows)
        or (several and x.shape[1] != replicas)
    ):
        expected = f"[N, in_features] = [{'N' if rows is None else rows}, {in_features}]"
        raise ValueError(f"x must be {expected}, got {shape(x)}")
    if x.dtype != dtype:
        raise TypeError(f"x must be {dtype} like the parameters, got {x.dtype}")
    if x.layout is torch.sparse_csr and x.requires_grad:
        raise ValueError("x must not require grad when it is sparse: its gradient is not offered")


def init_uniform(parameter: Tensor, inputs: int) -> None:
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        parameter.uniform_(-bound, bound)
