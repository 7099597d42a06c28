"""Dropout of dense values in plain torch."""

import torch
from torch import Tensor

from ugnn_fast._random import VALUES, keep_from, philox


def dropout(x: Tensor, p: float, seeds: Tensor) -> Tensor:
    """keep_r(n, f) x_nrf / (1 - p) for x [N, F] with one seed, or [N, R, F] with R."""
    N, F = x.shape[0], x.shape[-1]
    row, group = torch.arange(N, device=x.device)[:, None], torch.arange((F + 3) // 4, device=x.device)
    masks = []
    for seed in seeds:
        words = torch.stack(philox(seed, row, group, 0, VALUES), -1)  # [N, groups, 4]
        masks.append(words.flatten(1)[:, :F] >= keep_from(p))
    kept = masks[0] if x.dim() == 2 else torch.stack(masks, 1)
    # what is dropped does not take part: 0 times infinity would
    return torch.where(kept, x * (1 / (1 - p)), 0)
