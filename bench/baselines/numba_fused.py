"""Fused steps by hand in numba, as FusedMM has them: a row is gathered, combined and written in one loop.

The formulas are those of torch_csr_factored, with one walk over the entries for s = A u and p = A C u.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from bench.baselines.structure import Structure


def _jit(function):
    return numba.njit(parallel=True, fastmath=True, error_model="numpy", cache=False)(function)


@_jit
def _ada_forward(rowptr, col, c, scale, base, u, s, out):
    """s = A u; out = base + scale (C s + A C u)."""
    N, D = u.shape
    for i in numba.prange(N):
        total, weighted = np.zeros(D, np.float32), np.zeros(D, np.float32)
        for e in range(rowptr[i], rowptr[i + 1]):
            j = col[e]
            cj = c[j]
            for d in range(D):
                total[d] += u[j, d]
                weighted[d] += cj * u[j, d]
        for d in range(D):
            s[i, d] = total[d]
            out[i, d] = base[i, d] + scale[i] * (c[i] * total[d] + weighted[d])


@_jit
def _ada_backward(rowptr, col, c, scale, v, u, s, u_new, v_new, sum_v, grad_c, e):
    """v_new = scale (C t + A C v), t = A v; and what the step adds to dX, dC and e."""
    N, D = v.shape
    for i in numba.prange(N):
        total, weighted = np.zeros(D, np.float32), np.zeros(D, np.float32)
        for entry in range(rowptr[i], rowptr[i + 1]):
            j = col[entry]
            cj = c[j]
            for d in range(D):
                total[d] += v[j, d]
                weighted[d] += cj * v[j, d]
        of_c, of_e = np.float32(0), np.float32(0)
        for d in range(D):
            of_c += v[i, d] * s[i, d] + u[i, d] * total[d]
            of_e += v[i, d] * u_new[i, d]
            sum_v[i, d] += v[i, d]
            v_new[i, d] = scale[i] * (c[i] * total[d] + weighted[d])
        grad_c[i] += of_c
        e[i] += of_e


@_jit
def _step(rowptr, col, scale, base, u, out):
    """out = base + scale A u."""
    N, D = u.shape
    for i in numba.prange(N):
        total = np.zeros(D, np.float32)
        for e in range(rowptr[i], rowptr[i + 1]):
            j = col[e]
            for d in range(D):
                total[d] += u[j, d]
        for d in range(D):
            out[i, d] = base[i, d] + scale[i] * total[d]


def _set_threads() -> None:
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))


class AdaPropagate(torch.autograd.Function):
    """apply(structure, x [N, D], c [N], steps) -> H [N, D]"""

    @staticmethod
    def forward(ctx, st: Structure, x: Tensor, c: Tensor, steps: int) -> Tensor:
        _set_threads()
        keep = any(ctx.needs_input_grad)
        b = st.scale(c)
        scale = st.rho.square() * b
        base = torch.mul(x, (2 * b * st.rho)[:, None], out=st.scratch("base", *x.shape))
        # without gradients two tables take turns
        tables = x.new_empty(steps + 1, *x.shape) if keep else st.scratch("tables", 2, *x.shape)
        sums = x.new_empty(steps, *x.shape) if keep else st.scratch("sums", 1, *x.shape)
        torch.mul(x, st.rho[:, None], out=tables[0])
        structure = [t.numpy() for t in (st.rowptr, st.col, c.detach(), scale, base)]
        for k in range(steps):
            place = [tables[k % len(tables)], sums[k % len(sums)], tables[(k + 1) % len(tables)]]
            _ada_forward(*structure, *(t.numpy() for t in place))
        if keep:
            ctx.structure = st
            ctx.save_for_backward(c, b, tables, sums)
        return tables[steps % len(tables)] / st.rho[:, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        _set_threads()
        st = ctx.structure
        c, b, tables, sums = ctx.saved_tensors
        structure = [t.numpy() for t in (st.rowptr, st.col, c, st.rho.square() * b)]
        v, v_new = st.scratch("v", *grad.shape), st.scratch("v_new", *grad.shape)
        torch.mul(grad, (st.rho * b)[:, None], out=v)
        sum_v, grad_c, e = torch.zeros_like(grad), torch.zeros_like(c), torch.zeros_like(c)
        for k in reversed(range(len(sums))):
            given = (v, tables[k], sums[k], tables[k + 1], v_new, sum_v, grad_c, e)
            _ada_backward(*structure, *(t.numpy() for t in given))
            v, v_new = v_new, v
        grad_x = sum_v.mul_(2).add_(v / b[:, None]).div_(st.rho[:, None])
        return None, grad_x, grad_c.sub_(st.scale_adjoint(e.mul_(st.degree))), None


class Propagate(torch.autograd.Function):
    """apply(structure, x [N, D], steps, agg, skip) -> H [N, D] of H <- agg Ã H + skip X, Ã normalised"""

    @staticmethod
    def forward(ctx, st: Structure, x: Tensor, steps: int, agg: float, skip: float) -> Tensor:
        _set_threads()
        ctx.structure, ctx.constants = st, (steps, agg, skip)
        scale = (agg * st.rho.square()).numpy()
        base = torch.mul(x, (skip * st.rho)[:, None], out=st.scratch("base", *x.shape))
        u, out = st.scratch("u", *x.shape), st.scratch("out", *x.shape)
        torch.mul(x, st.rho[:, None], out=u)
        for _ in range(steps):
            _step(st.rowptr.numpy(), st.col.numpy(), scale, base.numpy(), u.numpy(), out.numpy())
            u, out = out, u
        return u / st.rho[:, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        # (agg Ã)^K G + skip sum_k (agg Ã)^k G by Horner's scheme: the forward steps on G, as Ã is symmetric
        return None, Propagate.apply(ctx.structure, grad.contiguous(), *ctx.constants), None, None, None
