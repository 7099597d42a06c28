"""A whole training epoch of ADA-UGNN: forward, backward, Adam, evaluation. D is the hidden width, K the steps.

The other settings are those of the data set. All contenders start from the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.registry import OURS, Calls, Contender, Gather, Op, Problem, Results, Work, too_large
from ugnn_fast import reference
from ugnn_fast._sparse import sparse_features
from ugnn_fast.datasets import Dataset, row_normalize
from ugnn_fast.experiments import Run, Settings, Trainer, settings_for

# variance of neighbours: (scores [N, C]) -> [N, C]; steps: (scores, c [N]) -> [N, C]
Aggregation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


def make(data: Dataset, D: int, K: int) -> Problem:
    if data.x is None or data.y is None or not data.splits:
        raise ValueError(f"{data.name} has no features, labels or splits")
    dropout = settings_for(data.name).dropout
    # x stands for the hidden layer: nothing is computed with it
    return Problem(data.graph, (torch.empty(1, D),), torch.empty(0), K, dropout, row_normalize(data.x), data)


def parts_of(problem: Problem) -> tuple[Dataset, Tensor, Settings]:
    """Data set, features, and settings with the problem's width, steps and dropout."""
    assert problem.data is not None and problem.features is not None
    given = {"hidden": problem.x.shape[1], "steps": problem.K, "dropout": problem.dropout}
    # not binary: all contenders have the features of the problem
    return problem.data, problem.features, replace(settings_for(problem.data.name), binary=False, **given)


def trainer_of(problem: Problem) -> Trainer:
    data, _, settings = parts_of(problem)
    return Trainer(data, "ada-ugnn", settings, [Run()])


def ours(problem: Problem) -> Calls:
    trainer = trainer_of(problem)

    def epoch() -> Results:
        done = trainer.step()
        if problem.dropout:
            return ()
        with torch.no_grad():  # for the check alone
            return torch.tensor(done.train_loss), trainer.network(trainer.x, problem.g)[:, 0]

    return {"epoch": epoch}


class Peer(nn.Module):
    """ADA-UGNN with torch's layers, starting from the parameters of ours. x dense, or sparse CSR."""

    def __init__(self, problem: Problem, aggregation: Aggregation):
        super().__init__()
        network = trainer_of(problem).network
        layers = {"first": network.mlp.first, "second": network.mlp.second}
        for name, layer in layers.items():
            linear = nn.Linear(layer.in_features, layer.out_features)
            with torch.no_grad():
                linear.weight.copy_(layer.weight[0].t())
                linear.bias.copy_(layer.bias[0])
            setattr(self, name, linear)
        self.h1 = nn.Parameter(network.h1[0].detach().clone())
        self.settings = parts_of(problem)[2]
        self.variance, self.steps = aggregation

    def forward(self, x: Tensor) -> Tensor:
        p = self.settings.dropout
        if x.layout is torch.sparse_csr:
            values = F.dropout(x.values(), p, self.training)
            x = torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape, check_invariants=False)
            h = x @ self.first.weight.t() + self.first.bias
        else:
            h = self.first(F.dropout(x, p, self.training))
        scores = self.second(F.dropout(h.relu(), p, self.training))
        given = scores.detach()
        if self.settings.soft:
            given = F.normalize(given, p=1, dim=1)
        c = self.settings.s * torch.sigmoid(self.variance(given) @ self.h1)
        return self.steps(scores, c)


def epoch_of(network: nn.Module, inputs: tuple, data: Dataset, settings: Settings) -> Callable[[], Results]:
    """Training step and evaluation, as one writes them; gives the loss and the logits of the evaluation."""
    assert data.y is not None
    y, (train, val, test) = data.y, data.splits[0]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True)

    def epoch() -> Results:
        network.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(*inputs)[train], y[train])
        loss.backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            logits = network(*inputs)
            right = logits.argmax(-1) == y
            for part in (train, val, test):
                right[part].float().mean().item()
        return loss.detach(), logits

    return epoch


def scatter(problem: Problem) -> Aggregation:
    g, K = problem.g, problem.K
    return lambda x: reference.neighbor_var(g, x), lambda x, c: reference.ada_propagate(g, x, c, K)


def messages(problem: Problem) -> Aggregation:
    """The aggregation as message passing of torch_geometric."""
    from torch_geometric.nn import SimpleConv

    from bench.baselines.pyg_messages import WeightedMessages

    edge_index = problem.g.edge_index.long()
    row, col = edge_index
    degree = problem.g.degree
    norm = (degree[row] * degree[col]).rsqrt()
    variance, layer = SimpleConv(aggr="var"), WeightedMessages()

    def steps(x: Tensor, c: Tensor) -> Tensor:
        pair = c[row] + c[col]
        b = 1 / (2 + torch.zeros_like(c).index_add(0, row, pair) / degree)
        w = pair * norm
        h = x
        for _ in range(problem.K):
            h = b[:, None] * (2 * x + layer(h, edge_index, w))
        return h

    return lambda x: variance(x, edge_index), steps


def peer(aggregation: Callable[[Problem], Aggregation], sparse: bool) -> Callable[[Problem], Calls]:
    def made(problem: Problem) -> Calls:
        data, x, settings = parts_of(problem)
        network = Peer(problem, aggregation(problem))
        return {"epoch": epoch_of(network, (x if sparse else x.to_dense(),), data, settings)}

    return made


def expected(problem: Problem) -> Results:
    """The plain form in float64."""
    data, x, settings = parts_of(problem)
    network = Peer(problem, scatter(problem)).double()
    return epoch_of(network, (x.to_dense().double(),), data, settings)()


def _refuse(problem: Problem) -> str | None:
    N, columns = parts_of(problem)[1].shape
    return too_large(3 * 4 * N * columns, torch.device("cpu"))


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """Of training and evaluation: features gathered in both and once by columns, variance and K steps in both, K steps
    back. Beside that the values of features (3), tables of steps (10 K N C) and of the hidden layer (6 N D)."""
    data, x, _ = parts_of(problem)
    (N, columns), D, C, K = x.shape, problem.x.shape[1], data.num_classes, problem.K
    found, g = sparse_features(x), problem.g
    gathers = (
        Gather(found.rowptr, found.col, columns, D, 2),
        Gather(found.t_rowptr, found.t_col, N, D, 1),
        Gather(g.rowptr, g.col, N, C, 3 * K + 2),
    )
    return Work(gathers, 3 * 4 * len(found.col) + itemsize * N * (10 * K * C + 6 * D))


OP = Op(
    name="epoch",
    what="training step and evaluation of ADA-UGNN, D hidden units, with the settings of the data set",
    cases=("cora:16:10", "pubmed:16:10", "coauthor_cs:64:5", "flickr:64:2"),
    make=make,
    expected=expected,
    work=work,
    results=("loss", "logits"),
    modes=("epoch",),
    contenders=(
        Contender(OURS, ours, "what ugnn-fast train does"),
        Contender("pyg", peer(messages, False), "torch_geometric's message passing, dense features",
                  needs="torch_geometric", refuse=_refuse),
        Contender("pyg sparse", peer(messages, True), "the same, features as a torch CSR matrix",
                  needs="torch_geometric"),
        Contender("torch_scatter", peer(scatter, False), "the authors' form in plain torch, dense features",
                  refuse=_refuse),
    ),
)  # fmt: skip
