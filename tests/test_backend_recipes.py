"""Published propagation schemes, each as one call of uf.propagate, against their own loops in dense float64.

docs/backend.md has the same calls as a table for authors of other packages.
"""

import pytest
import torch
import torch.nn.functional as F

import ugnn_fast as uf
from ugnn_fast.testing import sample_graphs

GRAPHS = ("one_node", "isolated", "star", "power_law", "weighted", "weighted_no_self_loops", "no_self_loops")
K, D = 5, 3


def adjacency(g):
    A = torch.zeros(g.num_nodes, g.num_nodes, dtype=torch.float64)
    A[tuple(g.edge_index)] = 1.0 if g.weight is None else g.weight.double()
    return A


def normalized(A):
    """S = D^-1/2 A D^-1/2, zero in the rows of isolated nodes."""
    d = A.sum(1)
    r = torch.where(d > 0, d, torch.inf).rsqrt()
    return r[:, None] * A * r


def sgc(g, x):
    return uf.propagate(g, x, K)


def sgc_statement(A, x):
    return torch.linalg.matrix_power(normalized(A), K) @ x


def appnp(g, x, alpha):
    return uf.propagate(g, x, K, agg=1 - alpha, skip=alpha)


def appnp_statement(A, x, alpha):
    h, S = x, normalized(A)
    for _ in range(K):
        h = (1 - alpha) * S @ h + alpha * x
    return h


def gcnii(g, x, alpha):
    """GCNII without what stands between its steps (weight matrix and ReLU)."""
    return uf.propagate(g, x, K, agg=1 - alpha, skip=alpha)


def gcnii_statement(A, x, alpha):
    """Chen et al. 2020, all identity mappings: H <- ((1 - alpha) S H + alpha X) ((1 - beta) I + beta W), W = I."""
    beta, W, S, h = 0.3, torch.eye(D, dtype=x.dtype), normalized(A), x
    for _ in range(K):
        h = ((1 - alpha) * S @ h + alpha * x) @ ((1 - beta) * torch.eye(D, dtype=x.dtype) + beta * W)
    return h


def gprgnn(g, x, gamma):
    return uf.propagate(g, x, K, out="sum", gamma=gamma)


def gprgnn_statement(A, x, gamma):
    S = normalized(A)
    return sum(gamma[k] * torch.linalg.matrix_power(S, k) @ x for k in range(K + 1))


def ssgc(g, x, alpha=0.1):
    gamma = torch.full((K + 1,), (1 - alpha) / K, dtype=x.dtype)
    gamma[0] = alpha
    return uf.propagate(g, x, K, out="sum", gamma=gamma)


def ssgc_statement(A, x, alpha=0.1):
    S = normalized(A)
    return sum((1 - alpha) * torch.linalg.matrix_power(S, k) @ x + alpha * x for k in range(1, K + 1)) / K


def gnn_filter(g, x, alpha, q, first, second):
    """K steps of Z <- q S Z + alpha Y from Z = Y, Y = (first + second S) X, as one polynomial of S."""
    p = alpha * q ** torch.arange(K + 1, dtype=x.dtype)
    p[K] = q**K
    gamma = first * F.pad(p, (0, 1)) + second * F.pad(p, (1, 0))
    return uf.propagate(g, x, K + 1, out="sum", gamma=gamma)


def gnn_lf(g, x, alpha=0.2, mu=0.7):
    z = 1 + alpha * mu - alpha
    return gnn_filter(g, x, alpha, (z - alpha) / z, mu / z, (1 - mu) / z)


def gnn_lf_statement(A, x, alpha=0.2, mu=0.7):
    """Zhu et al. 2021, GNN-LF-iter."""
    S, z = normalized(A), 1 + alpha * mu - alpha
    h = mu / z * x + (1 - mu) / z * S @ x
    for _ in range(K):
        h = (1 + alpha * mu - 2 * alpha) / z * S @ h + alpha * mu / z * x + (alpha - alpha * mu) / z * S @ x
    return h


def gnn_hf(g, x, alpha=0.2, beta=0.6):
    z = 1 + alpha * beta
    return gnn_filter(g, x, alpha, (z - alpha) / z, (1 + beta) / z, -beta / z)


def gnn_hf_statement(A, x, alpha=0.2, beta=0.6):
    """Zhu et al. 2021, GNN-HF-iter."""
    S, z = normalized(A), 1 + alpha * beta
    L = torch.eye(len(A), dtype=A.dtype) - S
    h = x / z + beta / z * L @ x
    for _ in range(K):
        h = (alpha * beta - alpha + 1) / z * S @ h + alpha / z * x + alpha * beta / z * L @ x
    return h


def twirls(g, x, alpha=0.5, lam=0.8):
    inverse = 1 / (lam * g.degree.to(x.dtype) + 1 - lam)
    return uf.propagate(
        g, x, K, keep=1 - alpha, agg=alpha * lam, skip=alpha * inverse, left=inverse.sqrt(), right=inverse.sqrt()
    )


def twirls_statement(A, x, alpha=0.5, lam=0.8):
    """Yang et al. 2021, unfolded steps without attention, preconditioned by D~ = lam D + (1 - lam) I."""
    d = lam * A.sum(1) + 1 - lam
    h = x
    for _ in range(K):
        h = (1 - alpha) * h + alpha * lam * torch.diag(d**-0.5) @ A @ torch.diag(d**-0.5) @ h + alpha * x / d[:, None]
    return h


def grand(g, x, alpha, beta, tau=0.3):
    return uf.propagate(g, x, K, norm="row", keep=1 - tau * alpha, agg=tau * alpha, skip=tau * beta)


def grand_statement(A, x, alpha, beta, tau=0.3):
    """Chamberlain et al. 2021, dH/dt = alpha (R - I) H + beta X with R row-stochastic, explicit Euler steps."""
    d = A.sum(1, keepdim=True)
    R = torch.where(d > 0, A / d, 0)
    h = x
    for _ in range(K):
        h = h + tau * (alpha * (R @ h - h) + beta * x)
    return h


def chebyshev(g, x, theta, largest=1.9):
    # L^ = 2 L / largest - I = a I - b S;  T_1 = L^ X, then T_{k+1} = 2 L^ T_k - T_{k-1}
    a, b = 2 / largest - 1, 2 / largest
    twice = torch.tensor([[1.0]] + [[2.0]] * (K - 1), dtype=x.dtype)
    prev = torch.tensor([[0.0]] + [[-1.0]] * (K - 1), dtype=x.dtype)
    return uf.propagate(g, x, K, keep=a * twice, agg=-b * twice, prev=prev, out="sum", gamma=theta)


def chebyshev_statement(A, x, theta, largest=1.9):
    """Defferrard et al. 2016: sum_k theta_k T_k(2 L / largest - I) X, L = I - S."""
    eye = torch.eye(len(A), dtype=A.dtype)
    scaled = 2 / largest * (eye - normalized(A)) - eye
    T = [eye, scaled]
    for _ in range(K - 1):
        T.append(2 * scaled @ T[-1] - T[-2])
    return sum(theta[k] * T[k] @ x for k in range(K + 1))


def label_propagation(g, x, alpha=0.9):
    return uf.propagate(g, x, K, agg=alpha, skip=1 - alpha, clamp=(0.0, 1.0))


def label_propagation_statement(A, x, alpha=0.9):
    """Zhou et al. 2004, with scores held in [0, 1] as Huang et al. 2021 do."""
    S, h = normalized(A), x
    for _ in range(K):
        h = (alpha * S @ h + (1 - alpha) * x).clamp(0, 1)
    return h


# method: (call, statement, what is learnable)
SCALAR, FILTER = (), (K + 1,)
RECIPES = {
    "sgc": (sgc, sgc_statement, {}),
    "appnp": (appnp, appnp_statement, {"alpha": SCALAR}),
    "gcnii": (gcnii, gcnii_statement, {"alpha": SCALAR}),
    "gprgnn": (gprgnn, gprgnn_statement, {"gamma": FILTER}),
    "ssgc": (ssgc, ssgc_statement, {}),
    "gnn_lf": (gnn_lf, gnn_lf_statement, {}),
    "gnn_hf": (gnn_hf, gnn_hf_statement, {}),
    "twirls": (twirls, twirls_statement, {}),
    "grand": (grand, grand_statement, {"alpha": SCALAR, "beta": SCALAR}),
    "chebyshev": (chebyshev, chebyshev_statement, {"theta": FILTER}),
    "label_propagation": (label_propagation, label_propagation_statement, {}),
}


@pytest.fixture
def counted(monkeypatch):
    """How often propagate is called."""
    calls = []

    def propagate(*args, original=uf.propagate, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(uf, "propagate", propagate)
    return calls


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", RECIPES)
def test_one_call_is_the_method(name, graph, counted):
    recipe, statement, learnable = RECIPES[name]
    g = sample_graphs()[graph]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, D, dtype=torch.float64, requires_grad=True)
    values = {key: torch.rand(shape, dtype=torch.float64).requires_grad_() for key, shape in learnable.items()}
    found, expected = recipe(g, x, **values), statement(adjacency(g), x, **values)
    assert len(counted) == 1
    # it reads g.degree, which is float32
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-6} if name == "twirls" and g.weight is not None else {"rtol": 1e-9, "atol": 1e-11}
    )
    torch.testing.assert_close(found, expected, **tolerance)
    cotangent = torch.randn_like(expected)
    wanted = [x, *values.values()]
    got, want = (torch.autograd.grad(out, wanted, cotangent, allow_unused=True) for out in (found, expected))
    for key, g_found, g_expected in zip(["x", *values], got, want, strict=True):
        torch.testing.assert_close(g_found, g_expected, **tolerance, msg=lambda m, k=key: f"{k}: {m}")


def test_all_orders_serve_a_filter_with_matrices():
    """ChebConv, TAGConv and SIGN mix features of every order: out="all" is one call, the matrices come after."""
    g = sample_graphs()["power_law"]
    torch.manual_seed(0)
    x, W = torch.randn(g.num_nodes, D, dtype=torch.float64), torch.randn(K + 1, D, 4, dtype=torch.float64)
    found = torch.einsum("kni,kio->no", uf.propagate(g, x, K, out="all"), W)
    S = normalized(adjacency(g))
    torch.testing.assert_close(found, sum(torch.linalg.matrix_power(S, k) @ x @ W[k] for k in range(K + 1)))


def test_gcnii_layer_with_weights_is_one_step_and_one_sum():
    """A layer has a matrix and a ReLU behind its step, and its X0 is not the H that it starts from: K = 1, X0 added."""
    g, alpha, beta = sample_graphs()["power_law"], 0.1, 0.4
    torch.manual_seed(0)
    x0, h = torch.randn(2, g.num_nodes, D, dtype=torch.float64)
    W = torch.randn(D, D, dtype=torch.float64)
    found = torch.add(uf.propagate(g, h, 1, agg=1 - alpha), x0, alpha=alpha)
    found = torch.addmm(found, found, W, beta=1 - beta, alpha=beta).relu()
    mixed = (1 - alpha) * normalized(adjacency(g)) @ h + alpha * x0
    torch.testing.assert_close(found, (mixed @ ((1 - beta) * torch.eye(D, dtype=W.dtype) + beta * W)).relu())
