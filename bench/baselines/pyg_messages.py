"""A product with stored edge weights as torch_geometric's message passing."""

from torch import Tensor
from torch_geometric.nn import MessagePassing


class WeightedMessages(MessagePassing):
    """y_i = sum_j w_ij x_j, for edges (i, j)."""

    def __init__(self):
        super().__init__(aggr="add", flow="target_to_source")

    def forward(self, x: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_j: Tensor, w: Tensor) -> Tensor:
        return w[:, None] * x_j
