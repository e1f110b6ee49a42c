"""Device sampling: counters of whole GPUs over time, while kernels run side by side as they do.

The original Chopper's tool does it, a library that each process preloads. It samples up to four
counters: the first ones in the traced execution, so that they are signals next to the trace, each
further group in an execution of its own. It begins with the first step, in these as long after
the start as in the traced one: sampling while a process sets up its GPU can hang that.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chopper_core.record import manifest
from chopper_core.record.counters import Passes, output_of, planned
from chopper_core.util.errors import UsageError

FOLDER: Final = "device"
LIBRARY: Final = "libchopper_device_counters.so"
VARIABLE: Final = "CHOPPER_DEVICE_LIB"
"""Where the library is, as for the original's own collector."""
GROUP: Final = "group_"
_MOST: Final = 4
_SAMPLE_MS: Final = 1
_BEGIN: Final = ".begin"
"""The file whose appearance begins the sampling."""
_PLACE: Final = (
    "from importlib.util import find_spec; found = find_spec('chopper'); "
    "print(*(found.submodule_search_locations or ()) if found else '', end='')"
)
"""Prints where a Python has the original installed, without importing it."""


def library() -> str:
    """The installed sampler: that of the variable, else that of the command's Python; '' without
    one."""
    given = os.environ.get(VARIABLE, "")
    python = next(filter(None, map(shutil.which, ("python", "python3"))), "")
    installed = "" if given or not python else output_of((python, "-c", _PLACE))
    telemetry = Path(installed) / "profile" / "telemetry"
    places = [Path(given)] if given else [telemetry / "lib" / LIBRARY, telemetry / LIBRARY]
    return next((str(place.absolute()) for place in places if place.is_file()), "")


def groups(spec: str) -> Passes:
    """The counters of sets and names with commas between them, as many together as are sampled at
    a time; raises UsageError."""
    names = [*dict.fromkeys(name for each in planned(spec) for name in each)]
    return [tuple(names[at : at + _MOST]) for at in range(0, len(names), _MOST)]


def check_sampler() -> str:
    """The path of the library; raises UsageError without one."""
    if found := library():
        return found
    given = os.environ.get(VARIABLE, "")
    where = f"{VARIABLE} names {given}, which isn't a file" if given else "none is installed"
    raise UsageError(
        f"--device needs the device sampler of the original Chopper, and {where}: build "
        f"{LIBRARY} there, and set {VARIABLE} to its path"
    )


def environment(
    base: Mapping[str, str], sampler: str, run: Path, group: int, counters: Sequence[str]
) -> dict[str, str]:
    """The environment of a command whose processes sample a group of counters into its folder."""
    folder = _folder(run, group)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return {
        **base,
        "LD_PRELOAD": os.pathsep.join(filter(None, (sampler, base.get("LD_PRELOAD")))),
        "CHOPPER_COUNTERS": ",".join(counters),
        "CHOPPER_SAMPLE_MS": str(_SAMPLE_MS),
        "CHOPPER_TRACE_OUTPUT": str(folder / "kernel_traces.csv"),
        "CHOPPER_COUNTER_OUTPUT": str(folder / "counter_samples.csv"),
        "CHOPPER_START_FILE": str(folder / _BEGIN),
    }


class Begins:
    """Lets the sampling of a group begin once it is due, in all processes."""

    def __init__(self, run: Path, group: int, is_due: Callable[[float], bool]) -> None:
        self._file, self._is_due = _folder(run, group) / _BEGIN, is_due
        self.started_s = time.monotonic()
        self.after_s = 0.0
        """How long after the start it began; 0 before."""

    def __call__(self) -> None:
        seconds = time.monotonic() - self.started_s
        if not self.after_s and self._is_due(seconds):
            self._file.touch()
            self.after_s = seconds


def ended(run: Path, group: int, counters: Sequence[str], seconds: float, code: int) -> str:
    """Note a group's execution in the manifest; returns why it has no samples, '' if it has."""
    folder = _folder(run, group)
    (folder / _BEGIN).unlink(missing_ok=True)
    reason = "" if code == 0 else f"exit code {code}"
    if not any(path.stat().st_size for path in folder.glob("counter_samples*.csv")):
        reason = reason or "the sampler wrote nothing"
    state = manifest.RecordedPass(list(counters), "failed" if reason else "done", reason)
    state.seconds = round(seconds, 1)
    manifest.update(run, passes={f"{FOLDER}_{group}": state})
    return reason


def _folder(run: Path, group: int) -> Path:
    return run.absolute() / FOLDER / f"{GROUP}{group}"
