"""The native module, or the reason why there is none.

`native` is `ugnn_fast._C` or None; `reason` says why it is None. UGNN_NATIVE=0 leaves it out on purpose.
"""

import os
from importlib import import_module
from types import ModuleType

# first, so that the native module finds torch's OpenMP runtime: two of them would spin against each other
import torch  # noqa: F401

native: ModuleType | None = None
reason: str | None = None

if os.environ.get("UGNN_NATIVE", "1") == "0":
    reason = "switched off by UGNN_NATIVE=0"
else:
    try:
        native = import_module("ugnn_fast._C")
    except ImportError as error:
        reason = f"the native module is not built ({error}); build it with `pip install --no-build-isolation -e .`"
