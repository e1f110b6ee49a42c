"""Putting CPU samples of a host on the run's clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chopper_core.align.telemetry_clock import shifted
from chopper_core.model.run import TelemetrySource
from chopper_core.model.signals import CpuSamples
from chopper_core.sources.cpu import CpuTable
from chopper_core.sources.signals import ClockDomain


def placed_cpu(
    file: CpuTable,
    span: tuple[int, int],
    telemetry: Sequence[TelemetrySource],
    epoch_ns: int | None,
    shift_ns: int = 0,
) -> CpuSamples:
    """The samples of a file within the run's span, and one on either side.

    A file on the run's clock gets `epoch_ns`, the correction of its host (None if the run isn't on
    the epoch). A file on another clock takes the offset of telemetry on the same clock.
    `shift_ns` is added; without a known offset it is the whole offset.
    """
    offset_ns, uncertainty_ns, method = _offset_of_cpu(file, telemetry, epoch_ns)
    offset_ns, method = shifted(offset_ns, method, shift_ns)
    inside = slice(0, 0)
    if offset_ns is not None:
        times = file.times_ns + offset_ns
        low = int(np.searchsorted(times, span[0]))
        high = int(np.searchsorted(times, span[1], "right"))
        if low < high or 0 < low < len(times):
            inside = slice(max(low - 1, 0), high + 1)
        else:
            offset_ns, method = None, f"{method}: it covers another time than the run"
    return CpuSamples(
        str(file.path),
        file.format,
        str(file.clock),
        offset_ns,
        uncertainty_ns,
        method,
        len(file.times_ns),
        file.notes,
        file.cpus,
        file.cores,
        file.times_ns[inside] + (offset_ns or 0),
        file.percent[inside],
    )


def _offset_of_cpu(
    file: CpuTable, telemetry: Sequence[TelemetrySource], epoch_ns: int | None
) -> tuple[int | None, int, str]:
    if file.clock is ClockDomain.EPOCH and epoch_ns is not None:
        corrected = f", corrected by {epoch_ns} ns as its host's" if epoch_ns else ""
        return epoch_ns, 1, f"its clock is the run's{corrected}"
    alike = [
        source
        for source in telemetry
        if source.clock == str(file.clock) and source.offset_ns is not None
    ]
    if file.clock in (ClockDomain.MONOTONIC, ClockDomain.BOOTTIME) and alike:
        finest = min(alike, key=lambda source: source.uncertainty_ns)
        return finest.offset_ns, finest.uncertainty_ns, f"as {finest.path}, on the same clock"
    return None, 0, f"its clock ({file.clock}) is not the run's, and no telemetry has the same"
