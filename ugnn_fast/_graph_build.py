"""Graph building in numpy: what `ugnn_fast._C` does, with the same results and the same messages.

Used when the native module is missing; several times slower and without its bound on memory. The functions
have the native signatures; `threads` is ignored.
"""

import numpy as np

MAX_NODES = 2**31 - 2
NEAR_NODES = 2**16
NEAR_WORK = 48
HUB_LENGTH = 8192
HUB_SHARE = 256
_ROUNDS = 8


def build_coo(row, col, weight, num_nodes, self_loops, symmetrize, threads=1):
    """Pairs row [M], col [M], weight [M] or None -> rowptr [N+1], col [E], weight [E] or None, degree [N]."""
    if not 0 <= num_nodes <= MAX_NODES:
        raise ValueError(f"num_nodes must be in [0, 2^31 - 2], got {num_nodes}")
    _check_ids(row, num_nodes, "edge_index", "edge_index[0, {}]")
    _check_ids(col, num_nodes, "edge_index", "edge_index[1, {}]")
    return _build(row, col, weight, num_nodes, self_loops, symmetrize, "edge_index", "edge_weight")


def build_csr(rowptr, col, weight, self_loops, symmetrize, threads=1):
    """rowptr [N+1], col [M], weight [M] or None -> as build_coo."""
    num_nodes = len(rowptr) - 1
    if num_nodes > MAX_NODES:
        raise ValueError(f"num_nodes must be in [0, 2^31 - 2], got {num_nodes}")
    if rowptr[0] != 0:
        raise ValueError(f"rowptr must start at 0, got {rowptr[0]} at rowptr[0]")
    fall = rowptr[1:] < rowptr[:-1]
    if fall.any():
        i = int(fall.argmax())
        raise ValueError(f"rowptr must not fall, got {rowptr[i]} then {rowptr[i + 1]} at rowptr[{i + 1}]")
    if rowptr[-1] != len(col):
        raise ValueError(f"rowptr must end at len(col) = {len(col)}, got {rowptr[-1]} at rowptr[{num_nodes}]")
    _check_ids(col, num_nodes, "col", "col[{}]")
    row = np.repeat(np.arange(num_nodes, dtype=np.int64), np.diff(rowptr))
    return _build(row, col, weight, num_nodes, self_loops, symmetrize, "col", "weight")


def row_plan(rowptr, col, weight, threads=1):
    """hubs int32 [H]: very long rows; order [N], near_rowptr, near_col, near_weight: the rows sorted by length."""
    length = np.diff(rowptr)
    hubs = np.flatnonzero(length > max(HUB_LENGTH, int(rowptr[-1]) // HUB_SHARE)).astype(np.int32)
    if len(length) > NEAR_NODES:
        return hubs, np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32), None
    order = np.argsort(length, kind="stable").astype(np.int32)
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=np.int32)
    near_rowptr = np.concatenate([[0], np.cumsum(length[order])]).astype(np.int64)
    entry = np.repeat(rowptr[order] - near_rowptr[:-1], length[order]) + np.arange(rowptr[-1])
    return hubs, order, near_rowptr, place[col[entry]], None if weight is None else weight[entry]


def community_order(rowptr, col, threads=1):
    """int32 [N]: nodes that know each other side by side.

    Communities come one after the other, by where a breadth-first walk meets their nodes on average; in them, the nodes
    in the order of that walk.
    """
    N = len(rowptr) - 1
    place = np.empty(N, np.int64)
    place[_breadth_first(rowptr, col)] = np.arange(N)
    label = _communities(rowptr, col)
    mean = np.bincount(label, place, N) / np.maximum(np.bincount(label, minlength=N), 1)
    return np.lexsort((place, label, mean[label])).astype(np.int32)


def _breadth_first(rowptr, col):
    """[N], from node 0, then from the first one that was not met."""
    N = len(rowptr) - 1
    length = np.diff(rowptr)
    met = np.zeros(N, bool)
    order = [np.zeros(0, np.int64)]
    for root in range(N):
        found = np.array([root])[~met[root : root + 1]]
        while len(found):
            met[found] = True
            order.append(found)
            count = length[found]
            entry = np.repeat(rowptr[found] - np.cumsum(count) + count, count) + np.arange(count.sum())
            others = col[entry][~met[col[entry]]]
            found = others[np.sort(np.unique(others, return_index=True)[1])]
    return np.concatenate(order)


def _communities(rowptr, col):
    """[N]: a node takes the label that most of its neighbours have, some rounds long (Raghavan et al. 2007).

    Half of the nodes look at their neighbours in a round: all at once would take turns.
    """
    N = len(rowptr) - 1
    node = np.arange(N)
    row = np.repeat(node, np.diff(rowptr))
    others = row != col
    row, col = row[others], col[others]
    label = node.copy()
    for turn in range(_ROUNDS):
        bits = node.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits += np.uint64(turn * 0xBF58476D1CE4E5B9 % 2**64)
        bits = (bits ^ (bits >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
        looks = (bits >> np.uint64(63)).astype(bool)[row]
        pair = np.sort(row[looks] * N + label[col[looks]])
        first = np.flatnonzero(np.diff(pair, prepend=-1))
        count = np.diff(first, append=len(pair))
        looking, found = np.divmod(pair[first], max(N, 1))
        # of labels that are equally frequent, one by a number that says nothing of its size
        best = np.lexsort((found * 2654435761 % 2**32, count, looking))
        last = best[np.flatnonzero(np.diff(looking[best], append=N))]
        label[looking[last]] = found[last]
    return label


def reverse(rowptr, col):
    """The entry of (j, i) for each entry (i, j) of a symmetric matrix. int64 [E]"""
    # sorted by (col, row) the entries are those of the transposed matrix, which is the matrix itself
    return np.argsort(col, kind="stable").astype(np.int64)


def find_entries(rowptr, col, pair_row, pair_col, threads=1):
    """The entry of each pair, -1 for a pair that is not an edge. int64 [M]"""
    num_nodes = len(rowptr) - 1
    inside = (pair_row >= 0) & (pair_row < num_nodes)
    row = np.where(inside, pair_row, 0)
    low = np.where(inside, rowptr[row] if num_nodes else 0, 0)
    high = np.where(inside, rowptr[row + 1] if num_nodes else 0, 0)
    end = high
    while (low < high).any():  # a binary search in all rows at once
        middle = (low + high) // 2
        open_ = low < high
        less = open_ & (col[np.where(open_, middle, 0)] < pair_col)
        low = np.where(less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    found = low < end
    found[found] = col[low[found]] == pair_col[found]
    return np.where(found, low, -1)


def _check_ids(ids, num_nodes, name, position):
    if ids.size == 0 or (ids.min() >= 0 and ids.max() < num_nodes):
        return
    e = int(((ids < 0) | (ids >= num_nodes)).argmax())
    raise ValueError(f"{name} must be in [0, num_nodes) = [0, {num_nodes}), got {ids[e]} at {position.format(e)}")


def _build(row, col, weight, num_nodes, self_loops, symmetrize, index_name, weight_name):
    N = num_nodes
    if weight is not None:
        _check_weight(weight, weight_name)
    keep = row != col
    row, col = row[keep].astype(np.int64), col[keep].astype(np.int64)
    # one number per pair, in the order of rows and columns; below 2^62
    key = row * N + col
    if symmetrize:
        key = np.concatenate([key, col * N + row])
    if weight is None:
        key, value = np.unique(key), None
    else:
        key, value = _merge_weighted(key, weight[keep], symmetrize)
    if not symmetrize:
        _check_symmetric(key, value, N, index_name, weight_name)
    if self_loops:
        key = np.concatenate([key, np.arange(N, dtype=np.int64) * (N + 1)])
        order = np.argsort(key)
        key = key[order]
        if value is not None:
            value = np.concatenate([value, np.ones(N, np.float32)])[order]
    row, col = np.divmod(key, max(N, 1))
    rowptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=N))]).astype(np.int64)
    if value is None:
        return rowptr, col.astype(np.int32), None, np.diff(rowptr).astype(np.float32)
    with np.errstate(over="ignore"):
        degree = np.bincount(row, weights=value, minlength=N).astype(np.float32)
    if not np.isfinite(degree).all():
        i = int((~np.isfinite(degree)).argmax())
        raise ValueError(f"{weight_name} must have finite sums in float32, got inf for the edges of node {i}")
    return rowptr, col.astype(np.int32), value, degree


def _check_weight(weight, name):
    with np.errstate(over="ignore", under="ignore"):
        stored = weight.astype(np.float32)
    bad = ~((stored > 0) & (stored <= np.finfo(np.float32).max))
    if bad.any():
        e = int(bad.argmax())
        raise ValueError(f"{name} must be finite and > 0 in float32, got {weight[e]:.9g} at {name}[{e}]")


def _merge_weighted(key, weight, symmetrize):
    """Sums of the weights of equal keys; with symmetrize the larger of the sums of both directions."""
    weight = weight.astype(np.float64)
    transposed = np.zeros(len(key), bool)
    if symmetrize:
        transposed[len(weight) :] = True
        weight = np.concatenate([weight, weight])
    # by weight at last, so that the sums of (i, j) and (j, i) add the same numbers in the same order
    order = np.lexsort((weight, transposed, key))
    key, weight, transposed = key[order], weight[order], transposed[order]
    first = np.concatenate([[True], key[1:] != key[:-1]]) if len(key) else np.zeros(0, bool)
    group = np.cumsum(first) - 1
    # bincount adds in order, in double
    sums = [np.bincount(group, weights=np.where(side, weight, 0.0)) for side in (transposed, ~transposed)]
    with np.errstate(over="ignore"):
        return key[first], np.maximum(*sums).astype(np.float32)


def _check_symmetric(key, value, num_nodes, index_name, weight_name):
    row, col = np.divmod(key, max(num_nodes, 1))
    back_key = col * num_nodes + row
    back = np.minimum(np.searchsorted(key, back_key), max(len(key) - 1, 0))
    missing = key[back] != back_key
    bad = missing if value is None else missing | (value[back] != value)
    if not bad.any():
        return
    e = int(bad.argmax())
    i, j = int(row[e]), int(col[e])
    if missing[e]:
        raise ValueError(
            f"{index_name} must have every edge in both directions, got ({i}, {j}) without ({j}, {i}); "
            "symmetrize=True adds what is missing"
        )
    assert value is not None
    raise ValueError(
        f"{weight_name} must be the same in both directions, got {value[e]:.9g} for ({i}, {j}) and "
        f"{value[back[e]]:.9g} for ({j}, {i}); symmetrize=True takes the larger"
    )
