"""ugnn::sparse_linear, dropout(x) @ weight + bias for sparse x, and its backward, which is its transpose."""

import torch

from ugnn_fast._library import FEATURES, define
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, native, pointer, result, storage
from ugnn_fast.ops.row_sum import row_sum

_CACHE_BYTES = 1 << 20  # of a core


def _rows(rowptr, col, values, columns):
    return native.SparseRows(
        rowptr.data_ptr(), col.data_ptr(), values.data_ptr(), rowptr.shape[0] - 1, columns, col.shape[0]
    )


def _sum_rows(transposed, x, table, bias, dropout, seeds, out):
    """out = x @ table + bias for the rows (rowptr, col, values) of the features, or of their transpose."""
    # contiguous copies, and values in the type of an autocast region, must outlive the call
    rowptr, col, values = (t.contiguous() for t in x)
    values = values.to(table.dtype)
    table, bias, seeds = table.contiguous(), _contiguous(bias), _contiguous(seeds)
    # the weight and its gradient are [F, D] or [R, F, D], the result and its gradient [N, D] or [N, R, D]
    M, R, *table_strides = layout(table, transposed)
    out_strides = layout(out, not transposed)[2:]
    D, size = table.shape[-1], table.element_size()
    # a row of x reads the tables of all replicas of a call: as many as stay in a cache
    step = max(1, min(R, _CACHE_BYTES // max(1, M * D * size)))
    for r in range(0, R, step):
        native.sparse_linear(
            _rows(rowptr, col, values, M), transposed, DTYPES[table.dtype], torch.get_num_threads(), min(step, R - r),
            D, table.data_ptr() + r * table_strides[1] * size, *table_strides, _at(bias, r * D), dropout, _at(seeds, r),
            out.data_ptr() + r * out_strides[1] * size, *out_strides,
        )  # fmt: skip
    return out


def _at(tensor, entry):
    """The address of an entry of a contiguous tensor, 0 without one."""
    return 0 if tensor is None else tensor.data_ptr() + entry * tensor.element_size()


def _contiguous(tensor):
    return None if tensor is None else tensor.contiguous()


def layout(table, rows_first):
    """Rows, replicas, stride of a row, stride of a replica, of a contiguous table."""
    if table.dim() == 2:
        return table.shape[0], 1, table.shape[1], 0
    first, second, D = table.shape
    return (first, second, second * D, D) if rows_first else (second, first, D, second * D)


def _shape(features, weight):
    return features[0].shape[0] - 1, *weight.shape[:-2], weight.shape[-1]


def _fake(features, weight, bias, dropout, seeds, backend):
    return weight.new_empty(_shape(features, weight))


def _body(features, weight, bias, dropout, seeds, backend):
    out = result(_shape(features, weight), weight.dtype)
    return _sum_rows(False, features[:3], weight, bias, dropout, seeds, out)


def _weight_shape(features, grad):
    return *grad.shape[1:-1], features[5].shape[0] - 1, grad.shape[-1]


def _backward_fake(features, grad, dropout, seeds, backend):
    return grad.new_empty(_weight_shape(features, grad))


def _backward_body(features, grad, dropout, seeds, backend):
    out = result(_weight_shape(features, grad), grad.dtype)
    return _sum_rows(True, features[5:8], grad, None, dropout, seeds, out)


def _dense_fake(no_graph, rowptr, col, values, columns, dropout, seed, backend):
    return values.new_empty((rowptr.shape[0] - 1, columns))


def _dense_body(no_graph, rowptr, col, values, columns, dropout, seed, backend):
    rowptr, col, values, seed = rowptr.contiguous(), col.contiguous(), values.contiguous(), _contiguous(seed)
    out = result((rowptr.shape[0] - 1, columns), values.dtype)
    native.sparse_dense(
        _rows(rowptr, col, values, columns), DTYPES[values.dtype], torch.get_num_threads(), dropout, pointer(seed),
        out.data_ptr(),
    )  # fmt: skip
    return out


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, features, weight, bias, dropout, seeds, backend):
        ctx.features, ctx.constants = features, (dropout, seeds, backend)
        return kernel(features, weight, bias, dropout, seeds, backend)

    @staticmethod
    def backward(ctx, grad):
        _, _, need_weight, need_bias = ctx.needs_input_grad[:4]
        grad_weight = grad_bias = None
        if need_weight:
            grad_weight = sparse_linear_backward(ctx.features, grad, *ctx.constants)
        if need_bias:
            grad_bias = row_sum((), grad.to(acc_dtype(grad.dtype))).to(grad.dtype)
        return None, None, grad_weight, grad_bias, None, None, None


class _SparseLinearBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, features, grad, dropout, seeds, backend):
        ctx.features, ctx.constants = features, (dropout, seeds, backend)
        return kernel(features, grad, dropout, seeds, backend)

    @staticmethod
    def backward(ctx, grad):
        # the transpose of the transpose
        return None, None, sparse_linear(ctx.features, grad, None, *ctx.constants), None, None, None


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    weight, bias, *rest = args
    weight = storage(dtype, weight)
    return weight, None if bias is None else bias.to(weight.dtype), *rest


sparse_linear = define(
    f"sparse_linear({FEATURES}, Tensor weight, Tensor? bias, float dropout, Tensor? seeds, str backend) -> Tensor",
    _body,
    _fake,
    _SparseLinear,
    _autocast,
)
sparse_linear_backward = define(
    f"sparse_linear_backward({FEATURES}, Tensor grad, float dropout, Tensor? seeds, str backend) -> Tensor",
    _backward_body,
    _backward_fake,
    _SparseLinearBackward,
)
# dropout(x) as a dense matrix
sparse_dense = define(
    "sparse_dense(Tensor rowptr, Tensor col, Tensor values, SymInt columns, float dropout, Tensor? seed, str backend)"
    " -> Tensor",
    _dense_body,
    _dense_fake,
)
