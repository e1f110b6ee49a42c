"""Putting samples of processors on the run's clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chopper_core.model.run import TelemetrySource
from chopper_core.model.signals import CpuSamples
from chopper_core.sources.cpu import CpuFile
from chopper_core.sources.signals import ClockDomain


def placed_cpu(
    file: CpuFile,
    span: tuple[int, int],
    telemetry: Sequence[TelemetrySource],
    epoch_ns: int | None,
    shift_ns: int = 0,
) -> CpuSamples:
    """The samples of a file within the run's span, and one on either side.

    A file on the run's clock stays as it is but for `epoch_ns`, the correction of its host, None
    where the run's clock isn't the epoch's. One on another clock is placed as telemetry on the
    same clock was. `shift_ns` is added; where nothing is known it is the whole offset.
    """
    offset_ns, uncertainty_ns, method = _offset(file, telemetry, epoch_ns)
    if shift_ns:
        by_hand = f"{shift_ns / 1e9:+.9g} s by hand"
        method = f"{method}, {by_hand}" if offset_ns is not None else f"{by_hand}: {method}"
        offset_ns = (offset_ns or 0) + shift_ns
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


def _offset(
    file: CpuFile, telemetry: Sequence[TelemetrySource], epoch_ns: int | None
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
