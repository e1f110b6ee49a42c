"""SIGTERM during a window: the trace is written before the process ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

_NATIVE_S: Final = 3.0
"""After SIGTERM, the main thread may stay this long in native code before the process ends."""


class TermSignal:
    """Handles SIGTERM where the program doesn't: calls `end`, then ends the process by the signal.

    A main thread in native code, such as a wait for a rank that is gone, runs no handler. A thread
    that the signal wakes up then ends the process.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.is_taken = self.is_deferred = self.has_come = False
        self._wakes = -1
        """The write end of the pipe that wakes the thread up."""

    def take(self) -> None:
        """Handle the signal from now on; not in other threads, nor in the place of a handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if self.is_taken or not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        read, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        other = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        if other != -1:  # An event loop's.
            signal.set_wakeup_fd(other)
            os.close(self._wakes)
            os.close(read)
            return
        signal.signal(signal.SIGTERM, self._handle)
        self.is_taken = True
        threading.Thread(target=self._watch, args=(read,), daemon=True).start()

    def release(self) -> None:
        """Leave the signal to the program again."""
        if not self.is_taken or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (other := signal.set_wakeup_fd(-1)) != self._wakes:
            signal.set_wakeup_fd(other)
        self.is_taken = False
        os.close(self._wakes)  # Ends the thread.

    def forget(self) -> None:
        """Let the signals of a forked child wake up nobody in its parent."""
        if self.is_taken:
            with suppress(ValueError):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal that comes during this time end the process after it."""
        if threading.current_thread() is not threading.main_thread():  # Handlers don't run there.
            yield
            return
        before, self.is_deferred = self.is_deferred, True
        try:
            yield
        finally:
            self.is_deferred = before
            if self.has_come:
                self._handle(signal.SIGTERM, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True
        if not self.is_deferred:
            self.is_deferred = True
            self.end()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _watch(self, pipe: int) -> None:
        try:
            while received := os.read(pipe, 1):
                if received[0] != signal.SIGTERM:
                    continue
                time.sleep(_NATIVE_S)
                if not self.has_come:
                    import ctypes

                    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                    os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.close(pipe)
