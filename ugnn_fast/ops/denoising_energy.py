"""ugnn::edge_energy, q_i = sum_j a_ij |rho_i f_i - rho_j f_j|^2, the graph part of the denoising energy."""

import torch

from ugnn_fast._library import GRAPH, define
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, csr, native, replicas_and_width
from ugnn_fast.ops.propagate import laplacian


def _fake(graph, f, backend):
    return f.new_empty(f.shape[:-1], dtype=acc_dtype(f.dtype))


def _body(graph, f, backend):
    f = f.contiguous()
    out = _fake(graph, f, backend)
    native.denoising_energy(
        csr(graph), DTYPES[f.dtype], torch.get_num_threads(), *replicas_and_width(f), f.data_ptr(), out.data_ptr()
    )
    return out


class _EdgeEnergy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, f, backend):
        ctx.graph, ctx.backend = graph, backend
        ctx.save_for_backward(f)
        return kernel(graph, f, backend)

    @staticmethod
    def backward(ctx, grad):
        (f,) = ctx.saved_tensors
        # sum_i g_i q_i is the regulariser with C = 2 g, whose gradient is the weighted Laplacian of f
        return None, None, laplacian(ctx.graph, f, 2 * grad, ctx.backend), None


edge_energy = define(f"edge_energy({GRAPH}, Tensor f, str backend) -> Tensor", _body, _fake, _EdgeEnergy)
