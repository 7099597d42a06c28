"""The trainer: its protocol, its bookkeeping, and the reports it leaves."""

import csv
import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import ugnn_fast as uf
from ugnn_fast import experiments
from ugnn_fast.experiments import Epoch, Settings, settings_for, train
from ugnn_fast.experiments.report import best_run, load_checkpoint, metrics, write_report
from ugnn_fast.experiments.settings import read_table, write_table
from ugnn_fast.experiments.train import Run, Trainer, correlation

train_module = sys.modules["ugnn_fast.experiments.train"]  # the package has a function of that name
SHORT = dataclasses.replace(settings_for("cora"), epochs=5)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Training on Cora is many short calls: on a busy machine two threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cora():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("UGNN_DATA", raising=False)
        return uf.datasets.load("cora")


@pytest.fixture(scope="module")
def runs(cora):
    """Two short runs, with what progress was told of them."""
    told = []
    return [train(cora, settings=SHORT, seed=seed, progress=told.append) for seed in (0, 1)], told


def without_times(history):
    return [epoch._replace(seconds=0) for epoch in history]


def test_settings_are_those_of_the_paper():
    assert settings_for("cora") == Settings(16, 5e-4, 0.8, 10, 0.05, 9, False, epochs=400)
    assert settings_for("amazon_photo") == Settings(64, 5e-5, 0.2, 5, 0.01, 19, True, epochs=400)
    assert settings_for("my_own") == settings_for("cora")


def test_settings_without_a_row_are_those_of_the_nearest():
    for model in ("appnp", "gcn", "ada-ugnn"):
        assert isinstance(settings_for("my_own", model), Settings)
    assert settings_for("my_own", "gat").hidden == 8
    assert isinstance(settings_for("mettack_cora", "gcn", 25), Settings)


def test_the_table_is_written_as_it_is_read(tmp_path):
    table = {
        ("gcn", "cora", 0): (Settings(dropout=0.25, lr=0.005, weight_decay=5e-8), "search"),
        ("ada-ugnn", "mettack_cora", 25): (Settings(soft=True, binary=True, s=1.5), "by hand"),
    }
    write_table(tmp_path / "table.csv", table)
    assert read_table(tmp_path / "table.csv") == table
    (tmp_path / "bad.csv").write_text((tmp_path / "table.csv").read_text().replace("0.25", "2.5"))
    with pytest.raises(ValueError, match=r"bad.csv, line 3: must be a row of settings: dropout must be < 1, got 2.5"):
        read_table(tmp_path / "bad.csv")
    header = (tmp_path / "table.csv").read_text().splitlines()[0]
    for text, message in (
        ("", "must have the header model,dataset,.* and rows of settings, got none"),
        (f"{header}\n", "rows of settings, got none"),
        ("model,dataset\n", "line 1: must be the header"),
        (f"{header}\ngcnn,cora,0,16,0,0,2,0.1,1,0,0,x\n", "line 2: .* model must be one of .*, got 'gcnn'"),
        (f"{header}\ngcn,cora,0,16,0,0,2,0.1,1,7,0,x\n", "line 2: .* must be one of 0, 1, got '7'"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_table(tmp_path / "bad.csv")


def test_settings_as_text_say_all_digits():
    assert "lr=0.05," in Settings().text()
    assert Settings(lr=0.0123456).text() != Settings(lr=0.01234563).text()


@pytest.mark.parametrize(
    "name, value",
    [
        ("hidden", 0),
        ("weight_decay", -1.0),
        ("dropout", 1.0),
        ("steps", -1),
        ("lr", 0.0),
        ("s", -1.0),
        ("epochs", 0),
        ("patience", -1),
        ("patience", 2**40),
    ],
)
def test_bad_settings(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        Settings(**{name: value})


class Scripted(nn.Module):
    """Two replicas whose logits without dropout follow scripts of validation accuracies."""

    def __init__(self, val_right):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("evaluations", torch.tensor([0, 0]))
        self.val_right = val_right

    def forward(self, x, graph):
        logits = torch.zeros(8, 2, 2)
        logits[..., 0] = 1  # class 0 for everybody: train nodes right, test nodes as they come
        if not self.training:
            epoch = int(self.evaluations[0])
            for r in range(2):
                logits[2 : 2 + self.val_right[r][epoch], r] = torch.tensor([0.0, 1.0])
                logits[6, r, epoch % 2] += 5
            self.evaluations += 1
        return logits + self.weight[:, None]


def scripted_trainer(monkeypatch, val_right, **settings):
    y = torch.tensor([0, 0, 1, 1, 1, 1, 0, 1])
    split = torch.tensor([0, 1]), torch.tensor([2, 3, 4, 5]), torch.tensor([6, 7])
    graph = uf.Graph.from_edge_index(torch.tensor([[0], [1]]), 8, symmetrize=True)
    data = uf.datasets.Dataset("scripted", graph, torch.eye(8).to_sparse_csr(), y, [split])
    monkeypatch.setattr(train_module, "build_replicas", lambda *args: (Scripted(val_right), []))
    return Trainer(data, "appnp", Settings(weight_decay=0.0, **settings), [Run(0, 0), Run(0, 1)])


def test_strictly_better_validation_replaces_the_best_epoch_of_each_run(monkeypatch):
    trainer = scripted_trainer(monkeypatch, ([1, 3, 2, 3, 3, 0], [0, 0, 1, 1, 2, 2]), epochs=6)
    told = []
    while not trainer.finished:
        told.append(trainer.step())
    first, second = trainer.results()
    assert [epoch.epoch for epoch in first.history] == [1, 2, 3, 4, 5, 6]
    assert [epoch.val_accuracy for epoch in first.history] == [0.25, 0.75, 0.5, 0.75, 0.75, 0.0]
    assert [epoch.train_accuracy for epoch in first.history] == [1.0] * 6
    assert [epoch.test_accuracy for epoch in first.history] == [0.5, 0.0] * 3
    assert first.best == first.history[1] and second.best == second.history[4]
    assert first.state["evaluations"] == 2, "the parameters kept are those of the best epoch"
    assert second.state["evaluations"] == 5
    assert first.right.tolist() == [True, True, True, True, True, False, False, False]
    assert trainer.network.evaluations.tolist() == [6, 6], "one evaluation per epoch"
    assert [epoch.val_accuracy for epoch in told] == [0.125, 0.375, 0.375, 0.5, 0.625, 0.25]
    assert all(epoch.seconds > 0 for epoch in first.history)


def test_a_tie_is_wrong(monkeypatch):
    class Tied(Scripted):
        def forward(self, x, graph):
            return torch.zeros(8, 2, 2) + self.weight[:, None]

    trainer = scripted_trainer(monkeypatch, (), epochs=1)
    trainer.network = Tied(())
    told = trainer.step()
    assert (told.train_accuracy, told.val_accuracy, told.test_accuracy) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("model", ["gcn", "ada-ugnn"])
def test_a_training_that_diverges_says_so(cora, model):
    message = rf"must stay finite, got others in epoch \d of {model} on cora, .*lr=1e"
    with pytest.raises(train_module.Diverged, match=message):
        train(cora, model, Settings(lr=1e30, epochs=9))


def test_patience_ends_each_run_by_itself(monkeypatch):
    trainer = scripted_trainer(monkeypatch, ([2, 1, 1, 4, 0, 0, 0], [0, 1, 1, 2, 1, 1, 0]), epochs=7, patience=2)
    while not trainer.finished:
        trainer.step()
    first, second = trainer.results()
    assert (first.best.epoch, len(first.history)) == (1, 3), "better validation after the end does not count"
    assert (second.best.epoch, len(second.history)) == (4, 6)
    assert trainer.epoch == 6


def test_result_describes_the_best_epoch(cora, runs):
    (result, _), _ = runs
    assert result.best.val_accuracy == max(epoch.val_accuracy for epoch in result.history)
    assert result.test_accuracy == result.best.test_accuracy
    assert result.seconds == sum(epoch.seconds for epoch in result.history)
    assert result.seconds_per_epoch == np.median([epoch.seconds for epoch in result.history])
    network = experiments.build_model("ada-ugnn", result.in_features, result.classes, SHORT).eval()
    network.load_state_dict(result.state)
    x = uf.datasets.row_normalize(cora.x)
    test = cora.splits[0][2]
    accuracy = (network(x, cora.graph).argmax(1) == cora.y)[test].double().mean().item()
    assert accuracy == pytest.approx(result.test_accuracy, abs=1e-12)
    torch.testing.assert_close(network.smoothness(x, cora.graph), result.c)


def test_progress_hears_of_every_epoch(runs):
    results, told = runs
    assert told == [epoch for result in results for epoch in result.history]
    assert isinstance(told[0], Epoch)


def test_a_seed_decides_the_run_and_leaves_the_global_generator_alone(cora, runs):
    (first, second), _ = runs
    torch.manual_seed(77)
    expected = torch.rand(3)
    torch.manual_seed(77)
    again = train(cora, settings=SHORT, seed=0)
    assert torch.equal(torch.rand(3), expected)
    assert without_times(again.history) == without_times(first.history)
    assert without_times(second.history) != without_times(first.history)


def test_features_are_normalised(cora, runs):
    x = cora.x
    scaled = torch.sparse_csr_tensor(
        x.crow_indices(), x.col_indices(), 4 * x.values(), size=x.shape, check_invariants=False
    )
    found = train(dataclasses.replace(cora, x=scaled), settings=SHORT, seed=0)
    assert without_times(found.history) == without_times(runs[0][0].history)


def test_weight_decay_is_on_all_parameters(cora):
    settings = dataclasses.replace(SHORT, epochs=1, weight_decay=1e3, lr=1e-4)
    trainer = Trainer(cora, "ada-ugnn", settings, [Run()])
    before = {name: value.detach().clone() for name, value in trainer.network.named_parameters()}
    trainer.step()
    # next to such a decay the gradient of the loss is nothing: the step leads towards 0
    for name, after in trainer.network.named_parameters():
        assert (after.abs() < before[name].abs()).double().mean() > 0.9, name


def test_short_training_ends_at_the_loss_of_the_reference(cora):
    """20 epochs with the kernels, and in a process without them."""
    settings = dataclasses.replace(SHORT, epochs=20)
    found = train(cora, settings=settings).history
    code = (
        "import dataclasses, json, torch, ugnn_fast as uf\n"
        "from ugnn_fast.experiments import train, settings_for\n"
        "torch.set_num_threads(1)\n"
        "assert not uf.backends()['cpu'].runs\n"
        "settings = dataclasses.replace(settings_for('cora'), epochs=20)\n"
        "print(json.dumps(train(uf.datasets.load('cora'), settings=settings).history))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "UGNN_DATA"}
    done = subprocess.run([sys.executable, "-c", code], env={**env, "UGNN_NATIVE": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [Epoch(*row) for row in json.loads(done.stdout)]
    assert expected[-1].train_loss < expected[0].train_loss - 0.1
    for ours, reference in zip(found, expected, strict=True):
        assert ours.train_loss == pytest.approx(reference.train_loss, abs=2e-3)
        assert ours.test_accuracy == pytest.approx(reference.test_accuracy, abs=0.01)


def test_correlation_is_pearsons_over_defined_nodes():
    rng = np.random.default_rng(0)
    c, smooth = rng.random(50), rng.random(50)
    smooth[[3, 8]] = np.nan
    kept = ~np.isnan(smooth)
    expected = np.corrcoef(c[kept], smooth[kept])[0, 1]
    assert correlation(torch.tensor(c), torch.tensor(smooth)) == pytest.approx(expected)
    assert correlation(torch.full((50,), 4.5), torch.tensor(smooth)) is None
    assert correlation(torch.tensor(c), torch.full((50,), torch.nan)) is None


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": None}, "dataset must have features, labels and splits, got cora without features"),
        ({"y": None}, "without labels"),
        ({"splits": []}, "without splits"),
    ],
)
def test_a_data_set_that_cannot_be_trained_on(cora, change, message):
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(cora, **change))


def test_bad_arguments(cora):
    with pytest.raises(ValueError, match=r"split must be in 0..0 for cora, got 1"):
        train(cora, split=1)
    with pytest.raises(ValueError, match=r"seed must be in .*, got -1"):
        train(cora, seed=-1)
    with pytest.raises(ValueError, match=r"model must be one of ada-ugnn, appnp, ppnp, gcn, .*, got 'mlp'"):
        train(cora, "mlp")
    train_nodes, _, test_nodes = cora.splits[0]
    empty = dataclasses.replace(cora, splits=[(train_nodes, train_nodes[:0], test_nodes)])
    with pytest.raises(ValueError, match="split 0 of cora must have val nodes, got none"):
        train(empty)


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "new" / "folder"
    write_report(path, runs[0])
    return path


def test_report_has_its_files(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["checkpoint.pt", "curves.png", "history.csv", "metrics.json", "smoothness.png"]


def test_metrics(folder, runs):
    results, _ = runs
    found = json.loads((folder / "metrics.json").read_text())
    assert found == metrics(results)
    assert (found["dataset"], found["model"], found["split"], found["rate"]) == ("cora", "ada-ugnn", 0, 0)
    assert found["settings"] == dataclasses.asdict(SHORT)
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    assert [run["test_accuracy"] for run in found["runs"]] == [result.test_accuracy for result in results]
    accuracy = [result.test_accuracy for result in results]
    assert found["summary"]["test_accuracy_mean"] == pytest.approx(np.mean(accuracy))
    assert found["summary"]["test_accuracy_std"] == pytest.approx(np.std(accuracy, ddof=1))
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["ugnn_fast"] == uf.__version__


def test_history(folder, runs):
    with open(folder / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [(result.seed, *epoch) for result in runs[0] for epoch in result.history]
    assert [tuple(float(value) for value in row.values()) for row in rows] == expected
    assert list(rows[0]) == ["seed", *Epoch._fields]


def test_checkpoint_loads_without_pickle_and_gives_the_same_accuracy(cora, folder, runs):
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    best = best_run(runs[0])
    assert saved["settings"] == dataclasses.asdict(SHORT)
    assert (saved["seed"], saved["epoch"]) == (best.seed, best.best.epoch)
    network, about = load_checkpoint(folder / "checkpoint.pt")
    assert not network.training
    assert about["dataset"] == "cora"
    right = network(uf.datasets.row_normalize(cora.x), cora.graph).argmax(1) == cora.y
    assert right[cora.splits[0][2]].double().mean().item() == pytest.approx(best.test_accuracy, abs=1e-12)


def test_a_file_that_is_no_checkpoint(tmp_path):
    text, foreign = tmp_path / "text.pt", tmp_path / "foreign.pt"
    text.write_text("hello")
    torch.save({"weights": torch.zeros(3)}, foreign)
    for path in (text, foreign):
        with pytest.raises(ValueError, match=r"path must be a checkpoint of ugnn-fast, got .*pt"):
            load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.pt")


def test_pictures_are_drawn(folder):
    image = pytest.importorskip("matplotlib.image")
    for name in ("curves.png", "smoothness.png"):
        pixels = image.imread(folder / name)
        assert pixels.shape[0] > 400 and pixels.shape[1] > 1000
        assert len(np.unique(pixels.sum(2))) > 50, "the picture is empty"


def test_report_of_a_model_without_c_has_no_picture_of_it(cora, tmp_path):
    (tmp_path / "smoothness.png").write_text("of an earlier report")
    result = train(cora, "appnp", SHORT)
    assert result.c is None and result.correlation is None
    write_report(tmp_path, [result])
    assert not (tmp_path / "smoothness.png").exists()
    assert json.loads((tmp_path / "metrics.json").read_text())["summary"]["correlation_mean"] is None


def test_report_of_a_c_that_does_not_vary(cora, tmp_path):
    result = train(cora, settings=dataclasses.replace(SHORT, s=0.0))
    assert result.correlation is None
    write_report(tmp_path, [result])
    assert (tmp_path / "smoothness.png").exists()


def test_report_of_a_graph_without_edges(cora, tmp_path):
    alone = uf.Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), cora.graph.num_nodes)
    write_report(tmp_path, [train(dataclasses.replace(cora, graph=alone), settings=Settings(epochs=2))])
    assert (tmp_path / "smoothness.png").exists()


def test_checkpoint_is_of_the_run_with_the_best_validation(runs, tmp_path):
    def with_val(result, seed, val):
        return dataclasses.replace(result, seed=seed, best=result.best._replace(val_accuracy=val))

    first, second = runs[0]
    results = [with_val(first, 0, 0.5), with_val(second, 1, 0.7), with_val(first, 2, 0.7)]
    assert best_run(results).seed == 1
    write_report(tmp_path, results)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["seed"] == 1
    assert torch.equal(saved["state"]["h1"], second.state["h1"])
    assert json.loads((tmp_path / "metrics.json").read_text())["checkpoint_seed"] == 1


def test_no_seeds(cora, tmp_path):
    with pytest.raises(ValueError, match="seeds must hold at least one seed"):
        experiments.train_seeds(cora, "ada-ugnn", SHORT, [], tmp_path / "none")
    assert not (tmp_path / "none").exists()
