"""`ada_propagate` with scipy.sparse: forward with stored edge weights, gradients by our factorisation.

The formulas are those of torch_csr (forward) and torch_csr_factored (forward and backward), on numpy arrays;
u and C u lie side by side in one table [N, 2 D], so that one product serves both.
"""

import numpy as np
import scipy.sparse

from ugnn_fast import Graph


class ScipyCsr:
    """Keeps the structure of a graph; arrays are float32, x and grad [N, D], c [N]."""

    def __init__(self, g: Graph) -> None:
        if g.weight is not None or not g.self_loops:
            raise ValueError("the baselines take graphs without weights and with self loops")
        self.rowptr, self.col = g.rowptr.numpy().astype(np.int32), g.col.numpy()
        self.row = g.edge_index[0].numpy().astype(np.int32)
        self.degree = g.degree.numpy()
        self.rho = (1 / np.sqrt(self.degree)).astype(np.float32)
        self.norm = self.rho[self.row] * self.rho[self.col]
        self.A = self._matrix(np.ones(len(self.col), np.float32))

    def _matrix(self, values: np.ndarray) -> scipy.sparse.csr_array:
        N = len(self.degree)
        return scipy.sparse.csr_array((values, self.col, self.rowptr), shape=(N, N), copy=False)

    def normalised(self) -> scipy.sparse.csr_array:
        """rho Ã rho."""
        return self._matrix(self.norm)

    def _scale(self, c: np.ndarray) -> np.ndarray:
        """b = 1 / (2 + C + m), [N]."""
        return 1 / (2 + c + self.A @ c / self.degree)

    def forward(self, x: np.ndarray, c: np.ndarray, steps: int) -> np.ndarray:
        """H [N, D]."""
        b = self._scale(c)
        M = self._matrix((c[self.row] + c[self.col]) * self.norm * b[self.row])
        base = (2 * b)[:, None] * x
        h = x
        for _ in range(steps):
            h = M @ h
            h += base
        return h

    def _step(self, table: np.ndarray, scale: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From [u, C u] [N, 2 D]: s = A u and scale (C s + A C u), [N, D] each."""
        D = table.shape[1] // 2
        product = self.A @ table
        s = product[:, :D]
        out = c[:, None] * s
        out += product[:, D:]
        out *= scale[:, None]
        return s, out

    def forward_backward(
        self, x: np.ndarray, c: np.ndarray, steps: int, grad: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """H, dX [N, D], dC [N]."""
        N, D = x.shape
        b, rho = self._scale(c), self.rho
        scale = rho * rho * b
        base = (2 * b * rho)[:, None] * x
        tables = np.empty((steps + 1, N, 2 * D), np.float32)
        sums = []
        np.multiply(x, rho[:, None], out=tables[0, :, :D])
        for k in range(steps):
            u = tables[k, :, :D]
            np.multiply(u, c[:, None], out=tables[k, :, D:])
            s, out = self._step(tables[k], scale, c)
            sums.append(s)
            np.add(out, base, out=tables[k + 1, :, :D])
        h = tables[steps, :, :D] / rho[:, None]

        table = np.empty((N, 2 * D), np.float32)
        v = table[:, :D]
        np.multiply(grad, (rho * b)[:, None], out=v)
        sum_v = np.zeros_like(x)
        grad_c, e = np.zeros(N, np.float32), np.zeros(N, np.float32)
        for k in reversed(range(steps)):
            sum_v += v
            e += np.einsum("nd,nd->n", v, tables[k + 1, :, :D])
            np.multiply(v, c[:, None], out=table[:, D:])
            t, out = self._step(table, scale, c)
            grad_c += np.einsum("nd,nd->n", v, sums[k]) + np.einsum("nd,nd->n", tables[k, :, :D], t)
            v[:] = out
        sum_v *= 2
        sum_v += v / b[:, None]
        e *= self.degree
        grad_c -= e + self.A @ (e / self.degree)
        return h, sum_v / rho[:, None], grad_c
