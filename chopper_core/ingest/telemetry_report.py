"""What telemetry holds where there is no run to place it in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from chopper_core.align.identity import devices_of_telemetry
from chopper_core.render.cells import clean
from chopper_core.sources.signals import ClockDomain, Telemetry
from chopper_core.sources.telemetry.files import find_telemetry, read_telemetry
from chopper_core.util.errors import DataError

SCHEMA: Final = "chopper.telemetry/1"


def telemetry_report(paths: Sequence[Path], format_name: str) -> str | None:
    """Every file of telemetry at the paths as `text` or `json`; None where there is none."""
    files = find_telemetry([path for path in paths if path.exists()]).files
    if not files:
        return None
    read: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for file in files:
        try:
            read.append(_described(read_telemetry(file.path)))
        except DataError as error:
            failed.append({"path": str(file.path), "reason": str(error)})
    if format_name == "json":
        found = {"schema": SCHEMA, "telemetry": read, "failed": failed}
        return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    lines = ["no traces and no counters: there is no run that this telemetry could be placed in"]
    for each in read:
        lines += ["", *_lines(each)]
    lines += [clean(item["reason"]) for item in failed]
    return "\n".join(lines) + "\n"


def _described(telemetry: Telemetry) -> dict[str, Any]:
    devices = devices_of_telemetry(telemetry.gpus)
    times = [each.time_ns for parts in telemetry.signals.values() for each in parts if len(each)]
    signals: dict[str, list[np.ndarray[Any, Any]]] = {}
    for (_, signal), parts in telemetry.signals.items():
        signals.setdefault(signal.value, []).append(parts[0].value[np.isfinite(parts[0].value)])
    return {
        "path": str(telemetry.path),
        "format": telemetry.format,
        "clock": telemetry.clock.value,
        "resolution_ns": telemetry.resolution_ns,
        "first_ns": min(int(each[0]) for each in times),
        "last_ns": max(int(each[-1]) for each in times),
        "gpus": [device.text for device in devices],
        "signals": {
            name: {
                "samples": sum(map(len, values)),
                "min": float(min(each.min() for each in values if len(each))),
                "max": float(max(each.max() for each in values if len(each))),
            }
            for name, values in signals.items()
            if any(map(len, values))
        },
        "notes": list(telemetry.notes),
        "losses": list(telemetry.losses.notes),
    }


def _lines(found: dict[str, Any]) -> list[str]:
    seconds = (found["last_ns"] - found["first_ns"]) / 1e9
    since = ""
    if found["clock"] in (ClockDomain.EPOCH, ClockDomain.LOCAL):
        first = datetime.fromtimestamp(found["first_ns"] / 1e9, UTC)
        zone = " UTC" if found["clock"] == ClockDomain.EPOCH else ""
        since = f" from {first:%Y-%m-%d %H:%M:%S}{zone}"
    return [
        f"{clean(found['path'])}: {found['format']}",
        f"  clock {found['clock']}, stamps to {found['resolution_ns'] / 1e9:g} s, "
        f"{seconds:.3f} s{since}",
        f"  {len(found['gpus'])} GPUs: {clean(', '.join(found['gpus']))}",
        *(
            f"  {name}: {each['samples']} samples, {each['min']:g} to {each['max']:g}"
            for name, each in found["signals"].items()
        ),
        *(f"  {clean(note)}" for note in found["notes"]),
        *(f"  LOST: {clean(note)}" for note in found["losses"]),
    ]
