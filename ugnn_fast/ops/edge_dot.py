"""ugnn::edge_dot, <v_i, u_j> for every stored entry (i, j): the gradient of values per edge."""

import torch

from ugnn_fast._library import GRAPH, define
from ugnn_fast.ops._native_call import DTYPES, csr, native


def _fake(graph, v, u, backend):
    return v.new_empty(graph[1].shape)


def _body(graph, v, u, backend):
    v, u = v.flatten(1).contiguous(), u.flatten(1).contiguous()
    out = _fake(graph, v, u, backend)
    native.edge_dot(
        csr(graph), DTYPES[v.dtype], torch.get_num_threads(), v.shape[1], v.data_ptr(), u.data_ptr(), out.data_ptr()
    )
    return out


edge_dot = define(f"edge_dot({GRAPH}, Tensor v, Tensor u, str backend) -> Tensor", _body, _fake)
