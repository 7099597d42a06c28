"""`ugnn-fast search`: by validation only, within its time, rows that reproduce can take."""

import dataclasses
import sys
import time

import pytest

import ugnn_fast as uf
from ugnn_fast import cli
from ugnn_fast.experiments import Settings, read_table, search
from ugnn_fast.experiments.settings import settings_for, shipped_table
from ugnn_fast.experiments.train import Epoch, TrainResult

module = sys.modules["ugnn_fast.experiments.search"]  # the package has a function of that name


pytestmark = pytest.mark.usefixtures("shipped_data_alone")


@pytest.fixture
def asked(monkeypatch):
    """Training replaced by a formula that likes lr 0.01, s 19 and much dropout; what was asked of it."""
    calls = []

    def train_runs(dataset, model, settings, runs):
        calls.append((settings, list(runs)))
        val = 0.5 - abs(settings.lr - 0.01) - abs(settings.s - 19) / 100 + settings.dropout / 10
        val += 1e-4 * settings.epochs
        epoch = Epoch(1, 0.0, 0.0, val, 1 - val, 0.0)
        return [
            TrainResult("made", model, settings, r.seed, r.split, 1, 1, epoch, [epoch], {}, None, None, None, None)
            for r in runs
        ]

    monkeypatch.setattr(module, "train_runs", train_runs)
    monkeypatch.setattr(module, "replicas_at_once", lambda *args: 2)
    return calls


@pytest.fixture(scope="module")
def cora():
    return uf.datasets.load_file(uf.datasets._SHIPPED / "cora.npz")


def test_the_best_by_validation_is_found(asked, cora):
    best, trials = search(cora, "appnp", Settings(lr=0.05, dropout=0.5), minutes=1, runs=3, progress_bar=False)
    assert (best.settings.lr, best.settings.s, best.settings.dropout) == (0.01, 19.0, 0.8)
    assert best.epochs == 400 and best.runs == 3
    assert best.val == pytest.approx(100 * (0.5 + 0.08 + 0.04))
    assert {(t.epochs, t.runs) for t in trials} == {(30, 2), (120, 2), (400, 3)}
    assert all(run.seed >= 1000 for _, runs in asked for run in runs), "seeds of experiments are others"
    counts = [sum(t.epochs == e and t.settings.lr != 0.01 for t in trials) for e in (30, 120)]
    assert counts[0] > 2 * counts[1], "most are given up early"
    few = [t for t in trials if t.settings.s != 19.0]
    assert len(few) == 9 and {(t.epochs, t.runs) for t in few} == {(400, 3)}, "K and s are so few that none is"


def test_what_is_searched():
    start = Settings()
    assert len(module.candidates(start, ("lr", "dropout"))) == 9
    assert module.candidates(dataclasses.replace(start, lr=0.123), ("lr",))[0].lr == 0.123
    assert set(module.STAGES) == set(uf.experiments.MODELS)
    assert module.STAGES["gcn"] == module.STAGES["gat"] == (("lr", "weight_decay", "dropout"),)


def test_the_time_is_kept(cora):
    start = time.monotonic()
    best, trials = search(cora, "appnp", settings_for("cora", "appnp"), minutes=2 / 60, runs=2, progress_bar=False)
    assert time.monotonic() - start < 20
    assert trials and best.val > 15


def test_command(asked, tmp_path, capsys):
    command = ["search", "--models", "gcn", "appnp", "--datasets", "cora", "--budget", "1", "--runs", "2"]
    assert cli.main([*command, "--out", "mine.csv"]) == 0
    out, err = capsys.readouterr()
    assert "gcn on cora: validation" in out and "lr=0.01" in out and "appnp on cora, lr x weight_decay" in err
    table = read_table("mine.csv")
    settings, source = table["gcn", "cora", 0]
    assert (settings.lr, settings.epochs) == (0.01, 400) and source.startswith("search 20")
    assert table.keys() == shipped_table().keys() | {("gcn", "cora", 0), ("appnp", "cora", 0)}
    trials = (tmp_path / "mine_trials.csv").read_text().splitlines()
    assert trials[0] == "model,dataset,rate,runs,epochs,val,hidden,weight_decay,dropout,steps,lr,s,soft,binary"
    assert len(trials) > 50 and all(line.count(",") == trials[0].count(",") for line in trials)
    # a second call finds nothing to do
    before = len(asked)
    assert cli.main([*command, "--out", "mine.csv", "--quiet"]) == 0
    assert len(asked) == before and "nothing to search" in capsys.readouterr().out
    assert settings_for("cora", "gcn", table=table).lr == 0.01


def test_over(asked, cora):
    best, trials = search(cora, "ada-ugnn", Settings(), minutes=1, runs=2, over=["dropout"], progress_bar=False)
    assert {t.settings.dropout for t in trials} == {0.2, 0.5, 0.8} and best.settings.dropout == 0.8
    assert {t.settings.lr for t in trials} == {0.05}


def test_soft_is_searched_for_ada_ugnn_alone(asked, cora):
    for model, values in (("ada-ugnn", {False, True}), ("appnp", {False})):
        _, trials = search(cora, model, Settings(), minutes=1, runs=2, over=["soft", "s"], progress_bar=False)
        assert {t.settings.soft for t in trials} == values


def test_exchange(asked, cora, monkeypatch, tmp_path, capsys):
    rates = {0: Settings(s=1.0), 5: Settings(s=9.0), 10: Settings(s=19.0), 15: Settings(s=9.0)}
    out = tmp_path / "mine.csv"
    module.write_table(out, {("appnp", "mettack_cora", rate): (s, "made") for rate, s in rates.items()})
    # of the trials before, the two best ones of a rate with all epochs are tried too
    before = [(80.0, 400, 0.5), (79.0, 400, 0.8), (79.5, 400, 0.5), (78.0, 400, 0.9), (85.0, 120, 0.7)]
    trials = [module.Trial(Settings(s=19.0, dropout=d), val, 2, epochs) for val, epochs, d in before]
    module._append_trials(tmp_path / "mine_trials.csv", ("appnp", "mettack_cora", 5), trials)
    monkeypatch.setattr(module.datasets, "load", lambda name, root, rate: cora)
    command = "search --models appnp --datasets mettack_cora --rates 0 10 20 --exchange --runs 3 --out mine.csv"
    assert cli.main([*command.split(), "--quiet"]) == 0
    assert "appnp on mettack_cora 20 %: validation" in capsys.readouterr().out
    # each rate tries every setting once, its own first, with all epochs
    tried = [[(s.s, s.dropout) for s, runs in asked if runs[0].seed == 1000][k : k + 4] for k in (0, 4, 8)]
    one, nine, nineteen = ((s, 0.8) for s in (1.0, 9.0, 19.0))
    more = (19.0, 0.5)
    assert tried == [[one, nine, nineteen, more], [nineteen, one, nine, more], [one, nine, nineteen, more]]
    assert {s.epochs for s, _ in asked} == {400}
    table = read_table(out)
    assert [table["appnp", "mettack_cora", rate][0].s for rate in (0, 5, 10, 20)] == [19.0, 9.0, 19.0, 19.0]
    assert "(3 runs; 400 epochs)" in table["appnp", "mettack_cora", 20][1]
    assert len((tmp_path / "mine_trials.csv").read_text().splitlines()) == 1 + 5 + 12


def test_trials_that_cannot_be_read(tmp_path, capsys):
    path = tmp_path / "mine_trials.csv"
    module._append_trials(path, ("gcn", "cora", 0), [module.Trial(Settings(), 80.0, 2, 400)])
    whole = path.read_text()
    for text, message in (
        (whole.replace("80.00", "high"), "mine_trials.csv, line 2: must be a trial: could not convert"),
        (whole.replace("epochs", "steps"), "mine_trials.csv, line 1: must be the header model,dataset,rate"),
    ):
        path.write_text(text)
        assert cli.main(["search", "--models", "gcn", "--datasets", "cora", "--out", str(tmp_path / "mine.csv")]) == 2
        assert message in capsys.readouterr().err
    path.write_text(whole + "gcn,co")  # a torn line is not there, and is not written into
    module._append_trials(path, ("gcn", "citeseer", 0), [module.Trial(Settings(), 70.0, 2, 400)])
    assert [key for key, _ in module._read_trials(path)] == [("gcn", "cora", 0), ("gcn", "citeseer", 0)]


def test_a_setting_that_diverges_is_worth_nothing(cora):
    assert module._trial(cora, "gcn", Settings(lr=1e30), 2, 5).val == 0.0


def test_a_data_set_without_features(cora, monkeypatch, tmp_path):
    monkeypatch.setattr(module.datasets, "load", lambda name, root, rate: dataclasses.replace(cora, x=None))
    with pytest.raises(ValueError, match="got cora without features"):
        module.search_all([("cora", 0)], ["gcn"], tmp_path / "mine.csv", minutes=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--models mlp --datasets cora", "--models must be among"),
        ("--models gcn --datasets nope", "name must be one of"),
        ("--models gcn --datasets cora --budget 0", "--budget must be > 0"),
        ("--models gcn --datasets cora --over colour", "over must be among lr"),
        ("--models gcn --datasets cora --runs 0", "--runs must be in 1..1000000, got 0"),
        ("--models gcn --datasets cora --rates 5", "rate must be 0"),
        ("--models sgc --datasets cora --exchange", "must have rows of sgc on cora"),
        ("--models gcn --datasets cora --exchange --over lr", "--exchange must come without --over"),
        ("--models gcn --datasets cora --exchange --budget 3", "--exchange must come without --budget"),
        ("--models gcn --datasets cora --over soft", "over must have a setting of gcn, got soft"),
    ],
)
def test_bad_arguments(options, message, capsys):
    assert cli.main(["search", *options.split(), "--quiet"]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
