"""ugnn::local_smoothness."""

import torch
from torch import Tensor

from ugnn_fast._library import GRAPH, define
from ugnn_fast.ops._native_call import csr, native


def _body(rowptr, col, weight, degree, order, hubs, labels, backend):
    labels = labels.contiguous()
    out = torch.empty(labels.shape[0], dtype=torch.float32)
    native.local_smoothness(
        csr(rowptr, col, weight, degree, order, hubs), torch.get_num_threads(), labels.data_ptr(), out.data_ptr()
    )
    return out


def _fake(rowptr, col, weight, degree, order, hubs, labels: Tensor, backend):
    return labels.new_empty(labels.shape, dtype=torch.float32)


local_smoothness = define(f"local_smoothness({GRAPH}, Tensor labels, str backend) -> Tensor", _body, _fake)
