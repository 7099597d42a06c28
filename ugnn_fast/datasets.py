"""Data sets: `load(name)` for those of the package, `root` or $UGNN_DATA, `load_file(path)` for your own.

A data set of N nodes is one file NAME.npz:

    indptr [N + 1], indices         adjacency in CSR form: symmetric, unweighted, without self loops
    x_indptr [N + 1], x_indices,    features in CSR form, columns ascending;
    x_data, x_shape [2]             without x_data every stored value is 1
    y [N]                           class 0..C-1, -1 where it is unknown
    train, val, test                node numbers, [n], or [splits, n] with one split per row
    indptr_05, indices_05, ...      the adjacency under an attack at 5 %, ... (`rate=5`)

Only indptr and indices have to be there. Integers may have any width. Other keys are ignored.
"""

from __future__ import annotations

import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ugnn_fast.graph import Graph

__all__ = ["Dataset", "binary", "load", "load_file", "names", "row_normalize"]

_SHIPPED = Path(__file__).parent / "data"
_ENV = "UGNN_DATA"

_INT32_MAX = 2**31 - 1  # columns are stored as int32
# against archives that unpack to far more than they are: published graphs unpack to about 5 times the file
_FREE_SIZE, _MAX_RATIO = 2**26, 200
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

Split = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A graph with what is known of its nodes.

    x: torch sparse CSR float32 [N, D], values as published (see `row_normalize`), or None.
    y: int64 [N], -1 where the class is unknown, or None.
    splits: list of (train, val, test), int64 node numbers each; empty if the file has none.
    """

    name: str
    graph: Graph
    x: torch.Tensor | None
    y: torch.Tensor | None
    splits: list[Split]

    @property
    def num_classes(self) -> int:
        """Largest class + 1; 0 without labels."""
        return 0 if self.y is None or self.y.numel() == 0 else int(self.y.max()) + 1

    def __repr__(self) -> str:
        features = "no features" if self.x is None else f"{self.x.shape[1]:,} features"
        size = f"{self.graph.num_nodes:,} nodes, {self.graph.num_edges:,} edges"
        labels = f"{self.num_classes} classes, {len(self.splits)} split{'s' * (len(self.splits) != 1)}"
        return f"Dataset({self.name}: {size}, {features}, {labels})"


def load(name: str, root: str | os.PathLike | None = None, *, rate: int = 0) -> Dataset:
    """Data set NAME.npz of the folder `root`, else of $UGNN_DATA, else of the package.

    rate: for mettack_* the percentage of edges that the attack changed, 0 (clean), 5, 10, 15, 20 or 25.
    """
    found = _find(root)
    if name not in found:
        places = (str(path) + ("" if path.is_dir() else " (no such folder)") for path in _folders(root))
        raise ValueError(
            f"name must be one of {', '.join(found)}, got {name!r}; looked for NAME.npz in "
            f"{', '.join(places)}. Give another folder with root= or {_ENV}, or a file to load_file"
        )
    return load_file(found[name], rate)


def names(root: str | os.PathLike | None = None) -> list[str]:
    """The names that `load` finds: NAME.npz in `root`, in $UGNN_DATA and in the package."""
    return list(_find(root))


def load_file(path: str | os.PathLike, rate: int = 0) -> Dataset:
    """The data set in one .npz file, named after it. All of it is checked, nothing is unpickled."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path must be an .npz file, got {path}: no such file")
    with _Reader(path) as reader:
        suffix = _rate_suffix(reader, rate)
        indptr, indices = _read_csr(reader, "", suffix, None, None)
        N = len(indptr) - 1
        x, y = _read_features(reader, N), _read_labels(reader, N)
        splits = _read_splits(reader, N, y)
    try:
        graph = Graph.from_csr(torch.from_numpy(indptr), torch.from_numpy(indices), num_nodes=N)
    except ValueError as error:
        raise ValueError(f"{path}: indptr{suffix}, indices{suffix}: {error}") from error
    return Dataset(path.stem, graph, x, y, splits)


def row_normalize(x: torch.Tensor) -> torch.Tensor:
    """x_ij / sum_k |x_ik| for a sparse CSR tensor [N, D]; a row of zeros stays zero."""
    if x.layout != torch.sparse_csr or x.dim() != 2 or not x.is_floating_point():
        got = f"{x.layout} {x.dtype} {list(x.shape)}"
        raise ValueError(f"x must be a floating-point sparse CSR tensor [N, D], got {got}")
    crow, col, value = x.crow_indices(), x.col_indices(), x.values()
    lengths = crow.diff()
    total = torch.segment_reduce(value.abs(), "sum", lengths=lengths, initial=0)  # [N]
    total = torch.where(total > 0, total, 1)
    return _sparse_csr(crow, col, value / total.repeat_interleave(lengths), x.shape)


def binary(x: torch.Tensor) -> torch.Tensor:
    """x with 1 for every stored value but 0."""
    return _sparse_csr(x.crow_indices(), x.col_indices(), (x.values() != 0).to(x.dtype), x.shape)


def _sparse_csr(crow, col, value, shape) -> torch.Tensor:
    with warnings.catch_warnings():
        # torch announces once per process that the layout is beta; it is the documented type of Dataset.x
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(crow, col, value, size=tuple(shape), check_invariants=False)


def _folders(root) -> list[Path]:
    """Where data sets are looked for, first come first served. The only reader of $UGNN_DATA."""
    folders = [_SHIPPED]
    if os.environ.get(_ENV):
        folders.insert(0, Path(os.environ[_ENV]))
    if root is not None:
        if not Path(root).is_dir():
            raise FileNotFoundError(f"root must be a folder with NAME.npz files, got {root}: no such folder")
        folders.insert(0, Path(root))
    return folders


def _find(root) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in _folders(root):
        for path in folder.glob("*.npz"):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


class _Reader:
    """An .npz file. Type, shape and size of an array are checked before space is taken for its data."""

    def __init__(self, path: Path):
        self.path = path
        with self.translated("the file", "an .npz archive"):
            self.archive = zipfile.ZipFile(path)
        members = self.archive.infolist()
        self.keys = {info.filename.removesuffix(".npy") for info in members if info.filename.endswith(".npy")}
        unpacked = sum(info.file_size for info in members)
        limit = max(_FREE_SIZE, _MAX_RATIO * path.stat().st_size)
        if unpacked > limit:
            self.archive.close()
            raise self.fail("the file", f"at most {limit:,} bytes when unpacked", f"{unpacked:,} bytes")

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_) -> None:
        self.archive.close()

    def fail(self, key: str, expected: str, got: object) -> ValueError:
        return ValueError(f"{self.path}: {key} must be {expected}, got {got}")

    @contextmanager
    def translated(self, key: str, expected: str) -> Iterator[None]:
        """On damaged files zipfile, zlib, tokenize, ast and numpy raise a dozen types; make them one."""
        try:
            yield
        except Exception as error:
            raise self.fail(key, expected, f"{type(error).__name__}: {error}") from error

    def read(self, key: str, kinds: str, *shapes: tuple[int | None, ...]) -> np.ndarray:
        """Array `key` with one of the dtype kinds ("iu": integers) and one of the shapes (None: any size)."""
        if key not in self.keys:
            raise self.fail(key, "in the file", f"only {sorted(self.keys)}")
        with self.translated(key, "a readable array"), self.archive.open(f"{key}.npy") as stream:
            version = np.lib.format.read_magic(stream)
            declared, _, dtype = _READ_HEADER[version](stream)
            stored = self.archive.getinfo(f"{key}.npy").file_size - stream.tell()
        if dtype.kind not in kinds or not np.can_cast(dtype, np.int64 if kinds == "iu" else np.float64):
            raise self.fail(key, "of an integer type" if kinds == "iu" else "of a real type", dtype)
        if not any(_fits(declared, shape) for shape in shapes):
            expected = " or ".join(str(list(shape)).replace("None", "n") for shape in shapes)
            raise self.fail(key, expected, list(declared))
        needed = math.prod(declared) * dtype.itemsize
        if needed != stored:
            raise self.fail(key, f"{needed:,} bytes for {list(declared)} {dtype}", f"{stored:,} bytes")
        with self.translated(key, "a readable array"), self.archive.open(f"{key}.npy") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)

    def integers(self, key: str, low: int, high: int, *shapes: tuple[int | None, ...]) -> np.ndarray:
        """Integer array `key` as int64, all values in low..high."""
        array = self.read(key, "iu", *shapes)
        if array.size and (array.min() < low or array.max() > high):
            raise self.fail(key, f"in {low}..{high}", array.min() if array.min() < low else array.max())
        return array.astype(np.int64, copy=False)


def _fits(declared: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(declared) == len(shape) and all(
        size >= 0 and wanted in (None, size) for size, wanted in zip(declared, shape, strict=True)
    )


def _rate_suffix(reader: _Reader, rate: int) -> str:
    suffixes = {0: ""}
    for key in sorted(reader.keys):
        if match := re.fullmatch(r"indptr(_(\d\d))", key):
            suffixes[int(match[2])] = match[1]
    if rate not in suffixes:
        offered = f"one of {list(suffixes)}" if len(suffixes) > 1 else "0 (the file has no attacked graphs)"
        raise reader.fail("rate", offered, rate)
    return suffixes[rate]


def _read_csr(reader: _Reader, prefix: str, suffix: str, N: int | None, D: int | None) -> list[np.ndarray]:
    """Row pointers and columns of a matrix [N, D]; N None: as many rows as pointers say; D None: D = N."""
    key = f"{prefix}indptr{suffix}"
    indptr = reader.integers(key, 0, 2**63 - 1, (None if N is None else N + 1,))
    if not 1 <= len(indptr) <= _INT32_MAX:
        raise reader.fail(key, f"[N + 1] with 0 <= N < {_INT32_MAX}", list(indptr.shape))
    if indptr[0] != 0:
        raise reader.fail(f"{key}[0]", "0", indptr[0])
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        i = int(falls.argmax())
        raise reader.fail(key, "non-decreasing", f"{indptr[i]} before {indptr[i + 1]} at row {i}")
    columns = len(indptr) - 1 if D is None else D
    return [indptr, reader.integers(f"{prefix}indices{suffix}", 0, columns - 1, (int(indptr[-1]),))]


def _read_features(reader: _Reader, N: int) -> torch.Tensor | None:
    if reader.keys.isdisjoint(("x_indptr", "x_indices", "x_data", "x_shape")):
        return None
    shape = reader.integers("x_shape", 0, _INT32_MAX, (2,)).tolist()
    if shape[0] != N:
        raise reader.fail("x_shape", f"[N, D] with N = {N}", shape)
    indptr, indices = _read_csr(reader, "x_", "", *shape)
    follows = np.ones(len(indices) + 1, dtype=bool)  # entry follows another one of its row
    follows[indptr] = False
    if (indices[1:] <= indices[:-1])[follows[1:-1]].any():
        raise reader.fail("x_indices", "strictly ascending within each row", "a repeated or smaller column")
    data = np.ones(len(indices), dtype=np.float32)
    if "x_data" in reader.keys:
        with np.errstate(over="ignore"):  # what is too large for float32 becomes inf, refused below
            data = reader.read("x_data", "fiub", (len(indices),)).astype(np.float32, copy=False)
        if not np.isfinite(data).all():
            raise reader.fail("x_data", "finite in float32", data[~np.isfinite(data)][0])
    crow, col, value = map(torch.from_numpy, (indptr, indices, data))
    return _sparse_csr(crow, col, value, shape)


def _read_labels(reader: _Reader, N: int) -> torch.Tensor | None:
    # classes are numbered without gaps, so a class is less than N
    return torch.from_numpy(reader.integers("y", -1, N - 1, (N,))) if "y" in reader.keys else None


def _read_splits(reader: _Reader, N: int, y: torch.Tensor | None) -> list[Split]:
    parts = ("train", "val", "test")
    if reader.keys.isdisjoint(parts):
        return []
    nodes = [np.atleast_2d(reader.integers(part, 0, N - 1, (None,), (None, None))) for part in parts]
    for part, array in zip(parts, nodes, strict=True):
        if len(array) != len(nodes[0]):
            raise reader.fail(part, f"[splits, n] with {len(nodes[0])} splits like train", list(array.shape))
        if y is not None and (y.numpy()[array] < 0).any():
            raise reader.fail(part, "nodes with a class", "one with y = -1")
    train, val, test = (torch.from_numpy(array).unbind() for array in nodes)
    return list(zip(train, val, test, strict=True))
