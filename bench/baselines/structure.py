"""What the sparse-matrix baselines keep of a graph between calls."""

import warnings

import torch
from torch import Tensor

from ugnn_fast import Graph

# torch announces once per process that the layout is beta
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.zeros(1, 1).to_sparse_csr()


class Structure:
    """CSR pattern of Ã, degrees, and scratch tensors that no two calls need at once.

    row, col int32 [E]; degree, rho, ones [N]; norm [E] = rho_i rho_j; A: Ã, normalised: with norm as values; mean:
    m = mean @ C, mean_t its transpose. Matrices have int32 indices, the form that MKL and cuSPARSE take without a
    conversion.
    """

    def __init__(self, g: Graph, dtype: torch.dtype = torch.float32) -> None:
        if g.weight is not None or not g.self_loops:
            raise ValueError("the baselines take graphs without weights and with self loops")
        self.N = g.num_nodes
        self.rowptr, self.col = g.rowptr.int(), g.col
        self.row = g.edge_index[0].int()
        self.degree = g.degree.to(dtype)
        self.rho = self.degree.rsqrt()
        self.norm = self.rho[self.row] * self.rho[self.col]
        self.A = self.matrix(torch.ones_like(self.norm))
        self.normalised = self.matrix(self.norm)
        self.mean = self.matrix(1 / self.degree[self.row])
        self.mean_t = self.matrix(1 / self.degree[self.col])
        self.ones = torch.ones_like(self.degree)
        self._scratch: dict[str, Tensor] = {}

    def matrix(self, values: Tensor) -> Tensor:
        """Sparse matrix [N, N] with these values [E], which it does not copy."""
        return torch.sparse_csr_tensor(self.rowptr, self.col, values, size=(self.N, self.N), check_invariants=False)

    def scratch(self, name: str, *shape: int) -> Tensor:
        """A tensor that lives from call to call, for use inside one forward or one backward only.

        States that backward needs never live here: a second forward would overwrite them.
        """
        found = self._scratch.get(name)
        if found is None or found.shape != shape:
            found = self._scratch[name] = self.ones.new_empty(shape)
        return found

    def scale(self, c: Tensor) -> Tensor:
        """b = 1 / (2 + C + m), [N]."""
        return torch.mv(self.mean, c).add_(c).add_(2).reciprocal_()

    def scale_adjoint(self, e: Tensor) -> Tensor:
        """e_i + sum_j e_j / d_j, what dC loses through b for e_i = sum over the steps of b_i <G_i, H_i>."""
        return torch.mv(self.mean_t, e).add_(e)


def multiply(matrix: Tensor, dense: Tensor, out: Tensor) -> Tensor:
    """out = matrix @ dense, in place: a fresh result would cost its page faults."""
    return torch.addmm(out, matrix, dense, beta=0, out=out)
