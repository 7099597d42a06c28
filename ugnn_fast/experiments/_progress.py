"""A progress bar with the time left."""

from __future__ import annotations

import sys

from ugnn_fast._extras import require


class Progress:
    """A bar over `total` units of work, with the time left, on stderr. unit "": the units say nothing to a reader."""

    def __init__(self, total: float, unit: str, *, show: bool):
        self.bar = None
        if show:
            # a log file needs fewer lines than a terminal
            interval = 0.2 if sys.stderr.isatty() else 5
            shape = None if unit else "{desc}{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self.bar = require("tqdm").tqdm(
                total=total, unit=unit, mininterval=interval, dynamic_ncols=True, bar_format=shape, smoothing=0.1
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def describe(self, text: str) -> None:
        """What is being done."""
        if self.bar is not None:
            self.bar.set_description(text, refresh=False)

    def note(self, text: str) -> None:
        """How it goes."""
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)

    def advance(self, units: float) -> None:
        if self.bar is not None:
            self.bar.update(min(units, self.bar.total - self.bar.n))  # sums of fractions may exceed the total
