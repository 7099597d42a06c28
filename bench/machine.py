"""What a run says of itself: the machine and the versions, and how far it has come."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import torch

import ugnn_fast as uf
from ugnn_fast._native import native

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


class Progress:
    """One line on stderr: what runs, how far it is, how long the rest may take."""

    def __init__(self, quiet: bool = False) -> None:
        self.later = 0.0  # seconds that the stages after this one may take
        self.shown = 0.0
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self.terminal else text, file=sys.stderr, flush=True)

    def stage(self, text: str, left: float) -> None:
        now = time.monotonic()
        if self.quiet or now - self.shown < (0.2 if self.terminal else 10):
            return
        self.shown = now
        line = f"{text}, about {math.ceil(left + self.later)} s left"
        print(
            f"\r\x1b[K{line}" if self.terminal else line,
            end="" if self.terminal else "\n",
            file=sys.stderr,
            flush=True,
        )


def machine() -> dict[str, object]:
    """What every row says of the machine and the versions."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "machine": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch": torch.__version__,
        "ugnn_fast": uf.__version__,
        "isa": native.isa() if native is not None else "none",
        "commit": commit(),
    }


def git(*args: str) -> str:
    """What git says of this checkout; CalledProcessError where it fails."""
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """Short hash, with + if files differ from it."""
    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "none"


def compiled(source: str, *flags: str) -> Path:
    """A C++ file of this folder as a shared library, made once; RuntimeError where that fails."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise RuntimeError("a C++ compiler (c++, or $CXX) was not found")
    path = Path(__file__).parent / source
    flags = ("-O3", "-shared", "-fPIC", "-std=c++17", *flags)
    name = hashlib.sha256(path.read_bytes() + " ".join(flags).encode()).hexdigest()[:16]
    made = ROOT / "build" / "bench" / f"{path.stem}-{name}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        new = made.with_suffix(f".{os.getpid()}")
        done = subprocess.run([compiler, *flags, str(path), "-o", str(new)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{compiler} failed: {done.stderr.strip()[-500:]}")
        new.replace(made)  # at once: another process may compile too
    return made


def now() -> str:
    """The date of a run, which all its rows share."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
