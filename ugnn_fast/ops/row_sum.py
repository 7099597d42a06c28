"""ugnn::row_sum, a sum over nodes whose order of addition does not depend on the number of threads."""

import torch
from torch import Tensor

from ugnn_fast._library import below_autograd, define
from ugnn_fast._native import native
from ugnn_fast.ops._native_call import DTYPES


def _body(values: Tensor) -> Tensor:
    if values.device.type != "cpu" or native is None:
        return values.sum(0)
    values = values.contiguous()
    out = torch.empty(values.shape[1:], dtype=values.dtype)
    native.row_sum(
        DTYPES[values.dtype], torch.get_num_threads(), values.shape[0], out.numel(), values.data_ptr(), out.data_ptr()
    )
    return out


def _fake(values: Tensor) -> Tensor:
    return values.new_empty(values.shape[1:])


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        ctx.shape = values.shape
        return below_autograd(row_sum, values)

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.shape)


row_sum = define("row_sum(Tensor values) -> Tensor", _body, _fake, _RowSum)
