"""Data sets: what ships, what $UGNN_DATA holds, and files that are not data sets."""

import importlib.util
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ugnn_fast import datasets

SHIPPED = Path(datasets.__file__).parent / "data"
SCRIPT = Path(__file__).parents[1] / "scripts" / "make_datasets.py"

# nodes, edges (both directions and loops), classes, features, stored feature values, splits, sizes of a split
TABLE = {
    "cora": (2708, 13264, 7, 1433, 49216, 1, (140, 500, 1000)),
    "citeseer": (3327, 12431, 6, 3703, 105165, 1, (120, 500, 1000)),
    "pubmed": (19717, 108365, 3, 500, 988031, 1, (60, 500, 1000)),
    "amazon_computers": (13381, 504937, 10, 767, 3607444, 21, (200, 300, 12881)),
    "amazon_photo": (7487, 245573, 8, 745, 1950178, 21, (160, 240, 7087)),
    "coauthor_cs": (18333, 182121, 15, 6805, 1092079, 21, (300, 450, 17583)),
    "coauthor_physics": (34493, 530417, 5, 8415, 1137311, 21, (100, 150, 34243)),
    "blogcatalog": (5196, 348682, 6, 8189, 369435, 1, (519, 1039, 3638)),
    "flickr": (7575, 487051, 9, 12047, 182517, 1, (757, 1515, 5303)),
    "air_usa": (1190, 28388, 4, 238, 1190, 1, (119, 238, 833)),
    "tolokers": (11758, 1038000 + 11758, 2, 10, 61101, 10, (5879, 2939, 2940)),
    "large_cnr2000": (325557, 5477938 + 325557, 0, None, None, 0, None),
    "large_amazon0601": (403394, 4886816 + 403394, 0, None, None, 0, None),
    "large_ego_twitter": (81306, 2684592 + 81306, 0, None, None, 0, None),
    "large_ogbn_arxiv": (169343, 2315598 + 169343, 40, None, None, 1, (90941, 29799, 48603)),
    "large_gowalla_bipartite": (70839, 2054740 + 70839, 0, None, None, 0, None),
    "large_fb100_cornell5": (18660, 1581554 + 18660, 2, 4735, 111960, 0, None),
}
# nodes, pairs of adjacent nodes at rate 0, 5 .. 25, sizes of the split
METTACK = {
    "mettack_cora": (2485, (5069, 5322, 5567, 5809, 6040, 6246), (247, 249, 1988)),
    "mettack_citeseer": (2110, (3668, 3851, 4032, 4196, 4375, 4549), (210, 211, 1688)),
    "mettack_pubmed": (19717, (44324, 46540, 48756, 50972, 53188, 55395), (1971, 1972, 15774)),
}


@pytest.fixture
def no_env(monkeypatch):
    monkeypatch.delenv("UGNN_DATA", raising=False)


def more_data(name):
    """File `name` in $UGNN_DATA, or skip."""
    folders = datasets._folders(None)
    if len(folders) == 1:
        pytest.skip("UGNN_DATA is not set: only the data sets that ship with the package are tested")
    path = folders[0] / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"UGNN_DATA has no {name}.npz")
    return path


def check_table(data, row):
    N, E, classes, D, x_nnz, num_splits, sizes = row
    assert (data.graph.num_nodes, data.graph.num_edges, data.num_classes) == (N, E, classes)
    if D is None:
        assert data.x is None
    else:
        assert data.x.layout == torch.sparse_csr and data.x.dtype == torch.float32
        assert data.x.shape == (N, D) and data.x.values().numel() == x_nnz
    if classes:
        assert data.y.dtype == torch.int64 and data.y.shape == (N,)
        assert set(data.y.unique().tolist()) - {-1} == set(range(classes))
    else:
        assert data.y is None
    assert len(data.splits) == num_splits
    for split in data.splits:
        assert all(part.dtype == torch.int64 for part in split)
        assert tuple(len(part) for part in split) == sizes
        assert torch.cat(split).bincount().max() == 1


# --- the shipped sets


@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_shipped(name, no_env):
    data = datasets.load(name)
    check_table(data, TABLE[name])
    assert (data.x.values() == 1).all()
    train, _, _ = data.splits[0]
    assert (data.y[train].bincount() == 20).all()


def test_shipped_citeseer_has_15_nodes_without_class_and_words(no_env):
    data = datasets.load("citeseer")
    unknown = data.y < 0
    assert unknown.sum() == 15 and (data.x.crow_indices().diff()[unknown] == 0).all()
    assert (data.graph.degree == 1).sum() == 48


def test_shipped_size():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 500_000


def test_repr_is_one_short_line(no_env):
    expected = "Dataset(cora: 2,708 nodes, 13,264 edges, 1,433 features, 7 classes, 1 split)"
    assert repr(datasets.load("cora")) == expected


@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_shipped_equals_the_one_in_ugnn_data(name):
    other = more_data(name)
    with np.load(SHIPPED / f"{name}.npz", allow_pickle=False) as ours, np.load(other) as theirs:
        assert sorted(ours.files) == sorted(theirs.files)
        for key in ours.files:
            assert ours[key].dtype == theirs[key].dtype
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


# --- the script that makes them


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_datasets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_script_accepts_the_shipped_files_and_no_other(name, script, tmp_path):
    with np.load(SHIPPED / f"{name}.npz", allow_pickle=False) as npz:
        arrays = dict(npz)
    script.check(name, arrays)
    script.write(tmp_path / "a.npz", arrays)
    script.write(tmp_path / "b.npz", arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    arrays["y"][[0, 1]] = arrays["y"][[1, 0]]
    with pytest.raises(ValueError, match="sha256 of the arrays"):
        script.check(name, arrays)


def test_order_list_has_each_paper_once(script):
    order = script.read_order()
    assert len(order) == len(set(order)) == 2708


@pytest.mark.parametrize("value", [print, io.BytesIO, np.float64(1), complex(1)], ids=str)
def test_script_unpickles_nothing_but_arrays(value, script):
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
        script.unpickle(pickle.dumps(value, protocol=2))


# --- the sets in $UGNN_DATA


@pytest.mark.parametrize("name", TABLE)
def test_more_data(name):
    data = datasets.load_file(more_data(name))
    assert data.name == name
    check_table(data, TABLE[name])


@pytest.mark.parametrize("name", METTACK)
def test_mettack_rates(name):
    path = more_data(name)
    N, pairs, sizes = METTACK[name]
    for rate, count in zip(range(0, 30, 5), pairs, strict=True):
        data = datasets.load_file(path, rate=rate)
        assert data.graph.num_nodes == N and data.graph.num_edges == 2 * count + N
        assert tuple(len(part) for part in data.splits[0]) == sizes
    with pytest.raises(ValueError, match=r"rate must be one of \[0, 5, 10, 15, 20, 25\], got 7"):
        datasets.load(name, rate=7)


# --- small files of our own


def small():
    """A path 0 - 1 - 2 - 3; node 3 has no class, node 2 no features."""
    return {
        "indptr": np.array([0, 1, 3, 5, 6]),
        "indices": np.array([1, 0, 2, 1, 3, 2], dtype=np.int32),
        "x_indptr": np.array([0, 2, 3, 3, 4]),
        "x_indices": np.array([0, 4, 1, 2], dtype=np.int32),
        "x_data": np.array([1, 3, -2, 0.5], dtype=np.float32),
        "x_shape": np.array([4, 5]),
        "y": np.array([0, 1, 0, -1]),
        "train": np.array([0]),
        "val": np.array([1]),
        "test": np.array([2]),
    }


def save(path, **changes):
    """small() with changes; None drops a key, bytes are written as they are."""
    arrays = {key: value for key, value in (small() | changes).items() if value is not None}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in arrays.items():
            if not isinstance(value, bytes):
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, np.asarray(value), allow_pickle=True)
                value = buffer.getvalue()
            archive.writestr(f"{key}.npy", value)
    return path


def test_load_file(tmp_path):
    data = datasets.load_file(save(tmp_path / "mine.npz"))
    assert data.name == "mine"
    assert data.graph.rowptr.tolist() == [0, 2, 5, 8, 10]
    assert data.graph.col.tolist() == [0, 1, 0, 1, 2, 1, 2, 3, 2, 3]
    dense = [[1, 0, 0, 0, 3], [0, -2, 0, 0, 0], [0] * 5, [0, 0, 0.5, 0, 0]]
    assert data.x.to_dense().tolist() == dense
    assert data.y.tolist() == [0, 1, 0, -1]
    assert [part.tolist() for part in data.splits[0]] == [[0], [1], [2]]
    with pytest.raises(AttributeError):
        data.name = "other"


def test_load_file_without_optional_keys(tmp_path):
    optional = dict.fromkeys(set(small()) - {"indptr", "indices"})
    data = datasets.load_file(save(tmp_path / "topology.npz", **optional))
    assert data.x is None and data.y is None and data.splits == [] and data.num_classes == 0
    assert repr(data) == "Dataset(topology: 4 nodes, 10 edges, no features, 0 classes, 0 splits)"
    ones = datasets.load_file(save(tmp_path / "ones.npz", x_data=None))
    assert ones.x.values().tolist() == [1, 1, 1, 1]


def test_load_file_without_nodes(tmp_path):
    none = np.zeros(0, dtype=np.int64)
    empty = dict.fromkeys(("indices", "x_indices", "x_data", "y", "train", "val", "test"), none)
    pointers = {"indptr": np.zeros(1, dtype=np.int64), "x_indptr": np.zeros(1, dtype=np.int64)}
    data = datasets.load_file(save(tmp_path / "empty.npz", **empty, **pointers, x_shape=np.array([0, 5])))
    assert data.graph.num_nodes == 0 and data.x.shape == (0, 5) and data.num_classes == 0


@pytest.mark.parametrize("dtype", [">i8", "<i2", "u1"])
def test_load_file_takes_integers_of_any_width(dtype, tmp_path):
    keys = ("indptr", "indices", "x_indptr", "x_indices", "x_shape", "train", "val", "test")
    data = datasets.load_file(save(tmp_path / "mine.npz", **{key: small()[key].astype(dtype) for key in keys}))
    assert data.graph.col.tolist() == [0, 1, 0, 1, 2, 1, 2, 3, 2, 3]
    assert data.splits[0][2].dtype == torch.int64


def test_several_splits(tmp_path):
    parts = {"train": [[0], [1]], "val": [[1], [2]], "test": np.asfortranarray([[2, 1], [0, 2]])}
    data = datasets.load_file(save(tmp_path / "mine.npz", **parts))
    assert [[part.tolist() for part in split] for split in data.splits] == [
        [[0], [1], [2, 1]],
        [[1], [2], [0, 2]],
    ]


# --- finding files


def test_lookup_order(tmp_path, no_env, monkeypatch):
    assert datasets.names() == ["citeseer", "cora"]
    root, env = tmp_path / "root", tmp_path / "env"
    root.mkdir(), env.mkdir()
    save(env / "cora.npz")
    save(env / "only_env.npz")
    save(root / "only_root.npz")
    monkeypatch.setenv("UGNN_DATA", str(env))
    assert datasets.names(root) == ["citeseer", "cora", "only_env", "only_root"]
    assert datasets.load("cora", root).graph.num_nodes == 4
    assert datasets.load("citeseer", root).graph.num_nodes == 3327
    save(root / "cora.npz", y=None, train=None, val=None, test=None)
    assert datasets.load("cora", root).y is None
    assert datasets.load("cora").y is not None


@pytest.mark.parametrize("name", ["reddit", "", "../data/cora", "cora.npz"])
def test_unknown_name(name, tmp_path, monkeypatch):
    monkeypatch.setenv("UGNN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="name must be one of citeseer, cora, got") as caught:
        datasets.load(name)
    for text in (repr(name), str(SHIPPED), "nowhere (no such folder)", "root=", "UGNN_DATA"):
        assert text in str(caught.value)


def test_missing_file_or_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="root must be a folder"):
        datasets.load("cora", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"path must be an \.npz file"):
        datasets.load_file(tmp_path / "none.npz")
    with pytest.raises(FileNotFoundError, match=r"path must be an \.npz file"):
        datasets.load_file(tmp_path)


def test_rate_of_a_set_without_attacked_graphs(no_env):
    with pytest.raises(ValueError, match=r"cora\.npz: rate must be 0 .*, got 5"):
        datasets.load("cora", rate=5)


# --- bad files


def npy(shape, dtype="<i8", data=b""):
    """An array file whose header says what it likes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


BAD = {
    "no indptr": ({"indptr": None}, "indptr must be in the file, got only"),
    "no indices": ({"indices": None}, "indices must be in the file"),
    "indptr falls": ({"indptr": np.array([0, 3, 1, 5, 6])}, "indptr must be non-decreasing, got 3 before 1"),
    "indptr starts late": ({"indptr": np.array([1, 1, 3, 5, 6])}, r"indptr\[0\] must be 0, got 1"),
    "indptr negative": ({"indptr": np.array([0, -1, 3, 5, 6])}, "indptr must be in 0..*, got -1"),
    "indptr too far": ({"indptr": np.array([0, 1, 3, 5, 7])}, r"indices must be \[7\], got \[6\]"),
    "indptr huge": ({"indptr": np.array([0, 1, 3, 5, 2**62])}, r"indices must be \[4611686018427387904\]"),
    "indptr empty": ({"indptr": np.zeros(0, dtype=np.int64)}, r"indptr must be \[N \+ 1\]"),
    "indptr 2-D": ({"indptr": np.zeros((5, 1), dtype=np.int64)}, r"indptr must be \[n\], got \[5, 1\]"),
    "indptr float": (
        {"indptr": np.array([0.0, 1, 3, 5, 6])},
        "indptr must be of an integer type, got float64",
    ),
    "indices negative": ({"indices": np.array([1, 0, 2, -1, 3, 2])}, r"indices must be in 0\.\.3, got -1"),
    "indices out of range": ({"indices": np.array([1, 0, 4, 1, 3, 2])}, r"indices must be in 0\.\.3, got 4"),
    "indices uint64": ({"indices": np.ones(6, dtype=np.uint64)}, "indices must be of an integer type"),
    "indices objects": ({"indices": np.array([1, 0, 2, 1, 3, 2], dtype=object)}, "integer type, got object"),
    "directed": ({"indices": np.array([1, 0, 2, 0, 3, 2])}, "indptr, indices: "),
    "x incomplete": ({"x_shape": None}, "x_shape must be in the file"),
    "x_shape rows": ({"x_shape": np.array([5, 5])}, r"x_shape must be \[N, D\] with N = 4, got \[5, 5\]"),
    "x_shape huge": ({"x_shape": np.array([4, 2**60])}, f"x_shape must be in .*, got {2**60}"),
    "x_shape negative": ({"x_shape": np.array([4, -5])}, "x_shape must be in .*, got -5"),
    "x_shape length": ({"x_shape": np.array([4])}, r"x_shape must be \[2\], got \[1\]"),
    "x_indptr length": ({"x_indptr": np.array([0, 2, 4])}, r"x_indptr must be \[5\], got \[3\]"),
    "x_indptr falls": ({"x_indptr": np.array([0, 3, 2, 3, 4])}, "x_indptr must be non-decreasing"),
    "x_indices range": ({"x_indices": np.array([0, 5, 1, 2])}, r"x_indices must be in 0\.\.4, got 5"),
    "x_indices repeated": ({"x_indices": np.array([4, 4, 1, 2])}, "x_indices must be strictly ascending"),
    "x_data length": ({"x_data": np.ones(3, dtype=np.float32)}, r"x_data must be \[4\], got \[3\]"),
    "x_data nan": ({"x_data": np.array([1, np.nan, 1, 1])}, "x_data must be finite in float32, got nan"),
    "x_data overflow": ({"x_data": np.array([1, 1e300, 1, 1])}, "x_data must be finite in float32, got inf"),
    "x_data complex": (
        {"x_data": np.ones(4, dtype=complex)},
        "x_data must be of a real type, got complex128",
    ),
    "x_data text": ({"x_data": np.array(["a"] * 4)}, "x_data must be of a real type"),
    "x_data objects": ({"x_data": np.array([1, print, 1, 1], dtype=object)}, "real type, got object"),
    "y length": ({"y": np.zeros(5, dtype=np.int64)}, r"y must be \[4\], got \[5\]"),
    "y below -1": ({"y": np.array([0, 1, 0, -2])}, r"y must be in -1\.\.3, got -2"),
    "y huge": ({"y": np.array([0, 10**9, 0, 0])}, r"y must be in -1\.\.3, got 1000000000"),
    "y float": ({"y": np.zeros(4)}, "y must be of an integer type, got float64"),
    "no val": ({"val": None}, "val must be in the file"),
    "train negative": ({"train": np.array([-1])}, r"train must be in 0\.\.3, got -1"),
    "test out of range": ({"test": np.array([4])}, r"test must be in 0\.\.3, got 4"),
    "val mask": ({"val": np.ones(4, dtype=bool)}, "val must be of an integer type, got bool"),
    "val 3-D": ({"val": np.zeros((1, 1, 1), dtype=int)}, r"val must be \[n\] or \[n, n\], got \[1, 1, 1\]"),
    "split counts": ({"test": np.array([[2], [1]])}, r"test must be \[splits, n\] with 1 splits like train"),
    "train without class": ({"train": np.array([3])}, "train must be nodes with a class"),
    "header says more": (
        {"indptr": npy((10**12,), data=bytes(40))},
        "8,000,000,000,000 bytes .* got 40 bytes",
    ),
    "header says less": (
        {"val": npy((1,), data=bytes(16))},
        r"val must be 8 bytes for \[1\] int64, got 16 bytes",
    ),
    "header negative": ({"val": npy((-1,))}, r"val must be \[n\] or"),
    "header objects": ({"y": npy((4,), "|O", b"cos\nsystem\n")}, "y must be of an integer type, got object"),
    "header nested": ({"y": b"\x93NUMPY\x01\x00\x00\x10" + b"(" * 4096}, "y must be a readable array"),
    "header version": ({"y": b"\x93NUMPY\x09\x00" + bytes(64)}, "y must be a readable array"),
    "not an array": ({"y": b"hello"}, "y must be a readable array"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_content(case, tmp_path):
    changes, message = BAD[case]
    path = save(tmp_path / "bad.npz", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        datasets.load_file(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_not_an_archive(tmp_path):
    array, other = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(5))
    zipfile.ZipFile(other, "w").close()
    contents = {"archive": b"", "PNG": b"\x89PNG" * 100, "pickle": pickle.dumps([1]), "npy": array.getvalue()}
    for content in contents.values():
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.npz: the file must be an \.npz archive, got BadZipFile"):
            datasets.load("bad", tmp_path)
    (tmp_path / "bad.npz").write_bytes(other.getvalue())
    with pytest.raises(ValueError, match=r"indptr must be in the file, got only \[\]"):
        datasets.load("bad", tmp_path)


def test_truncated(tmp_path):
    whole = save(tmp_path / "whole.npz").read_bytes()
    for length in range(0, len(whole), 37):
        (tmp_path / "bad.npz").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"bad\.npz: the file must be an \.npz archive"):
            datasets.load_file(tmp_path / "bad.npz")


def test_damaged_bytes_load_or_raise_value_error(tmp_path):
    rng = np.random.default_rng(0)
    whole = np.frombuffer(save(tmp_path / "whole.npz").read_bytes(), dtype=np.uint8)
    refused = 0
    for _ in range(400):
        damaged = whole.copy()
        damaged[rng.integers(len(whole), size=rng.integers(1, 4))] = rng.integers(256)
        (tmp_path / "bad.npz").write_bytes(damaged.tobytes())
        try:
            datasets.load_file(tmp_path / "bad.npz")
        except ValueError as error:
            assert "bad.npz: " in str(error)
            refused += 1
    assert refused > 200


def test_archive_that_unpacks_to_far_more_is_refused_unread(tmp_path):
    path = save(tmp_path / "bomb.npz", indptr=np.zeros(2**24, dtype=np.int64))
    assert path.stat().st_size < 10**6
    with pytest.raises(ValueError, match=r"the file must be at most 67,108,864 bytes when unpacked, got 134,2"):
        datasets.load_file(path)


# --- row_normalize


def sparse(dense):
    return torch.tensor(dense, dtype=torch.float64).to_sparse_csr()


def test_row_normalize():
    x = sparse([[1, 0, 3], [0, 0, 0], [0, -2, 2], [0, 5, 0]])
    before = x.to_dense()
    out = datasets.row_normalize(x)
    assert out.layout == torch.sparse_csr and out.dtype == torch.float64
    assert out.to_dense().tolist() == [[0.25, 0, 0.75], [0, 0, 0], [0, -0.5, 0.5], [0, 1, 0]]
    assert torch.equal(x.to_dense(), before)


def test_row_normalize_keeps_stored_zeros_zero():
    x = torch.sparse_csr_tensor([0, 2, 3], [0, 1, 1], [0.0, 0.0, 4.0], size=(2, 2), check_invariants=True)
    assert datasets.row_normalize(x).to_dense().tolist() == [[0, 0], [0, 1]]


def test_row_normalize_cora(no_env):
    x = datasets.row_normalize(datasets.load("cora").x)
    torch.testing.assert_close(x.to_dense().sum(1), torch.ones(2708))


def test_row_normalize_refuses_dense_and_integer_tensors():
    for x in (torch.ones(2, 2), sparse([[1, 2]]).to(torch.int64), sparse([[1, 2]]).to_sparse_coo()):
        with pytest.raises(ValueError, match="x must be a floating-point sparse CSR tensor"):
            datasets.row_normalize(x)
