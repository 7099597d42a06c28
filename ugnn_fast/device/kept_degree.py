"""The degrees of a graph, or of what DropEdge leaves of it."""

import torch
from torch import Tensor

from ugnn_fast.device._rows import Rows


def kept_degree(graph: tuple, degree: Tensor, backend: str) -> None:
    """Fills degree [N], float32 or float64."""
    rowptr, col, weight = graph[:3]
    *_, plan, plan_sizes, drop_seed, keep_from = graph
    rows = Rows(rowptr, plan, plan_sizes, backend)
    config, _ = rows.blocks(1, torch.float64)
    rows.launch(
        "kept_degree", 1, config, col, weight, drop_seed, keep_from,
        rows.partial(1, 1, torch.float64), degree, DROP=keep_from > 0,
    )  # fmt: skip
