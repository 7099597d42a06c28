"""`ugnn-fast`, called as a user would."""

import importlib.metadata
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import cli, experiments
from ugnn_fast.experiments import runs


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Only the shipped data sets, an empty working directory, and the threads of before afterwards."""
    monkeypatch.delenv("UGNN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # see test_train.py
    yield
    torch.set_num_threads(threads)


def test_train_end_to_end(capsys, tmp_path):
    assert cli.main(["train", "--dataset", "cora", "--model", "ada-ugnn", "--epochs", "5"]) == 0
    out, err = capsys.readouterr()
    folder = tmp_path / "runs" / "cora_ada-ugnn"
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["checkpoint.pt", "curves.png", "history.csv", "metrics.json", "smoothness.png"]
    found = json.loads((folder / "metrics.json").read_text())
    assert found["settings"] == {
        **{"hidden": 16, "weight_decay": 5e-4, "dropout": 0.8, "steps": 10},
        **{"lr": 0.05, "s": 9.0, "soft": False, "binary": False, "epochs": 5, "patience": 0},
    }
    assert f"test accuracy      {100 * found['runs'][0]['test_accuracy']:.2f} %\n" in out
    assert f"correlation of C   {found['runs'][0]['correlation']:+.3f} with" in out
    assert "time per epoch" in out
    assert "results in         runs/cora_ada-ugnn\n" in out
    assert "5/5" in err and "epoch" in err, "no progress bar"


def test_every_option_reaches_the_run(capsys, tmp_path):
    options = "--seeds 2 --epochs 3 --hidden 8 --lr 0.02 --weight-decay 1e-5 --dropout 0.3 --steps 2 --s 19"
    options += " --no-soft --binary --patience 2 --out here/there --threads 2 --quiet"
    assert cli.main(["train", "--dataset", "citeseer", *options.split()]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "(mean and standard deviation of 2 seeds)" in out
    found = json.loads((tmp_path / "here" / "there" / "metrics.json").read_text())
    assert found["settings"] == {
        **{"hidden": 8, "weight_decay": 1e-5, "dropout": 0.3, "steps": 2},
        **{"lr": 0.02, "s": 19.0, "soft": False, "binary": True, "epochs": 3, "patience": 2},
    }
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    assert (found["dataset"], found["threads"]) == ("citeseer", 2)


def test_appnp_and_a_seed(capsys, tmp_path):
    assert cli.main(["train", "--model", "appnp", "--seed", "4", "--epochs", "2", "--quiet"]) == 0
    found = json.loads((tmp_path / "runs" / "cora_appnp" / "metrics.json").read_text())
    assert (found["model"], found["runs"][0]["seed"]) == ("appnp", 4)
    assert "correlation" not in capsys.readouterr().out


def test_a_data_set_of_ones_own(tmp_path, capsys):
    source = uf.datasets._SHIPPED / "cora.npz"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.npz").write_bytes(source.read_bytes())
    assert cli.main(["train", "--dataset", "mine", "--root", "data", "--epochs", "2", "--quiet"]) == 0
    assert (tmp_path / "runs" / "mine_ada-ugnn" / "metrics.json").exists()
    assert cli.main(["train", "--graph", "data/mine.npz", "--model", "gcn", "--epochs", "2", "--quiet"]) == 0
    assert (tmp_path / "runs" / "mine_gcn" / "metrics.json").exists()
    assert cli.main(["info", "--root", "data"]) == 0
    assert "data sets  citeseer, cora, mine" in capsys.readouterr().out


BAD = {
    "dataset": ("train --dataset nope", "name must be one of citeseer, cora, got 'nope'"),
    "model": ("train --model mlp", "invalid choice: 'mlp'"),
    "split": ("train --split 3", "split must be in 0..0 for cora, got 3"),
    "rate": ("train --rate 5", "rate must be 0"),
    "root": ("train --root none", "root must be a folder"),
    "epochs": ("train --epochs 0", "epochs must be in 1..2^31 - 1, got 0"),
    "epochs-text": ("train --epochs many", "argument --epochs: invalid int value: 'many'"),
    "hidden": ("train --hidden -4", "hidden must be in 1..2^31 - 1, got -4"),
    "memory": ("train --hidden 2000000000", "allocate 11464000000000 bytes"),
    "lr": ("train --lr nan", "lr must be finite and >= 0, got nan"),
    "dropout": ("train --dropout 1", "dropout must be < 1, got 1.0"),
    "steps": ("train --steps -1", "steps must be >= 0, got -1"),
    "s": ("train --s -1", "s must be finite and >= 0, got -1.0"),
    "soft": ("train --model appnp --soft", "--soft is for ada-ugnn only, got --model appnp"),
    "seed": ("train --seed -1", "seed must be in 0..2^63 - 1, got -1"),
    "seeds": ("train --seeds 0", "--seeds must be in 1..1000000, got 0"),
    "both-seeds": ("train --seed 1 --seeds 2", "argument --seeds: not allowed with argument --seed"),
    "threads": ("train --threads 0", "--threads must be in 1..4096, got 0"),
    "option": ("train --colour red", "unrecognized arguments: --colour red"),
    "graph": ("train --graph none.npz", "path must be an .npz file, got none.npz: no such file"),
    "graph-and-dataset": ("train --graph a.npz --dataset cora", "--dataset: not allowed with argument --graph"),
    "many-seeds": ("train --seeds 99999999999999999999", "--seeds must be in 1..1000000, got 999"),
    "many-threads": ("train --threads 3000000000", "--threads must be in 1..4096, got 3000000000"),
    "graph-and-root": ("train --graph a.npz --root .", "--root must come without --graph"),
    "diverged": ("train --model gcn --lr 1e38 --epochs 9", "losses and weights must stay finite, got others in epoch"),
    "patience": ("train --patience -1", "patience must be >= 0, got -1"),
    "command": ("fly", "invalid choice: 'fly'"),
    "nothing": ("", "the following arguments are required: COMMAND"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_one_line_and_code_2(case, capsys, tmp_path):
    line, message = BAD[case]
    assert cli.main([*line.split(), *(["--quiet"] if line.startswith("train") else [])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ugnn-fast: error: ") and err.count("\n") == 1
    assert message in err
    if case not in ("memory", "diverged"):  # found in training
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_a_data_set(capsys, tmp_path):
    (tmp_path / "broken.npz").write_text("not a zip")
    assert cli.main(["train", "--dataset", "broken", "--root", "."]) == 2
    err = capsys.readouterr().err
    assert "broken.npz: the file must be an .npz archive" in err and err.count("\n") == 1


def test_out_that_is_a_file(capsys, tmp_path):
    (tmp_path / "taken").write_text("mine")
    assert cli.main(["train", "--out", "taken", "--quiet"]) == 2
    assert "taken" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("module", ["matplotlib.figure", "tqdm"])
def test_a_missing_extra_is_named_before_the_training(module, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["train", "--epochs", "2"]) == 2
    err = capsys.readouterr().err
    assert f'this needs {module.partition(".")[0]}: pip install "ugnn-fast[cli]"' in err
    assert list(tmp_path.iterdir()) == []


def interrupted_after(epochs, monkeypatch, batch=None):
    """Ctrl-C in the middle of that epoch, with at most `batch` runs at once."""
    done = []

    class Trainer(runs.Trainer):
        def _running(self):
            if len(done) == epochs:
                signal.raise_signal(signal.SIGINT)
            return super()._running()

        def step(self):
            done.append(None)
            found = super().step()
            if len(done) == epochs:
                done.append(None)
            return found

    monkeypatch.setattr(runs, "Trainer", Trainer)
    if batch:
        monkeypatch.setattr(runs, "replicas_at_once", lambda *args: batch)


def accuracies(folder):
    found = json.loads((folder / "metrics.json").read_text())
    return [(run["seed"], run["best_epoch"], run["val_accuracy"], run["test_accuracy"]) for run in found["runs"]]


def test_ctrl_c_leaves_the_finished_runs_and_resume_goes_on(capsys, monkeypatch, tmp_path):
    command = ["train", "--seeds", "5", "--epochs", "4", "--quiet"]
    monkeypatch.setattr(runs, "replicas_at_once", lambda *args: 2)
    assert cli.main([*command, "--out", "whole"]) == 0
    capsys.readouterr()
    interrupted_after(6, monkeypatch, batch=2)
    assert cli.main(command) == 130
    out, err = capsys.readouterr()
    assert "mean and standard deviation of 2 seeds" in out
    assert err == "ugnn-fast: interrupted after 2 of 5 runs; the same command with --resume goes on\n"
    folder = tmp_path / "runs" / "cora_ada-ugnn"
    assert len(json.loads((folder / "metrics.json").read_text())["runs"]) == 2
    assert (folder / "curves.png").exists()
    assert cli.main([*command, "--resume"]) == 0
    assert "mean and standard deviation of 5 seeds" in capsys.readouterr().out
    assert accuracies(folder) == accuracies(tmp_path / "whole")
    assert not (folder / "training.pt").exists()


def test_resume_of_another_training_is_refused(capsys, monkeypatch, tmp_path):
    interrupted_after(1, monkeypatch)
    assert cli.main(["train", "--epochs", "3", "--quiet"]) == 130
    assert "interrupted after 0 of 1 runs" in capsys.readouterr().err
    assert cli.main(["train", "--epochs", "3", "--lr", "0.01", "--resume", "--quiet"]) == 2
    assert "state must be of ada-ugnn on cora" in capsys.readouterr().err
    state = tmp_path / "runs" / "cora_ada-ugnn" / "training.pt"
    saved = torch.load(state, weights_only=True)
    del saved["trainers"][0]["best"]
    for damaged in (saved, {**saved, "trainers": 5}, "hello"):
        torch.save(damaged, state)
        assert cli.main(["train", "--epochs", "3", "--resume", "--quiet"]) == 2
        assert "training.pt must be an interrupted training of ugnn-fast" in capsys.readouterr().err


def test_resume_on_other_data_is_refused(capsys, monkeypatch, tmp_path):
    path = tmp_path / "mine.npz"
    edges = {"indptr": np.array([0, 1, 2, 3, 4, 4, 4]), "indices": np.array([1, 0, 3, 2])}
    rest = {"x_indptr": np.arange(7), "x_indices": np.arange(6), "x_shape": np.array([6, 6]), "y": np.arange(6) % 2}
    split = {"train": np.array([0, 1]), "val": np.array([2, 3]), "test": np.array([4, 5])}
    np.savez(path, **edges, **rest, **split)
    interrupted_after(1, monkeypatch)
    command = ["train", "--graph", str(path), "--model", "gcn", "--epochs", "3", "--quiet"]
    assert cli.main(command) == 130
    np.savez(path, **edges, **{**rest, "y": np.array([0, 1, 0, 1, 1, 1])}, **split)
    assert cli.main([*command, "--resume"]) == 2
    assert "state must be of gcn on mine (6 nodes, checksum" in capsys.readouterr().err


def test_a_training_is_saved_as_it_goes(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(runs.report, "write_numbers", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", "--epochs", "2", "--quiet"])
    saved = torch.load(tmp_path / "runs" / "cora_ada-ugnn" / "training.pt", weights_only=True)
    assert len(saved["trainers"][0]["history"]) == 2


@pytest.mark.parametrize("model", experiments.MODELS)
def test_every_model_trains(model, tmp_path):
    assert cli.main(["train", "--model", model, "--seeds", "2", "--epochs", "2", "--quiet"]) == 0
    assert (tmp_path / "runs" / f"cora_{model}" / "checkpoint.pt").exists()


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli.datasets, "load", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["train"])


def test_info(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"ugnn-fast  {uf.__version__}" in out
    assert f"torch      {torch.__version__}, {torch.get_num_threads()} threads" in out
    for name, backend in uf.backends().items():
        (line,) = (line for line in out.splitlines() if line.startswith(f"{name} "))
        assert line.split()[1] == ("yes" if backend.runs else "no")
        assert (backend.reason or "ada_propagate") in line
    assert "data sets  citeseer, cora" in out


def test_version_and_help(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ugnn-fast {uf.__version__}\n"
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for name in (
        "--dataset",
        "--seeds",
        "--weight-decay",
        "--no-soft",
        "--out",
        "--rate",
        "--threads",
        "--quiet",
    ):
        assert name in text


def test_help_comes_as_a_module_and_as_a_command():
    done = subprocess.run([sys.executable, "-m", "ugnn_fast.cli", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "train a model on a data set" in done.stdout
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="ugnn-fast")
    assert script.load() is cli.main
