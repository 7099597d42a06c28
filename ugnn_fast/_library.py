"""Registration of operators with torch.library: `define`, used once by each module of ugnn_fast.ops.

An operator has a body (calls the kernel of the chosen backend), a fake kernel (shapes only), and, if it can be
differentiated, an autograd.Function whose forward calls the operator again below autograd. The Function is registered
under the Autograd key directly: torch.library.register_autograd does the same at several times the cost of a call.

`torch.ops.ugnn.<name>` is the operator as torch.compile, torch.export, opcheck and dispatch modes see it. The
`Operator` that `define` returns goes there too, except in plain eager mode, where nothing would look at the call: then
it calls Function and body directly and saves two trips through the dispatcher, as long as the kernel of a small graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ugnn_fast import device

# How an operator's schema takes a graph; Graph.tensors() has this order. Python passes it as one tuple.
GRAPH = (
    "Tensor rowptr, Tensor col, Tensor? weight, Tensor degree, Tensor hubs, Tensor order, Tensor near_rowptr,"
    " Tensor near_col, Tensor? near_weight, Tensor plan, int[] plan_sizes, int drop_seed, int keep_from"
)

# The same for sparse features, ugnn_fast._sparse.SparseFeatures, of the operators that take these in place of a graph.
FEATURES = (
    "Tensor rowptr, Tensor col, Tensor values, Tensor plan, int[] plan_sizes,"
    " Tensor t_rowptr, Tensor t_col, Tensor t_values, Tensor t_plan, int[] t_plan_sizes"
)

_lib = torch.library.Library("ugnn", "DEF")


# arguments that need no second look
_PLAIN = frozenset({torch.nn.Parameter, type(None), bool, int, float, str, list, tuple})


def _wants_grad(args: tuple) -> bool:
    if torch.is_grad_enabled():
        for a in args:
            if isinstance(a, Tensor) and a.requires_grad:
                return True
    return False


def _plain_eager(args: tuple) -> bool:
    """Whether the arguments are ordinary tensors and no mode, transform or compiler watches the call."""
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return False
    for a in args:
        kind = type(a)
        if kind is not Tensor and kind not in _PLAIN and isinstance(a, Tensor):
            return False
    return True


class Operator:
    """A registered operator. Called with the tensors of a graph or of features as one tuple, () if it takes neither."""

    def __init__(self, op: Any, body: Callable, function: type[torch.autograd.Function] | None, first_only: bool):
        self.op, self._body, self._first_only = op, body, first_only
        # not function.apply: that first looks for functorch transforms, at the price of a kernel; there are none
        self._apply = None if function is None else super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def __call__(self, graph: tuple, *args: Any) -> Any:
        if not _plain_eager(args):
            result = self.op(*graph, *args)
        elif self._apply is not None and _wants_grad(args):
            return self._apply(self._body, graph, *args)
        else:
            result = self._body(graph, *args)
        return result[0] if self._first_only else result


def define(
    schema: str,
    body: Callable,
    fake: Callable,
    function: type[torch.autograd.Function] | None = None,
    autocast: Callable[[torch.dtype, tuple], tuple] | None = None,
    first_only: bool = False,
) -> Operator:
    """Registers `ugnn::<schema>`.

    body(graph, *args) and fake(graph, *args) return all results; body is that of the cpu backend, those of others have
    the same arguments and are found by name. function.forward(ctx, kernel, graph, *args) gets them
    from kernel(graph, *args). With first_only the results behind the first are what forward keeps for backward: the
    Function returns the first alone, and so does a call of the Operator. autocast(dtype, args) returns the arguments
    behind the graph as they shall be inside an autocast region of that dtype.
    """
    name, _, parameters = schema.partition("(")
    split = next((first.count(",") + 1 for first in (GRAPH, FEATURES) if parameters.startswith(first)), 0)
    _lib.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(torch.ops.ugnn, name).default
    names = [parameter.split()[-1] for parameter in parameters.partition(")")[0].split(",")]
    if "backend" in names:
        body = _by_backend(name, body, names.index("backend") - split)

    def with_graph(call: Callable) -> Callable:
        return lambda *args: call(args[:split], *args[split:])

    def below_autograd(graph: tuple, *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*graph, *args)

    for key in ("CPU", "CUDA"):
        _lib.impl(name, with_graph(body), key)
    torch.library.register_fake(f"ugnn::{name}", with_graph(fake), lib=_lib)

    if function is not None:

        def with_autograd(graph: tuple, *args: Any) -> Any:
            if not _wants_grad(args):
                return below_autograd(graph, *args)
            kept: list = []

            def kernel(*arguments: Any) -> Any:
                results = below_autograd(*arguments)
                if first_only:
                    kept.extend(results[1:])
                return results

            result = function.apply(kernel, graph, *args)
            return (result, *kept) if first_only else result

        _lib.impl(name, with_graph(with_autograd), "Autograd")

    if autocast is not None:
        for device_type, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):

            def with_autocast(graph: tuple, *args: Any, device_type: str = device_type) -> Any:
                cast = autocast(torch.get_autocast_dtype(device_type), args)
                with torch.autocast(device_type, enabled=False):
                    return op(*graph, *cast)

            _lib.impl(name, with_graph(with_autocast), key)
    return Operator(op, body, function, first_only)


def _by_backend(name: str, cpu: Callable, position: int) -> Callable:
    """The body that the argument `backend`, at this position behind the graph, asks for."""

    def body(graph: tuple, *args: Any) -> Any:
        return cpu(graph, *args) if args[position] == "cpu" else device.body(name)(graph, *args)

    return body


def no_double_backward(name: str) -> type[torch.autograd.Function]:
    """A Function for a backward operator: computes it, and says clearly that it has no derivative itself."""

    class NoDoubleBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, kernel, graph, *args):
            return kernel(graph, *args)

        @staticmethod
        def backward(ctx, *_):
            raise RuntimeError(f"{name}: double backward is not offered here; use backend='reference'")

    return NoDoubleBackward
