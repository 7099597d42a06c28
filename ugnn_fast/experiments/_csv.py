"""CSV files with a fixed header that grow line by line, and survive a crash while they do."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # where there is no such lock, two processes should not write one file
    fcntl = None  # type: ignore[assignment]


def read_lines(path: str | os.PathLike, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """(where, cells by column) of each line, where for messages; a last line without an end was being written."""
    whole = Path(path).read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    number = 0
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(whole.decode(), newline="")), 1):
            if number == 1 and cells != list(columns):
                raise ValueError(f"{path}, line 1: must be the header {','.join(columns)}, got {','.join(cells)[:200]}")
            if number == 1 or not cells:
                continue
            if len(cells) != len(columns):
                raise ValueError(f"{path}, line {number}: must have {len(columns)} columns, got {len(cells)}")
            yield f"{path}, line {number}", dict(zip(columns, cells, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be CSV in UTF-8, after line {number}: {error}") from error


def append_lines(path: str | os.PathLike, columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Adds lines in one go, on disk when this returns; the header before the first of them."""
    with open(path, "a+b") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        whole = file.read()
        kept = whole.rfind(b"\n") + 1
        if kept < len(whole):  # what a crash left of a line
            file.truncate(kept)
        file.write(as_text(lines if kept else [columns, *lines]).encode())
        file.flush()
        os.fsync(file.fileno())


def as_text(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def check_appendable(path: str | os.PathLike) -> None:
    """What could stop the end of a long run shall stop its beginning. Leaves an empty file where there was none."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    open(path, "ab").close()
