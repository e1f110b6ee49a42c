"""Recording from inside a script: `with profile("run") as p:`, and `p.step()` after each step."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from chopper_core.record import manifest
from chopper_core.record.command import RecordOptions, end_manifest, sampling
from chopper_core.record.hooks import follow_modules
from chopper_core.record.hooks.recorder import Recorder
from chopper_core.record.hooks.state import LOCAL_RANKS, RANKS, number_in
from chopper_core.util.errors import DataError, UsageError


class Session:
    """A recording of this process, whose steps the script ends."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def step(self) -> None:
        """End a step of training, and begin the next one."""
        self._recorder.begin()


@contextmanager
def recorded(options: RecordOptions) -> Iterator[Session]:
    """Record steps of this process; rank 0 writes the manifest, local rank 0 samples the node.

    Raises UsageError without torch and for options that can't be, OSError where the directory can't
    be written. While it runs, nothing raises.
    """
    options.check()
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise UsageError("import torch before chopper_core.record.profile(…)")
    is_first, is_local = not number_in(RANKS), not number_in(LOCAL_RANKS)
    if is_first:
        manifest.start_manifest(options.run, sys.argv)
    options.run.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(torch, {**options.options(), "run": str(options.run.absolute())})
    recorder.after_step = False
    hooks = follow_modules(recorder)
    atexit.register(recorder.close)
    code = 1
    try:
        with sampling(options.run) if is_local else nullcontext():
            recorder.begin()
            yield Session(recorder)
        code = 0
    finally:
        recorder.close()
        recorder.is_down = "the recording ended"
        atexit.unregister(recorder.close)
        for hook in hooks:
            hook.remove()
        if is_first:
            with suppress(OSError, DataError):
                end_manifest(options, code)
