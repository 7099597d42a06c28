"""What Ma et al. 2021 report, in percent: Table 2, and Table 3 by local label smoothness."""

from __future__ import annotations

MODELS = ("gcn", "gat", "appnp", "ada-ugnn")

# test accuracy of MODELS
TABLE2 = {
    "cora": (81.75, 82.56, 84.49, 84.79),
    "citeseer": (70.13, 70.77, 71.97, 72.17),
    "pubmed": (78.56, 78.88, 80.00, 80.52),
    "amazon_computers": (82.79, 83.01, 82.99, 83.40),
    "amazon_photo": (89.60, 90.33, 91.38, 91.44),
    "coauthor_cs": (91.55, 90.95, 91.69, 92.33),
    "coauthor_physics": (93.23, 92.86, 93.84, 93.92),
    "blogcatalog": (71.38, 72.90, 92.43, 93.33),
    "flickr": (63.28, 52.17, 83.19, 84.15),
    "air_usa": (56.62, 55.81, 56.20, 57.32),
}
DATASETS = tuple(TABLE2)

# test accuracy of APPNP and ADA-UGNN where the local label smoothness is < 0.5, and where it is >= 0.5
TABLE3 = {
    "cora": ((38.40, 40.17), (90.65, 90.76)),
    "citeseer": ((34.20, 34.83), (82.00, 81.90)),
    "pubmed": ((41.08, 44.44), (88.32, 88.33)),
    "amazon_computers": ((44.08, 45.81), (88.08, 88.31)),
    "amazon_photo": ((44.57, 44.94), (95.61, 95.54)),
    "coauthor_cs": ((43.94, 51.79), (96.31, 96.26)),
    "coauthor_physics": ((37.97, 43.24), (96.10, 95.98)),
    "blogcatalog": ((89.70, 91.15), (99.49, 99.06)),
    "flickr": ((81.83, 82.95), (96.63, 96.04)),
    "air_usa": ((42.44, 43.62), (77.03, 78.01)),
}

# data sets with several splits, of which the paper takes the first twenty, each with twenty seeds
MANY_SPLITS = ("amazon_computers", "amazon_photo", "coauthor_cs", "coauthor_physics")
SPLITS = 20

ATTACKED = ("mettack_cora", "mettack_citeseer", "mettack_pubmed")
RATES = (0, 5, 10, 15, 20, 25)
ATTACKED_RUNS = 10
