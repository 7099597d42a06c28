"""Models: thin torch modules over the operators."""

from ugnn_fast.nn.ada_ugnn import AdaUGNN
from ugnn_fast.nn.appnp import APPNP
from ugnn_fast.nn.sparse_linear import SparseLinear

__all__ = ["APPNP", "AdaUGNN", "SparseLinear"]
