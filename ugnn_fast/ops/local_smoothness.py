"""ugnn::local_smoothness."""

import torch

from ugnn_fast._library import GRAPH, define
from ugnn_fast.ops._native_call import csr, native


def _fake(graph, labels, backend):
    return labels.new_empty(labels.shape, dtype=torch.float32)


def _body(graph, labels, backend):
    labels = labels.contiguous()
    out = _fake(graph, labels, backend)
    native.local_smoothness(csr(graph), torch.get_num_threads(), labels.data_ptr(), out.data_ptr())
    return out


local_smoothness = define(f"local_smoothness({GRAPH}, Tensor labels, str backend) -> Tensor", _body, _fake)
