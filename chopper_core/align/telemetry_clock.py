"""Putting telemetry and CPU samples on the run's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.activity_fit import (
    Recorded,
    averages_at,
    ends_of_samples,
    likelihood_gain,
    nearest_curves,
    peak_of,
    refined,
)
from chopper_core.model.doubts import Doubt, DoubtKind
from chopper_core.model.inputs import TelemetrySource
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import KernelTable
from chopper_core.sources.cpu import CpuTable
from chopper_core.sources.signals import ClockDomain, SignalName, SignalSamples, Telemetry
from chopper_core.util.grouping import places_by

_ACTIVITY_SIGNALS: Final = (SignalName.POWER_W, SignalName.GFX_UTIL_PCT, SignalName.GFX_MHZ)
"""Signals that follow GPU work, the best first."""
_MIN_CORRELATION: Final = 0.6
_MIN_CORRELATION_OF_OTHERS: Final = 0.9
"""Where the best signal decides nothing, others must leave no doubt: a few dips fit elsewhere."""
_CHANCE_LEVEL: Final = 0.3
_CHANCE: Final = 4.0
"""Unrelated signals reach the chance level and this over the root of the number of bins."""
_CHANCE_AS_SEEN: Final = 2.0
"""Less is enough where the file has many other places, all of which fit worse."""
_CLEAR: Final = 0.8
"""Share of the best correlation at which a second place makes it ambiguous."""
_PART_OF_RUN: Final = 0.25
"""The least of a run's time that a log covers which is placed by that."""
_QUARTER_NS: Final = 15 * 60 * 1_000_000_000
_WEST: Final = -12 * 4
_EAST: Final = 14 * 4
_ZONE_DOUBT_NS: Final = 5_000_000_000
"""Maximum offset between the clocks of two hosts."""
_MAX_BINS: Final = 1 << 21
_MIN_BINS: Final = 20
Placed = tuple[Telemetry, TelemetrySource]
KnownClocks = Mapping[ClockDomain, tuple[int, str]]
"""Clock → its offset to the run's, and the reason."""
_SHARED: Final = (ClockDomain.MONOTONIC, ClockDomain.BOOTTIME)
"""Clocks that files of one host share."""
_LIKELIER: Final = 12.0
"""The difference of log-likelihoods at which a second place nearly as good is none."""


class Estimate(Struct, frozen=True):
    """An offset to the run's clock, and how it was found."""

    offset_ns: int
    uncertainty_ns: int
    method: str
    late_ns: int = 0
    """How far stamps lie behind the middle of what their samples average."""


def place(
    telemetry: Telemetry,
    table: KernelTable,
    gpus: Mapping[int, int],
    clocks: KnownClocks,
    shift_ns: int = 0,
) -> TelemetrySource:
    """Find the offset of a file: by its clock where that is known on the run's, else by signals.

    `gpus` maps GPUs of the file to those of the run,
    `shift_ns` is added to the offset that is found; without one it is the whole offset.
    """
    found = Recording(telemetry, table, gpus).offset(clocks, shift_ns)
    known = None if isinstance(found, str) else found
    offset_ns, method = (known.offset_ns, known.method) if known else (None, str(found))
    if gpus and telemetry.resolution_ns:
        offset_ns, method = shifted(offset_ns, method, shift_ns)
    source = placed_at(telemetry, gpus, offset_ns, method)
    if known is None:
        return source
    return replace(source, uncertainty_ns=known.uncertainty_ns, late_ns=known.late_ns)


def placed_at(
    telemetry: Telemetry, gpus: Mapping[int, int], offset_ns: int | None, method: str
) -> TelemetrySource:
    samples = sum(len(samples) for parts in telemetry.signals.values() for samples in parts)
    doubts = [
        replace(each, gpus=tuple(gpus[gpu] for gpu in each.gpus if gpu in gpus))
        for each in telemetry.doubts
    ]
    if offset_ns is None and gpus and not telemetry.is_of_node:
        text = f"samples of {telemetry.path.name} have no place in the run ({method}): left out"
        doubts.append(Doubt(DoubtKind.COVERAGE.value, samples, samples, text=text))
    return TelemetrySource(
        path=str(telemetry.path),
        format=telemetry.format,
        clock=str(telemetry.clock),
        offset_ns=offset_ns,
        uncertainty_ns=0,
        method=method,
        gpus=gpus,
        samples=samples,
        notes=(*telemetry.notes, *telemetry.losses.notes),
        doubts=tuple(doubts),
        unused=telemetry.unused,
    )


def shifted(offset_ns: int | None, method: str, shift_ns: int) -> tuple[int | None, str]:
    """An offset with the user's shift added, which is the whole offset where none was found."""
    if not shift_ns:
        return offset_ns, method
    by_hand = f"{shift_ns / 1e9:+.9g} s set by hand"
    if offset_ns is None:
        return shift_ns, f"{by_hand}: {method}"
    return offset_ns + shift_ns, f"{method}, {by_hand}"


class Recording(Struct, frozen=True):
    """A telemetry file and the run whose clock it is put on."""

    telemetry: Telemetry
    table: KernelTable
    gpus: Mapping[int, int]
    """GPU of the file → GPU of the run."""

    def offset(self, clocks: KnownClocks, shift_ns: int) -> Estimate | str:
        """The offset of the file before the user's shift, or a reason."""
        telemetry = self.telemetry
        if not self.gpus:
            return "none of its GPUs is in the run"
        if telemetry.resolution_ns == 0:
            return "its samples have no timestamps"
        if telemetry.clock in clocks:
            offset_ns, why = clocks[telemetry.clock]
            if self._covers(offset_ns + shift_ns):
                late_ns = self._lateness(offset_ns + shift_ns)
                return Estimate(offset_ns, telemetry.resolution_ns, why, late_ns)
            if telemetry.clock is ClockDomain.EPOCH:
                return "by its clock it doesn't overlap the run"
        if telemetry.clock is ClockDomain.LOCAL and ClockDomain.EPOCH in clocks:
            return self._in_a_zone(clocks[ClockDomain.EPOCH][0])
        return self.estimate()

    def _samples(self) -> list[SignalSamples]:
        return [each for parts in self.telemetry.signals.values() for each in parts if len(each)]

    def _span(self) -> tuple[int, int]:
        """The run's first start and last end, with a stamp's resolution on either side."""
        doubt = self.telemetry.resolution_ns
        ends = self.table.start_ns + self.table.duration_ns
        return int(self.table.start_ns.min()) - doubt, int(ends.max()) + doubt

    def _covers(self, shift_ns: int) -> bool:
        """Whether any sample of the shifted file lies within the run."""
        begin, end = self._span()
        stamps = [each.time_ns + shift_ns for each in self._samples()]
        return any(((begin <= times) & (times <= end)).any() for times in stamps)

    def _in_a_zone(self, epoch_ns: int) -> Estimate | str:
        """The offset of local time without a zone: the zone in which it covers the run, or as the
        only one a good part of it.

        Zones are multiples of 15 minutes. Where several fit, the signals decide.
        """
        first, last = ends_of_samples(self._samples())
        begin, end = self._span()
        doubt = self.telemetry.resolution_ns
        zones = range(_WEST * _QUARTER_NS, (_EAST + 1) * _QUARTER_NS, _QUARTER_NS)
        fitting = [
            zone
            for zone in zones
            if first - zone + epoch_ns <= begin + 2 * doubt
            and last - zone + epoch_ns >= end - 2 * doubt
        ]
        how = "the only zone in which it covers the run"
        if not fitting:
            # A log that begins late, or was stopped.
            least, how = _PART_OF_RUN * (end - begin), "the only zone in which it covers some of it"
            fitting = [
                zone
                for zone in zones
                if min(last - zone + epoch_ns, end) - max(first - zone + epoch_ns, begin) >= least
            ]
            if len(fitting) != 1:
                return "it doesn't cover the run in any time zone"
        zone = fitting[0]
        if len(fitting) > 1:
            found = self.estimate()
            if isinstance(found, str):
                return f"local time that covers the run in {len(fitting)} zones, and {found}"
            zone = min(fitting, key=lambda zone: abs(epoch_ns - zone - found.offset_ns))
            if abs(epoch_ns - zone - found.offset_ns) > _ZONE_DOUBT_NS + found.uncertainty_ns:
                return f"local time of no whole zone, though {found.method}"
            how = f"of {len(fitting)} zones the one that is {found.method}"
        text = f"local time of {_zone_text(zone)}{', ' if len(fitting) == 1 else ': '}{how}"
        return Estimate(epoch_ns - zone, doubt, text)

    def estimate(self) -> Estimate | str:
        """The offset at which a signal follows the activity of the trace best, or a reason.

        The share of time in which anything ran, and in which compute did, slides over the signal;
        the mean of the GPUs' multiple correlations peaks at the offset. Samples are taken for means
        since the sample before if they fit better so. The uncertainty is half the distance of the
        samples, as a tool may stamp the middle of what it averages, and three standard deviations
        of the peak.
        """
        reasons: list[str] = []
        for signal in _ACTIVITY_SIGNALS:
            if any((number, signal) in self.telemetry.signals for number in self.gpus):
                found = self._estimated(signal, is_first=not reasons)
                if isinstance(found, Estimate):
                    return found
                reasons.append(found)
        return reasons[0] if reasons else "it has no signal that follows the work of a GPU"

    def _estimated(self, signal: SignalName, *, is_first: bool) -> Estimate | str:
        recorded = self._recorded(signal)
        if recorded is None:
            return f"its {signal.value} has too few samples"
        every, period, (begin, end) = recorded.samples, recorded.period_ns, recorded.span
        first, last = ends_of_samples(every)
        if last - first < end - begin:
            return "it covers less time than the trace"
        step = max(period, (last - first) // _MAX_BINS)
        bins = int((end - begin) // step)
        if bins < _MIN_BINS:
            return "the trace is too short for its sampling interval"
        bounds = begin + step * np.arange(bins + 1.0)
        shares = [(whole.means(bounds), compute.means(bounds)) for whole, compute in recorded.work]
        peak = peak_of(shares, nearest_curves(every, period), (first, last), step)
        places = [refined(recorded, at) for at in (peak.place, peak.second)]
        known = [one for one in places if one is not None]
        if not known:
            return f"too few samples of its {signal.value} lie within the trace"
        best = max(known, key=lambda one: one.fit)
        others = [one.fit for one in known if one != best]
        rival = max([peak.rival if best is places[0] else peak.best, *others])
        chance = _CHANCE if peak.elsewhere < bins else _CHANCE_AS_SEEN
        least = _MIN_CORRELATION if is_first else _MIN_CORRELATION_OF_OTHERS
        if best.fit < max(least, _CHANCE_LEVEL + chance / np.sqrt(bins)):
            return (
                f"its {signal.value} doesn't follow the trace (correlation {best.fit:.2f} at best)"
            )
        if rival > _CLEAR * best.fit and likelihood_gain(best.fit, rival, bins) < _LIKELIER:
            return f"its {signal.value} fits at several places ({best.fit:.2f} and {rival:.2f})"
        how = "means since the sample before" if best.averages else "instants"
        return Estimate(
            begin - best.begin_ns,
            period // 2 + best.doubt_ns,
            f"estimated from {signal.value}, taken for {how}, against activity, correlation "
            f"{best.fit:.2f} (next place {rival:.2f})",
            period // 2 if best.averages else 0,
        )

    def _recorded(self, signal: SignalName) -> Recorded | None:
        """The samples of a signal; None where no GPU has enough."""
        every, rows_of, of_gpu = [], [], places_by(self.table.gpu)
        for number, gpu in self.gpus.items():
            samples, rows = _own_figure(self.telemetry, number, signal), of_gpu.get(gpu)
            if samples is not None and len(samples) > 2 and rows is not None:
                every.append(samples)
                rows_of.append(rows)
        return Recorded(self.table, every, rows_of) if every else None

    def _lateness(self, offset_ns: int) -> int:
        """How far stamps of known offset lie behind the middle of what they average.

        Half a period where samples are means since the sample before, and 0 where that is in doubt.
        """
        for signal in _ACTIVITY_SIGNALS:
            recorded = self._recorded(signal)
            if recorded is None or all(each.begin_ns is not None for each in recorded.samples):
                continue
            period, (begin, end) = recorded.period_ns, recorded.span
            is_long = (end - begin) // max(period, 1) >= _MIN_BINS
            return period // 2 if is_long and averages_at(recorded, begin - offset_ns) else 0
        return 0


def _zone_text(zone_ns: int) -> str:
    minutes = abs(zone_ns) // 60_000_000_000
    return f"UTC{'-' if zone_ns < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def _own_figure(telemetry: Telemetry, number: int, signal: SignalName) -> SignalSamples | None:
    """A GPU's own samples of a signal, not those of its parts."""
    parts = telemetry.signals.get((number, signal), ())
    return next((samples for samples in parts if samples.part == ""), None)


def placed_together(placed: Sequence[Placed]) -> list[Placed]:
    """The files, each placed as another one of the same GPUs and clock if that is known better.

    A file placed by a known clock, or by hand, is left unchanged.
    """
    found = list(placed)
    for number, (telemetry, source) in enumerate(found):
        by_signals = source.offset_ns is None or source.method.startswith("estimated")
        if not by_signals or "by hand" in source.method or telemetry.clock not in _SHARED:
            continue
        best, gpus = source, set(source.gpus.values())
        for other in (other for own, other in found if own is not telemetry):
            if other.clock != source.clock or gpus.isdisjoint(other.gpus.values()):
                continue
            if _is_better(other, best):
                doubt = other.uncertainty_ns
                best = replace(
                    source,
                    offset_ns=other.offset_ns,
                    uncertainty_ns=doubt,
                    method=f"as {other.path}, on the same clock",
                    late_ns=0 if doubt else other.late_ns,
                )
        found[number] = (telemetry, best)
    return found


def _is_better(other: TelemetrySource, best: TelemetrySource) -> bool:
    """Whether an offset is known, more certain than the best one, and doesn't contradict it."""
    if other.offset_ns is None or best.offset_ns is None:
        return other.offset_ns is not None
    doubts_ns = other.uncertainty_ns + best.uncertainty_ns
    is_finer = other.uncertainty_ns < best.uncertainty_ns
    return is_finer and abs(other.offset_ns - best.offset_ns) <= doubts_ns


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
            offset_ns, method = None, f"{method}: it doesn't overlap the run"
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
        corrected = f"its clock is the run's, corrected by {epoch_ns} ns as its host's"
        return epoch_ns, 1, corrected if epoch_ns else "known: its clock is the run's"
    usable = [
        source
        for source in telemetry
        if source.clock == str(file.clock) and source.offset_ns is not None
    ]
    if file.clock in _SHARED and usable:
        finest = min(usable, key=lambda source: source.uncertainty_ns)
        return finest.offset_ns, finest.uncertainty_ns, f"as {finest.path}, on the same clock"
    return None, 0, f"its clock ({file.clock}) is not the run's, and no telemetry has the same"
