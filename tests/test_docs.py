"""The Python code of the documentation runs as it stands, block after block."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(name):
    """(line, code) of every Python block."""
    text = (ROOT / name).read_text()
    return [(text[: m.start(1)].count("\n"), m[1]) for m in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize("name", ["README.md", "docs/backend.md", "docs/gpu.md"])
def test_python_blocks_run(name):
    found = blocks(name)
    assert found
    shared = {}
    for line, code in found:
        # empty lines in front, so that a failure shows the line of the page
        exec(compile("\n" * line + code, str(ROOT / name), "exec"), shared)
