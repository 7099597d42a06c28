"""The launch table: look-up, the table of the user over the shipped one, broken files, and `ugnn-fast tune`."""

import contextlib
import csv
import json
from pathlib import Path

import pytest
import torch
from ugnn_fast.kernels import _launch, tune
from ugnn_fast.kernels._launch import Config, block_width, row_config

from bench import traffic
from ugnn_fast import cli
from ugnn_fast._row_plan import row_plan


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    """Where a table of the user would be; tables are read again after it."""
    path = tmp_path / "settings" / "table.json"
    monkeypatch.setenv(_launch.VARIABLE, "")
    _forget()
    yield path
    _forget()


def _forget():
    for function in (row_config, _launch.user_table, _launch.shipped_table):
        function.cache_clear()


def _use(path, monkeypatch):
    monkeypatch.setenv(_launch.VARIABLE, str(path))
    _forget()


@pytest.mark.parametrize("device", ["any", "hip"])
def test_shipped_table_is_complete(device):
    table = _launch.shipped_table()
    for family in _launch.FAMILIES:
        for size in _launch.ITEM_SIZES:
            for width in _launch.WIDTHS:
                assert table[device, family, size, width].block <= width


def test_shipped_file_is_what_would_be_written(tmp_path):
    _launch.write_table(_launch.shipped_table(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == _launch.SHIPPED.read_text()


def test_blocks_leave_few_columns_idle():
    for D in range(1, 1025):
        block = block_width(D)
        assert block in _launch.WIDTHS
        if D >= 8:
            assert 1 - D / (-(-D // block) * block) <= 7 / 16
    assert [block_width(D) for D in (0, 1, 3, 7, 8, 33, 40, 64, 65, 128, 129, 256)] == [
        1, 1, 4, 8, 8, 16, 64, 64, 32, 128, 64, 128,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_most_half_of_the_lanes_are_idle_in_rows_below_8_entries(dtype):
    g = tune.power_law_graph(20_000, 15)
    length = g.rowptr.diff()[row_plan(g.rowptr)[0][: g.num_nodes].long()]
    length = length[length < 8]
    assert len(length) > 4000
    for D in range(8, 300):
        assert traffic.idle_lanes(length, D, row_config(D, dtype)) <= 0.5, D


def test_recorded_traffic_is_complete_and_within_its_limit():
    with (Path(traffic.__file__).parent / "results" / traffic.CSV_NAME).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == traffic.COLUMNS
    found = {(row["case"], row["dtype"], int(row["D"])) for row in rows}
    assert found == {(name, traffic.dtype_name(dtype), D) for name, dtype, D in traffic.ALL}
    assert not traffic.too_much(rows)


def test_look_up_by_width_and_type():
    assert row_config(40, torch.float32) == row_config(64, torch.float32) != row_config(64, torch.bfloat16)
    assert row_config(64, torch.float16) == row_config(64, torch.bfloat16)
    assert row_config(40, torch.float32, torch.device("cpu"), "edge_dot").block == 64


def test_rows_of_broken_vectors_have_fewer_slots():
    assert row_config(33, torch.float32) == row_config(16, torch.float32)._replace(slots=16)
    assert row_config(9, torch.bfloat16) == row_config(16, torch.bfloat16)._replace(slots=16)
    assert row_config(12, torch.bfloat16) == row_config(16, torch.bfloat16)._replace(slots=32)
    assert row_config(1, torch.float32).slots == 128  # every thread has a value


def test_device_name_before_vendor_before_any(own_file, monkeypatch):
    card, hip, anything = Config(4, 64, 1), Config(2, 64, 1), Config(1, 64, 1)
    size = {"step": {"4": {"64": None}}}
    devices = {}
    for name, config in (("Card 9", card), ("hip", hip), ("any", anything)):
        devices[name] = json.loads(json.dumps(size).replace("null", json.dumps(config._asdict())))
    own_file.parent.mkdir()
    own_file.write_text(json.dumps({"format": 1, "devices": devices}))
    _use(own_file, monkeypatch)
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card 9")
    assert row_config(64, torch.float32, cuda) == card
    assert row_config(64, torch.bfloat16, cuda) == _launch.shipped_table()["any", "step", 2, 64]
    _forget()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card 8")
    assert row_config(64, torch.float32, cuda) == anything
    _forget()
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert row_config(64, torch.float32, cuda) == hip
    assert row_config(64, torch.float32) == anything  # no device


def test_path_of_the_users_table(monkeypatch, tmp_path):
    assert _launch.user_path() is None and _launch.user_table() == {}
    monkeypatch.delenv(_launch.VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("APPDATA", str(tmp_path))
    assert _launch.user_path() == tmp_path / "ugnn_fast" / "launch_table.json"
    _forget()
    assert _launch.user_table() == {}  # there need not be one


def _entry(**entry):
    return {"format": 1, "devices": {"any": {"step": {"4": {"64": entry}}}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ([], "must be"),
        ({"format": 2, "devices": {}}, "must be"),
        ({"format": 1, "devices": []}, "devices must be an object"),
        ({"format": 1, "devices": {"any": {"stepp": {}}}}, "keys of step, .*got 'stepp'"),
        ({"format": 1, "devices": {"any": {"step": {"3": {}}}}}, "keys of 2, 4, 8, got '3'"),
        ({"format": 1, "devices": {"any": {"step": {"4": {"60": {}}}}}}, "any/step/4 .*got '60'"),
        (_entry(slots=4, block=64), "must have slots, block and warps"),
        (_entry(slots=4, block=64, warps=4, stages=2), "got 'stages'"),
        (_entry(slots=3, block=64, warps=4), "any/step/4/64: slots must be a power of two"),
        (_entry(slots=4, block=128, warps=4), "block must be a power of two of 1 to 64"),
        (_entry(slots=4, block=64, warps=True), "warps must be"),
        (_entry(slots=1024, block=64, warps=4), "slots \\* block must be at most"),
    ],
)
def test_broken_file_is_named_with_its_fault(own_file, monkeypatch, content, message):
    if content is not None:
        own_file.parent.mkdir()
        own_file.write_text(content if isinstance(content, str) else json.dumps(content))
    _use(own_file, monkeypatch)
    with pytest.raises(ValueError, match=message) as error:
        row_config(64, torch.float32)
    assert str(own_file) in str(error.value)


def test_failed_write_leaves_the_file_as_it_was(own_file, monkeypatch):
    table = {("Card 9", "step", 4, 64): Config(4, 64, 2)}
    _launch.write_table(table, own_file)

    def full(*names):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        _launch.write_table({}, own_file)
    assert _launch.read_table(own_file) == table
    assert list(own_file.parent.iterdir()) == [own_file]


def test_tune_keeps_what_is_clearly_faster(own_file):
    best, close = Config(4, 64, 4), Config(8, 128, 4)
    assert best in tune.candidates(64, 4)

    def timer(family, width, dtype, config):
        if family == "step" and width == 64 and dtype == torch.float32 and config == best:
            return 0.5
        return 0.99 if config == close else 1.0  # within the noise

    said = []
    found = tune.tuned("Card 9", timer, said.append)
    assert found == {("Card 9", "step", 4, 64): best}
    assert len(said) == len(_launch.FAMILIES) * len(tune.DTYPES) * len(tune.WIDTHS)
    assert any("step, float32, width 64: 4 x 64, 4 warps 0.500 ms, shipped" in line for line in said)

    other = {("Card 8", "step", 4, 64): Config(2, 64, 2)}
    _launch.write_table(other | {("Card 9", "edge_dot", 4, 64): Config(2, 64, 2)}, own_file)
    tune.write(found, "Card 9", own_file)
    assert _launch.read_table(own_file) == other | found


@pytest.mark.parametrize("warp", [32, 64])
def test_candidates_are_legal(warp):
    for width in tune.WIDTHS:
        for size in (2, 4):
            configs = list(tune.candidates(width, size, warp))
            assert 5 < len(set(configs)) == len(configs)
            assert all(_launch.why_not(config, width) is None for config in configs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tune_without_a_gpu_says_so(own_file, monkeypatch, capsys):
    _use(own_file, monkeypatch)
    assert cli.main(["tune"]) == 2
    said = capsys.readouterr()
    assert said.err == "ugnn-fast: error: tune needs a GPU to measure on, and torch finds none\n"
    assert not own_file.exists()


def test_launches_go_to_the_device_of_their_tensors(monkeypatch):
    """Without a GPU: which device would be made the current one."""
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext(entered.append(index)))
    for index in (None, 1, 0):
        with _launch.on_device(index):
            pass
    assert entered == [0]
