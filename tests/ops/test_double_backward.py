"""Second derivatives: offered and right, or refused with a clear error; never wrong."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.testing import sample_graphs

G = sample_graphs()["weighted"]
N, D, K = G.num_nodes, 3, 3

# name: (function, {input: shape}, inputs whose second derivatives are offered if no other needs a gradient)
CASES = {
    "ada_propagate_constant": (lambda x, **o: uf.ada_propagate(G, x, 0.7, K, **o), {"x": (N, D)}, "x"),
    "ada_propagate": (lambda x, c, **o: uf.ada_propagate(G, x, c, K, **o), {"x": (N, D), "c": (N,)}, ""),
    "propagate": (lambda x, **o: uf.propagate(G, x, K, keep=0.5, norm="row", **o), {"x": (N, D)}, "x"),
    "propagate_c": (lambda x, c, **o: uf.propagate(G, x, K, c=c, **o), {"x": (N, D), "c": (N,)}, "x"),
    "propagate_skip": (lambda x, s, **o: uf.propagate(G, x, K, skip=s, **o), {"x": (N, D), "s": (N,)}, "x"),
    "propagate_sum": (
        lambda x, y, **o: uf.propagate(G, x, K, gamma=y, out="sum", **o),
        {"x": (N, D), "y": (K + 1,)},
        "x",
    ),
    "propagate_edge_value": (
        lambda x, v, **o: uf.propagate(G, x, K, edge_value=v, **o),
        {"x": (N, D), "v": (G.num_edges,)},
        "x",
    ),
    "solve_constant": (lambda x, **o: uf.solve(G, x, 3.0, c=0.5, tol=1e-13, **o), {"x": (N, D)}, "x"),
    "solve": (
        lambda x, diag, c, **o: uf.solve(G, x, 3 + diag, c=c, tol=1e-13, **o),
        {"x": (N, D), "diag": (N,), "c": (N,)},
        "x",
    ),
    "ada_solve": (lambda x, c, **o: uf.ada_solve(G, x, c, tol=1e-13, **o), {"x": (N, D), "c": (N,)}, "x"),
    "neighbor_mean": (lambda x, **o: uf.neighbor_mean(G, x, **o), {"x": (N, D)}, "x"),
    "neighbor_var": (lambda x, **o: uf.neighbor_var(G, x, **o), {"x": (N, D)}, ""),
    "ada_c_var": (
        lambda x, w, b, **o: uf.ada_c(G, x, w, 3.0, bias=b, **o),
        {"x": (N, D), "w": (D,), "b": (1,)},
        "",
    ),
    "ada_c_mean": (
        lambda x, w, b, **o: uf.ada_c(G, x, w, 3.0, bias=b, stat="mean", **o),
        {"x": (N, D), "w": (D,), "b": (1,)},
        "",
    ),
    "denoising_energy": (
        lambda f, s, c, **o: uf.denoising_energy(G, f, s, c, **o),
        {"f": (N, D), "s": (N, D), "c": (N,)},
        "fsc",
    ),
}
# the incoming gradient is constant, or depends on the result
LOSSES = {"sum": torch.sum, "square": lambda out: out.square().sum()}


def second_derivatives(name, wrt, tracked, loss, backend):
    """Gradients in all tracked inputs of a sum over the gradient in one of them."""
    function, shapes, _ = CASES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = {n: torch.rand(shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}
    for n in tracked:
        inputs[n].requires_grad_()
    out = LOSSES[loss](function(**inputs, backend=backend))
    (grad,) = torch.autograd.grad(out, inputs[wrt], create_graph=True)
    if not grad.requires_grad:
        return [torch.zeros_like(inputs[n]) for n in tracked]
    weights = torch.rand(grad.shape, generator=generator, dtype=torch.float64)
    return torch.autograd.grad((weights * grad).sum(), [inputs[n] for n in tracked], materialize_grads=True)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "wrt"), [(name, n) for name, case in CASES.items() for n in case[1]])
def test_right_or_refused(name, wrt, loss, cpu):
    tracked = list(CASES[name][1])
    expected = second_derivatives(name, wrt, tracked, loss, "reference")
    try:
        got = second_derivatives(name, wrt, tracked, loss, "cpu")
    except RuntimeError as error:
        assert "double backward is" in str(error) and "backend='reference'" in str(error), error
        assert set(tracked) - set(CASES[name][2]), "must be offered"
        return
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "wrt"), [(name, n) for name, case in CASES.items() for n in case[2]])
def test_offered(name, wrt, loss, cpu):
    offered = list(CASES[name][2])
    expected = second_derivatives(name, wrt, offered, loss, "reference")
    for a, b in zip(second_derivatives(name, wrt, offered, loss, "cpu"), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case[2]])
def test_refused(name, cpu):
    with pytest.raises(RuntimeError, match=r"double backward is not offered.*backend='reference'"):
        second_derivatives(name, "x", list(CASES[name][1]), "square", "cpu")
