"""The bare gather sums what it should, in every way that is tried, and its order by length is the same matrix."""

import itertools

import pytest
import torch

from bench import bound, graphs
from bench.ops.ada_propagate import OP
from bench.registry import Gather


@pytest.fixture(scope="module")
def gather():
    try:
        return bound.library().bare_gather
    except RuntimeError as missing:
        pytest.skip(str(missing))


def dense(rowptr, col):
    N = len(rowptr) - 1
    row = torch.arange(N).repeat_interleave(rowptr.diff())
    return torch.zeros(N, N).index_put((row, col.long()), torch.ones(len(col)))


def graph_gather(width):
    g = graphs.load("toy").graph
    return Gather(g.rowptr, g.col, g.num_nodes, width, 1)


def test_order_by_length_is_the_same_matrix():
    (rowptr, col), (near_rowptr, near_col) = bound.orders(graph_gather(1))
    order = rowptr.diff().argsort(stable=True)
    assert near_rowptr.diff().equal(rowptr.diff()[order])
    assert dense(near_rowptr, near_col).equal(dense(rowptr, col)[order][:, order])


@pytest.mark.parametrize("width", [1, 3, 7, 16, 20, 40, 48, 64, 100, 130, 200])
@pytest.mark.parametrize("itemsize", [4, 2])
def test_sums(gather, width, itemsize):
    columns = bound.padded(width, itemsize)
    rowptr, col = bound.orders(graph_gather(width))[0]
    N = len(rowptr) - 1
    x = torch.randint(-3, 4, (N, columns)).float()  # small integers: exact in bfloat16
    right = dense(rowptr, col) @ x
    table = x.to(torch.float32 if itemsize == 4 else torch.bfloat16)
    for (hint, distance), chains, threads in itertools.product(((0, 0), (1, 16), (2, 3)), (1, 2), (1, 3)):
        out = torch.full_like(table, float("nan"))
        addresses = rowptr.data_ptr(), col.data_ptr(), N, table.data_ptr(), out.data_ptr()
        gather(*addresses, columns, itemsize, 1, hint, distance, chains, threads)
        assert out.float().equal(right)


def test_passes_read_what_the_one_before_has_written(gather):
    rowptr, col = bound.orders(graph_gather(4))[0]
    x = torch.randint(-3, 4, (len(rowptr) - 1, 4)).float()
    table, out = x.clone(), torch.empty_like(x)
    gather(rowptr.data_ptr(), col.data_ptr(), len(x), table.data_ptr(), out.data_ptr(), 4, 4, 3, 0, 0, 1, 1)
    A = dense(rowptr, col)
    assert out.equal(A @ (A @ (A @ x)))


def test_bound_does_all_gathers_of_the_work(gather):
    problem = OP.make(graphs.load("toy"), 5, 3)
    call, how = bound.bound_call(OP.work(problem, "fwdbwd", 4), 4, 1)
    assert [table.shape for table in call()] == [(70, 8)]
    assert "chains" in how and "threads 1" in how


def test_without_a_compiler_there_is_no_bound(monkeypatch):
    bound.library.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="compiler"):
        bound.library()
    bound.library.cache_clear()
