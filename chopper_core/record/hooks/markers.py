"""The window of a counter pass: ranges of roctx, and rocprofv3 counts while it is open."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


class Roctx:
    """roctx in place of torch's profiler, which would take the GPU's counters away."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        for name in ("roctxProfilerResume", "roctxProfilerPause"):
            getattr(self._library, name).argtypes = [ctypes.c_uint64]

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A range of this thread, as `record_function` gives one."""
        self._library.roctxRangePushA(name.encode())
        try:
            yield
        finally:
            self._library.roctxRangePop()

    def prepare_trace(self) -> None:
        """Nothing: rocprofv3 is there since the start of the process."""

    def start_trace(self) -> None:
        """Have kernels counted from now on, in all threads."""
        self._library.roctxProfilerResume(0)

    def stop_trace(self) -> None:
        self._library.roctxProfilerPause(0)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Nothing: rocprofv3 describes the process."""
