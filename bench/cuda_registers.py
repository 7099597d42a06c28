"""Registers of the CUDA kernels, from what ptxas says, and the share of a multiprocessor's warps that they allow.

A model, not a measurement: nothing runs. `python -m bench.cuda_registers BUILD.txt` reads the output of a build with
UGNN_CUDA_REPORT=ON, prints a table and records the registers in bench/results/cuda_registers.json.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "cuda_registers.json"
THREADS = 128  # of a block: kThreads of csrc/include/ugnn/rows.cuh
# CUDA C++ Programming Guide, technical specifications: resident warps of a multiprocessor; all have 65536 registers
WARPS = {"sm_80": 64, "sm_86": 48, "sm_90": 64, "sm_100": 64, "sm_120": 48}
REGISTERS, UNIT = 65536, 256  # UNIT: a warp gets a multiple of it


def read_ptxas(text: str) -> dict[tuple[str, str], dict[str, int]]:
    """(architecture, kernel) -> registers, bytes of stack and of spills."""
    found: list[tuple[str, str, dict[str, int]]] = []
    for line in text.split("\n"):
        if match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            found.append((match[2], match[1], {}))
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            found[-1][2].update(stack=int(match[1]), spill=int(match[2]) + int(match[3]))
        elif match := re.search(r"Used (\d+) registers", line):
            found[-1][2]["registers"] = int(match[1])
    names = "\n".join(name for _, name, _ in found)
    readable = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout.split("\n")
    return {(arch, short_name(name)): used for (arch, _, used), name in zip(found, readable, strict=False)}


def short_name(name: str) -> str:
    """void ugnn::cuda::rows_kernel<ugnn::cuda::Step<float, 4, false> >(...) -> rows_kernel<Step<float, 4, false>>"""
    name = re.sub(r"\(.*", "", name.removeprefix("void ")).replace("ugnn::cuda::", "")
    return name.replace("> >", ">>")


def main_kernels(found: dict) -> list[tuple[str, str]]:
    """Those that go over all entries, one launch each; float64 is for checks."""
    main = (
        r"rows_kernel<((Step|NeighborStat|NeighborVarBwd|EdgeEnergy|SparseLinear|KeptDegree)<(float|__half|__nv_bfloat16)\b"
        r"|AdaPropagateBwd<float, \d, false|GatAggregateFwd<float,|LocalSmoothness)"
    )
    return [(arch, name) for arch, name in found if re.match(main, name)]


def occupancy(arch: str, registers: int) -> float:
    """Share of the resident warps that the registers allow."""
    per_warp = -(-registers * 32 // UNIT) * UNIT
    blocks = REGISTERS // per_warp // (THREADS // 32)
    return min(1.0, blocks * (THREADS // 32) / WARPS[arch])


def nvcc_version() -> str:
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"V([\d.]+)", text)[0]


def main() -> None:
    found = read_ptxas(Path(sys.argv[1]).read_text())
    archs = sorted({arch for arch, _ in found}, key=lambda arch: int(arch[3:]))
    print("Model: registers of a thread, and the share of warps that they allow\n")
    print("| kernel | " + " | ".join(archs) + " |\n" + "| --- " * (1 + len(archs)) + "|")
    for name in sorted({name for _, name in found}):
        cells = (found[arch, name]["registers"] for arch in archs)
        texts = (f"{n}, {occupancy(arch, n):.0%}" for arch, n in zip(archs, cells, strict=True))
        print(f"| {name} | " + " | ".join(texts) + " |")
    table = {f"{arch} {name}": used["registers"] for (arch, name), used in sorted(found.items())}
    RESULTS.write_text(json.dumps({"nvcc": nvcc_version(), "registers": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
