"""Block sizes and warps of the kernels, from tables in files; never tuned at run time, as sums depend on them.

launch_table.json beside this file ships with the package. A table of the user, written by `ugnn-fast tune`, lies over
it: in $UGNN_LAUNCH_TABLE, or in ugnn_fast/launch_table.json of the user's folder for settings. An empty
$UGNN_LAUNCH_TABLE leaves it out. Both are read once per process. Their form is

    {"format": 1, "devices": {DEVICE: {FAMILY: {ITEM SIZE: {WIDTH: {"slots": .., "block": .., "warps": ..}}}}}}

DEVICE is the name of a GPU as torch gives it, "hip" for any AMD GPU, or "any"; FAMILY is a kernel's, ITEM SIZE that of
a value in bytes, and WIDTH the widest block that columns are cut into, see block_width.
"""

import contextlib
import functools
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

SHIPPED = Path(__file__).with_name("launch_table.json")
VARIABLE = "UGNN_LAUNCH_TABLE"
FORMAT = 1
FAMILIES = ("step", "ada_propagate_backward", "edge_dot")
WIDEST = 128
WIDTHS = tuple(1 << n for n in range(WIDEST.bit_length()))
ITEM_SIZES = (2, 4, 8)
# Told a limit, NVIDIA's assembler uses what a kernel needs; by itself it sometimes spills two registers to fit one more
# block on a processor. AMD's has no such option.
REGISTERS = {} if torch.version.hip else {"maxnreg": 168}
# no more than 7 of 16 columns of the blocks lie beside the table, so that with rows of unlike length in a program no
# more than half of the lanes are idle
_MOST_PADDED = 16 / 9


class Config(NamedTuple):
    slots: int  # rows, or entries of one row, that a program works on at a time
    block: int  # columns of a program
    warps: int

    def __str__(self) -> str:
        return f"{self.slots} x {self.block}, {self.warps} warps"


# device, family, item size, width
Key = tuple[str, str, int, int]
Table = dict[Key, Config]


def block_width(D: int) -> int:
    """The widest block for D columns that leaves few lanes idle: 64 for 40 columns, three times 16 for 33."""
    if D < 8:
        return 1 << max(D - 1, 0).bit_length()
    return next(width for width in reversed(WIDTHS) if -(-D // width) * width <= _MOST_PADDED * D)


@functools.cache
def row_config(D: int, dtype: torch.dtype, device: torch.device | None = None, family: str = "step") -> Config:
    """For rows of D values of this type; without a device that of `any`."""
    names = ["any"]
    if device is not None and device.type == "cuda":
        names = [torch.cuda.get_device_name(device), *(["hip"] if torch.version.hip else []), "any"]
    width = block_width(D)
    for table in (user_table(), shipped_table()):
        for name in names:
            if config := table.get((name, family, dtype.itemsize, width)):
                return config._replace(slots=slots_for(config, D, dtype.itemsize))
    raise ValueError(f"{SHIPPED} must have an entry for {family} with values of {dtype.itemsize} bytes, width {width}")


def slots_for(config: Config, D: int, item_size: int) -> int:
    """Those of the table are for rows of whole vectors of 16 bytes, which a thread reads at once.

    Of other rows it reads every value, or every few values, by an address of its own: with as many slots the addresses
    would fill its registers. Two values a thread are left, and work for every thread of the program.
    """
    reads = min(16 // math.gcd(D * item_size, 16), max(16 // item_size // 2, 1))
    return max(config.slots // reads, min(config.slots, 32 * config.warps // config.block))


@functools.cache
def shipped_table() -> Table:
    return read_table(SHIPPED)


@functools.cache
def user_table() -> Table:
    """The table of the user; empty if there is none."""
    path = user_path()
    named = bool(os.environ.get(VARIABLE))
    return read_table(path) if path is not None and (named or path.exists()) else {}


def user_path() -> Path | None:
    """Where the table of the user is looked for."""
    if (given := os.environ.get(VARIABLE)) is not None:
        return Path(given) if given else None
    if os.name == "nt":
        folder = os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming"
    else:
        folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "ugnn_fast" / "launch_table.json"


def read_table(path: Path) -> Table:
    """The table in a file; ValueError says what is wrong with it and where."""

    def broken(what: str) -> ValueError:
        return ValueError(f"launch table {path}: {what}; `ugnn-fast tune` writes a new one, {VARIABLE}= leaves it out")

    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise broken(f"cannot be read, {error.strerror}") from None
    except ValueError as error:
        raise broken(f"is not JSON, {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or set(content) != {"format", "devices"}:
        raise broken(f'must be {{"format": {FORMAT}, "devices": {{...}}}}')
    table: Table = {}

    def items(value: Any, where: str, allowed: tuple | None = None) -> Any:
        if not isinstance(value, dict):
            raise broken(f"{where} must be an object, got {value!r}")
        for name, inner in value.items():
            if allowed is not None and name not in map(str, allowed):
                raise broken(f"{where} must have keys of {', '.join(map(str, allowed))}, got {name!r}")
            yield name, inner

    for device, families in items(content["devices"], "devices"):
        for family, sizes in items(families, device, FAMILIES):
            for size, widths in items(sizes, f"{device}/{family}", ITEM_SIZES):
                for width, entry in items(widths, f"{device}/{family}/{size}", WIDTHS):
                    where = f"{device}/{family}/{size}/{width}"
                    names = dict(items(entry, where, Config._fields))
                    if len(names) < len(Config._fields):
                        raise broken(f"{where} must have slots, block and warps, got {entry}")
                    config = Config(**names)
                    if why := why_not(config, int(width)):
                        raise broken(f"{where}: {why}")
                    table[device, family, int(size), int(width)] = config
    return table


def why_not(config: Config, width: int) -> str | None:
    """What is wrong with a configuration for this width, or None."""
    for name, value, most in zip(Config._fields, config, (1024, width, 16), strict=True):
        if type(value) is not int or not 1 <= value <= most or value & (value - 1):
            return f"{name} must be a power of two of 1 to {most}, got {value!r}"
    if config.slots * config.block > 1 << 14:
        return f"slots * block must be at most {1 << 14}, got {config.slots} * {config.block}"
    return None


def write_table(table: Table, path: Path) -> None:
    """Writes a file that is there completely or, after an error, not at all."""
    devices: dict[str, Any] = {}
    for (device, family, size, width), config in sorted(table.items()):
        entry = devices.setdefault(device, {}).setdefault(family, {}).setdefault(str(size), {})
        entry[str(width)] = config._asdict()
    text = json.dumps({"format": FORMAT, "devices": devices}, indent=1)
    # an entry in a line
    for config in set(table.values()):
        tall = json.dumps(config._asdict(), indent=1).replace("\n", "\n     ")
        text = text.replace(tall, json.dumps(config._asdict()))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def on_device(index: int | None) -> contextlib.AbstractContextManager:
    """Makes a GPU the current one, which Triton launches on, if it is not; index is None for tensors of the CPU."""
    if index is None or index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(index)
