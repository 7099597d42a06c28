"""ugnn::sparse_linear, dropout(x) @ weight + bias for sparse x, and its backward, which is its transpose."""

import torch

from ugnn_fast._library import define
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, native, pointer, storage
from ugnn_fast.ops.row_sum import row_sum

# ugnn_fast._sparse.SparseFeatures
_X = "Tensor rowptr, Tensor col, Tensor values, Tensor t_rowptr, Tensor t_col, Tensor t_values"


_CACHE_BYTES = 1 << 20  # of a core


def _rows(rowptr, col, values, columns):
    return native.SparseRows(
        rowptr.data_ptr(), col.data_ptr(), values.data_ptr(), rowptr.shape[0] - 1, columns, col.shape[0]
    )


def _sum_rows(transposed, x, table, bias, dropout, seeds, out):
    """out = x @ table + bias for the rows (rowptr, col, values) of the features, or of their transpose."""
    # contiguous copies must outlive the call
    rowptr, col, values = (t.contiguous() for t in x)
    table, bias, seeds = table.contiguous(), _contiguous(bias), _contiguous(seeds)
    # the weight and its gradient are [F, D] or [R, F, D], the result and its gradient [N, D] or [N, R, D]
    M, R, *table_strides = _layout(table, transposed)
    out_strides = _layout(out, not transposed)[2:]
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


def _layout(table, rows_first):
    """Rows, replicas, stride of a row, stride of a replica."""
    if table.dim() == 2:
        return table.shape[0], 1, table.shape[1], 0
    first, second, D = table.shape
    return (first, second, second * D, D) if rows_first else (second, first, D, second * D)


def _fake(no_graph, rowptr, col, values, t_rowptr, t_col, t_values, weight, bias, dropout, seeds, backend):
    N = rowptr.shape[0] - 1
    return weight.new_empty((N, *weight.shape[:-2], weight.shape[-1]))


def _body(no_graph, rowptr, col, values, t_rowptr, t_col, t_values, weight, bias, dropout, seeds, backend):
    N = rowptr.shape[0] - 1
    out = weight.new_empty((N, *weight.shape[:-2], weight.shape[-1]))
    return _sum_rows(False, (rowptr, col, values), weight, bias, dropout, seeds, out)


def _backward_fake(no_graph, rowptr, col, values, t_rowptr, t_col, t_values, grad, dropout, seeds, backend):
    F = t_rowptr.shape[0] - 1
    return grad.new_empty((*grad.shape[1:-1], F, grad.shape[-1]))


def _backward_body(no_graph, rowptr, col, values, t_rowptr, t_col, t_values, grad, dropout, seeds, backend):
    F = t_rowptr.shape[0] - 1
    out = grad.new_empty((*grad.shape[1:-1], F, grad.shape[-1]))
    return _sum_rows(True, (t_rowptr, t_col, t_values), grad, None, dropout, seeds, out)


def _dense_fake(no_graph, rowptr, col, values, columns, dropout, seed, backend):
    return values.new_empty((rowptr.shape[0] - 1, columns))


def _dense_body(no_graph, rowptr, col, values, columns, dropout, seed, backend):
    rowptr, col, values, seed = rowptr.contiguous(), col.contiguous(), values.contiguous(), _contiguous(seed)
    out = values.new_empty((rowptr.shape[0] - 1, columns))
    native.sparse_dense(
        _rows(rowptr, col, values, columns), DTYPES[values.dtype], torch.get_num_threads(), dropout, pointer(seed),
        out.data_ptr(),
    )  # fmt: skip
    return out


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, no_graph, *args):
        *x, _, _, dropout, seeds, backend = args
        ctx.constants = dropout, backend
        ctx.save_for_backward(*x, seeds)
        return kernel(no_graph, *args)

    @staticmethod
    def backward(ctx, grad):
        *x, seeds = ctx.saved_tensors
        dropout, backend = ctx.constants
        grad_weight = grad_bias = None
        if ctx.needs_input_grad[8]:
            grad_weight = sparse_linear_backward((), *x, grad, dropout, seeds, backend)
        if ctx.needs_input_grad[9]:
            grad_bias = row_sum((), grad.to(acc_dtype(grad.dtype))).to(grad.dtype)
        return *[None] * 8, grad_weight, grad_bias, None, None, None


class _SparseLinearBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, no_graph, *args):
        *x, _, dropout, seeds, backend = args
        ctx.constants = dropout, backend
        ctx.save_for_backward(*x, seeds)
        return kernel(no_graph, *args)

    @staticmethod
    def backward(ctx, grad):
        *x, seeds = ctx.saved_tensors
        dropout, backend = ctx.constants
        # the transpose of the transpose
        return *[None] * 8, sparse_linear((), *x, grad, None, dropout, seeds, backend), None, None, None


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    rowptr, col, values, t_rowptr, t_col, t_values, weight, bias, *rest = args
    weight = storage(dtype, weight)
    bias = None if bias is None else bias.to(weight.dtype)
    values, t_values = values.to(weight.dtype), t_values.to(weight.dtype)
    return rowptr, col, values, t_rowptr, t_col, t_values, weight, bias, *rest


sparse_linear = define(
    f"sparse_linear({_X}, Tensor weight, Tensor? bias, float dropout, Tensor? seeds, str backend) -> Tensor",
    _body,
    _fake,
    _SparseLinear,
    _autocast,
)
sparse_linear_backward = define(
    f"sparse_linear_backward({_X}, Tensor grad, float dropout, Tensor? seeds, str backend) -> Tensor",
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
