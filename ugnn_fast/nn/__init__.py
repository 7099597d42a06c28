"""Models: thin torch modules over the operators."""

from ugnn_fast.nn.ada_ugnn import AdaUGNN
from ugnn_fast.nn.appnp import APPNP
from ugnn_fast.nn.drop_edge import DropEdge
from ugnn_fast.nn.gat import GAT, GATLayer
from ugnn_fast.nn.gcn import GCN
from ugnn_fast.nn.gprgnn import GPRGNN
from ugnn_fast.nn.pairnorm import PairNorm
from ugnn_fast.nn.ppnp import PPNP
from ugnn_fast.nn.sgc import SGC
from ugnn_fast.nn.sparse_linear import SparseLinear
from ugnn_fast.nn.ugnn import UGNN

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "GPRGNN",
    "PPNP",
    "SGC",
    "UGNN",
    "AdaUGNN",
    "DropEdge",
    "GATLayer",
    "PairNorm",
    "SparseLinear",
]
