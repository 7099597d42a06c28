"""Checks of arguments, with errors that name the argument, what was expected and what came."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ugnn_fast.graph import Graph

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_gpu_value_checks = False


def set_checks(on: bool) -> None:
    """Whether values (NaN, c < 0) are checked on a GPU too, which costs a synchronisation. On a CPU they always are."""
    global _gpu_value_checks
    _gpu_value_checks = bool(on)


def value_checks(x: Tensor) -> bool:
    """Whether values may be looked at in this call."""
    if torch.compiler.is_compiling():
        return False
    return x.device.type == "cpu" or _gpu_value_checks


def shape(t: Tensor) -> str:
    return str(list(t.shape))


def check_graph(g: Any) -> None:
    if not isinstance(g, Graph):
        raise TypeError(f"g must be a ugnn_fast.Graph, got {type(g).__name__}")


def check_nodes(g: Graph, x: Any, name: str = "x") -> None:
    """x is a floating tensor [N, D] or [N, R, D] on the graph's device."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {x.layout}")
    if x.dtype not in _FLOATS:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {x.dtype}")
    if x.dim() not in (2, 3):
        raise ValueError(f"{name} must be [N, D] or [N, R, D], got {shape(x)}")
    if x.shape[0] != g.num_nodes:
        raise ValueError(f"{name} must have N = {g.num_nodes} rows, as the graph has nodes, got {shape(x)}")
    check_device(g, x, name)


def check_device(g: Graph, t: Tensor, name: str) -> None:
    if t.device != g.device:
        raise ValueError(f"{name} must be on {g.device} like the graph, got {t.device}")


def acc_dtype(x: Tensor) -> torch.dtype:
    """Type of coefficients beside x."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_coefficient(g: Graph, x: Tensor, t: Any, name: str, shapes: dict[str, tuple]) -> None:
    """t is a tensor with one of the named shapes, the dtype of coefficients and the graph's device."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(t).__name__}")
    if t.shape not in shapes.values():
        expected = " or ".join(f"{text} = {list(value)}" for text, value in shapes.items())
        raise ValueError(f"{name} must be {expected}, got {shape(t)}")
    if t.dtype != acc_dtype(x) and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{name} must be {acc_dtype(x)} beside {x.dtype} x, got {t.dtype}")
    check_device(g, t, name)


def check_edge_value(g: Graph, x: Tensor, value: Any) -> None:
    """value is a coefficient [E] of a graph with all of its edges."""
    check_coefficient(g, x, value, "edge_value", {"[E]": (g.num_edges,)})
    if g.drop:
        raise ValueError(
            f"edge_value must go with all edges, got a graph that drops {g.drop:g} of them: set values to 0"
        )


def node_shapes(x: Tensor) -> dict[str, tuple]:
    """Shapes of a value per node, or per node and replica."""
    shapes: dict[str, tuple] = {"[N]": (x.shape[0],)}
    if x.dim() == 3:
        shapes["[N, R]"] = (x.shape[0], x.shape[1])
    return shapes


def check_number(value: Any, name: str, *, low: float = -math.inf) -> float:
    if type(value) is float and math.isfinite(value) and value >= low:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    number = float(value)
    if not (math.isfinite(number) and number >= low):
        bound = "" if low == -math.inf else f" and >= {low:g}"
        raise ValueError(f"{name} must be finite{bound}, got {value}")
    return number


def check_positive(value: Any, name: str) -> float:
    number = check_number(value, name)
    if not number > 0:
        raise ValueError(f"{name} must be > 0, got {value}")
    return number


def check_count(value: Any, name: str, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"{name} must be >= {low}, got {value}")
    return int(value)


def check_share(value: Any, name: str) -> float:
    """A probability of losing something, 0 <= p < 1."""
    p = check_number(value, name, low=0.0)
    if p >= 1:
        raise ValueError(f"{name} must be < 1, got {value}")
    return p


def check_seeds(seed: Any, device: torch.device) -> Tensor:
    """One or more seeds, given as an int, ints or an int64 tensor there or on the CPU, as int64 [R] on a device."""
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.dim() != 1 or seed.device not in (device, torch.device("cpu")):
            where = "cpu" if device.type == "cpu" else f"cpu or {device}"
            raise TypeError(
                f"seed must be an int64 tensor [R] on {where}, got {seed.dtype} {shape(seed)} on {seed.device}"
            )
        return seed.to(device, non_blocking=True)
    values: list[Any] = list(seed) if isinstance(seed, Sequence) else [seed]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"seed must be an int or a sequence of ints, got {seed!r}")
        if not -(2**63) <= int(value) < 2**64:
            raise ValueError(f"seed must fit in 64 bits, got {value}")
    # the kernels read the bits as unsigned
    signed = [int(value) - 2**64 if int(value) >= 2**63 else int(value) for value in values]
    return torch.tensor(signed, dtype=torch.int64, device="cpu").to(device, non_blocking=True)


def check_sparse(x: Any) -> None:
    """x is a floating sparse CSR tensor that needs no gradient."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.layout is not torch.sparse_csr:
        raise TypeError(f"x must be torch sparse CSR, got {x.layout}")
    if x.dtype not in _FLOATS:
        raise TypeError(f"x must be float32, float64, bfloat16 or float16, got {x.dtype}")
    if x.requires_grad:
        raise ValueError("x must not require grad when it is sparse: its gradient is not offered")


def check_weight(x: Tensor, weight: Any, bias: Any) -> None:
    """weight [F, D] or [R, F, D] and bias [D] or [R, D] or None go with x [N, F]."""
    for name, t in (("weight", weight), *([] if bias is None else [("bias", bias)])):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(t).__name__}")
        if t.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got {t.layout}")
        if t.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{name} must be {x.dtype} like x, got {t.dtype}")
        if t.device != x.device:
            raise ValueError(f"{name} must be on {x.device} like x, got {t.device}")
    F = x.shape[-1]
    if weight.dim() not in (2, 3) or weight.shape[-2] != F or (weight.dim() == 3 and weight.shape[0] == 0):
        raise ValueError(f"weight must be [F, D] or [R, F, D] with F = {F}, R >= 1, got {shape(weight)}")
    expected = (*weight.shape[:-2], weight.shape[-1])
    if bias is not None and tuple(bias.shape) != expected:
        name = "[D]" if weight.dim() == 2 else "[R, D]"
        raise ValueError(f"bias must be {name} = {list(expected)}, got {shape(bias)}")


def check_size(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not 1 <= value < 2**31:
        raise ValueError(f"{name} must be in 1..2^31 - 1, got {value}")
    return value


def check_steps(steps: Any) -> int:
    if type(steps) is int and steps >= 0:
        return steps
    return check_count(steps, "steps", 0)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_clamp(clamp: Any) -> tuple[float, float]:
    """(lo, hi) with infinities for no bound."""
    if clamp is None:
        return -math.inf, math.inf
    if not isinstance(clamp, (tuple, list)) or len(clamp) != 2:
        raise TypeError(f"clamp must be (lo, hi) or None, got {clamp!r}")
    lo, hi = (
        unbounded if bound is None else bound for bound, unbounded in zip(clamp, (-math.inf, math.inf), strict=True)
    )
    if not (isinstance(lo, Real) and isinstance(hi, Real)):
        raise TypeError(f"clamp must be (lo, hi) of numbers or None, got {clamp!r}")
    if not lo <= hi:
        raise ValueError(f"clamp must be (lo, hi) with lo <= hi, got {clamp!r}")
    return float(lo), float(hi)
