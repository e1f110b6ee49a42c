"""What this node can record, what is missing, and the package or permission that brings it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.record import device
from chopper_core.record.anchors import take_anchor
from chopper_core.record.counters import CHECKER, TOOL, marker_library, output_of
from chopper_core.record.gpus import open_library
from chopper_core.record.sampler import TOOLS
from chopper_core.util.plugins import package_version

_OLDEST_TORCH: Final = 2
_CAP_PERFMON, _CAP_SYS_ADMIN = 38, 21
_KFD, _NVIDIA = Path("/dev/kfd"), Path("/dev/nvidiactl")
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_MAX_PARANOID: Final = 2
_LEAST_BYTES: Final = 2e9
_TORCH: Final = "from importlib.metadata import version; print(version('torch'))"


class Ability(Struct, frozen=True):
    """Something that a recording needs."""

    name: str
    about: str
    """What there is; what is missing, and how to get it."""
    is_there: bool = True


def check(folder: Path) -> Iterator[Ability]:
    """What can be recorded on this node into a folder; takes a second, and changes nothing."""
    yield _torch()
    yield from _telemetry()
    has_psutil = find_spec("psutil") is not None
    missing = "psutil is missing: pip install 'chopper-tui[record]'"
    about = f"psutil {package_version('psutil')}" if has_psutil else missing
    yield Ability("CPU samples", about, has_psutil)
    yield _counters()
    if sampler := device.library():
        yield Ability("device sampling", f"{sampler}: --device samples counters while kernels run")
    place = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(place).free
    about = f"{free / 1e9:.1f} GB free in {place}"
    if not os.access(place, os.W_OK):
        yield Ability("disk", f"{place} can't be written; give another directory with -o", False)
    elif free < _LEAST_BYTES:
        yield Ability("disk", f"{about}: a rank's trace of 3 steps has up to some 100 MB", False)
    else:
        yield Ability("disk", about)
    yield Ability("clocks", f"tied to each other within {take_anchor().width_ns / 2e3:.1f} µs")


def _torch() -> Ability:
    """torch of the Python that a command would find, else of this one; it isn't imported."""
    python = next(filter(None, map(shutil.which, ("python", "python3"))), "")
    found = output_of((python, "-c", _TORCH)).strip() if python else ""
    where = f" of {python}" if found else ""
    found = found or package_version("torch")
    if not found:
        about = f"no torch for {python or 'this Python'}; activate the environment of the training"
        return Ability("steps and kernels", about, False)
    if int(found.partition(".")[0]) < _OLDEST_TORCH:
        about = f"torch {found}{where} has no hooks of optimizers; 2.0 and later have"
        return Ability("steps and kernels", about, False)
    return Ability("steps and kernels", f"torch {found}{where}")


def _telemetry() -> Iterator[Ability]:
    if _KFD.exists() and not os.access(_KFD, os.R_OK | os.W_OK):
        about = f"{_KFD} can't be opened: sudo usermod -aG render,video $USER, and log in again"
        yield Ability("rights on the GPUs", about, False)
    library, reasons = open_library()
    if library is not None:
        models = dict.fromkeys(gpu.name or "GPU" for gpu in library.devices())
        gpus = f"{len(library.devices())} x {', '.join(models)}"
        failed = "; ".join(library.failed)
        library.close()
        about = f"{gpus} through {library.name}, {library.driver}"
        yield Ability("GPU telemetry", f"{about}{'; ' if failed else ''}{failed}", not failed)
    elif tool := next(filter(shutil.which, TOOLS), ""):
        about = f"{tool}, a sample a second at best; faster: {'; '.join(reasons)}"
        yield Ability("GPU telemetry", about)
    else:
        no_driver = f"no driver of a GPU: neither {_KFD} nor {_NVIDIA} is there"
        is_there = _KFD.exists() or _NVIDIA.exists()
        yield Ability("GPU telemetry", "; ".join(reasons) if is_there else no_driver, False)


def _counters() -> Ability:
    if shutil.which(TOOL) is None:
        about = f"{TOOL} isn't on the PATH: ROCm's package rocprofiler-sdk has it, in /opt/rocm/bin"
        return Ability("hardware counters", about, False)
    version = next(iter(output_of((TOOL, "--version")).split("\n")), "").strip()
    found = [version or TOOL]
    paranoid = int(_PARANOID.read_text()) if _PARANOID.exists() else 0
    may_count = paranoid <= _MAX_PARANOID or _may_monitor()
    if not may_count:
        found.append(
            f"perf_event_paranoid is {paranoid}: sudo sysctl kernel.perf_event_paranoid=2, or "
            "CAP_PERFMON"
        )
    if not marker_library():
        found.append("no roctx, or none of its regions: kernels of all steps are counted")
    if shutil.which(CHECKER) is None:
        found.append(f"no {CHECKER}: counters are packed by the limits of MI300X")
    return Ability("hardware counters", "; ".join(found), may_count)


def _may_monitor() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective & (1 << _CAP_PERFMON | 1 << _CAP_SYS_ADMIN))
