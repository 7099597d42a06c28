"""Runs trained side by side give what they give alone."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import ugnn_fast as uf
from ugnn_fast import _memory, experiments
from ugnn_fast.experiments import MODELS, Run, Settings, Trainer, models, train_runs
from ugnn_fast.testing import sample_graphs

RUNS = [Run(0, 3), Run(1, 0), Run(2, 7), Run(1, 3)]
SETTINGS = Settings(hidden=8, dropout=0.5, steps=4, lr=0.02, epochs=12)


@pytest.fixture(scope="module")
def data():
    """A graph with sparse features that say something of the labels, and three splits."""
    generator = torch.Generator().manual_seed(0)
    g = sample_graphs()["power_law"]
    N = g.num_nodes
    y = torch.randint(0, 3, (N,), generator=generator)
    x = (torch.rand(N, 30, generator=generator) < 0.1) + (torch.arange(30) // 10 == y[:, None]) * (
        torch.rand(N, 30, generator=generator) < 0.2
    )
    order = [torch.randperm(N, generator=generator) for _ in range(3)]
    splits = [(p[: N // 4], p[N // 4 : N // 2], p[N // 2 :]) for p in order]
    return uf.datasets.Dataset("made", g, x.float().to_sparse_csr(), y, splits)


@pytest.mark.parametrize("model", MODELS)
def test_a_replica_gives_the_numbers_of_its_run_alone(model, data):
    together = train_runs(data, model, SETTINGS, RUNS)
    for run, replica in zip(RUNS, together, strict=True):
        (alone,) = train_runs(data, model, SETTINGS, [run])
        assert (replica.split, replica.seed) == tuple(run)
        ours, theirs = (torch.tensor([epoch[1:-1] for epoch in result.history]) for result in (replica, alone))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert replica.best.epoch == alone.best.epoch
        assert torch.equal(replica.right, alone.right)
        for name, value in alone.state.items():
            torch.testing.assert_close(replica.state[name], value, rtol=1e-3, atol=1e-4)
        if alone.c is not None:
            torch.testing.assert_close(replica.c, alone.c, rtol=1e-3, atol=1e-3)
            assert replica.correlation == pytest.approx(alone.correlation, abs=1e-3)


@pytest.mark.parametrize("model", ["ada-ugnn", "appnp", "gcn", "gat"])
def test_a_run_is_what_a_loop_in_plain_torch_gives(model, data):
    """One model without replicas, torch's default generator, Adam: nothing of the trainer."""
    (result,) = train_runs(data, model, SETTINGS, [Run(1, 5)])
    x = uf.datasets.row_normalize(data.x)
    train, val, test = data.splits[1]
    torch.manual_seed(5)
    network = experiments.build_model(model, 30, 3, SETTINGS)
    optimizer = torch.optim.Adam(network.parameters(), lr=SETTINGS.lr, weight_decay=SETTINGS.weight_decay)
    for epoch in result.history:
        network.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x, data.graph)[train], data.y[train])
        loss.backward()
        optimizer.step()
        network.eval()
        right = (network(x, data.graph).argmax(1) == data.y).double()
        assert epoch.train_loss == pytest.approx(loss.item(), rel=1e-4)
        found = epoch.train_accuracy, epoch.val_accuracy, epoch.test_accuracy
        assert found == pytest.approx([right[part].mean().item() for part in (train, val, test)], abs=1e-6)


def test_replicas_differ(data):
    losses = {result.history[0].train_loss for result in train_runs(data, "ada-ugnn", SETTINGS, RUNS)}
    assert len(losses) == len(RUNS)


def test_a_state_carries_a_training_over(data, tmp_path):
    whole = train_runs(data, "ada-ugnn", SETTINGS, RUNS)
    first = Trainer(data, "ada-ugnn", SETTINGS, RUNS)
    for _ in range(5):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Trainer(data, "ada-ugnn", SETTINGS, RUNS)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.epoch == 5
    while not second.finished:
        second.step()
    for ours, theirs in zip(second.results(), whole, strict=True):
        assert [epoch[:-1] for epoch in ours.history] == [epoch[:-1] for epoch in theirs.history]
        assert all(torch.equal(ours.state[name], theirs.state[name]) for name in theirs.state)
    other = Trainer(data, "ada-ugnn", dataclasses.replace(SETTINGS, lr=0.5), RUNS)
    with pytest.raises(ValueError, match=r"state must be of ada-ugnn on made \(150 nodes, .*lr=0.5"):
        other.load_state_dict(first.state_dict())


def test_binary_features(data):
    x = data.x
    scaled = torch.sparse_csr_tensor(
        x.crow_indices(),
        x.col_indices(),
        x.values() * torch.arange(1, x._nnz() + 1),
        size=x.shape,
        check_invariants=True,
    )
    counts = dataclasses.replace(data, x=scaled)
    settings = dataclasses.replace(SETTINGS, epochs=2, binary=True)
    losses = [train_runs(d, "appnp", settings, [Run()])[0].history[-1].train_loss for d in (data, counts)]
    # the features of `data` are 1 or 2
    assert losses[0] == losses[1]


def test_batches_fit_into_memory_and_cache_and_are_of_about_one_size(data, monkeypatch):
    each = models.bytes_per_replica("ada-ugnn", data, SETTINGS)
    for memory, expected in ((4 * 30 * each, 30), (4 * 29 * each, 15), (4 * 4 * each, 4), (1, 1)):
        monkeypatch.setattr(_memory, "total_bytes", lambda memory=memory: memory)
        assert models.replicas_at_once("ada-ugnn", data, SETTINGS, 30) == expected
    monkeypatch.undo()
    hidden = 4 * data.graph.num_nodes * SETTINGS.hidden
    monkeypatch.setattr(models, "_CACHE_BYTES", 10 * hidden)
    assert models.replicas_at_once("ada-ugnn", data, SETTINGS, 30) == 10
    assert models.replicas_at_once("gat", data, SETTINGS, 30) == 1


def test_total_memory():
    assert 2**28 < _memory.total_bytes() < 2**50


def test_no_runs(data):
    with pytest.raises(ValueError, match="runs must hold at least one run, got none"):
        train_runs(data, "appnp", SETTINGS, [])
