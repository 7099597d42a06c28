"""ugnn::row_sum, a sum over nodes whose order of addition does not depend on the number of threads."""

import torch

from ugnn_fast._library import define
from ugnn_fast.ops._native_call import DTYPES, native


def _fake(no_graph, values):
    return values.new_empty(values.shape[1:])


def _body(no_graph, values):
    if values.device.type != "cpu" or native is None:
        return values.sum(0)
    values = values.contiguous()
    out = _fake(no_graph, values)
    native.row_sum(
        DTYPES[values.dtype], torch.get_num_threads(), values.shape[0], out.numel(), values.data_ptr(), out.data_ptr()
    )
    return out


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, no_graph, values):
        ctx.shape = values.shape
        return kernel(no_graph, values)

    @staticmethod
    def backward(ctx, grad):
        return None, None, grad.expand(ctx.shape)


row_sum = define("row_sum(Tensor values) -> Tensor", _body, _fake, _RowSum)
