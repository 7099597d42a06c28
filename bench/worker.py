"""A process that times calls of one tree of ugnn_fast: `python -m bench.worker`, started by bench.against.

Lines of JSON go in and out. {"case": [op, graph, D, K], "mode": ...} makes a call, {"sample": 1} times it,
{"instructions": 1} runs it once between two requests to callgrind.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import ugnn_fast as uf
from bench import graphs
from bench.registry import OURS, Case, operators
from bench.timing import Samples, fix_threads, samples_of, take


class Worker:
    """Answers one line after the other."""

    def __init__(self) -> None:
        self.call: Any = None
        self.samples = Samples(calls=1)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "case" in asked:
            case = Case(*asked["case"])
            op = operators()[case.op]
            problem = op.make(graphs.load(case.graph), case.D, case.K)
            self.call = op.by_name[OURS].make(problem)[asked["mode"]]
            self.call()  # warm up
            self.samples = samples_of(self.call)
            return {"N": problem.g.num_nodes, "E": problem.g.num_edges}
        if "sample" in asked:
            take(self.call, self.samples)
            waited, ms = self.samples.taken[-1]
            return {"waited": waited, "ms": ms}
        requests = ctypes.CDLL(asked["instructions"])
        requests.start()
        self.call()
        requests.stop()
        return {}


def main() -> int:
    fix_threads(int(sys.argv[1]))
    # what the kernels print shall not come between the lines
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    print(json.dumps({"package": uf.__file__}), file=out, flush=True)
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as failure:  # the other tree may lack what is asked for
            answer = {"error": f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"}
        print(json.dumps(answer), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
