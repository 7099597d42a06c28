"""Training runs by the protocol of the paper, and their reports."""

from ugnn_fast.experiments.report import load_checkpoint, write_report
from ugnn_fast.experiments.runs import train_seeds
from ugnn_fast.experiments.settings import Settings, settings_for
from ugnn_fast.experiments.train import MODELS, Epoch, TrainResult, build_model, train

__all__ = [
    "MODELS",
    "Epoch",
    "Settings",
    "TrainResult",
    "build_model",
    "load_checkpoint",
    "settings_for",
    "train",
    "train_seeds",
    "write_report",
]
