"""Models: thin torch modules over the operators."""

from ugnn_fast.nn.ada_ugnn import AdaUGNN
from ugnn_fast.nn.appnp import APPNP
from ugnn_fast.nn.gcn import GCN
from ugnn_fast.nn.gprgnn import GPRGNN
from ugnn_fast.nn.sgc import SGC
from ugnn_fast.nn.sparse_linear import SparseLinear

__all__ = ["APPNP", "GCN", "GPRGNN", "SGC", "AdaUGNN", "SparseLinear"]
