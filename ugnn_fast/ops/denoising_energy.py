"""ugnn::edge_energy, q_i = sum_j a_ij |rho_i f_i - rho_j f_j|^2, the graph part of the denoising energy."""

import torch

from ugnn_fast._library import GRAPH, below_autograd, define
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, csr, native, replicas_and_width
from ugnn_fast.ops.propagate import laplacian


def _body(rowptr, col, weight, degree, order, hubs, f, backend):
    f = f.contiguous()
    R, D = replicas_and_width(f)
    out = f.new_empty(f.shape[:-1], dtype=acc_dtype(f.dtype))
    native.denoising_energy(
        csr(rowptr, col, weight, degree, order, hubs), DTYPES[f.dtype], torch.get_num_threads(), R, D, f.data_ptr(),
        out.data_ptr(),
    )  # fmt: skip
    return out


def _fake(rowptr, col, weight, degree, order, hubs, f, backend):
    return f.new_empty(f.shape[:-1], dtype=acc_dtype(f.dtype))


class _EdgeEnergy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        graph, (f, backend) = args[:6], args[6:]
        ctx.backend = backend
        ctx.save_for_backward(*graph, f)
        return below_autograd(edge_energy, *args)

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise RuntimeError("denoising_energy: double backward is not offered; use backend='reference'")
        *graph, f = ctx.saved_tensors
        # sum_i g_i q_i is the regulariser with C = 2 g, whose gradient is the weighted Laplacian of f
        return *(None,) * 6, laplacian(tuple(graph), f, 2 * grad, ctx.backend), None


edge_energy = define(f"edge_energy({GRAPH}, Tensor f, str backend) -> Tensor", _body, _fake, _EdgeEnergy)
