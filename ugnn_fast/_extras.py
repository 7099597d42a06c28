"""Packages that only the command line, the reports and some orders of nodes need."""

import importlib
from typing import Any


def require(module: str) -> Any:
    """Imports a module of the `cli` extra, or says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f'this needs {package}: pip install "ugnn-fast[cli]" ({error})') from error
