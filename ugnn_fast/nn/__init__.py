"""Models: thin torch modules over the operators."""

from ugnn_fast.nn.ada_ugnn import AdaUGNN
from ugnn_fast.nn.appnp import APPNP
from ugnn_fast.nn.gat import GAT, GATLayer

__all__ = ["APPNP", "GAT", "AdaUGNN", "GATLayer"]
