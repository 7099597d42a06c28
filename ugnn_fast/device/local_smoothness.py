"""The share of a node's labelled neighbours that carry its label."""

import torch
from torch import Tensor

from ugnn_fast.device._rows import Rows


def local_smoothness(graph: tuple, labels: Tensor, backend: str) -> Tensor:
    """Body of ugnn::local_smoothness."""
    rowptr, col = graph[:2]
    *_, plan, plan_sizes, drop_seed, keep_from = graph
    rows = Rows(rowptr, plan, plan_sizes, backend)
    out = torch.empty(labels.shape, dtype=torch.float32, device=labels.device)
    config, _ = rows.blocks(1, labels.dtype)
    rows.launch(
        "local_smoothness", 1, config, col, drop_seed, keep_from, labels.contiguous(),
        rows.partial(2, 1, torch.int32), out, DROP=keep_from > 0,
    )  # fmt: skip
    return out
