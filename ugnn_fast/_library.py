"""Registration of operators with torch.library: one helper, used once by each module of ugnn_fast.ops.

An operator has a body (chooses the backend, calls its kernel), a fake kernel (shapes only), and, if it can be
differentiated, an autograd.Function whose forward calls the operator again below autograd. The Function is registered
under the Autograd key directly: torch.library.register_autograd does the same at several times the cost of a call.
"""

from collections.abc import Callable
from typing import Any

import torch

# How every operator takes a graph; Graph.tensors has this order.
GRAPH = "Tensor rowptr, Tensor col, Tensor? weight, Tensor degree, Tensor order, Tensor hubs"

_lib = torch.library.Library("ugnn", "DEF")


def define(
    schema: str,
    body: Callable[..., Any],
    fake: Callable[..., Any],
    function: type[torch.autograd.Function] | None = None,
    autocast: Callable[[torch.dtype, tuple], tuple] | None = None,
) -> Any:
    """Registers `ugnn::<schema>` and returns the callable operator.

    autocast(dtype, args) returns the arguments as they shall be inside an autocast region of that dtype.
    """
    name = schema.partition("(")[0]
    _lib.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(torch.ops.ugnn, name).default
    for key in ("CPU", "CUDA"):
        _lib.impl(name, body, key)
    torch.library.register_fake(f"ugnn::{name}", fake, lib=_lib)

    if function is not None:

        def with_autograd(*args):
            if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
                return function.apply(*args)
            return below_autograd(op, *args)

        _lib.impl(name, with_autograd, "Autograd")

    if autocast is not None:
        for device_type, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):

            def with_autocast(*args, device_type=device_type):
                cast = autocast(torch.get_autocast_dtype(device_type), args)
                with torch.autocast(device_type, enabled=False):
                    return op(*cast)

            _lib.impl(name, with_autocast, key)
    return op


def below_autograd(op: Callable[..., Any], *args: Any) -> Any:
    """Calls an operator's kernel without going through autograd again."""
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)
