"""dropout(x) @ weight + bias for sparse x, and its backward, which is its transpose."""

from torch import Tensor

from ugnn_fast._random import keep_from
from ugnn_fast._sparse import SparseFeatures
from ugnn_fast.device._rows import Rows
from ugnn_fast.ops._native_call import acc_dtype
from ugnn_fast.ops.sparse_linear import layout


def mask_arguments(share: float, seeds: Tensor | None) -> tuple[Tensor | None, int, float]:
    """seed_ptr, keep_from and scale of a kernel."""
    if seeds is None:
        return None, 0, 1.0
    return seeds.contiguous(), keep_from(share), 1 / (1 - share)


def _sum_rows(transposed, rows, col, values, table, bias, dropout, seeds, out) -> Tensor:
    """out = x @ table + bias for these rows of the features, or of their transpose."""
    # values of another type in an autocast region
    values = values.to(table.dtype)
    table, bias = table.contiguous(), None if bias is None else bias.contiguous()
    D = table.shape[-1]
    _, R, table_row, table_replica = layout(table, transposed)
    _, _, out_row, out_replica = layout(out, not transposed)
    config, blocks = rows.blocks(D, table.dtype)
    partial = rows.partial(1, R * D, acc_dtype(table.dtype))
    rows.launch(
        "sparse_linear", R * blocks, config, col, values,
        *mask_arguments(dropout, seeds), table, table_replica, bias, partial,
        out, out_replica, table_row, out_row, D, R * D, TRANSPOSED=transposed,
    )  # fmt: skip
    return out


def sparse_linear(features, weight, bias, dropout, seeds, backend) -> Tensor:
    """Body of ugnn::sparse_linear."""
    x = SparseFeatures(*features)
    rows = Rows(x.rowptr, x.plan, x.plan_sizes, backend)
    out = weight.new_empty((rows.num_rows, *weight.shape[:-2], weight.shape[-1]))
    return _sum_rows(False, rows, x.col, x.values, weight, bias, dropout, seeds, out)


def sparse_linear_backward(features, grad, dropout, seeds, backend) -> Tensor:
    """Body of ugnn::sparse_linear_backward."""
    x = SparseFeatures(*features)
    rows = Rows(x.t_rowptr, x.t_plan, x.t_plan_sizes, backend)
    out = grad.new_empty((*grad.shape[1:-1], rows.num_rows, grad.shape[-1]))
    return _sum_rows(True, rows, x.t_col, x.t_values, grad, None, dropout, seeds, out)
