"""The private product of sparse features with a weight."""

import gc
import weakref

import pytest
import torch

from ugnn_fast.nn import _sparse
from ugnn_fast.nn._sparse import sparse_product, structure_of

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def random_csr(N, columns, share=0.3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(N, columns, generator=generator, dtype=dtype)
    return (dense * (torch.rand(N, columns, generator=generator) < share)).to_sparse_csr()


@pytest.mark.parametrize("size", [(7, 5, 3), (1, 4, 2), (5, 1, 1), (40, 90, 16), (0, 3, 2), (4, 3, 0)], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_product_and_its_gradient(size, share):
    N, columns, D = size
    x = random_csr(N, columns, share)
    weight = torch.randn(columns, D, dtype=torch.float64, requires_grad=True)
    found = sparse_product(structure_of(x), x.values(), weight)
    expected = x.to_dense() @ weight
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(N, D, dtype=torch.float64)
    (grad,) = torch.autograd.grad(found, weight, upstream)
    (expected_grad,) = torch.autograd.grad(expected, weight, upstream)
    torch.testing.assert_close(grad, expected_grad)


def test_gradient_is_that_of_the_values_of_the_call():
    x = random_csr(8, 6)
    weight = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    changed = x.values() * torch.arange(x.values().numel())
    assert torch.autograd.gradcheck(lambda w: sparse_product(structure_of(x), changed, w), weight)


def test_int32_indices():
    x = random_csr(8, 6)
    narrow = torch.sparse_csr_tensor(x.crow_indices().int(), x.col_indices().int(), x.values(), size=x.shape)
    weight = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    found = sparse_product(structure_of(narrow), narrow.values(), weight)
    torch.testing.assert_close(found, x.to_dense() @ weight)
    found.sum().backward()
    torch.testing.assert_close(weight.grad, x.to_dense().sum(0)[:, None].expand(6, 3))


def test_structure_is_built_once_per_tensor_and_freed_with_it(monkeypatch):
    x, built = random_csr(8, 6), []
    build = _sparse._build_structure
    monkeypatch.setattr(_sparse, "_build_structure", lambda x: built.append(1) or build(x))
    kept = weakref.ref(structure_of(x).to_transpose)
    assert structure_of(x) is structure_of(x)
    assert len(built) == 1
    structure_of(random_csr(8, 6, seed=1))
    assert len(built) == 2
    del x
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "crow, col", [([0, 2, 1, 3], [0, 1, 0]), ([0, 1, 2, 3], [0, 1, 4]), ([0, 1, 2, 3], [0, -1, 1])]
)
def test_a_tensor_that_is_not_csr_is_refused(crow, col):
    x = torch.sparse_csr_tensor(
        torch.tensor(crow), torch.tensor(col), torch.ones(3), size=(3, 4), check_invariants=False
    )
    with pytest.raises(ValueError, match="x must be a valid sparse CSR tensor, got one for which"):
        structure_of(x)


def test_double_backward_is_an_error():
    x = random_csr(8, 6)
    weight = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    out = sparse_product(structure_of(x), x.values(), weight)
    upstream = torch.ones_like(out, requires_grad=True)
    (grad,) = torch.autograd.grad(out, weight, upstream, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
