"""ugnn::dropout and ugnn::dropout_linear, a dense layer behind it, for R models side by side."""

import torch

from ugnn_fast._library import define
from ugnn_fast.ops._native_call import DTYPES, native, pointer, replicas_and_width, result

# what the kernel of dropout_linear is for; beyond that torch's matrix product is as good
MAX_INPUTS, MAX_OUTPUTS = 256, 32


def _fake(no_graph, x, p, seeds, backend):
    return x.new_empty(x.shape)


def _body(no_graph, x, p, seeds, backend):
    x, seeds = x.contiguous(), seeds.contiguous()
    out = result(x.shape, x.dtype)
    R, F = replicas_and_width(x)
    native.dropout(
        DTYPES[x.dtype], torch.get_num_threads(), x.shape[0], R, F, x.data_ptr(), p, seeds.data_ptr(), out.data_ptr()
    )
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, no_graph, x, p, seeds, backend):
        ctx.constants = p, backend
        ctx.save_for_backward(seeds)
        return kernel(no_graph, x, p, seeds, backend)

    @staticmethod
    def backward(ctx, grad):
        p, backend = ctx.constants
        return None, None, dropout((), grad, p, *ctx.saved_tensors, backend), None, None, None


dropout = define("dropout(Tensor x, float p, Tensor seeds, str backend) -> Tensor", _body, _fake, _Dropout)


def _call(x, weight, bias, relu, p, seeds, grad, out, grad_weight, grad_bias):
    R, F = replicas_and_width(x)
    native.dropout_linear(
        DTYPES[x.dtype], torch.get_num_threads(), x.shape[0], R, F, weight.shape[-1], x.data_ptr(), weight.data_ptr(),
        pointer(bias), relu, p, pointer(seeds), pointer(grad), out.data_ptr(), pointer(grad_weight), pointer(grad_bias),
    )  # fmt: skip


def _contiguous(*tensors):
    return [None if t is None else t.contiguous() for t in tensors]


def _linear_fake(no_graph, x, weight, bias, relu, p, seeds, backend):
    return x.new_empty((*x.shape[:-1], weight.shape[-1]))


def _linear_body(no_graph, x, weight, bias, relu, p, seeds, backend):
    x, weight, bias, seeds = _contiguous(x, weight, bias, seeds)
    out = result((*x.shape[:-1], weight.shape[-1]), x.dtype)
    _call(x, weight, bias, relu, p, seeds, None, out, None, None)
    return out


def _gradients(x, weight, grad):
    """Shapes and types of the gradients of x, weight and bias."""
    return (x.shape, x.dtype), (weight.shape, weight.dtype), ((*x.shape[1:-1], weight.shape[-1]), grad.dtype)


def _backward_fake(no_graph, x, weight, grad, relu, p, seeds, backend):
    return tuple(x.new_empty(shape, dtype=dtype) for shape, dtype in _gradients(x, weight, grad))


def _backward_body(no_graph, x, weight, grad, relu, p, seeds, backend):
    x, weight, grad, seeds = _contiguous(x, weight, grad, seeds)
    out = tuple(result(shape, dtype) for shape, dtype in _gradients(x, weight, grad))
    if x.shape[0] == 0:  # a gradient without rows has no address
        return tuple(t.zero_() for t in out)
    _call(x, weight, None, relu, p, seeds, grad, *out)
    return out


def plain_linear(x, weight, bias, relu, p, seeds, drop):
    """dropout_linear from operators that can be differentiated any number of times; drop: such a dropout."""
    if relu:
        x = x.relu()
    if seeds is not None:
        x = drop(x, p, seeds)
    if weight.dim() == 2:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    out = torch.einsum("nri,rio->nro", x, weight)
    return out if bias is None else out + bias.to(out.dtype)  # narrower in an autocast region


class _DropoutLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, no_graph, *args):
        x, weight, bias, *constants, seeds, backend = args
        ctx.constants = *constants, backend
        ctx.save_for_backward(x, weight, bias, seeds)
        return kernel(no_graph, *args)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias, seeds = ctx.saved_tensors
        relu, p, backend = ctx.constants
        if torch.is_grad_enabled():  # for second derivatives
            out = plain_linear(x, weight, bias, relu, p, seeds, lambda x, p, seeds: dropout((), x, p, seeds, backend))
            wanted = [t for t, needed in zip((x, weight, bias), ctx.needs_input_grad[2:5], strict=True) if needed]
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
            grads = [next(found) if needed else None for needed in ctx.needs_input_grad[2:5]]
        else:
            grads = dropout_linear_backward((), x, weight, grad, relu, p, seeds, backend)
        return None, None, *grads[:2], None if bias is None else grads[2], None, None, None, None


dropout_linear = define(
    "dropout_linear(Tensor x, Tensor weight, Tensor? bias, bool relu, float p, Tensor? seeds, str backend) -> Tensor",
    _linear_body,
    _linear_fake,
    _DropoutLinear,
)
dropout_linear_backward = define(
    "dropout_linear_backward(Tensor x, Tensor weight, Tensor grad, bool relu, float p, Tensor? seeds, str backend)"
    " -> (Tensor, Tensor, Tensor)",
    _backward_body,
    _backward_fake,
)
