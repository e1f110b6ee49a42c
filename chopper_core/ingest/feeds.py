"""Telemetry that no tool writes into files: this node's GPUs, and exporters for Prometheus."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from chopper_core.record.gpus import open_library
from chopper_core.record.sampler import GpuSampler, LineFile
from chopper_core.util.errors import DataError, UsageError

Feed = Callable[[], None]
"""Appends what is new to a file; raises DataError."""
_TIMEOUT_S: Final = 2.0
_MAX_BYTES: Final = 1 << 24
_MIB: Final = float(1 << 20)
_NAMES: Final = {
    "gpu_clock": ("gfx_mhz", 1.0),
    "gpu_gfx_activity": ("gfx_util_pct", 1.0),
    "gpu_umc_activity": ("mem_util_pct", 1.0),
    "gpu_package_power": ("power_w", 1.0),
    "gpu_power_usage": ("power_w", 1.0),
    "gpu_junction_temperature": ("hotspot_c", 1.0),
    "gpu_edge_temperature": ("edge_c", 1.0),
    "gpu_memory_temperature": ("mem_c", 1.0),
    "gpu_used_vram": ("vram_bytes", _MIB),
    "DCGM_FI_DEV_SM_CLOCK": ("gfx_mhz", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("gfx_util_pct", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("edge_c", 1.0),
    "DCGM_FI_DEV_MEMORY_TEMP": ("mem_c", 1.0),
    "DCGM_FI_DEV_FB_USED": ("vram_bytes", _MIB),
}
"""A metric of AMD's device-metrics-exporter, perhaps with `amd_` before it, or of NVIDIA's
dcgm-exporter → the signal, and the factor to its unit."""
_COLUMNS: Final = tuple(dict.fromkeys(name for name, _ in _NAMES.values()))
_LINE: Final = re.compile(r"(?:amd_)?(\w+)\{(.*)\}\s+(\S+)(?:\s+\d+)?\s*")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OTHER_CLOCKS: Final = ("clock_type", "GPU_CLOCK_TYPE_SYSTEM")


def node_feed(folder: Path) -> Feed:
    """The GPUs of this node, read only; raises DataError without any, or their library."""
    library, reasons = open_library()
    if library is None:
        raise DataError(f"no GPU can be read on this node: {'; '.join(reasons)}")
    sampler = GpuSampler(library)
    file = LineFile(folder / "gpus.csv", sampler.heading)
    return lambda: file.write(sampler.lines())


def scrape_feed(folder: Path, number: int, url: str) -> Feed:
    """An exporter's metrics; raises UsageError for what is no URL of one.

    Nothing else in Chopper connects to anything, and this only to the URL that a user gives.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--scrape {url!r} is no http URL, such as http://127.0.0.1:5000/metrics")
    from http.client import HTTPException
    from urllib.request import urlopen

    file = LineFile(folder / f"scrape{number}.csv", f"# clock: epoch\n{_heading()}")

    def feed() -> None:
        try:
            with urlopen(url, timeout=_TIMEOUT_S) as answer:  # the schemes are checked
                text = answer.read(_MAX_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError, HTTPException) as error:
            raise DataError(f"{url} can't be read: {getattr(error, 'reason', error)}") from error
        lines = lines_of_scrape(text, time.time_ns())
        if not lines:
            raise DataError(f"{url} has no metrics of GPUs that Chopper knows")
        file.write(lines)

    return feed


def lines_of_scrape(text: str, time_ns: int) -> list[str]:
    """The metrics of each GPU as a line of Chopper's own telemetry format."""
    gpus: dict[int, dict[str, float]] = defaultdict(dict)
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None or found[1] not in _NAMES:
            continue
        labels = dict(_LABEL.findall(found[2]))
        key, system = _OTHER_CLOCKS
        number = labels.get("gpu_id") or labels.get("gpu") or ""
        if not number.isdecimal() or labels.get(key, system) != system:
            continue
        name, factor = _NAMES[found[1]]
        try:
            value = float(found[3]) * factor
        except ValueError:
            continue
        # Of the clocks of several dies the first one.
        gpus[int(number)].setdefault(name, value)
    cells = {gpu: [str(own.get(name, "")) for name in _COLUMNS] for gpu, own in gpus.items()}
    return [",".join((str(time_ns), str(gpu), *own)) for gpu, own in sorted(cells.items())]


def _heading() -> str:
    return ",".join(("time_ns", "gpu", *_COLUMNS))
