"""ugnn::reverse, the entry of (j, i) for each entry (i, j), for code that is compiled before Graph.reverse was used."""

import torch

from ugnn_fast._library import define
from ugnn_fast.graph import reverse_entries


def _fake(no_graph, rowptr, col):
    return col.new_empty(col.shape, dtype=torch.int64)


def _body(no_graph, rowptr, col):
    return reverse_entries(rowptr, col)


reverse = define("reverse(Tensor rowptr, Tensor col) -> Tensor", _body, _fake)
