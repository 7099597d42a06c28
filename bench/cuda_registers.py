"""Registers and shared memory of the CUDA kernels, from what ptxas says, and the share of a multiprocessor's warps that
they allow.

A model, not a measurement: nothing runs. `python -m bench.cuda_registers BUILD.txt` reads the output of a build with
UGNN_CUDA_REPORT=ON, records the registers in bench/results/cuda_registers.json, and writes a table beside it.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "cuda_registers.json"
THREADS = 128  # of a block: kThreads of csrc/include/ugnn/rows.cuh
# CUDA C++ Programming Guide, technical specifications: resident warps of a multiprocessor, and KB of shared memory, of
# which a block takes one more than it asks for; all have 65536 registers
WARPS = {"sm_80": 64, "sm_86": 48, "sm_90": 64, "sm_100": 64, "sm_120": 48}
SHARED = {"sm_80": 164, "sm_86": 100, "sm_90": 228, "sm_100": 228, "sm_120": 100}
REGISTERS, UNIT = 65536, 256  # UNIT: a warp gets a multiple of it


def read_ptxas(text: str) -> dict[tuple[str, str], dict[str, int]]:
    """(architecture, kernel) -> registers, bytes of stack, of spills and of shared memory."""
    found: list[tuple[str, str, dict[str, int]]] = []
    for line in text.split("\n"):
        if match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            found.append((match[2], match[1], {}))
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            found[-1][2].update(stack=int(match[1]), spill=int(match[2]) + int(match[3]))
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found[-1][2].update(registers=int(match[1]), shared=int(shared[1]) if shared else 0)
    names = "\n".join(name for _, name, _ in found)
    readable = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout.split("\n")
    return {(arch, short_name(name)): used for (arch, _, used), name in zip(found, readable, strict=False)}


def short_name(name: str) -> str:
    """void ugnn::cuda::rows_kernel<ugnn::cuda::Step<float, 4, false> >(...) -> rows_kernel<Step<float, 4, false>>"""
    name = re.sub(r"\(.*", "", name.removeprefix("void ")).replace("ugnn::cuda::", "")
    return name.replace("> >", ">>")


def main_kernels(found: dict) -> list[tuple[str, str]]:
    """Those that go over all entries, one launch each; float64 is for checks.

    Not the rows that send attention's gradient, in vectors: see docs/gpu.md.
    """
    main = r"rows_kernel<(?!.*double)(?!GatAggregateBwd<.*, 4, true)"
    return [(arch, name) for arch, name in found if re.match(main, name)]


def occupancy(arch: str, registers: int, shared: int = 0) -> float:
    """Share of the resident warps that registers and shared memory allow."""
    per_warp = -(-registers * 32 // UNIT) * UNIT
    blocks = min(REGISTERS // per_warp // (THREADS // 32), 1024 * SHARED[arch] // (1024 + shared))
    return min(1.0, blocks * (THREADS // 32) / WARPS[arch])


def nvcc_version() -> str:
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"V([\d.]+)", text)[0]


def table(found: dict[tuple[str, str], dict[str, int]]) -> str:
    """Markdown: registers of a thread, bytes of shared memory of a block if there are any, the share of warps."""
    archs = sorted({arch for arch, _ in found}, key=lambda arch: int(arch[3:]))
    lines = [
        "A model from what ptxas says, not a measurement: registers of a thread, bytes of shared memory of a block,",
        f"and the share of a multiprocessor's warps that they allow to blocks of {THREADS} threads. No kernel spills.",
        "",
        "| kernel | " + " | ".join(archs) + " |",
        "| --- |" + " --- |" * len(archs),
    ]
    for name in sorted({name for _, name in found}):
        cells = []
        for arch in archs:
            registers, shared = found[arch, name]["registers"], found[arch, name]["shared"]
            size = f" + {shared} B" if shared else ""
            cells.append(f"{registers}{size}, {occupancy(arch, registers, shared):.0%}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    found = read_ptxas(Path(sys.argv[1]).read_text())
    spilling = [" ".join(kernel) for kernel, used in found.items() if used["spill"] or used["stack"]]
    if spilling:
        sys.exit("these kernels spill: " + ", ".join(spilling))
    text = table(found)
    print(text)
    RESULTS.with_suffix(".md").write_text(text)
    registers = {f"{arch} {name}": used["registers"] for (arch, name), used in sorted(found.items())}
    RESULTS.write_text(json.dumps({"nvcc": nvcc_version(), "registers": registers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
