"""`Graph`: a symmetric sparse matrix, checked and sorted once, that every operator reads."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import numpy as np
import torch

from ugnn_fast import _graph_build, _memory, _reorder
from ugnn_fast._native import native
from ugnn_fast._random import keep_from
from ugnn_fast._row_plan import row_plan

# both have the same functions with the same results; near_by_community is for kernels, and native alone
_builder: Any = native if native is not None else _graph_build
# steps after which a large graph is renumbered for the kernels: about as many as that takes the time of
_MANY_STEPS = 32
_NEAR = ("order", "near_rowptr", "near_col", "near_weight")


class GraphTensors(tuple):
    """Graph.tensors(), made once, with room for what a backend keeps of it: a call on a small graph is short."""

    native: Any = None


class Graph:
    """An undirected graph: a symmetric CSR matrix Ã, N rows, E stored entries (both directions and loops).

    Copies of an edge become one; with weights their weights are summed. Every node has exactly one self loop
    of weight 1, in place of any that was given, or none with ``self_loops=False``. A directed graph, or
    weights that differ between the directions, is a ValueError unless ``symmetrize=True``: then the union is
    taken, and of two weights the larger.

    Attributes: ``rowptr`` int64 [N+1]; ``col`` int32 [E], ascending in a row; ``weight`` float32 [E] or None;
    ``degree`` float32 [N], the sum of the weights of a row (its length without weights); ``num_nodes`` = N;
    ``num_edges`` = E; ``device``; ``self_loops``. Values [E] of a user follow the stored entries, see
    ``edge_index``, ``entry_of`` and ``reverse``. For the kernels: ``hubs`` int32 [H], the very long rows;
    and the near form, the same matrix renumbered: ``order`` int32 [N] (near row p is row order[p]), ``near_rowptr``,
    ``near_col``, ``near_weight``; by the length of rows, and for more than 2^16 nodes by community, once kernels on the
    CPU have taken some steps on the graph, or empty where that would bring nothing. ``drop`` and ``drop_seed``: see
    ``ugnn_fast.drop_edges``. ``perm``: see ``reorder``.

    Attributes cannot be set. A Graph is made by one of the ``from_...`` methods.
    """

    # plain attributes, not properties: torch.compile reads them without a call
    __slots__ = (
        *("rowptr", "col", "weight", "degree", "hubs", *_NEAR),
        *("self_loops", "_longest_row", "drop", "drop_seed", "perm"),
        *("num_nodes", "num_edges", "device", "_edge_index", "_reverse", "_plan", "_tensors", "_steps_left"),
        "__weakref__",
    )

    rowptr: torch.Tensor
    col: torch.Tensor
    weight: torch.Tensor | None
    degree: torch.Tensor
    hubs: torch.Tensor
    order: torch.Tensor
    near_rowptr: torch.Tensor
    near_col: torch.Tensor
    near_weight: torch.Tensor | None
    num_nodes: int
    num_edges: int
    self_loops: bool
    device: torch.device
    _longest_row: int
    drop: float
    drop_seed: int
    perm: torch.Tensor | None
    _edge_index: torch.Tensor | None
    _reverse: torch.Tensor | None
    _plan: tuple[torch.Tensor, list[int]] | None
    _tensors: dict[bool, GraphTensors]
    _steps_left: int

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("a Graph is made by Graph.from_edge_index, from_csr, from_scipy, from_networkx, ...")

    @classmethod
    def from_edge_index(
        cls, edge_index, num_nodes=None, edge_weight=None, *, self_loops=True, symmetrize=False
    ) -> Graph:
        """Graph of the pairs (edge_index[0, e], edge_index[1, e]).

        edge_index: [2, M] integers, or a tuple (row, col): tensors, arrays or lists. num_nodes: N, by default
        the largest id + 1. edge_weight: [M], finite and > 0. The graph is built on the CPU and put on the
        device of edge_index.
        """
        row, col = _edge_pair(edge_index, "edge_index")
        device = _device(edge_index, edge_weight=edge_weight)
        weight = _weight_array(edge_weight, len(row), "edge_weight", "E")
        if num_nodes is None:
            num_nodes = max([int(ids.max()) + 1 for ids in (row, col) if ids.size] + [0])
        N = _node_count(num_nodes)
        _check_memory(N, len(row), weight, symmetrize)
        built = _builder.build_coo(row, col, weight, N, bool(self_loops), bool(symmetrize), torch.get_num_threads())
        return cls._from_built(built, self_loops, device)

    @classmethod
    def from_csr(cls, rowptr, col, weight=None, *, num_nodes=None, self_loops=True, symmetrize=False) -> Graph:
        """Graph of a CSR matrix: row i has the columns col[rowptr[i]:rowptr[i + 1]], in any order.

        rowptr: [N + 1], from 0 to M, never falling. col: [M] in [0, N). weight: [M], finite and > 0, or None.
        """
        device = _device(col, rowptr=rowptr, weight=weight)
        start, ids = (
            _integers(rowptr, "rowptr").astype(np.int64, order="C", copy=False),
            _integers(col, "col"),
        )
        if start.ndim != 1 or start.size == 0 or (num_nodes is not None and len(start) != _node_count(num_nodes) + 1):
            expected = "" if num_nodes is None else f" = [{_node_count(num_nodes) + 1}]"
            raise ValueError(f"rowptr must be [num_nodes + 1]{expected}, got {list(start.shape)}")
        if ids.ndim != 1:
            raise ValueError(f"col must be [E], got {list(ids.shape)}")
        values = _weight_array(weight, len(ids), "weight", "len(col)")
        _check_memory(len(start) - 1, len(ids), values, symmetrize)
        built = _builder.build_csr(start, ids, values, bool(self_loops), bool(symmetrize), torch.get_num_threads())
        return cls._from_built(built, self_loops, device)

    @classmethod
    def from_scipy(cls, matrix, *, weighted=None, self_loops=True, symmetrize=False) -> Graph:
        """Graph of a square scipy.sparse matrix or array of any format; stored zeros are no edges.

        weighted: whether the values are edge weights; by default they are unless all of them are 1.
        """
        if not hasattr(matrix, "tocsr"):
            raise TypeError(f"matrix must be a scipy.sparse matrix or array, got {type(matrix).__name__}")
        _check_square("matrix", matrix.shape)
        csr = matrix.tocsr()
        if not csr.has_canonical_format or not csr.data.all():
            csr = csr.copy()
            csr.sum_duplicates()
            csr.eliminate_zeros()
        weight = csr.data if _has_weights(csr.data, weighted) else None
        return cls.from_csr(csr.indptr, csr.indices, weight, self_loops=self_loops, symmetrize=symmetrize)

    @classmethod
    def from_torch_sparse(cls, matrix, *, weighted=None, self_loops=True, symmetrize=False) -> Graph:
        """Graph of a square torch.sparse COO, CSR or CSC tensor, on its device; stored zeros are no edges.

        weighted: whether the values are edge weights; by default they are unless all of them are 1.
        """
        layouts = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
        if not isinstance(matrix, torch.Tensor) or matrix.layout not in layouts:
            got = matrix.layout if isinstance(matrix, torch.Tensor) else type(matrix).__name__
            raise TypeError(f"matrix must be a torch sparse COO, CSR or CSC tensor, got {got}")
        _check_square("matrix", matrix.shape)
        options = {"self_loops": self_loops, "symmetrize": symmetrize}
        matrix = matrix.detach()
        if matrix.layout is torch.sparse_csr and bool((matrix.values() != 0).all()):
            weight = matrix.values() if _has_weights(matrix.values(), weighted) else None
            return cls.from_csr(matrix.crow_indices(), matrix.col_indices(), weight, **options)
        coo = matrix.to_sparse_coo().coalesce()
        index, values = coo.indices(), coo.values()
        if not values.all():
            index, values = index[:, values != 0], values[values != 0]
        weight = values if _has_weights(values, weighted) else None
        return cls.from_edge_index(index, matrix.shape[0], weight, **options)

    @classmethod
    def from_networkx(cls, graph, *, weight="weight", self_loops=True, symmetrize=False) -> Graph:
        """Graph of a networkx graph; node i is the i-th of ``graph.nodes``.

        weight: name of the edge attribute with the weights (1 where an edge has none; no weights at all if no
        edge has it), None to ignore weights. A DiGraph needs both directions or symmetrize.
        """
        if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
            raise TypeError(f"graph must be a networkx graph, got {type(graph).__name__}")
        number = {node: i for i, node in enumerate(graph.nodes)}
        edges = list(graph.edges(data=weight if weight is not None else False))
        row = np.fromiter((number[edge[0]] for edge in edges), np.int64, len(edges))
        col = np.fromiter((number[edge[1]] for edge in edges), np.int64, len(edges))
        value = None
        if weight is not None and any(edge[2] is not None for edge in edges):
            value = np.fromiter((1.0 if edge[2] is None else edge[2] for edge in edges), np.float64, len(edges))
        if not graph.is_directed():
            row, col = np.concatenate([row, col]), np.concatenate([col, row])
            value = None if value is None else np.concatenate([value, value])
        return cls.from_edge_index((row, col), len(number), value, self_loops=self_loops, symmetrize=symmetrize)

    @classmethod
    def from_pyg(cls, data, *, self_loops=True, symmetrize=False) -> Graph:
        """Graph of a PyTorch Geometric ``Data`` object, or anything with ``edge_index`` and ``num_nodes``.

        ``edge_weight`` [M] is used if it is there; ``edge_attr`` never is, as it may hold any feature.
        """
        edge_index = getattr(data, "edge_index", None)
        if edge_index is None:
            raise TypeError(f"data must have an edge_index, got {type(data).__name__} without")
        num_nodes, weight = getattr(data, "num_nodes", None), getattr(data, "edge_weight", None)
        return cls.from_edge_index(edge_index, num_nodes, weight, self_loops=self_loops, symmetrize=symmetrize)

    @classmethod
    def from_dgl(cls, graph, *, weight=None, self_loops=True, symmetrize=False) -> Graph:
        """Graph of a homogeneous DGL graph, or anything with ``edges() -> (row, col)`` and ``num_nodes()``.

        weight: name of the field of ``graph.edata`` with the weights [M], None for none.
        """
        if not all(callable(getattr(graph, name, None)) for name in ("edges", "num_nodes")):
            raise TypeError(f"graph must have edges() and num_nodes(), got {type(graph).__name__}")
        value = None if weight is None else graph.edata[weight]
        return cls.from_edge_index(
            tuple(graph.edges()), graph.num_nodes(), value, self_loops=self_loops, symmetrize=symmetrize
        )

    @classmethod
    def _from_built(cls, built, self_loops, device, perm=None) -> Graph:
        rowptr, col, weight, _ = built
        arrays = (*built, *_builder.row_plan(rowptr, col, weight, torch.get_num_threads()))
        tensors = [None if array is None else torch.from_numpy(array).to(device) for array in arrays]
        return cls._from_tensors(tensors, bool(self_loops), int(np.diff(rowptr).max(initial=0)), perm=perm)

    @classmethod
    def _from_tensors(
        cls, tensors, self_loops: bool, longest_row: int, drop: float = 0.0, drop_seed: int = 0, perm=None, plan=None
    ) -> Graph:
        rowptr, col = tensors[:2]
        sizes = len(rowptr) - 1, len(col), rowptr.device
        # kernels on a device need the plan, and making it waits for the device: not in the first call
        if plan is None and rowptr.device.type not in ("cpu", "meta"):
            plan = row_plan(rowptr)
        near = len(tensors[5]) > 0
        steps_left = _MANY_STEPS if sizes[0] > _graph_build.NEAR_NODES and not near and not drop else 0
        values = (*tensors, self_loops, longest_row, drop, drop_seed, perm, *sizes, None, None, plan, {}, steps_left)
        graph = object.__new__(cls)
        for name, value in zip(cls.__slots__, values, strict=False):
            object.__setattr__(graph, name, value)
        return graph

    def _own_tensors(self) -> tuple[torch.Tensor | None, ...]:
        return (
            *(self.rowptr, self.col, self.weight, self.degree, self.hubs),
            *(self.order, self.near_rowptr, self.near_col, self.near_weight),
        )

    def tensors(self, backend: str = "cpu", steps: int = 0) -> tuple[Any, ...]:
        """What every operator of ugnn_fast.ops takes as its graph; steps: how many, if they gain by a near form."""
        planned = backend != "cpu"
        compiling = torch.compiler.is_compiling()
        if self._steps_left > 0 and not planned and not compiling:
            self._count(steps)
        if not compiling and planned in self._tensors:
            return self._tensors[planned]
        if planned and self._plan is None:
            if compiling:
                raise RuntimeError(f"backend {backend} on the CPU: call an operator on this graph before compiling one")
            object.__setattr__(self, "_plan", row_plan(self.rowptr))
        plan = self._plan if planned and self._plan is not None else (self.hubs[:0], [])
        tensors = (*self._own_tensors(), *plan, self.drop_seed, keep_from(self.drop))
        if compiling:
            return tensors
        self._tensors[planned] = GraphTensors(tensors)
        return self._tensors[planned]

    def _count(self, steps: int) -> None:
        """After many steps on a large graph, makes its near form by community, if that is worth its memory."""
        if steps * self.num_edges < _graph_build.NEAR_WORK * self.num_nodes:
            return  # kernels would not use it
        object.__setattr__(self, "_steps_left", max(self._steps_left - steps, 0))
        needed = self.num_edges * (4 if self.weight is None else 8) + self.num_nodes * 128
        if self._steps_left or needed > _memory.free_bytes(self.device) // 4:
            return
        weight = None if self.weight is None else self.weight.numpy()
        try:
            near = _builder.near_by_community(self.rowptr.numpy(), self.col.numpy(), weight, torch.get_num_threads())
        except MemoryError:
            return  # nothing depends on it
        with torch.inference_mode(False):  # they outlive the call
            # order at last: without it nobody looks at the others
            for name, array in reversed(list(zip(_NEAR, near, strict=True))):
                object.__setattr__(self, name, None if array is None else torch.from_numpy(array))
        self._tensors.pop(False, None)

    def _dropping(self, degree: torch.Tensor, drop: float, seed: int) -> Graph:
        """The view that ugnn_fast.drop_edges returns, with the degrees that are left."""
        # no near form: the rows of what is kept have other lengths
        tensors = [self.rowptr, self.col, self.weight, degree, self.hubs, self.hubs[:0], self.rowptr[:0], self.col[:0]]
        sizes = self.self_loops, self._longest_row
        return Graph._from_tensors([*tensors, None], *sizes, drop, seed, self.perm, self._plan)

    @property
    def edge_index(self) -> torch.Tensor:
        """int64 [2, E]: row and column of every stored entry. Made at the first use and kept."""
        if self._edge_index is None:
            rows = torch.arange(self.num_nodes, device=self.device).repeat_interleave(self.rowptr.diff())
            object.__setattr__(self, "_edge_index", torch.stack([rows, self.col.long()]))
        assert self._edge_index is not None
        return self._edge_index

    @property
    def reverse(self) -> torch.Tensor:
        """int64 [E]: the entry of (j, i) for each entry (i, j). Made at the first use and kept."""
        if self._reverse is None:
            object.__setattr__(self, "_reverse", reverse_entries(self.rowptr, self.col))
        assert self._reverse is not None
        return self._reverse

    def entry_of(self, edge_index) -> torch.Tensor:
        """int64 [M]: the stored entry of each pair (edge_index[0, e], edge_index[1, e]), an edge each."""
        row, col = _edge_pair(edge_index, "edge_index")
        entries = _builder.find_entries(
            self.rowptr.cpu().numpy(), self.col.cpu().numpy(), row, col, torch.get_num_threads()
        )
        if entries.size and entries.min() < 0:
            e = int((entries < 0).argmax())
            raise ValueError(f"edge_index must hold edges of the graph, got ({row[e]}, {col[e]}) at edge_index[:, {e}]")
        return torch.from_numpy(entries).to(self.device)

    def to(self, device) -> Graph:
        """The same graph with its tensors on `device`; itself if they are there."""
        device = torch.empty(0, device=device).device  # "cuda" -> "cuda:0"
        if device == self.device:
            return self
        own = self._own_tensors()
        if self.num_nodes > _graph_build.NEAR_NODES:  # of use on the CPU only, and soon made
            own = (*own[:5], self.order[:0], self.near_rowptr[:0], self.near_col[:0], None)
        *tensors, perm = (None if tensor is None else tensor.to(device) for tensor in (*own, self.perm))
        return Graph._from_tensors(tensors, self.self_loops, self._longest_row, self.drop, self.drop_seed, perm)

    def reorder(self, method: str) -> Graph:
        """The same graph with its nodes in another order, in which rows that are read together are near each other.

        method: "degree", longest rows first; "rcm", reverse Cuthill-McKee (needs scipy); "community", groups of nodes
        that know each other side by side. Node p of the new graph is node perm[p] of the one that was built;
        `permute` brings values of its nodes into the new order and `unpermute` brings results back. Nothing else is
        permuted: values [E] are looked up by `entry_of`, labels and lists of nodes are the caller's.
        """
        if method not in _reorder.METHODS:
            raise ValueError(f"method must be one of {', '.join(_reorder.METHODS)}, got {method!r}")
        if self.drop:
            raise ValueError("a view with dropped edges has no order of its own: reorder the graph, then drop edges")
        order = _reorder.permutation(self.rowptr.cpu().numpy(), self.col.cpu().numpy(), method, _builder)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        row, col = place[self.edge_index.cpu().numpy()]
        weight = None if self.weight is None else self.weight.cpu().numpy()
        built = _builder.build_coo(row, col, weight, self.num_nodes, self.self_loops, False, torch.get_num_threads())
        perm = torch.from_numpy(order).to(self.device)
        return Graph._from_built(built, self.self_loops, self.device, perm if self.perm is None else self.perm[perm])

    def permute(self, x: torch.Tensor) -> torch.Tensor:
        """Values of nodes [N, ...] in the order of this graph; x itself if it was not reordered."""
        self._check_rows(x, "x")
        return x if self.perm is None else x[self.perm]

    def unpermute(self, h: torch.Tensor) -> torch.Tensor:
        """Values [N, ...] in the order of this graph brought back to that in which it was built."""
        self._check_rows(h, "h")
        if self.perm is None:
            return h
        return h[torch.argsort(self.perm)]

    def _check_rows(self, values: torch.Tensor, name: str) -> None:
        if values.dim() == 0 or len(values) != self.num_nodes:
            raise ValueError(f"{name} must be [N, ...] with N = {self.num_nodes}, got {list(values.shape)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Graph is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Graph is immutable: cannot delete {name}")

    def __reduce__(self):
        sizes = self.self_loops, self._longest_row, self.drop, self.drop_seed
        return Graph._from_tensors, (self._own_tensors(), *sizes, self.perm)

    def __repr__(self) -> str:
        size = sum(t.numel() * t.element_size() for t in self._own_tensors() if t is not None)
        mean = self.num_edges / max(self.num_nodes, 1)
        return (
            f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"entries per row: mean {mean:.1f}, max {self._longest_row}, "
            f"{'unweighted' if self.weight is None else 'weighted'}, "
            f"{'with' if self.self_loops else 'without'} self loops, "
            f"{f'{self.drop:.0%} of edges dropped, ' if self.drop else ''}{self.device}, {_bytes(size)})"
        )


def _array(value: Any, name: str) -> np.ndarray:
    """A tensor on any device, an array or nested lists as an array of numbers, not copied if possible."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got {value.layout}")
        if value.requires_grad:
            raise ValueError(f"{name} must not require grad: a Graph passes no gradient on")
        value = value.cpu()
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a tensor, an array or a list of numbers: {error}") from None
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name} must be a tensor, an array or a list of numbers, got {type(value).__name__}")
    return np.require(array, requirements="A")


def _integers(value: Any, name: str) -> np.ndarray:
    """int32 or int64; anything without elements passes, as an empty list has no type of its own."""
    array = _array(value, name)
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{name} must hold integers, got {array.dtype}")
    if array.dtype in (np.int32, np.int64):
        return array
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit in int64, got {array.max()}")
    return array.astype(np.int64)


def _edge_pair(edge_index: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns [M] of the same type."""
    parts = edge_index
    if not (isinstance(edge_index, (tuple, list)) and len(edge_index) == 2):
        parts = _integers(edge_index, name)
        if parts.ndim != 2 or parts.shape[0] != 2:
            raise ValueError(f"{name} must be [2, E], got {list(parts.shape)}")
    row, col = (_integers(part, name) for part in parts)
    if row.ndim != 1 or row.shape != col.shape:
        raise ValueError(f"{name} must be [2, E], got {list(row.shape)} and {list(col.shape)}")
    if row.dtype != col.dtype:
        row, col = row.astype(np.int64, copy=False), col.astype(np.int64, copy=False)
    return row, col


def _weight_array(weight: Any, length: int, name: str, expected: str) -> np.ndarray | None:
    """float32 or float64 [length]; the values are checked by the build."""
    if weight is None:
        return None
    array = _array(weight, name)
    if array.shape != (length,):
        raise ValueError(f"{name} must be [{expected}] = [{length}], got {list(array.shape)}")
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be float32 or float64, got {array.dtype}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _node_count(num_nodes: Any) -> int:
    try:
        count = operator.index(num_nodes)
    except TypeError:
        raise TypeError(f"num_nodes must be an integer, got {type(num_nodes).__name__}") from None
    if not 0 <= count <= _graph_build.MAX_NODES:
        raise ValueError(f"num_nodes must be in [0, 2^31 - 2], got {count}")
    return count


def _device(ids: Any, **others: Any) -> torch.device:
    """The device of the ids; the others may lie there or on the CPU."""
    first = ids[0] if isinstance(ids, (tuple, list)) and len(ids) == 2 else ids
    device = first.device if isinstance(first, torch.Tensor) else torch.device("cpu")
    for name, other in others.items():
        if isinstance(other, torch.Tensor) and other.device not in (device, torch.device("cpu")):
            raise ValueError(f"{name} must be on {device} or the CPU, got {other.device}")
    return device


def _check_square(name: str, shape: Any) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{name} must be [N, N], got {list(shape)}")


def _has_weights(values: Any, weighted: bool | None) -> bool:
    return bool((values != 1).any()) if weighted is None else bool(weighted)


def reverse_entries(rowptr: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
    """int64 [E]: the entry of (j, i) for each entry (i, j) of a symmetric matrix."""
    return torch.from_numpy(_builder.reverse(rowptr.cpu().numpy(), col.cpu().numpy())).to(col.device)


def _check_memory(num_nodes: int, num_given: int, weight: np.ndarray | None, symmetrize: bool) -> None:
    """MemoryError before anything is allocated; some systems would rather end the process later."""
    entries = num_given * (2 if symmetrize else 1)
    work = 4 if weight is None else 4 + weight.itemsize
    needed = num_nodes * 32 + entries * work + (entries + num_nodes) * (4 if weight is None else 8)
    _memory.require(needed, torch.device("cpu"), f"a graph of {num_nodes} nodes built from {num_given} edges")


def _bytes(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
