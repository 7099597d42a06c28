"""A progress bar for training runs."""

from __future__ import annotations

import sys

from ugnn_fast.experiments._extras import require
from ugnn_fast.experiments.train import Epoch


class Progress:
    """Bar over the epochs of all runs, with the time left, on stderr."""

    def __init__(self, runs: int, epochs: int, *, show: bool):
        self.runs, self.begun = runs, 0
        self.bar = None
        if show:
            # a log file needs fewer lines than a terminal
            interval = 0.2 if sys.stderr.isatty() else 5
            tqdm = require("tqdm").tqdm
            self.bar = tqdm(total=runs * epochs, unit="epoch", mininterval=interval, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def start(self, seed: int) -> None:
        """A run begins."""
        self.begun += 1
        if self.bar is not None:
            of = f" ({self.begun}/{self.runs})" if self.runs > 1 else ""
            self.bar.set_description(f"seed {seed}{of}", refresh=False)

    def step(self, epoch: Epoch) -> None:
        """An epoch is over."""
        if self.bar is not None:
            text = f"loss {epoch.train_loss:.3f}, val {100 * epoch.val_accuracy:.1f} %"
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update()
