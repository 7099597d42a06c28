"""Work in several processes: everything arrives, errors do too, and nobody is left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from ugnn_fast.experiments._workers import shared_out


def count(item):
    """item numbers, with the process and its threads."""
    for k in range(item):
        yield k, os.getpid(), torch.get_num_threads()


def fail(item):
    yield item
    raise ValueError(f"item must be good, got {item}")


def end(item):
    yield item
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("processes", (1, 2))
def test_all_news_arrive_in_order(processes):
    found = {item: [] for item in (3, 0, 5, 2, 1)}
    ids = set()
    for item, (k, process, threads) in shared_out(count, list(found), processes, 1):
        found[item].append(k)
        ids.add(process)
        assert processes == 1 or threads == 1
    assert found == {item: list(range(item)) for item in found}
    assert (ids == {os.getpid()}) == (processes == 1)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", (1, 2))
def test_nothing_to_do(processes):
    assert list(shared_out(count, [], processes, 1)) == []


@pytest.mark.parametrize("processes", (1, 2))
def test_an_error_is_raised_and_ends_the_others(processes):
    with pytest.raises(ValueError, match="item must be good, got 7"):
        for _ in shared_out(fail, [7, 7, 7], processes, 1):
            pass
    assert not multiprocessing.active_children()


def test_a_process_that_was_killed_is_missed():
    with pytest.raises(ChildProcessError, match="is gone: killed, or out of memory"):
        list(shared_out(end, [1, 2], 2, 1))
    assert not multiprocessing.active_children()


ENDLESS = """
import os, time
from ugnn_fast.experiments._workers import shared_out

def work(item):
    while True:
        time.sleep(0.05)
        yield os.getpid()

if __name__ == "__main__":
    for _, process in shared_out(work, [1, 2], 2, 1):
        print(process, flush=True)
"""


def test_workers_of_a_killed_process_end(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    workers = set()
    while len(workers) < 2:
        workers.add(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    until = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{worker}/stat") for worker in workers) and time.monotonic() < until:
        time.sleep(0.05)
    left = [worker for worker in workers if os.path.exists(f"/proc/{worker}/stat")]
    assert not left
