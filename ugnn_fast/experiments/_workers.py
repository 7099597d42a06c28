"""Work shared out to several processes, which report as they go."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TypeVar

import torch

Item = TypeVar("Item")
News = TypeVar("News")


def shared_out(
    work: Callable[[Item], Iterable[News]], items: Sequence[Item], processes: int, threads: int
) -> Iterator[tuple[Item, News]]:
    """(item, news) for all that work(item) yields, as it comes, from so many processes with so many threads each.

    With one process all is done in this one, with the threads that it has; for several, work and items are pickled. An
    error in one of them is raised here and ends the others. If this process is killed, they end with their next news.
    """
    if processes == 1:
        for item in items:
            for news in work(item):
                yield item, news
        return
    context = multiprocessing.get_context("spawn")  # a fork would not survive OpenMP
    waiting = iter(items)
    busy: dict[Connection, Item] = {}
    workers = []
    try:
        for item in itertools.islice(waiting, processes):
            ours, theirs = context.Pipe()
            workers.append(context.Process(target=_work, args=(theirs, work, threads), daemon=True))
            workers[-1].start()
            theirs.close()
            ours.send(item)
            busy[ours] = item
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                try:
                    kind, news = pipe.recv()
                except (EOFError, ConnectionError):
                    raise ChildProcessError("a process that was at work is gone: killed, or out of memory") from None
                if kind == "news":
                    yield busy[pipe], news
                elif kind == "error":
                    raise news
                else:
                    del busy[pipe]
                    for item in itertools.islice(waiting, 1):
                        pipe.send(item)
                        busy[pipe] = item
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(pipe: Connection, work: Callable[[Item], Iterable[News]], threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    torch.set_num_threads(threads)

    def tell(kind: str, news: object = None) -> None:
        try:
            pipe.send((kind, news))
        except ConnectionError:
            sys.exit()  # nobody listens any more

    while True:
        try:
            item = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            for news in work(item):
                tell("news", news)
        except Exception as error:
            tell("error", error)
            return
        tell("done")
