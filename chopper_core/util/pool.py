"""Processes that do one item after the other for this one, which needs no thread for them.

Each has a pipe of its own. It gets an item when it has nothing to do, so neither side ever sends
while the other one does; and what it takes along when it dies is the item that it was at.
"""

from __future__ import annotations

import atexit
import os
import select
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from msgspec import Struct

from chopper_core.util import debug
from chopper_core.util.memory import is_out_of_memory

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

    Context = ForkContext | SpawnContext

Work = Callable[[Any, int], object]
"""What is done to an item, given its number, too."""


class Outcome(Struct):
    """What came of an item."""

    value: Any = None
    error: BaseException | None = None
    is_lost: bool = False
    """Whether its process died, fell short of memory, or made what can't be sent."""


class _Worker(Struct, eq=False):
    process: BaseProcess
    pipe: Connection
    number: int = -1
    """Of the item that it is at."""
    is_used: bool = False


_ends: Final[WeakSet[Connection]] = WeakSet()
"""Ends of pipes that are this process's alone."""


def _close_ends() -> None:
    """As a copy of a process: the other ends would never learn that it is gone."""
    for end in [*_ends]:
        end.close()


os.register_at_fork(after_in_child=_close_ends)
# At the end of this process, too, which waits for them: one that a generator left open may be at
# work for it.
Finalize(None, _close_ends, exitpriority=0)


class Pool:
    """Workers, as many as could be started, and the items for them, numbered as they are added."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._waiting: deque[tuple[Any, int]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return len(self._workers)

    def start(self, context: Context, begin: Callable[[], object], work: Work) -> None:
        """Start one more, which begins with something of its own; raises OSError."""
        ours, theirs = context.Pipe()
        with theirs:
            _ends.add(ours)
            process = context.Process(target=_serve, args=(theirs, begin, work))
            process.start()
        self._workers.append(_Worker(process, ours))

    def add(self, item: object) -> None:
        """Have an item done, of a few bytes."""
        self._waiting.append((item, self._count))
        self._count += 1
        self._hand_out()

    def take(self, seconds: float) -> dict[int, Outcome]:
        """What came of items, by their numbers, since the last call; if nothing did, wait for it so
        long."""
        found = {}
        at_work = {each.pipe.fileno(): each for each in self._workers if each.number >= 0}
        for handle, _ in _polled(at_work, select.POLLIN).poll(1000 * seconds) if at_work else ():
            worker = at_work[handle]
            try:
                outcome = worker.pipe.recv()
            except Exception as error:  # It died, or what it sent can't be made here.
                debug.note_error(error)
                outcome = Outcome(is_lost=True)
                self._end(worker)
            found[worker.number], worker.number = outcome, -1
        self._hand_out()
        if not self._workers:
            found |= {number: Outcome(is_lost=True) for _, number in self._waiting}
            self._waiting.clear()
        return found

    def kill(self) -> None:
        """End them, whatever they are at."""
        for worker in self._workers:
            worker.process.kill()

    def leave(self) -> None:
        """Wait until each has ended: once it has done what it is at, which it may cut short."""
        for worker in self._workers:
            worker.pipe.close()
            if not worker.is_used:  # It may still be starting.
                worker.process.kill()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()

    def _hand_out(self) -> None:
        for worker in [each for each in self._workers if each.number < 0]:
            if not self._waiting:
                break
            try:
                worker.pipe.send(self._waiting[0])
            except OSError as error:  # It died.
                debug.note_error(error)
                self._end(worker)
            else:
                _, worker.number = self._waiting.popleft()
                worker.is_used = True

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()


_pipes: Final[list[Connection]] = []
"""To the process whose worker this one is."""


def is_left() -> bool:
    """As a worker: whether nobody waits any more for what it does."""
    return bool(_polled([_pipes[0].fileno()], 0).poll(0))


def _polled(handles: Iterable[int], events: int) -> select.poll:
    """These, with their ends: a tenth of the time of `multiprocessing.connection.wait`."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, events)
    return poll


def _serve(pipe: Connection, begin: Callable[[], object], work: Work) -> None:
    _ends.add(pipe)
    _pipes[:] = [pipe]
    atexit.register(os._exit, 0)  # Taking each module down as well takes tens of milliseconds.
    begin()
    with suppress(EOFError, OSError):  # It is left, or its parent is gone.
        while True:
            pipe.send_bytes(_outcome(work, *pipe.recv()))


def _outcome(work: Work, item: object, number: int) -> memoryview:
    """What comes of an item, as it is sent."""
    dumps = ForkingPickler.dumps
    try:
        return dumps(Outcome(work(item, number)))
    except Exception as error:
        debug.note_error(error)
        if not is_out_of_memory(error):
            with suppress(Exception):
                return dumps(Outcome(error=error))
    return dumps(Outcome(is_lost=True))
