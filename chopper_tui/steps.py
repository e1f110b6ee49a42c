"""Work off the event loop, and steps of the screen that run one after another."""

from __future__ import annotations

import asyncio
from _thread import start_new_thread
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Final, ParamSpec, TypeVar

from chopper_core.util.errors import ChopperError
from chopper_core.util.memory import is_out_of_memory, memory_error
from chopper_core.util.progress import work_while

P = ParamSpec("P")
T = TypeVar("T")

Step = Callable[[], Awaitable[None] | None]
LOADING: Final = "loading…"


def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
    """Run a function in a thread that, unlike an executor's, never delays leaving the program.

    What nothing waits for any more ends at the next value that it looks up.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(take: Callable[[Any], None], outcome: Any) -> None:
        if not answer.done():
            take(outcome)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        work_while(lambda: not answer.cancelled())
        try:
            outcome = answer.set_result, work(*args, **kwargs)
        except BaseException as raised:
            outcome = answer.set_exception, raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    # A Thread's start waits until it runs, and by then the work has the interpreter for 5 ms.
    start_new_thread(run, ())
    return answer


class StepQueue:
    """Runs steps in the order of their keys; a long one reports itself and can be cancelled."""

    LONG_S: ClassVar[float] = 0.5
    """Seconds after which a step is long: it says so, and keys no longer wait for it."""

    def __init__(
        self,
        say: Callable[[str, bool], None],
        loaded: Callable[[], None],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Report through `say` (text, whether it is an error).

        `loaded` is called after a long step, `start` runs a coroutine.
        """
        self._say = say
        self._loaded = loaded
        self._start = start
        self.waiting: deque[Step] = deque()
        self._current: asyncio.Future[None] | None = None
        self._reminder: asyncio.TimerHandle | None = None
        self.is_busy = False
        """Whether a step runs: the view is about to change."""
        self.is_long = False

    def add(self, step: Step) -> None:
        if self.is_busy:
            self.waiting.append(step)
            return
        pending = self._attempt(step)
        if pending is not None:
            self.is_busy = True
            self._start(self._run(pending))

    def cancel(self) -> None:
        """Cancel the step that runs, and those that wait for it; not those that are added later."""
        if self._current is not None:
            self._current.cancel()
            self.waiting.clear()

    def _attempt(self, step: Step) -> Awaitable[None] | None:
        try:
            pending = step()
        except ChopperError as error:
            self._say(str(error), True)
            return None
        return pending if isinstance(pending, Awaitable) else None

    async def _run(self, pending: Awaitable[None] | None) -> None:
        try:
            while True:
                if pending is not None:
                    await self._wait_for(pending)
                if not self.waiting:
                    return
                pending = self._attempt(self.waiting.popleft())
        finally:
            self.is_busy = False

    async def _wait_for(self, pending: Awaitable[None]) -> None:
        loop = asyncio.get_running_loop()
        self._current = asyncio.ensure_future(pending)
        self._reminder = loop.call_later(self.LONG_S, self._remind, loop.time())
        try:
            await asyncio.wait([self._current])
        finally:
            self._current.cancel()
            self._reminder.cancel()
            was_long, self.is_long = self.is_long, False
        if self._current.cancelled():
            self._say("cancelled", False)
            return
        error = self._current.exception()
        if isinstance(error, ChopperError):
            self._say(str(error), True)
        elif error is not None and is_out_of_memory(error):
            self._say(str(memory_error("this view", error)), True)
        elif error is not None:
            raise error
        elif was_long:
            self._loaded()

    def _remind(self, since: float) -> None:
        if self._current is None or self._current.done():
            return  # What it said last stays: a busy loop calls this before `_wait_for` continues.
        loop = asyncio.get_running_loop()
        self.is_long = True
        self._say(f"{LOADING} {loop.time() - since:.0f} s (Esc cancels)", False)
        self._reminder = loop.call_later(1.0, self._remind, since)
