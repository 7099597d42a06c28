"""The matrix that torch_geometric makes of edge_index and edge_weight, as arguments of propagate; made once per tensor.

An edge (j -> i) of weight w adds w to entry (i, j). Our Graph holds the symmetric pattern: both directions of every
edge, and all loops. Where every entry of it is 1 nothing else is needed; otherwise the entries have values, 0 for those
that only complete the pattern. Normalised, as torch_geometric's gcn_norm does it: D^-1/2 A D^-1/2 with d_i the sum of
row i, and d^-1/2 = 0 where d = 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ugnn_fast._checks import acc_dtype as number_type
from ugnn_fast._checks import shape
from ugnn_fast.functional import propagate
from ugnn_fast.graph import Graph

Matrix = tuple[Graph, dict[str, Any]]  # and the arguments of propagate that say what its entries are


# a compiler cannot follow a look-up by identity
@torch.compiler.disable
def matrix_of(
    edge_index: Any,
    edge_weight: Any,
    x: Tensor,
    *,
    normalize: bool,
    add_self_loops: bool,
    to_target: bool,
) -> Matrix:
    """The matrix to multiply x [..., N, D] with; the gradient of edge_weight is passed on.

    to_target: an edge is (source, target), and a row sums over its sources; else the other way round.
    """
    edge_index = _checked_edges(edge_index)
    N, dtype = x.shape[-2], number_type(x)
    patterns = _kept(_patterns, edge_index)
    pattern = patterns.get((N, to_target))
    if pattern is None:
        pattern = patterns[N, to_target] = _Pattern(edge_index, N, to_target)
    how = (normalize, add_self_loops, dtype)
    if edge_weight is None:
        matrices = pattern.matrices
    else:
        _check_weight(edge_index, edge_weight, x)
        matrices = {} if edge_weight.requires_grad else _kept(pattern.weighted, edge_weight)
    if how not in matrices:
        matrices[how] = pattern.matrix(edge_index, edge_weight, *how)
    return matrices[how]


_patterns = WeakTensorKeyDictionary()  # edge_index -> (version, {(N, to_target): _Pattern})


def _kept(known: WeakTensorKeyDictionary, tensor: Tensor) -> dict:
    """What was kept for the tensor in its present version; an empty dict to keep things in if there is nothing."""
    if tensor.is_inference():
        return {}  # has no version: it may have been written to since
    found = known.get(tensor)
    if found is None or found[0] != tensor._version:
        found = known[tensor] = (tensor._version, {})
    return found[1]


class _Pattern:
    """Which entries the edges of one edge_index stand for. It must not refer to edge_index, whose end frees it."""

    def __init__(self, edge_index: Tensor, N: int, to_target: bool):
        self.to_target = to_target
        self.weighted = WeakTensorKeyDictionary()  # edge_weight -> (version, {how: Matrix})
        self.matrices: dict[tuple, Matrix] = {}  # without weights
        self._entry: Tensor | None = None
        # what is kept must serve later calls that are not in inference mode
        with torch.inference_mode(False):
            self.graph = Graph.from_edge_index(self._pairs(edge_index), N, symmetrize=True)
            nodes = torch.arange(N)
            self.loops = self.graph.entry_of((nodes, nodes))  # [N]: entries on the diagonal

    def _pairs(self, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column of each edge."""
        source, target = edge_index
        return (target, source) if self.to_target else (source, target)

    def matrix(
        self, edge_index: Tensor, weight: Tensor | None, normalize: bool, add_self_loops: bool, dtype: torch.dtype
    ) -> Matrix:
        tracked = torch.is_grad_enabled() and weight is not None and weight.requires_grad
        with torch.inference_mode(False), torch.set_grad_enabled(tracked):
            if weight is None:
                graph = self._graph_of_ones(edge_index, add_self_loops)
                if graph is not None:
                    return graph, {"norm": "sym" if normalize else "none"}
            value = self._values(edge_index, weight, add_self_loops, dtype)
            if not normalize:
                return self.graph, {"norm": "none", "edge_value": value}
            ones = torch.ones(self.graph.num_nodes, 1, dtype=dtype, device=value.device)
            degree = propagate(self.graph, ones, 1, norm="none", edge_value=value).squeeze(1)
            rho = degree.masked_fill(degree == 0, torch.inf).rsqrt()
            return self.graph, {"edge_value": value, "left": rho, "right": rho}

    def _entries(self, edge_index: Tensor) -> Tensor:
        """The entry of each edge, [M]."""
        if self._entry is None:
            self._entry = self.graph.entry_of(self._pairs(edge_index))
        return self._entry

    def _graph_of_ones(self, edge_index: Tensor, add_self_loops: bool) -> Graph | None:
        """The graph whose entries are all 1 and make up the matrix of unweighted edges, if there is one."""
        copies = torch.bincount(self.graph.entry_of(self._pairs(edge_index)), minlength=self.graph.num_edges)
        loops = copies[self.loops]
        copies[self.loops] = 1
        if not (copies == 1).all():
            return None
        if add_self_loops or (loops == 1).all():
            return self.graph
        if loops.any():
            return None
        return Graph.from_edge_index(self._pairs(edge_index), self.graph.num_nodes, self_loops=False)

    def _values(self, edge_index: Tensor, weight: Tensor | None, add_self_loops: bool, dtype: torch.dtype) -> Tensor:
        """The values of the entries, [E]."""
        M, E, N = edge_index.shape[1], self.graph.num_edges, self.graph.num_nodes
        device = edge_index.device
        w = torch.ones(M, dtype=dtype, device=device) if weight is None else weight.to(dtype)
        value = torch.zeros(E, dtype=dtype, device=device).index_add(0, self._entries(edge_index), w)
        if not add_self_loops:
            return value
        loop = torch.ones(N, dtype=dtype, device=device)
        if weight is not None:
            # a loop that is given keeps its weight; of several the last one counts
            given = (edge_index[0] == edge_index[1]).nonzero().squeeze(1)
            last = torch.full((N,), -1, device=device).scatter_reduce(0, edge_index[0, given].long(), given, "amax")
            at = (last >= 0).nonzero().squeeze(1)
            loop = loop.index_put((at,), w[last[at]])
        return value.index_put((self.loops,), loop)


def _checked_edges(edge_index: Any) -> Tensor:
    """edge_index as a plain tensor [2, M] of integers."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a tensor [2, E], got {type(edge_index).__name__}")
    if hasattr(edge_index, "as_tensor"):  # torch_geometric.EdgeIndex
        edge_index = edge_index.as_tensor()
    if edge_index.layout is not torch.strided:
        raise TypeError(f"edge_index must be a dense tensor [2, E], got {edge_index.layout}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must be [2, E], got {shape(edge_index)}")
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"edge_index must be int64 or int32, got {edge_index.dtype}")
    return edge_index


def _check_weight(edge_index: Tensor, weight: Any, x: Tensor) -> None:
    if not isinstance(weight, Tensor):
        raise TypeError(f"edge_weight must be a tensor [E], got {type(weight).__name__}")
    if weight.shape != edge_index.shape[1:]:
        raise ValueError(f"edge_weight must be [E] = {list(edge_index.shape[1:])}, got {shape(weight)}")
    if not weight.is_floating_point() or (weight.dtype == torch.float64 and x.dtype != torch.float64):
        raise TypeError(f"edge_weight must be {number_type(x)} beside {x.dtype} x, got {weight.dtype}")
