"""The use of a node's processors from accumulated seconds of idle and waiting time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from chopper_core.model.inputs import TelemetrySource
from chopper_core.model.signals import NO_CORE, CpuSamples
from chopper_core.sources.signals import SignalName, SignalSamples, Telemetry
from chopper_core.util.arrays import Float64, Int64

_FREE: Final = (SignalName.CPU_IDLE_S, SignalName.CPU_IOWAIT_S)
"""What a processor does that isn't work."""


def cpu_of_nodes(
    placed: Sequence[tuple[Telemetry, TelemetrySource]],
) -> tuple[CpuSamples, ...]:
    """The processors of each node whose files have the idle seconds of each.

    The busy share of the time between two samples is what is neither idle nor waiting for I/O.
    """
    by_rank: dict[int, dict[SignalName, dict[int, tuple[Int64, SignalSamples]]]] = {}
    first: dict[int, tuple[Telemetry, TelemetrySource]] = {}
    for telemetry, source in placed:
        if not telemetry.is_of_node or source.offset_ns is None:
            continue
        for (number, signal), parts in telemetry.signals.items():
            rank = telemetry.gpus[number].index
            for each in parts if signal in _FREE else ():
                if each.part.isdecimal() and len(each) > 1:
                    first.setdefault(rank, (telemetry, source))
                    own = by_rank.setdefault(rank, {}).setdefault(signal, {})
                    own[int(each.part)] = each.time_ns + source.offset_ns, each
    return tuple(
        _samples(*first[rank], own) for rank, own in sorted(by_rank.items()) if _FREE[0] in own
    )


def _samples(
    telemetry: Telemetry,
    source: TelemetrySource,
    own: dict[SignalName, dict[int, tuple[Int64, SignalSamples]]],
) -> CpuSamples:
    idle = own[_FREE[0]]
    cpus = sorted(idle)
    times = idle[cpus[0]][0]
    free = np.zeros((len(times), len(cpus)))
    for signal in _FREE:
        for column, cpu in enumerate(cpus):
            if cpu in own.get(signal, {}):
                free[:, column] += _at(times, *own[signal][cpu])
    took = np.diff(times)[:, None] * 1e-9
    with np.errstate(invalid="ignore", divide="ignore"):
        # What is left of rounded seconds is no work.
        percent = np.round(100.0 * np.clip(1.0 - np.diff(free, axis=0) / took, 0.0, 1.0), 3)
    return CpuSamples(
        path=str(Path(telemetry.path).parent),
        format=telemetry.format,
        clock=str(telemetry.clock),
        offset_ns=source.offset_ns,
        uncertainty_ns=source.uncertainty_ns,
        method=source.method,
        samples=len(times),
        notes=(),
        cpus=np.array(cpus, np.int64),
        cores=np.full(len(cpus), NO_CORE, np.int64),
        times_ns=times[1:],
        percent=percent,
    )


def _at(times_ns: Int64, known_ns: Int64, samples: SignalSamples) -> Float64:
    """Accumulated seconds at some times; NaN before the first and after the last sample."""
    since = (known_ns - known_ns[0]).astype(np.float64)
    at = (times_ns - known_ns[0]).astype(np.float64)
    found = np.interp(at, since, samples.value, left=np.nan, right=np.nan)
    return np.asarray(found, np.float64)
