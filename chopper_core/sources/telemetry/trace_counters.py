"""Counters that a Kineto trace has next to its activities: PM samples and sensors of torch 2.10 on.

They are events of phase `C` in a process `GPU N Counters`, on the trace's own clock, of category
`hardware_counters` or without one. A trace whose tables count such events is read once more for
them: no file is telemetry by its start.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from chopper_core.sources.kineto.events import COUNTERS
from chopper_core.sources.perfetto import reader as perfetto
from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import (
    ClockDomain,
    GpuName,
    SignalName,
    SignalSamples,
    Telemetry,
)
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import float_column, nanoseconds
from chopper_core.tables.json_stream import JsonStream, TextEnded
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.grouping import ranked, sums_of
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

FORMAT: Final = "counters of the trace"
_EVENTS: Final = "traceEvents"
_BASE: Final = late(r'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_SIGNALS: Final = (
    (r"sm active|sm__cycles_active", "%", SignalName.SM_ACTIVE_PCT),
    (r".*tensor", "%", SignalName.TENSOR_ACTIVE_PCT),
    (r"(?:dram|hbm) bw|gpu__dram_throughput|dram__throughput", "%", SignalName.MEM_UTIL_PCT),
    (r"(?:gpu )?power", "w", SignalName.POWER_W),
    (r"(?:gpu )?temperature", "c", SignalName.EDGE_C),
    (r"(?:sm|gpu|graphics) clock", "mhz", SignalName.GFX_MHZ),
    (r"mem(?:ory)? clock", "mhz", SignalName.MEM_MHZ),
)
"""How the name of a counter begins, its unit, and what it is."""
_UNIT: Final = re.compile(r"\((%|W|°?C|MHz)\)\s*$", re.IGNORECASE)
_OF_PEAK: Final = "pct_of_peak"
_MOST: Final = {"%": 100.0, "w": 1e5, "c": 300.0, "mhz": 1e5}


class CounterEvent(msgspec.Struct, gc=False):
    """An event; what is no counter is passed over."""

    ph: str = ""
    name: str = ""
    pid: Any = None
    ts: Any = None
    args: Any = None


_DECODE: Final = msgspec.json.Decoder(list[CounterEvent]).decode


def read_counters(path: Path, progress: Progress = silent) -> Telemetry:
    """The counters of a trace's devices that are signals, and how many values others have."""
    losses = Losses()
    is_packets = isinstance(perfetto.recognise(FileHead(path)), Recognised)
    found, base = (_of_packets if is_packets else _of_text)(path, progress, losses)
    devices = sorted({device for device, _ in found})
    signals: dict[tuple[int, SignalName], list[SignalSamples]] = {}
    unused: Counter[str] = Counter()
    for (device, name), events in found.items():
        unit, signal = _meaning(name)
        key = devices.index(device), signal
        if signal is None or key in signals:
            unused[name] += len(events)
        elif samples := _samples(events, base or 0, _MOST[unit], losses):
            signals[devices.index(device), signal] = [samples]
    return Telemetry(
        path=path,
        format=FORMAT,
        clock=ClockDomain.UNKNOWN if base is None else ClockDomain.EPOCH,
        resolution_ns=1,
        gpus=[GpuName(index=device) for device in devices],
        signals=signals,
        notes=(),
        losses=losses,
        unused=dict(unused),
    )


_Found = dict[tuple[int, str], list[CounterEvent]]
"""Device and name of a counter → its events."""


def _of_packets(path: Path, progress: Progress, losses: Losses) -> tuple[_Found, int | None]:
    """The counters of a Perfetto trace, and the epoch's time at their time 0, if it is known."""
    found: defaultdict[tuple[int, str], list[CounterEvent]] = defaultdict(list)
    samples, offset = perfetto.counter_samples(path, progress, losses)
    first = min((each.time_ns for each in samples), default=0)
    for each in samples:
        event = CounterEvent(ts=(each.time_ns - first) / 1000, args={"": each.value})
        found[each.gpu, each.name].append(event)
    return found, None if offset is None else first + offset


def _of_text(path: Path, progress: Progress, losses: Losses) -> tuple[_Found, int | None]:
    """The counters of a trace in JSON, and its base time, if it has one."""
    found: defaultdict[tuple[int, str], list[CounterEvent]] = defaultdict(list)
    with ByteSource(path) as source:
        try:
            stream = JsonStream(source, progress)
            if stream.enter(b"[") or stream.enter_list(_EVENTS):
                while (events := stream.records(_DECODE, lambda _: [])) is not None:
                    for event in events:
                        if event.ph == "C" and (match := COUNTERS.fullmatch(str(event.pid))):
                            found[int(match[1]), event.name].append(event)
        except TextEnded:
            losses.truncated = True
    base = _BASE.search(FileHead(path).text)
    return found, int(base[1]) if base else None


def _meaning(name: str) -> tuple[str, SignalName | None]:
    unit = match[1].lower().strip("°") if (match := _UNIT.search(name)) else ""
    unit = unit or ("%" if _OF_PEAK in name else "")
    for begin, own, signal in _SIGNALS:
        if own == unit and re.match(begin, name, re.IGNORECASE):
            return unit, signal
    return unit, None


def _samples(
    events: Sequence[CounterEvent], base_ns: int, most: float, losses: Losses
) -> SignalSamples | None:
    """The samples in order of time, of equal times the mean; None without any."""
    times_ns, is_time = nanoseconds([event.ts for event in events])
    args = [event.args if isinstance(event.args, dict) else {} for event in events]
    values = float_column([next(iter(each.values()), None) for each in args])
    usable = is_time & (values >= 0) & (values <= most)
    losses.unreadable_events += int((~usable).sum())
    moments, place = ranked(times_ns[usable])
    if not len(moments):
        return None
    means = sums_of(values[usable], place, len(moments)) / np.bincount(place)
    return SignalSamples(moments + base_ns, means.astype(np.float64))
