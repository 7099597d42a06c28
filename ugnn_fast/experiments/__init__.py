"""Training runs by the protocol of the paper, their reports, and the paper's experiments."""

from ugnn_fast.experiments.models import MODELS, build_model
from ugnn_fast.experiments.paper import ATTACKED, DATASETS
from ugnn_fast.experiments.paper import MODELS as PAPER_MODELS
from ugnn_fast.experiments.report import load_checkpoint, write_report
from ugnn_fast.experiments.reproduce import PARTS, Choice
from ugnn_fast.experiments.runs import Interrupted, train_seeds
from ugnn_fast.experiments.search import exchange, search, search_all
from ugnn_fast.experiments.settings import Settings, read_table, settings_for
from ugnn_fast.experiments.summary import reproduce
from ugnn_fast.experiments.train import Epoch, Run, Trainer, TrainResult, train, train_runs

PAPER_DATASETS = (*DATASETS, *ATTACKED)

__all__ = [
    "MODELS",
    "PAPER_DATASETS",
    "PAPER_MODELS",
    "PARTS",
    "Choice",
    "Epoch",
    "Interrupted",
    "Run",
    "Settings",
    "TrainResult",
    "Trainer",
    "build_model",
    "exchange",
    "load_checkpoint",
    "read_table",
    "reproduce",
    "search",
    "search_all",
    "settings_for",
    "train",
    "train_runs",
    "train_seeds",
    "write_report",
]
