"""The degrees of a graph some of whose edges are dropped; not an operator, as it fills a graph that is being made."""

import torch

from ugnn_fast import device
from ugnn_fast.graph import Graph
from ugnn_fast.ops._native_call import csr, native


def kept_degree(view: Graph, backend: str) -> None:
    """Fills view.degree with the sums of the weights that its mask leaves."""
    if backend != "cpu":
        device.body("kept_degree")(view.tensors(backend), view.degree, backend)
        return
    native.kept_degree(csr(view.tensors()), torch.get_num_threads(), view.degree.data_ptr())
