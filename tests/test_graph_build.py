"""Graph building against a dictionary, the native builder against numpy, and every kind of bad input."""

import math
import os
import subprocess
import sys
import textwrap
from functools import partial
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ugnn_fast import _graph_build, _memory
from ugnn_fast._native import native, reason
from ugnn_fast.graph import Graph

needs_native = pytest.mark.skipif(native is None, reason=f"compares with the native module: {reason}")


def rows_by_hand(row, col, weight, num_nodes, self_loops, symmetrize):
    """{(i, j): weight} of the graph, straight from the rules."""
    sums: dict[tuple[int, int], list[float]] = {}
    for i, j, w in zip(row, col, weight if weight is not None else [1.0] * len(row), strict=True):
        if i != j:
            sums.setdefault((int(i), int(j)), []).append(float(w))
    entries = {pair: math.fsum(ws) if weight is not None else 1.0 for pair, ws in sums.items()}
    if symmetrize:
        pairs = set(entries) | {(j, i) for i, j in entries}
        entries = {(i, j): max(entries.get((i, j), 0.0), entries.get((j, i), 0.0)) for i, j in pairs}
    if self_loops:
        entries.update({(i, i): 1.0 for i in range(num_nodes)})
    return entries


def assert_graph_is(g, entries, num_nodes, weighted, self_loops=True):
    pairs = sorted(entries)
    assert (g.num_nodes, g.num_edges, g.self_loops) == (num_nodes, len(pairs), self_loops)
    assert g.rowptr.dtype == torch.int64 and g.col.dtype == torch.int32
    assert g.degree.dtype == torch.float32 and g.degree.shape == (num_nodes,)
    assert list(zip(*g.edge_index.tolist(), strict=True)) == pairs
    assert g.rowptr[0] == 0 and g.rowptr.shape == (num_nodes + 1,)
    np.testing.assert_array_equal(g.rowptr.diff(), np.bincount([i for i, _ in pairs], minlength=num_nodes))
    if weighted:
        assert g.weight.dtype == torch.float32
        np.testing.assert_allclose(g.weight, [entries[p] for p in pairs], rtol=2e-7)
    else:
        assert g.weight is None
    degree = np.zeros(num_nodes)
    for (i, _), w in entries.items():
        degree[i] += w
    np.testing.assert_allclose(g.degree, degree, rtol=3e-7)


UGLY = {  # row, col, weight, N
    "no-nodes": ([], [], None, 0),
    "no-edges": ([], [], None, 4),
    "no-edges-weighted": ([], [], [], 4),
    "one-node": ([], [], None, 1),
    "one-node-loops": ([0, 0], [0, 0], None, 1),
    "only-loops": ([2, 0, 2], [2, 0, 2], [5.0, 0.5, 0.5], 3),
    "isolated": ([1, 4], [4, 1], None, 7),
    "duplicates": ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1], None, 2),
    "unsorted": ([3, 0, 2, 1, 3, 0], [0, 3, 1, 2, 1, 1], None, 4),
    "weighted-duplicates": ([0, 1, 0, 1, 2, 0], [1, 0, 1, 0, 0, 2], [0.25, 3.5, 3.25, 0.5, 0.5, 0.5], 3),
    "directed": ([0, 1, 2, 0], [1, 2, 0, 2], None, 3),
    "directed-weighted": ([0, 1, 2, 2, 2], [1, 0, 0, 0, 2], [2.0, 7.0, 1.0, 0.5, 9.0], 3),
}


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("case", UGLY)
def test_symmetrized_by_hand(builder, case, dtype, self_loops):
    row, col, weight, N = UGLY[case]
    edge_index = np.array([row, col], dtype)
    weight = None if weight is None else np.array(weight, np.float32)
    g = Graph.from_edge_index(edge_index, N, weight, self_loops=self_loops, symmetrize=True)
    entries = rows_by_hand(row, col, weight, N, self_loops, True)
    assert_graph_is(g, entries, N, weight is not None, self_loops)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weighted", [False, True])
def test_random_graph_from_all_forms(builder, seed, weighted):
    rng = np.random.default_rng(seed)
    N, M = 60, 400
    row, col = rng.integers(0, N - 5, (2, M))
    row, col = np.concatenate([row, col, row[:50], col[:50]]), np.concatenate([col, row, col[:50], row[:50]])
    weight = None
    if weighted:
        w = rng.random(M)
        weight = np.concatenate([w, w, w[:50], w[:50]])
    mix = rng.permutation(len(row))
    row, col, weight = row[mix], col[mix], None if weight is None else weight[mix]
    entries = rows_by_hand(row, col, weight, N, True, False)

    by_row = np.argsort(row, kind="stable")
    rowptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=N))])
    by_row_weight = None if weight is None else weight[by_row]
    ones = np.ones(len(row)) if weight is None else weight
    matrix = sp.coo_array((ones, (row, col)), shape=(N, N))
    if not weighted:  # scipy sums copies: take them out first
        matrix = matrix.tocsr()
        matrix.data[:] = 1
    coo = matrix.tocoo()
    sparse = torch.sparse_coo_tensor(np.stack([coo.row, coo.col]), coo.data, (N, N))
    pairs = torch.tensor(np.stack([row, col], axis=1))  # [M, 2]
    graphs = {
        "edge_index": Graph.from_edge_index(torch.tensor(np.stack([row, col])), N, weight),
        "a strided view": Graph.from_edge_index(pairs.T, N, weight),
        "a tuple, mixed integers": Graph.from_edge_index((row.astype(np.int32), col.tolist()), N, weight),
        "int16": Graph.from_edge_index(np.stack([row, col]).astype(np.int16), N, weight),
        "csr": Graph.from_csr(rowptr, col[by_row], by_row_weight),
        "csr32": Graph.from_csr(rowptr.astype(np.int32), col[by_row].astype(np.int32), by_row_weight),
        "scipy": Graph.from_scipy(matrix),
        "scipy csc": Graph.from_scipy(matrix.tocsc()),
        "torch coo": Graph.from_torch_sparse(sparse),
        "torch csr": Graph.from_torch_sparse(sparse.to_sparse_csr()),
        "torch csc": Graph.from_torch_sparse(sparse.to_sparse_csc()),
    }
    for name, g in graphs.items():
        try:
            assert_graph_is(g, entries, N, weighted)
        except AssertionError as error:
            raise AssertionError(f"from {name}") from error


def test_num_nodes_is_the_largest_id_plus_one(builder):
    assert Graph.from_edge_index([[0, 6], [6, 0]]).num_nodes == 7
    assert Graph.from_edge_index([[0, 6], [6, 0]], 9).num_nodes == 9
    assert Graph.from_edge_index(torch.empty(2, 0)).num_nodes == 0


@st.composite
def edge_lists(draw):
    N = draw(st.integers(1, 12))
    M = draw(st.integers(0, 40))
    node = st.integers(0, N - 1)
    row, col = (np.array(draw(st.lists(node, min_size=M, max_size=M)), np.int64) for _ in range(2))
    weight = None
    if draw(st.booleans()):
        value = st.floats(2**-10, 2**10, width=draw(st.sampled_from([32, 64])))
        weight = np.array(draw(st.lists(value, min_size=M, max_size=M)), np.float64)
        if draw(st.booleans()):
            weight = weight.astype(np.float32)
    if draw(st.booleans()):  # both directions, copies in another order
        row, col = np.concatenate([row, col[::-1]]), np.concatenate([col, row[::-1]])
        weight = None if weight is None else np.concatenate([weight, weight[::-1]])
    return row, col, weight, N


def outcome(build, *args):
    try:
        return build(*args)
    except ValueError as error:
        return str(error)


def assert_same(a, b):
    if isinstance(a, str) or isinstance(b, str):
        assert a == b
        return
    for x, y in zip(a, b, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


@needs_native
@settings(max_examples=200, deadline=None)
@given(edges=edge_lists(), self_loops=st.booleans(), symmetrize=st.booleans(), threads=st.integers(1, 2))
def test_native_equals_numpy_and_scipy(edges, self_loops, symmetrize, threads):
    row, col, weight, N = edges
    built = outcome(native.build_coo, row, col, weight, N, self_loops, symmetrize, threads)
    assert_same(built, outcome(_graph_build.build_coo, row, col, weight, N, self_loops, symmetrize))

    by_row = np.argsort(row, kind="stable")
    rowptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=N))]).astype(np.int64)
    csr = (rowptr, col[by_row], None if weight is None else weight[by_row], self_loops, symmetrize)
    from_csr = outcome(native.build_csr, *csr, threads)
    assert_same(from_csr, outcome(_graph_build.build_csr, *csr))

    matrix = sp.coo_array((np.ones(len(row)) if weight is None else weight, (row, col)), (N, N)).tocsr()
    matrix = (matrix - sp.diags_array(matrix.diagonal())).tocsr()
    matrix.eliminate_zeros()
    if weight is None:
        matrix.data[:] = 1
    transposed = matrix.T.tocsr()
    if not symmetrize:
        difference = abs(matrix - transposed)
        # copies are summed in another order by scipy: near equality is not decided here
        if difference.nnz and difference.max() > 1e-6 * matrix.max():
            assert isinstance(built, str) and "symmetrize=True" in built
        if isinstance(built, str):
            return
    else:
        matrix = matrix.maximum(transposed)
    assert_same(built, from_csr)
    matrix = (matrix + sp.eye_array(N)).tocsr() if self_loops else matrix
    matrix.sort_indices()
    np.testing.assert_array_equal(built[0], matrix.indptr)
    np.testing.assert_array_equal(built[1], matrix.indices)
    if weight is not None:
        np.testing.assert_allclose(built[2], matrix.data, rtol=2e-7)
    np.testing.assert_allclose(built[3], matrix.sum(axis=1), rtol=3e-7)

    assert_same(native.row_plan(*built[:3], threads), _graph_build.row_plan(*built[:3]))
    reverse = native.reverse(built[0], built[1])
    assert_same([reverse], [_graph_build.reverse(built[0], built[1])])
    pairs = (np.concatenate([row, [-1, N]]), np.concatenate([col, [0, 0]]))
    found = native.find_entries(built[0], built[1], *pairs, threads)
    assert_same([found], [_graph_build.find_entries(built[0], built[1], *pairs)])


@needs_native
@pytest.mark.parametrize("weighted", [False, True])
def test_threads_do_not_change_a_bit(weighted):
    rng = np.random.default_rng(0)
    N, M = 5000, 60000
    row = (N * rng.random(M) ** 4).astype(np.int64)  # long and short rows, copies, loops
    col = rng.integers(0, N, M)
    weight = rng.random(M) * 10.0 ** rng.integers(-6, 6, M) if weighted else None
    one = native.build_coo(row, col, weight, N, True, True, 1)
    for threads in (2, 3, 7):
        assert_same(one, native.build_coo(row, col, weight, N, True, True, threads))
        assert_same(native.row_plan(*one[:3], 1), native.row_plan(*one[:3], threads))


@pytest.mark.parametrize("symmetrize", [False, True])
def test_copies_in_any_order_sum_to_the_same_weight(builder, symmetrize):
    # the largest first: 1.0, as the small ones vanish one by one; the smallest first: the next float after it
    values = np.array([1.0, 2.0**-24] + [2.0**-54] * 4)
    assert np.float32(np.add.accumulate(values)[-1]) != np.float32(np.add.accumulate(values[::-1])[-1])
    if symmetrize:  # one direction is given, the other made
        row, weight = np.zeros(len(values), np.int64), values
    else:
        row, weight = np.repeat([0, 1], len(values)), np.concatenate([values, values[::-1]])
    g = Graph.from_edge_index((row, 1 - row), 2, weight, self_loops=False, symmetrize=symmetrize)
    assert g.weight.tolist() == [1 + 2.0**-23] * 2


def test_copies_are_summed_in_double(builder):
    values = np.float32(10.0) ** np.random.default_rng(1).uniform(-8, 8, 300).astype(np.float32)
    row = np.repeat([0, 1], len(values))
    g = Graph.from_edge_index((row, 1 - row), 2, np.concatenate([values, values]))
    assert g.weight[1] == g.weight[2] == np.float32(math.fsum(values))


def test_directed_graph_is_refused_and_named(builder):
    with pytest.raises(ValueError, match=r"edge_index .* got \(2, 0\) without \(0, 2\); symmetrize=True"):
        Graph.from_edge_index([[0, 1, 2], [1, 0, 0]])
    with pytest.raises(ValueError, match=r"col .* got \(0, 1\) without \(1, 0\); symmetrize=True"):
        Graph.from_csr([0, 1, 1], [1])
    with pytest.raises(ValueError, match=r"edge_weight .* got 1.5 for \(0, 1\) and 2 for \(1, 0\); symmetrize=True"):
        Graph.from_edge_index([[0, 1], [1, 0]], edge_weight=[1.5, 2.0])
    g = Graph.from_edge_index([[0, 1, 1, 2], [1, 0, 0, 0]], edge_weight=[1.5, 1, 1, 3], symmetrize=True)
    assert g.weight.tolist() == [1, 2, 3, 2, 1, 3, 1]


PAIR = [[0, 1], [1, 0]]
edges, csr = Graph.from_edge_index, Graph.from_csr
BAD_VALUES = {  # function, arguments, message
    "id too large": (edges, ([[0, 5], [1, 0]], 5), r"edge_index .* \[0, 5\), got 5 at edge_index\[0, 1\]"),
    "id negative": (edges, ([[0, 1], [1, -2]],), r"edge_index .* got -2 at edge_index\[1, 1\]"),
    "all ids negative": (edges, ([[-9], [-8]],), r"got -9 at edge_index\[0, 0\]"),
    "id of 64 bits": (edges, ([[2**40], [1]], 5), r"edge_index .* got 1099511627776 at edge_index\[0, 0\]"),
    "id of 64 bits alone": (edges, ([[2**40], [1]],), r"num_nodes .* got 1099511627777"),
    "id unsigned": (edges, (np.array([[2**63], [1]], np.uint64),), "edge_index must fit in int64, got 92"),
    "num_nodes too small": (edges, (PAIR, 1), r"num_nodes\) = \[0, 1\), got 1 at edge_index\[0, 1\]"),
    "num_nodes negative": (edges, (PAIR, -1), "num_nodes .* got -1"),
    "num_nodes too large": (edges, (PAIR, 2**31 - 1), "num_nodes .* got 2147483647"),
    "float ids": (edges, (torch.ones(2, 3),), "edge_index must hold integers, got float32"),
    "bool ids": (edges, (torch.ones(2, 3) > 0,), "edge_index must hold integers, got bool"),
    "one row": (edges, (torch.ones(3).long(),), r"edge_index must be \[2, E\], got \[3\]"),
    "list of pairs": (edges, ([(0, 1)] * 3,), r"edge_index must be \[2, E\], got \[3, 2\]"),
    "unequal rows": (edges, (([0, 1], [1]),), r"edge_index must be \[2, E\], got \[2\] and \[1\]"),
    "weight length": (edges, (PAIR, 2, [1.0]), r"edge_weight must be \[E\] = \[2\], got \[1\]"),
    "weight shape": (edges, (PAIR, 2, [[1.0], [1.0]]), r"edge_weight .* got \[2, 1\]"),
    "weight nan": (edges, (PAIR, 2, [1, math.nan]), r"edge_weight .* got nan at edge_weight\[1\]"),
    "weight inf": (edges, (PAIR, 2, [math.inf, 1]), r"edge_weight .* got inf at edge_weight\[0\]"),
    "weight zero": (edges, (PAIR, 2, [1, 0]), r"edge_weight .* got 0 at edge_weight\[1\]"),
    "weight negative": (edges, (PAIR, 2, [1, -2.5]), "edge_weight must be finite and > 0 .* got -2.5"),
    "weight of a loop": (edges, ([[0], [0]], 2, [-1]), "edge_weight .* got -1"),
    "weight tiny": (edges, (PAIR, 2, [1e-60, 1]), "> 0 in float32, got 1e-60"),
    "weight huge": (edges, (PAIR, 2, [1, 1e60]), r"> 0 in float32, got 1e\+60"),
    "weight sum": (edges, ([[0, 1] * 2, [1, 0] * 2], 2, [3e38] * 4), "edge_weight .* inf .* of node 0"),
    "weight complex": (edges, (PAIR, 2, [1j, 1j]), "edge_weight .* got complex"),
    "weight with grad": (edges, (PAIR, 2, torch.ones(2, requires_grad=True)), "edge_weight .* require grad"),
    "rowptr falls": (csr, ([0, 2, 1, 2], [1, 0]), r"rowptr .* fall, got 2 then 1 at rowptr\[2\]"),
    "rowptr start": (csr, ([1, 1, 2], [1, 0]), r"rowptr must start at 0, got 1 at rowptr\[0\]"),
    "rowptr end": (csr, ([0, 1, 3], [1, 0]), r"rowptr .* len\(col\) = 2, got 3 at rowptr\[2\]"),
    "rowptr far": (csr, ([0, 2**50, 2], [1, 0]), "rowptr must not fall"),
    "rowptr empty": (csr, ([], []), r"rowptr must be \[num_nodes \+ 1\], got \[0\]"),
    "rowptr length": (partial(csr, num_nodes=3), ([0, 1, 2], [1, 0]), r"rowptr .* = \[4\], got \[3\]"),
    "rowptr shape": (csr, ([[0, 1, 2]], [1, 0]), r"rowptr .* got \[1, 3\]"),
    "rowptr float": (csr, ([0.0, 1, 2], [1, 0]), "rowptr must hold integers, got float64"),
    "col too large": (csr, ([0, 1, 2], [1, 2]), r"col must be in .* \[0, 2\), got 2 at col\[1\]"),
    "col negative": (csr, ([0, 1, 2], [-1, 0]), r"col must be in .* got -1 at col\[0\]"),
    "col shape": (csr, ([0, 1, 2], PAIR), r"col must be \[E\], got \[2, 2\]"),
    "csr weight": (csr, ([0, 1, 2], [1, 0], [1, -1]), r"weight must be .* got -1 at weight\[1\]"),
    "csr weight length": (csr, ([0, 1, 2], [1, 0], [1.0]), r"weight must be .* = \[2\], got \[1\]"),
    "scipy shape": (Graph.from_scipy, (sp.csr_array((2, 3)),), r"matrix must be \[N, N\], got \[2, 3\]"),
    "torch shape": (Graph.from_torch_sparse, (torch.zeros(2, 3).to_sparse(),), r"matrix .* got \[2, 3\]"),
}
BAD_TYPES = {
    "num_nodes float": (edges, (PAIR, 2.0), "num_nodes must be an integer, got float"),
    "a string": (edges, ("edges",), "edge_index must be .* got str"),
    "nothing": (edges, (None,), "edge_index must be .* got NoneType"),
    "ragged": (edges, ([[0, [1]], [1, 0]],), "edge_index must be a tensor, an array or a list"),
    "sparse": (edges, (torch.eye(2).to_sparse(),), "edge_index must be a dense tensor, got torch.sparse_coo"),
    "scipy dense": (Graph.from_scipy, (np.eye(2),), "matrix must be a scipy.sparse .* got ndarray"),
    "torch dense": (Graph.from_torch_sparse, (torch.eye(2),), "matrix must be .* got torch.strided"),
    "networkx": (Graph.from_networkx, ([],), "graph must be a networkx graph, got list"),
    "pyg": (Graph.from_pyg, (SimpleNamespace(),), "data must have an edge_index"),
    "dgl": (Graph.from_dgl, (SimpleNamespace(edges=1),), r"graph must have edges\(\) and num_nodes\(\)"),
    "constructor": (Graph, (PAIR,), "from_edge_index"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_value(builder, case):
    function, arguments, message = BAD_VALUES[case]
    with pytest.raises(ValueError, match=message):
        function(*arguments)


@pytest.mark.parametrize("case", BAD_TYPES)
def test_bad_type(case):
    function, arguments, message = BAD_TYPES[case]
    with pytest.raises(TypeError, match=message):
        function(*arguments)


def test_too_little_memory_is_said_before_the_build(builder, monkeypatch):
    monkeypatch.setattr(_memory, "free_bytes", lambda device: 2**30)
    with pytest.raises(MemoryError, match=r"2000000000 nodes .* needs 67.06 GiB, 1.00 GiB are free"):
        Graph.from_edge_index(PAIR, 2_000_000_000)


@needs_native
def test_native_functions_check_sizes_and_types():
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    options = (2, True, False, 1)
    with pytest.raises(ValueError, match="same length"):
        native.build_coo(one, two, None, *options)
    with pytest.raises(ValueError, match="same dtype"):
        native.build_coo(two, two.astype(np.int32), None, *options)
    with pytest.raises(ValueError, match="int32 or int64"):
        native.build_coo(two, two.astype(np.int16), None, *options)
    with pytest.raises(ValueError, match=r"edge_weight must be \[2\], got \[1\]"):
        native.build_coo(two, two, np.ones(1), *options)
    with pytest.raises(ValueError, match="float32 or float64"):
        native.build_coo(two, two, np.ones(2, np.float16), *options)
    with pytest.raises(ValueError, match="1 dimension"):
        native.build_coo(two[None], two, None, *options)
    with pytest.raises(ValueError, match=r"\[E\] = \[0\], got \[3\]"):
        native.reverse(two, np.zeros(3, np.int32))


def test_networkx(builder):
    graph = nx.Graph([("a", "b"), ("b", "c"), ("c", "c")])
    graph.add_node("alone")
    g = Graph.from_networkx(graph)
    assert_graph_is(g, rows_by_hand([0, 1, 1, 2], [1, 0, 2, 1], None, 4, True, False), 4, False)
    graph["a"]["b"]["weight"] = 2.5
    weighted = Graph.from_networkx(graph, self_loops=False)
    assert weighted.weight.tolist() == [2.5, 2.5, 1.0, 1.0]
    assert Graph.from_networkx(graph, weight=None).weight is None
    parallel = nx.MultiGraph([(0, 1, {"w": 1.0}), (0, 1, {"w": 2.0})])
    assert Graph.from_networkx(parallel, weight="w", self_loops=False).weight.tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="symmetrize=True"):
        Graph.from_networkx(nx.DiGraph([(0, 1)]))
    assert Graph.from_networkx(nx.DiGraph([(0, 1)]), symmetrize=True).num_edges == 4
    assert Graph.from_networkx(nx.Graph()).num_nodes == 0


def test_stored_values_of_sparse_matrices(builder):
    """Ones mean no weights, zeros mean no edge, `weighted` decides otherwise; copies are summed before."""
    row, col = np.array([0, 1, 1, 2, 0, 2]), np.array([1, 0, 2, 1, 2, 0])
    matrix = sp.coo_array((np.array([1, 1, 1, 1, 0, 0]), (row, col)), (3, 3))
    tensor = torch.sparse_coo_tensor(np.stack([row, col]), matrix.data, (3, 3))
    many = [Graph.from_scipy(matrix), Graph.from_torch_sparse(tensor)]
    many.append(Graph.from_torch_sparse(tensor.to_sparse_csr()))
    many.append(Graph.from_scipy(sp.csr_matrix(matrix)))
    for g in many:
        assert g.weight is None and g.col.tolist() == [0, 1, 0, 1, 2, 1, 2]
    assert matrix.nnz == 6  # the user's matrix is as it was
    assert Graph.from_scipy(matrix, weighted=True).weight.tolist() == [1] * 7
    twice = sp.coo_array((np.ones(4), ([0, 0, 1, 1], [1, 1, 0, 0])), (2, 2))
    assert Graph.from_scipy(twice).weight.tolist() == [1, 2, 2, 1]
    assert Graph.from_scipy(twice, weighted=False).weight is None


class DglLike:
    def __init__(self, row, col, num_nodes, **edata):
        self.ends, self.size, self.edata = (torch.tensor(row), torch.tensor(col)), num_nodes, edata

    def edges(self):
        return self.ends

    def num_nodes(self):
        return self.size


def test_pyg_and_dgl_by_duck_typing(builder):
    edge_index, w = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([2.0, 2.0, 3.0, 3.0])
    plain = Graph.from_edge_index(edge_index, 5)
    attributes = torch.rand(4, 3)
    pyg = Graph.from_pyg(SimpleNamespace(edge_index=edge_index, num_nodes=5, edge_weight=None, edge_attr=attributes))
    assert torch.equal(pyg.edge_index, plain.edge_index) and pyg.weight is None
    assert Graph.from_pyg(SimpleNamespace(edge_index=edge_index)).num_nodes == 3
    weighted = Graph.from_pyg(SimpleNamespace(edge_index=edge_index, edge_weight=w), self_loops=False)
    assert weighted.weight.tolist() == [2, 2, 3, 3]
    dgl = DglLike(*edge_index.tolist(), 5, w=w)
    assert torch.equal(Graph.from_dgl(dgl).edge_index, plain.edge_index)
    assert Graph.from_dgl(dgl, weight="w", self_loops=False).weight.tolist() == [2, 2, 3, 3]


def run_python(code, **environment):
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_works_when_the_native_module_is_switched_off():
    code = """
        from ugnn_fast._native import native
        from ugnn_fast.graph import Graph
        assert native is None
        print(*Graph.from_edge_index([[0, 1], [1, 2]], symmetrize=True).degree.tolist())
    """
    assert run_python(code, UGNN_NATIVE="0") == ["2.0", "3.0", "2.0"]


@needs_native
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="measures with Linux' VmHWM")
def test_extra_memory_is_at_most_three_times_the_result():
    """5 million edges, as a strided int64 view, and with float64 weights to be symmetrized."""
    code = """
        import numpy as np, torch
        from ugnn_fast.graph import Graph
        def memory(field):
            with open("/proc/self/status") as lines:
                return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
        rng = np.random.default_rng(0)
        half = rng.integers(0, 250_000, (2_500_000, 2))
        pairs = torch.from_numpy(np.concatenate([half, half[:, ::-1]]))
        values = rng.random(len(pairs)) + 0.5
        del half
        Graph.from_edge_index([[0], [1]], symmetrize=True)
        for weight, symmetrize in ((None, False), (values, True)):
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # VmHWM starts again from what is resident now
            before = memory("VmRSS")
            g = Graph.from_edge_index(pairs.T, 250_000, weight, symmetrize=symmetrize)
            result = sum(t.nbytes for t in g._own_tensors() if t is not None)
            print((memory("VmHWM") - before - result) / result)
            del g
    """
    plain, weighted = map(float, run_python(code))
    assert 0.3 < plain < 3, "less than one copy of the entries cannot be: the measure is broken"
    assert 0.3 < weighted < 3
