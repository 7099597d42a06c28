"""Settings of the paper's experiments (Ma et al. 2021 and its authors' code), one row per data set."""

from __future__ import annotations

from dataclasses import dataclass

from ugnn_fast._checks import check_number, check_share, check_size, check_steps


@dataclass(frozen=True)
class Settings:
    """What a training run depends on beside data, model, split and seed.

    steps: K. s: largest C of ADA-UGNN, the C of APPNP. soft: only for ADA-UGNN, see `ugnn_fast.nn.AdaUGNN`.
    """

    hidden: int = 16
    weight_decay: float = 5e-4
    dropout: float = 0.8
    steps: int = 10
    lr: float = 0.05
    s: float = 9.0
    soft: bool = False
    epochs: int = 400

    def __post_init__(self) -> None:
        check_size(self.hidden, "hidden")
        check_number(self.weight_decay, "weight_decay", low=0.0)
        check_share(self.dropout, "dropout")
        check_steps(self.steps)
        if check_number(self.lr, "lr", low=0.0) == 0:
            raise ValueError("lr must be > 0, got 0")
        check_number(self.s, "s", low=0.0)
        check_size(self.epochs, "epochs")


#                     hidden, weight_decay, dropout, steps, lr, s, soft
TABLE = {
    "cora": Settings(16, 5e-4, 0.8, 10, 0.05, 9.0, False),
    "citeseer": Settings(16, 5e-4, 0.5, 10, 0.05, 29.0, True),
    "pubmed": Settings(16, 5e-5, 0.2, 10, 0.05, 29.0, True),
    "air_usa": Settings(64, 5e-5, 0.2, 2, 0.01, 29.0, False),
    "blogcatalog": Settings(16, 5e-7, 0.5, 10, 0.01, 9.0, True),
    "flickr": Settings(64, 5e-7, 0.5, 2, 0.01, 29.0, False),
    "amazon_computers": Settings(64, 5e-6, 0.5, 5, 0.05, 19.0, True),
    "amazon_photo": Settings(64, 5e-5, 0.2, 5, 0.01, 19.0, True),
    "coauthor_cs": Settings(64, 5e-4, 0.2, 5, 0.05, 9.0, True),
    "coauthor_physics": Settings(64, 5e-5, 0.8, 5, 0.01, 9.0, True),
}


def settings_for(dataset: str) -> Settings:
    """The row of the data set; Cora's for one that the paper does not have."""
    return TABLE.get(dataset, TABLE["cora"])
