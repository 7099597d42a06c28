"""The rows of a sparse matrix as GPU kernels share them out, planned once per matrix.

Short rows go several to a program, a row of middle length has a program of its own, and a hub, a very long row, is cut
into pieces whose sums are added in their order. Neighbouring slots of a program should be busy for the same number of
entries, so rows are put in classes of (nearly) equal length; within a class they keep their order, and with it what
locality it has.
"""

import torch
from torch import Tensor

SHORT = 32  # entries of a short row, at most
PIECE = 256  # entries of a piece; a hub has more


def row_plan(rowptr: Tensor) -> tuple[Tensor, list[int]]:
    """(plan, sizes) for row pointers [N + 1]; sizes = [short rows, short and middle rows, pieces].

    plan, int32: the N rows, short ones first, hubs last | their lengths [N] | for each of the H hubs the number of its
    first piece, and at the end the number of pieces [H + 1] | for each piece its hub [pieces].
    """
    length = rowptr.diff()
    # classes: every length below 8, then four to an octave; SHORT and PIECE are powers of two, so none has both kinds
    exponent = torch.frexp(length.clamp(min=1).double())[1].long() - 3
    rounding = torch.ones_like(length) << exponent.clamp(min=0)
    classes = (length + rounding - 1) // rounding * rounding
    rows = classes.argsort(stable=True)
    num_short, num_middle = int((length <= SHORT).sum()), int((length <= PIECE).sum())
    length = length[rows]
    pieces = (length[num_middle:] + PIECE - 1) // PIECE
    first = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    hub_of_piece = torch.arange(len(pieces), device=rowptr.device).repeat_interleave(pieces)
    return torch.cat([rows, length, first, hub_of_piece]).int(), [num_short, num_middle, len(hub_of_piece)]
